#include "server/transport/http2/http2_session.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sluice::transport {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The payload of a PING identifies its answer.
constexpr uint8_t kDrainPing[8] = {'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'};
constexpr uint8_t kKeepalivePing[8] = {'a', 'l', 'i', 'v', 'e', '?', 0, 0};

std::string_view View(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

// What nghttp2 calls; `self` is the session.
struct Http2Session::Callbacks {
  static int OnBeginHeaders(nghttp2_session* session, const nghttp2_frame* frame, void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    const bool request = frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    self->header_bytes_ = 0;
    self->rules_.Begin(/*trailers=*/!request);
    if (frame->hd.stream_id > self->last_served_) {
      // nghttp2 closes it when the final GOAWAY is sent.
      self->header_stream_ = nullptr;
    } else if (request) {
      ++self->open_streams_;
      Http2Stream& stream = self->handler_.OnRequest();
      stream.id = frame->hd.stream_id;
      stream.content_left = RequestRules::kNotAnnounced;
      self->header_stream_ = &stream;
      nghttp2_session_set_stream_user_data(session, stream.id, &stream);
    } else {
      self->header_stream_ = self->FindStream(frame->hd.stream_id);
    }
    return 0;
  }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    if (self->header_stream_ == nullptr) {
      return frame->hd.stream_id > self->last_served_ ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    const std::string_view name_text = View(name, name_size);
    const std::string_view value_text = View(value, value_size);
    if (!self->rules_.Judge(name_text, value_text)) {
      self->Refuse(frame->hd.stream_id);
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    const size_t bound = self->environment_.options().max_header_list_bytes;
    const size_t before = self->header_bytes_;
    self->header_bytes_ += name_size + value_size + 32;
    if (self->header_bytes_ > bound) {
      if (before <= bound) self->header_stream_->OnHeadersTooLarge();
      // A list that is a little too large is answered. The rest of one that is much too large (a
      // few bytes can expand to megabytes) is not decoded, which resets the stream.
      if (self->header_bytes_ <= 4 * bound) return 0;
      constexpr int32_t kWeight = 20;
      if (!self->scanner_.StreamFault(kWeight, self->now_ns_)) {
        self->Terminate(NGHTTP2_ENHANCE_YOUR_CALM, "too_many_large_headers");
      }
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    self->header_stream_->OnHeader(name_text, value_text);
    return 0;
  }

  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    const int32_t stream_id = frame->hd.stream_id;
    const bool end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS: {
        if (self->header_stream_ == nullptr) break;
        const bool request = frame->headers.cat == NGHTTP2_HCAT_REQUEST;
        if (!self->CheckHeaderBlock(request, end)) {
          self->Refuse(stream_id);
        } else if (request) {
          self->header_stream_->OnHeadersDone(end);
        } else if (end) {
          self->header_stream_->OnEnd();
        }
        break;
      }
      case NGHTTP2_DATA: {
        Http2Stream* const stream = end ? self->FindStream(stream_id) : nullptr;
        if (stream == nullptr) break;
        if (CheckContent(*stream, 0, true)) {
          stream->OnEnd();
        } else {
          self->Refuse(stream_id);
        }
        break;
      }
      case NGHTTP2_RST_STREAM:
        self->reset_by_peer_ = stream_id;
        break;
      case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) && self->drain_ == DrainState::kNotified &&
            std::memcmp(frame->ping.opaque_data, kDrainPing, sizeof(kDrainPing)) == 0) {
          self->final_goaway_due_ = true;
        }
        break;
      default:
        break;
    }
    return 0;
  }

  static int OnDataChunk(nghttp2_session* session, uint8_t, int32_t stream_id, const uint8_t* data,
                         size_t size, void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    if (self->window_held_) {
      self->window_owed_ += size;
    } else {
      nghttp2_session_consume_connection(session, size);
    }
    Http2Stream* const stream = self->FindStream(stream_id);
    if (stream == nullptr) return 0;
    if (CheckContent(*stream, size, false)) {
      stream->OnData({data, size});
    } else {
      self->Refuse(stream_id);
    }
    return 0;
  }

  static int OnStreamClose(nghttp2_session*, int32_t stream_id, uint32_t error_code,
                           void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    const bool by_us = self->reset_by_us_ == stream_id;
    const bool by_peer = self->reset_by_peer_ == stream_id;
    // The client may not know yet that a stream above last_served_ is closed.
    if (!by_us && stream_id <= self->last_served_) self->scanner_.StreamClosedByPeer(stream_id);
    Http2Stream* const stream = self->FindStream(stream_id);
    if (stream == nullptr) return 0;
    if (by_peer) {
      constexpr int64_t kShortLivedNs = 100'000'000;
      const bool short_lived = self->now_ns_ - stream->arrived_ns < kShortLivedNs;
      if (!self->scanner_.StreamResetByPeer(short_lived, self->now_ns_)) {
        self->Terminate(NGHTTP2_ENHANCE_YOUR_CALM, "too_many_resets");
      }
    } else if (error_code == NGHTTP2_NO_ERROR) {
      self->scanner_.CallFinished();
    }
    if (--self->open_streams_ == 0) self->idle_since_ns_ = self->now_ns_;
    if (self->header_stream_ == stream) self->header_stream_ = nullptr;
    self->handler_.OnStreamClosed(*stream);
    return 0;
  }

  static int OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame, void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    switch (frame->hd.type) {
      case NGHTTP2_DATA:
      case NGHTTP2_HEADERS:
        self->scanner_.SentUseful();
        if (self->early_ends_ > 0 && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 &&
            nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) == 0) {
          --self->early_ends_;
          self->ResetStream(frame->hd.stream_id, NGHTTP2_NO_ERROR);
        }
        break;
      case NGHTTP2_RST_STREAM: {
        self->reset_by_us_ = frame->hd.stream_id;
        const uint32_t code = frame->rst_stream.error_code;
        const bool peer_fault = code != NGHTTP2_NO_ERROR && code != NGHTTP2_CANCEL;
        if (peer_fault && !self->scanner_.StreamFault(1, self->now_ns_)) {
          self->Terminate(NGHTTP2_ENHANCE_YOUR_CALM, "too_many_stream_errors");
        }
        break;
      }
      default:
        break;
    }
    return 0;
  }

  static ssize_t OnReadBody(nghttp2_session*, int32_t, uint8_t*, size_t room, uint32_t* flags,
                            nghttp2_data_source* source, void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    using Then = Http2Stream::Body::Then;
    const Http2Stream::Body body = static_cast<Http2Stream*>(source->ptr)->OnSendBody(room);
    if (body.then != Then::kMore) {
      *flags |= NGHTTP2_DATA_FLAG_EOF;
      if (body.then == Then::kTrailers) *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    } else if (body.bytes.empty()) {
      return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    self->body_ = body.bytes;
    return static_cast<ssize_t>(body.bytes.size());
  }

  // Follows OnReadBody at once. `header` is the frame's. Copies the body once, from its stream.
  static int OnSendData(nghttp2_session*, nghttp2_frame*, const uint8_t* header, size_t size,
                        nghttp2_data_source* source, void* self_ptr) {
    auto* const self = static_cast<Http2Session*>(self_ptr);
    constexpr size_t kFrameHeader = 9;
    uint8_t* const to = self->output_->Reserve(kFrameHeader + size);
    std::memcpy(to, header, kFrameHeader);
    if (size > 0) std::memcpy(to + kFrameHeader, self->body_.data(), size);
    self->output_->Commit(kFrameHeader + size);
    static_cast<Http2Stream*>(source->ptr)->OnBodySent();
    // PAUSE: the frame counts as sent, and the rest waits.
    return self->output_->size() < self->output_limit_ ? 0 : NGHTTP2_ERR_PAUSE;
  }
};

Http2Environment::Http2Environment(const Http2Options& options) : options_(options) {
  using Callbacks = Http2Session::Callbacks;
  nghttp2_session_callbacks_new(&callbacks_);
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks_, &Callbacks::OnBeginHeaders);
  nghttp2_session_callbacks_set_on_header_callback(callbacks_, &Callbacks::OnHeader);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks_, &Callbacks::OnFrame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks_, &Callbacks::OnDataChunk);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks_, &Callbacks::OnStreamClose);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks_, &Callbacks::OnFrameSent);
  nghttp2_session_callbacks_set_send_data_callback(callbacks_, &Callbacks::OnSendData);

  nghttp2_option_new(&nghttp2_options_);
  nghttp2_option_set_no_auto_window_update(nghttp2_options_, 1);
  nghttp2_option_set_no_http_messaging(nghttp2_options_, 1);  // request_rules.h
  // Closed streams, kept for the priority tree, would cost up to ten times all other memory.
  nghttp2_option_set_no_closed_streams(nghttp2_options_, 1);
  // The scanner bounds resets, but not those of calls that were cancelled after a wait. nghttp2's
  // own limit counts all resets, so it is set far above.
  nghttp2_option_set_stream_reset_rate_limit(nghttp2_options_, 1'000'000, 1'000'000);
}

Http2Environment::~Http2Environment() {
  nghttp2_option_del(nghttp2_options_);
  nghttp2_session_callbacks_del(callbacks_);
}

Http2Session::Http2Session(Http2Environment& environment, Handler& handler, int64_t now_ns)
    : environment_(environment),
      handler_(handler),
      memory_{environment.memory()},
      scanner_(now_ns),
      now_ns_(now_ns),
      started_ns_(now_ns),
      received_ns_(now_ns),
      idle_since_ns_(now_ns) {
  nghttp2_mem allocator = MemoryPool::ForNghttp2(memory_);
  if (nghttp2_session_server_new3(&session_, environment_.callbacks(), this,
                                  environment_.nghttp2_options(), &allocator) != 0) {
    std::abort();  // out of memory
  }
  const Http2Options& options = environment_.options();
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, options.stream_window_bytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, options.max_header_list_bytes},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                        static_cast<int32_t>(options.connection_window_bytes));
  PlanWake();
}

Http2Session::~Http2Session() { nghttp2_session_del(session_); }

void Http2Session::Receive(absl::Span<const uint8_t> data, int64_t now_ns) {
  now_ns_ = now_ns;
  received_ns_ = now_ns;
  ping_sent_ns_ = 0;
  while (!data.empty() && !terminated_) {
    const FrameScanner::Verdict verdict = scanner_.Scan(data, now_ns);
    if (verdict.pass > 0) {
      const ssize_t taken = nghttp2_session_mem_recv(session_, data.data(), verdict.pass);
      if (taken < 0) {
        switch (taken) {
          case NGHTTP2_ERR_BAD_CLIENT_MAGIC:
            Terminate(NGHTTP2_PROTOCOL_ERROR, "not an HTTP/2 client");
            break;
          case NGHTTP2_ERR_FLOODED:
            Terminate(NGHTTP2_ENHANCE_YOUR_CALM, "too many frames to answer");
            break;
          default:
            Terminate(NGHTTP2_INTERNAL_ERROR, nghttp2_strerror(static_cast<int>(taken)));
        }
        return;
      }
    }
    if (verdict.error != 0) {
      Terminate(verdict.error, verdict.text);
      return;
    }
    data.remove_prefix(verdict.pass);
  }
  // Not before: requests that arrived together with the answer to the PING are served.
  if (std::exchange(final_goaway_due_, false)) SubmitFinalGoaway();
  if (!scanner_.mid_frame()) {
    frame_since_ns_ = 0;
  } else if (frame_since_ns_ == 0 ||
             (scanner_.frames() != frames_seen_ && !scanner_.in_header_block())) {
    frame_since_ns_ = now_ns;
    next_wake_ns_ = std::min(next_wake_ns_, now_ns + environment_.options().frame_timeout_ns);
  }
  frames_seen_ = scanner_.frames();
}

bool Http2Session::Send(size_t limit, Buffer* output) {
  output_ = output;
  output_limit_ = limit;
  while (output->size() < limit) {
    // OnSendData appends DATA frames; `frame` follows them.
    const uint8_t* frame = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_, &frame);
    if (size < 0) {
      Terminate(NGHTTP2_INTERNAL_ERROR, nghttp2_strerror(static_cast<int>(size)));
      return false;
    }
    if (size == 0 && output->size() < limit) return false;
    output->Append(frame, static_cast<size_t>(size));
  }
  return nghttp2_session_want_write(session_) != 0;
}

bool Http2Session::finished() const {
  return nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0;
}

void Http2Session::SubmitHeaders(Http2Stream& stream, absl::Span<const HeaderField> headers,
                                 bool has_body) {
  nghttp2_data_provider provider;
  provider.source.ptr = &stream;
  provider.read_callback = &Callbacks::OnReadBody;
  nghttp2_submit_response(session_, stream.id, headers.data(), headers.size(),
                          has_body ? &provider : nullptr);
}

void Http2Session::SubmitTrailers(Http2Stream& stream, absl::Span<const HeaderField> trailers) {
  nghttp2_submit_trailer(session_, stream.id, trailers.data(), trailers.size());
}

void Http2Session::ResumeBody(Http2Stream& stream) {
  nghttp2_session_resume_data(session_, stream.id);
}

void Http2Session::ConsumeStream(Http2Stream& stream, size_t bytes) {
  nghttp2_session_consume_stream(session_, stream.id, bytes);
}

void Http2Session::HoldConnectionWindow(bool hold) {
  window_held_ = hold;
  if (!hold && window_owed_ > 0) {
    nghttp2_session_consume_connection(session_, std::exchange(window_owed_, 0));
  }
}

void Http2Session::Reset(Http2Stream& stream, uint32_t error_code) {
  ResetStream(stream.id, error_code);
}

void Http2Session::ResetStream(int32_t stream_id, uint32_t error_code) {
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream_id, error_code);
}

void Http2Session::Refuse(int32_t stream_id) { ResetStream(stream_id, NGHTTP2_PROTOCOL_ERROR); }

Http2Stream* Http2Session::FindStream(int32_t stream_id) const {
  return static_cast<Http2Stream*>(nghttp2_session_get_stream_user_data(session_, stream_id));
}

void Http2Session::Drain(int64_t now_ns) {
  if (drain_ != DrainState::kNone || terminated_) return;
  drain_ = DrainState::kNotified;
  drained_ns_ = now_ns;
  nghttp2_submit_shutdown_notice(session_);
  nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, kDrainPing);
  PlanWake();
}

void Http2Session::SubmitFinalGoaway() {
  if (drain_ == DrainState::kFinal) return;
  drain_ = DrainState::kFinal;
  last_served_ = nghttp2_session_get_last_proc_stream_id(session_);
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, last_served_, NGHTTP2_NO_ERROR, nullptr, 0);
  PlanWake();
}

void Http2Session::Terminate(uint32_t error_code, const char* text) {
  if (terminated_) return;
  terminated_ = true;
  error_text_ = text;
  // The first GOAWAY carries the reason for logs (gRPC clients slow down on too_many_pings). The
  // second makes nghttp2 end the session once it is sent.
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_), error_code,
                        reinterpret_cast<const uint8_t*>(text), std::strlen(text));
  nghttp2_session_terminate_session(session_, error_code);
}

void Http2Session::PlanWake() {
  const Http2Options& options = environment_.options();
  int64_t wake = kNever;
  const auto at = [&wake](int64_t since_ns, int64_t after_ns) {
    wake = std::min(wake, since_ns > kNever - after_ns ? kNever : since_ns + after_ns);
  };
  if (!scanner_.greeted()) at(started_ns_, options.greeting_timeout_ns);
  if (frame_since_ns_ != 0) at(frame_since_ns_, options.frame_timeout_ns);
  if (ping_sent_ns_ != 0) {
    at(ping_sent_ns_, options.keepalive_timeout_ns);
  } else if (options.keepalive_ns > 0) {
    at(received_ns_, options.keepalive_ns);
  }
  if (drain_ == DrainState::kNone) {
    if (options.max_idle_ns > 0) {
      // With open streams the connection can be idle for that long from now on at the earliest.
      at(open_streams_ == 0 ? idle_since_ns_ : now_ns_, options.max_idle_ns);
    }
    if (options.max_age_ns > 0) at(started_ns_, options.max_age_ns);
  } else if (drain_ == DrainState::kNotified) {
    at(drained_ns_, options.drain_notice_ns);
  } else if (age_drain_) {
    at(drained_ns_, options.max_age_grace_ns);
  }
  next_wake_ns_ = wake;
}

bool Http2Session::OnTime(int64_t now_ns) {
  now_ns_ = now_ns;
  const Http2Options& options = environment_.options();
  const auto passed = [now_ns](int64_t since_ns, int64_t after_ns) {
    return now_ns - since_ns >= after_ns;
  };
  bool alive = true;
  if (!scanner_.greeted() && passed(started_ns_, options.greeting_timeout_ns)) {
    Terminate(NGHTTP2_SETTINGS_TIMEOUT, "the client sent no SETTINGS in time");
  }
  if (frame_since_ns_ != 0 && passed(frame_since_ns_, options.frame_timeout_ns)) {
    Terminate(NGHTTP2_ENHANCE_YOUR_CALM, "a frame or a header block did not end in time");
  }
  if (ping_sent_ns_ != 0) {
    if (passed(ping_sent_ns_, options.keepalive_timeout_ns)) {
      error_text_ = "the peer did not answer a keepalive PING";
      alive = false;
    }
  } else if (options.keepalive_ns > 0 && passed(received_ns_, options.keepalive_ns)) {
    nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, kKeepalivePing);
    ping_sent_ns_ = now_ns;
  }
  switch (drain_) {
    case DrainState::kNone:
      if (options.max_age_ns > 0 && passed(started_ns_, options.max_age_ns)) {
        age_drain_ = true;
        Drain(now_ns);
      } else if (options.max_idle_ns > 0 && open_streams_ == 0 &&
                 passed(idle_since_ns_, options.max_idle_ns)) {
        Drain(now_ns);
      }
      break;
    case DrainState::kNotified:
      if (passed(drained_ns_, options.drain_notice_ns)) SubmitFinalGoaway();
      break;
    case DrainState::kFinal:
      if (age_drain_ && passed(drained_ns_, options.max_age_grace_ns)) {
        error_text_ = "the connection outlived its maximum age";
        alive = false;
      }
      break;
  }
  PlanWake();
  return alive;
}

bool Http2Session::CheckHeaderBlock(bool request, bool end) {
  if (!rules_.Complete(end)) return false;
  if (request) header_stream_->content_left = rules_.content_length();
  return !end || CheckContent(*header_stream_, 0, true);
}

bool Http2Session::CheckContent(Http2Stream& stream, size_t bytes, bool end) {
  int64_t& left = stream.content_left;
  if (left == RequestRules::kNotAnnounced) return true;
  const auto size = static_cast<int64_t>(bytes);
  if (size > left || (end && left > 0)) {
    left = RequestRules::kNotAnnounced - 1;  // refuses the rest of the body, too
    return false;
  }
  left -= size;
  return true;
}

}  // namespace sluice::transport
