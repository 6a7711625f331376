#include "common/http2/client_session.h"

#include <vector>

namespace sluice::http2 {

ClientSession::ClientSession(const SessionOptions& options, Handler& handler, int64_t now_ns,
                             int32_t first_id)
    : Session(Role::kClient, options, ResponseVocabulary(), now_ns),
      handler_(handler),
      next_id_(first_id) {
  control().Append(kPreface);
  WriteSettings({{Setting::kEnablePush, 0},
                 {Setting::kInitialWindowSize, options.stream_window_bytes},
                 {Setting::kMaxHeaderListSize, options.max_header_list_bytes}});
  WriteWindowUpdate(0, options.connection_window_bytes - kDefaultWindow);
}

void ClientSession::Submit(Stream& stream, bool has_body) {
  Open(stream, next_id_);
  // After the highest id the next one would be negative.
  next_id_ = next_id_ == kMaxStreamId ? -1 : next_id_ + 2;
  BeginSending(stream, has_body);
}

// ---- Responses

void ClientSession::OnHeaderBlock(const HeaderBlock& block) {
  Stream* const stream = Find(block.stream_id);
  if (stream == nullptr) {
    if (IsIdle(block.stream_id)) {
      Fail(ErrorCode::kProtocolError, "HEADERS on an idle stream");
    } else {
      SkipHeaders(block);  // of a stream that was reset
    }
    return;
  }
  switch (stream->receiving_) {
    case Receiving::kHeaders:
      TakeResponse(*stream, block);
      break;
    case Receiving::kBody:
      TakeTrailers(*stream, block);
      break;
    case Receiving::kEnded:
      Fail(ErrorCode::kStreamClosed, "HEADERS after the end of their stream");
      break;
    case Receiving::kIgnored:
      SkipHeaders(block);
      break;
  }
}

void ClientSession::TakeResponse(Stream& stream, const HeaderBlock& block) {
  rules_.Begin(/*trailers=*/false);
  if (!TakeHeaders(stream, block, rules_)) return;
  if (rules_.skips()) {
    Bound(floods().unknown.Spend(1, now_ns()), "too_many_informational_responses");
    return;
  }
  stream.content_left_ = rules_.content_length();
  if (block.end_stream && !CheckContent(stream, 0, /*end=*/true)) return;
  stream.receiving_ = block.end_stream ? Receiving::kEnded : Receiving::kBody;
  stream.OnHeadersDone(block.end_stream);
  if (block.end_stream) OnEndReceived(stream);
}

void ClientSession::TakeTrailers(Stream& stream, const HeaderBlock& block) {
  rules_.Begin(/*trailers=*/true);
  if (!TakeHeaders(stream, block, rules_) || !CheckContent(stream, 0, /*end=*/true)) return;
  stream.receiving_ = Receiving::kEnded;
  stream.OnEnd();
  OnEndReceived(stream);
}

// ---- Streams that end

bool ClientSession::IsIdle(int32_t stream_id) const {
  // Servers open no streams: they may not push.
  return (stream_id & 1) == 0 || (next_id_ > 0 && stream_id >= next_id_);
}

void ClientSession::OnResetReceived(Stream& stream, ErrorCode code) {
  const auto kind = code == ErrorCode::kRefusedStream ? StreamEnd::Kind::kNotProcessed
                                                      : StreamEnd::Kind::kResetByPeer;
  Close(stream, {kind, code, ""});
}

void ClientSession::OnEndReceived(Stream& stream) {
  if (stream.receiving_ != Receiving::kEnded) return;  // reset by its user
  // A response that is complete before the request: the rest of the request is of no use.
  if (stream.sending_ != Sending::kEnded) WriteReset(stream.id(), ErrorCode::kNoError);
  Close(stream, {});
}

void ClientSession::OnClosed(Stream& stream, const StreamEnd& end) {
  if (end.kind == StreamEnd::Kind::kComplete) floods().CallFinished();
  handler_.OnStreamClosed(stream, end);
}

void ClientSession::OnGoawayReceived(int32_t last_stream_id, ErrorCode code,
                                     std::string_view text) {
  going_away_ = true;
  handler_.OnGoaway(last_stream_id, code, text);
  std::vector<Stream*> not_processed;
  streams().ForEach([&](Stream& stream) {
    if (stream.id() > last_stream_id || !stream.begun()) not_processed.push_back(&stream);
  });
  for (Stream* const stream : not_processed) {
    Close(*stream, {StreamEnd::Kind::kNotProcessed, code, ""});
  }
}

}  // namespace sluice::http2
