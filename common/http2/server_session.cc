#include "common/http2/server_session.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sluice::http2 {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The payload of a PING identifies its answer.
constexpr uint64_t kDrainPing = 0x647261696e696e67;  // "draining"
constexpr uint64_t kKeepalivePing = 0x616c6976653f0000;

// A flood opens streams and resets them at once; honest callers wait before they give up.
constexpr int64_t kShortLivedNs = 100'000'000;

}  // namespace

ServerSession::ServerSession(const ServerOptions& options, Handler& handler, int64_t now_ns)
    : Session(Role::kServer, options, RequestVocabulary(), now_ns),
      options_(options),
      handler_(handler),
      started_ns_(now_ns),
      received_ns_(now_ns),
      idle_since_ns_(now_ns) {
  WriteSettings({{Setting::kMaxConcurrentStreams, options.max_concurrent_streams},
                 {Setting::kInitialWindowSize, options.stream_window_bytes},
                 {Setting::kMaxHeaderListSize, options.max_header_list_bytes}});
  WriteWindowUpdate(0, options.connection_window_bytes - kDefaultWindow);
  PlanWake();
}

void ServerSession::Receive(absl::Span<const uint8_t> data, int64_t now_ns) {
  received_ns_ = now_ns;
  ping_sent_ns_ = 0;
  TakeInput(data, now_ns);
  // Not before: requests that arrived together with the answer to the PING are served.
  if (std::exchange(final_goaway_due_, false)) SendFinalGoaway();
  WatchUnfinishedFrame();
}

bool ServerSession::finished() const {
  if (wants_send()) return false;
  if (ended()) return true;
  return streams().size() == 0 && (drain_ == DrainState::kFinal || goaway_received_);
}

// ---- Requests

void ServerSession::OnHeaderBlock(const HeaderBlock& block) {
  Stream* const stream = Find(block.stream_id);
  if (stream != nullptr) {
    TakeTrailers(*stream, block);
  } else if (block.stream_id > last_stream_id_ && (block.stream_id & 1) != 0) {
    TakeRequest(block);
  } else {
    TakeLateHeaders(block);
  }
}

void ServerSession::TakeRequest(const HeaderBlock& block) {
  const int32_t expected = last_stream_id_ == 0 ? 1 : last_stream_id_ + 2;
  if (block.stream_id > expected) {
    skipped_[skipped_next_++ % skipped_.size()] = {expected, block.stream_id - 2};
  }
  last_stream_id_ = block.stream_id;
  floods().StreamOpened();
  if (block.stream_id > last_served_) {
    DropHeaders(block);
    return;
  }
  if (streams().size() >= options_.max_concurrent_streams) {
    if (!Bound(floods().resets.Spend(1, now_ns()), "too_many_stream_errors")) return;
    WriteReset(block.stream_id, ErrorCode::kRefusedStream);
    SkipHeaders(block);
    return;
  }
  last_handled_ = block.stream_id;
  Stream& stream = handler_.OnRequest();
  Open(stream, block.stream_id);
  rules_.Begin(/*trailers=*/false);
  if (!TakeHeaders(stream, block, rules_)) return;
  stream.content_left_ = rules_.content_length();
  if (block.end_stream && !CheckContent(stream, 0, /*end=*/true)) return;
  stream.receiving_ = block.end_stream ? Receiving::kEnded : Receiving::kBody;
  stream.OnHeadersDone(block.end_stream);
}

void ServerSession::TakeTrailers(Stream& stream, const HeaderBlock& block) {
  if (stream.receiving_ == Receiving::kIgnored) {
    DropHeaders(block);
    return;
  }
  if (stream.receiving_ == Receiving::kEnded) {
    Fail(ErrorCode::kStreamClosed, "HEADERS after the end of their stream");
    return;
  }
  rules_.Begin(/*trailers=*/true);
  if (!TakeHeaders(stream, block, rules_) || !CheckContent(stream, 0, /*end=*/true)) return;
  stream.receiving_ = Receiving::kEnded;
  stream.OnEnd();
}

void ServerSession::TakeLateHeaders(const HeaderBlock& block) {
  if ((block.stream_id & 1) == 0) {
    Fail(ErrorCode::kProtocolError, "HEADERS on a stream that is not the client's");
    return;
  }
  for (const SkippedRange& range : skipped_) {
    if (block.stream_id >= range.first && block.stream_id <= range.last) {
      Fail(ErrorCode::kProtocolError, "HEADERS with a stream id that was skipped");
      return;
    }
  }
  if (ClosedByPeer(block.stream_id)) {
    Fail(ErrorCode::kStreamClosed, "HEADERS on a closed stream");
    return;
  }
  DropHeaders(block);
}

void ServerSession::DropHeaders(const HeaderBlock& block) {
  if (Bound(floods().resets.Spend(1, now_ns()), "too_many_late_headers")) SkipHeaders(block);
}

// ---- Streams that end

bool ServerSession::ClosedByPeer(int32_t stream_id) const {
  return stream_id <= newest_closed_ && std::find(closed_by_peer_.begin(), closed_by_peer_.end(),
                                                  stream_id) != closed_by_peer_.end();
}

bool ServerSession::IsIdle(int32_t stream_id) const {
  return (stream_id & 1) == 0 || stream_id > last_stream_id_;
}

void ServerSession::OnDataOnClosed(int32_t stream_id) {
  if (ClosedByPeer(stream_id)) Fail(ErrorCode::kStreamClosed, "DATA on a closed stream");
}

void ServerSession::OnResetReceived(Stream& stream, ErrorCode code) {
  if (now_ns() - stream.arrived_ns < kShortLivedNs) {
    Bound(floods().resets.Spend(1, now_ns()), "too_many_resets");
  }
  Close(stream, {StreamEnd::Kind::kResetByPeer, code, ""});
}

void ServerSession::OnEndReceived(Stream& stream) {}

void ServerSession::OnEndSent(Stream& stream) {
  // The client need not go on with its request.
  WriteReset(stream.id(), ErrorCode::kNoError);
  Close(stream, {});
}

void ServerSession::OnClosed(Stream& stream, const StreamEnd& end) {
  const bool complete = end.kind == StreamEnd::Kind::kComplete;
  if (complete) floods().CallFinished();
  if (end.kind == StreamEnd::Kind::kResetByPeer ||
      (complete && stream.receiving_ == Receiving::kEnded)) {
    closed_by_peer_[closed_next_++ % closed_by_peer_.size()] = stream.id();
    newest_closed_ = std::max(newest_closed_, stream.id());
  }
  if (streams().size() == 0) idle_since_ns_ = now_ns();
  handler_.OnStreamClosed(stream);
}

// ---- The end of the connection

void ServerSession::OnGoawayReceived(int32_t, ErrorCode, std::string_view) {
  goaway_received_ = true;
}

void ServerSession::OnPingAckReceived(uint64_t payload) {
  if (payload == kDrainPing && drain_ == DrainState::kNotified) final_goaway_due_ = true;
}

void ServerSession::Drain(int64_t now_ns, int64_t most_notice_ns) {
  if (drain_ != DrainState::kNone || ended()) return;
  notice_ns_ = std::min(options_.drain_notice_ns, most_notice_ns);
  drain_ = DrainState::kNotified;
  drained_ns_ = now_ns;
  WriteGoaway(kMaxStreamId, ErrorCode::kNoError, "");
  WritePing(kDrainPing, kNoFlags);
  PlanWake();
}

void ServerSession::SendFinalGoaway() {
  if (drain_ == DrainState::kFinal || ended()) return;
  drain_ = DrainState::kFinal;
  last_served_ = last_handled_;
  WriteGoaway(last_served_, ErrorCode::kNoError, "");
  PlanWake();
}

// ---- Time

void ServerSession::WatchUnfinishedFrame() {
  if (!mid_frame()) {
    frame_since_ns_ = 0;
  } else if (frame_since_ns_ == 0 || (frames() != frames_seen_ && !in_header_block())) {
    frame_since_ns_ = now_ns();
    next_wake_ns_ = std::min(next_wake_ns_, now_ns() + options_.frame_timeout_ns);
  }
  frames_seen_ = frames();
}

void ServerSession::PlanWake() {
  int64_t wake = kNever;
  const auto at = [&wake](int64_t since_ns, int64_t after_ns) {
    wake = std::min(wake, since_ns > kNever - after_ns ? kNever : since_ns + after_ns);
  };
  if (!greeted()) at(started_ns_, options_.greeting_timeout_ns);
  if (frame_since_ns_ != 0) at(frame_since_ns_, options_.frame_timeout_ns);
  if (ping_sent_ns_ != 0) {
    at(ping_sent_ns_, options_.keepalive_timeout_ns);
  } else if (options_.keepalive_ns > 0) {
    at(received_ns_, options_.keepalive_ns);
  }
  if (drain_ == DrainState::kNone) {
    if (options_.max_idle_ns > 0) {
      // With open streams the connection can be idle for that long from now on at the earliest.
      at(streams().size() == 0 ? idle_since_ns_ : now_ns(), options_.max_idle_ns);
    }
    if (options_.max_age_ns > 0) at(started_ns_, options_.max_age_ns);
  } else if (drain_ == DrainState::kNotified) {
    at(drained_ns_, notice_ns_);
  } else if (age_drain_) {
    at(drained_ns_, options_.max_age_grace_ns);
  }
  next_wake_ns_ = wake;
}

bool ServerSession::OnTime(int64_t now_ns) {
  set_now_ns(now_ns);
  const auto passed = [now_ns](int64_t since_ns, int64_t after_ns) {
    return now_ns - since_ns >= after_ns;
  };
  if (!greeted() && passed(started_ns_, options_.greeting_timeout_ns)) {
    Terminate(ErrorCode::kSettingsTimeout, "the client sent no SETTINGS in time");
  }
  if (frame_since_ns_ != 0 && passed(frame_since_ns_, options_.frame_timeout_ns)) {
    Terminate(ErrorCode::kEnhanceYourCalm, "a frame or a header block did not end in time");
  }
  bool alive = true;
  if (ping_sent_ns_ != 0) {
    if (passed(ping_sent_ns_, options_.keepalive_timeout_ns)) {
      abort_text_ = "the peer did not answer a keepalive PING";
      alive = false;
    }
  } else if (options_.keepalive_ns > 0 && passed(received_ns_, options_.keepalive_ns)) {
    WritePing(kKeepalivePing, kNoFlags);
    ping_sent_ns_ = now_ns;
  }
  if (!OnDrainTime(now_ns)) alive = false;
  PlanWake();
  return alive;
}

bool ServerSession::OnDrainTime(int64_t now_ns) {
  const auto passed = [now_ns](int64_t since_ns, int64_t after_ns) {
    return now_ns - since_ns >= after_ns;
  };
  switch (drain_) {
    case DrainState::kNone:
      if (options_.max_age_ns > 0 && passed(started_ns_, options_.max_age_ns)) {
        age_drain_ = true;
        Drain(now_ns);
      } else if (options_.max_idle_ns > 0 && streams().size() == 0 &&
                 passed(idle_since_ns_, options_.max_idle_ns)) {
        Drain(now_ns);
      }
      return true;
    case DrainState::kNotified:
      if (passed(drained_ns_, notice_ns_)) SendFinalGoaway();
      return true;
    case DrainState::kFinal:
      break;
  }
  if (!age_drain_ || !passed(drained_ns_, options_.max_age_grace_ns)) return true;
  abort_text_ = "the connection outlived its maximum age";
  return false;
}

}  // namespace sluice::http2
