// Http2Session: one HTTP/2 connection as bytes in and bytes out, on nghttp2. It knows no sockets,
// no threads and no gRPC.
//
// Beside what nghttp2 does, it enforces what nghttp2 leaves to its user: budgets for floods
// (frame_scanner.h), the size of header lists, frames on closed streams, time-outs for the
// greeting and for header blocks, keepalive, idle and age limits, and the order of a graceful end
// (shutdown notice, wait, final GOAWAY). What makes a request malformed it judges itself
// (request_rules.h).
//
// Not thread-safe; never blocks. Time comes in with each call (Clock::NowNs).
//
// Use, on each piece of input:
//   session.Receive(bytes, now_ns);    // -> handler callbacks, which may submit answers
//   session.Send(room, &output);       // until it writes nothing more; send the output
//   if (session.finished()) close, after the output, with a half-close and a drain
// and at next_wake_ns(): session.OnTime(now_ns), then Send.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP2_HTTP2_SESSION_H_
#define SLUICE_SERVER_TRANSPORT_HTTP2_HTTP2_SESSION_H_

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <limits>
#include <string_view>

#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/transport/http2/buffer.h"
#include "server/transport/http2/frame_scanner.h"
#include "server/transport/http2/memory_pool.h"
#include "server/transport/http2/request_rules.h"

namespace sluice::transport {

struct Http2Options {
  // Streams that a client may have open at once.
  uint32_t max_concurrent_streams = common::bounds::kMaxStreamsPerConnection;
  // How much a client may send ahead: per stream, and on the connection.
  uint32_t stream_window_bytes = 256 << 10;
  uint32_t connection_window_bytes = 1 << 20;
  // Names, values and 32 bytes each, of one request's headers.
  uint32_t max_header_list_bytes = common::bounds::kMaxHeaderListBytes;

  // From the start to the end of the client's first SETTINGS.
  int64_t greeting_timeout_ns = int64_t{10} * 1'000'000'000;
  // From the start of a frame or a header block to its end.
  int64_t frame_timeout_ns = int64_t{20} * 1'000'000'000;
  // A connection on which nothing was received for this long is asked for a sign of life (PING),
  // and closed if none comes within the time-out. 0: never.
  int64_t keepalive_ns = int64_t{60} * 1'000'000'000;
  int64_t keepalive_timeout_ns = int64_t{20} * 1'000'000'000;
  // A connection without streams for this long is drained. 0: never.
  int64_t max_idle_ns = int64_t{30} * 60 * 1'000'000'000;
  // A connection is drained when it is this old, and cut off after the grace. 0: never.
  int64_t max_age_ns = 0;
  int64_t max_age_grace_ns = int64_t{30} * 1'000'000'000;
  // A drain's pause between the shutdown notice and the final GOAWAY, if the client does not
  // answer the PING between them before: new streams that are under way still arrive.
  int64_t drain_notice_ns = int64_t{1} * 1'000'000'000;
};

// What the sessions of an event loop share: nghttp2's callbacks, options and memory. Outlives
// them. Not thread-safe.
class Http2Environment {
 public:
  explicit Http2Environment(const Http2Options& options);
  ~Http2Environment();
  Http2Environment(const Http2Environment&) = delete;
  Http2Environment& operator=(const Http2Environment&) = delete;

  const Http2Options& options() const { return options_; }
  MemoryPool& memory() { return memory_; }
  const MemoryPool& memory() const { return memory_; }

 private:
  friend class Http2Session;
  Http2Options options_;
  MemoryPool memory_;
  nghttp2_session_callbacks* callbacks_ = nullptr;
  nghttp2_option* nghttp2_options_ = nullptr;
};

class Http2Session {
 public:
  // What a body has to offer when the session can send some.
  struct Body {
    // The next bytes, which stay as they are until Send returns or a callback of this stream's is
    // called. None, and not complete: nothing at present; call ResumeBody when there is.
    absl::Span<const uint8_t> bytes;
    // The body is complete; if trailers follow, they were submitted before returning.
    bool complete = false;
    bool trailers = false;
  };

  // Told what happens to streams, each known by the data that OnRequest gave it. Called from within
  // Receive and Send only.
  class Handler {
   public:
    virtual ~Handler() = default;
    // A request begins. Returns its stream's data, not null.
    virtual void* OnRequest(int32_t stream_id) = 0;
    // One header, or one trailer (after OnHeadersDone). False: the rest is not wanted, and the
    // stream is reset after what was submitted for it.
    virtual bool OnHeader(void* stream, std::string_view name, std::string_view value) = 0;
    // The headers are complete (once per request), and whether the request ends with them.
    virtual void OnHeadersDone(void* stream, bool end) = 0;
    // The header list is larger than max_header_list_bytes; no more of its headers are told.
    virtual void OnHeadersTooLarge(void* stream) = 0;
    virtual void OnData(void* stream, absl::Span<const uint8_t> data) = 0;
    // The client has sent all (after the data, or with its trailers).
    virtual void OnEnd(void* stream) = 0;
    // The stream is gone, and its data with it. `reset`: before both sides had ended.
    virtual void OnStreamClosed(void* stream, bool reset) = 0;
    // Takes at most `room` bytes from the response's body, to be sent.
    virtual Body OnSendBody(void* stream, size_t room) = 0;
    // When the request began, for telling short-lived resets.
    virtual int64_t StartedNs(void* stream) const = 0;
    // Kept for the session: RequestRules::kNotAnnounced at first.
    virtual int64_t& ContentLeft(void* stream) = 0;
  };

  // REQUIRES: both outlive the session.
  Http2Session(Http2Environment& environment, Handler& handler, int64_t now_ns);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  void Receive(absl::Span<const uint8_t> data, int64_t now_ns);

  // Appends frames to `output` until there are none or it holds `limit` bytes or a little more
  // (one frame). Returns whether frames are left.
  bool Send(size_t limit, Buffer* output);

  // Nothing more will be read or written: close once the output is sent.
  bool finished() const;

  // Answers. `headers` and what they point to stay unchanged until sent: constants, or owned by
  // the stream. False: the stream is gone, or memory is.
  // `body`: the stream's data, if a body or trailers follow; null: the headers are all.
  bool SubmitHeaders(int32_t stream_id, const nghttp2_nv* headers, size_t count, void* body);
  bool SubmitTrailers(int32_t stream_id, const nghttp2_nv* trailers, size_t count);
  void ResumeBody(int32_t stream_id) { nghttp2_session_resume_data(session_, stream_id); }
  void ResetStream(int32_t stream_id, uint32_t error_code);
  // The answer that was submitted is complete before the request is: once it was sent, the client
  // is told that it need not go on (RST_STREAM, NO_ERROR). nghttp2 drops answers to streams whose
  // reset is submitted, so it cannot be submitted along with them.
  void EndsEarly() { ++early_ends_; }

  // The receiver took `bytes` of a stream's DATA: the client may send as many more. The
  // connection's window is given back as data arrives, so that one stream does not block others.
  void ConsumeStream(int32_t stream_id, size_t bytes) {
    nghttp2_session_consume_stream(session_, stream_id, bytes);
  }

  // Ends gracefully: no new streams, those open are finished.
  void Drain(int64_t now_ns);
  bool draining() const { return drain_ != DrainState::kNone; }

  // Ends at once with GOAWAY; what was submitted before may still be sent.
  void Terminate(uint32_t error_code, const char* text);

  // Whether Terminate was called, by its user or for what the peer sent.
  bool terminated() const { return ended_; }

  // When OnTime wants to be called; moves only within Receive, Drain and OnTime. INT64_MAX: never.
  int64_t next_wake_ns() const { return next_wake_ns_; }
  // False: the connection is to be aborted (no sign of life, or past its grace).
  bool OnTime(int64_t now_ns);

  size_t open_streams() const { return open_streams_; }
  uint64_t streams_accepted() const { return streams_accepted_; }
  // Why the session ended itself; empty: it did not.
  std::string_view error_text() const { return error_text_; }
  uint32_t error_code() const { return error_code_; }

 private:
  enum class DrainState { kNone, kNotified, kFinal };
  friend class Http2Environment;

  static int OnBeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t flags,
                      void* self);
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int OnDataChunk(nghttp2_session*, uint8_t flags, int32_t stream_id, const uint8_t* data,
                         size_t size, void* self);
  static int OnStreamClose(nghttp2_session*, int32_t stream_id, uint32_t error_code, void* self);
  static int OnFrameSent(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static ssize_t OnReadBody(nghttp2_session*, int32_t stream_id, uint8_t* to, size_t room,
                            uint32_t* flags, nghttp2_data_source* source, void* self);
  static int OnSendData(nghttp2_session*, nghttp2_frame* frame, const uint8_t* header, size_t size,
                        nghttp2_data_source* source, void* self);

  // Resets a stream whose request breaks the rules of HTTP.
  void Refuse(int32_t stream_id) { ResetStream(stream_id, NGHTTP2_PROTOCOL_ERROR); }
  // Whether a header block is complete and in order; keeps what it announced.
  bool TakeHeaderBlock(const nghttp2_frame& frame, bool end);
  // Whether the request's bodies are as long as was announced. `end`: this is all.
  bool TakeContent(void* stream, size_t bytes, bool end);
  void SubmitFinalGoaway();
  void PlanWake();
  void* StreamData(int32_t stream_id) const {
    return nghttp2_session_get_stream_user_data(session_, stream_id);
  }

  Http2Environment& environment_;
  Handler& handler_;
  nghttp2_session* session_ = nullptr;
  FrameScanner scanner_;

  // The stream whose headers are being received.
  void* header_stream_ = nullptr;
  size_t header_bytes_ = 0;
  RequestRules rules_;
  // The streams whose RST_STREAM was received, and sent, last.
  int32_t reset_by_peer_ = 0;
  int32_t reset_by_us_ = 0;

  // Within Send: where frames go and how many bytes are wanted; the body of the DATA frame that is
  // being made, which goes there straight from its stream.
  Buffer* output_ = nullptr;
  size_t output_limit_ = 0;
  absl::Span<const uint8_t> body_;

  size_t early_ends_ = 0;
  size_t open_streams_ = 0;
  uint64_t streams_accepted_ = 0;
  bool ended_ = false;  // terminated: no more input is taken
  DrainState drain_ = DrainState::kNone;
  uint32_t error_code_ = 0;
  std::string_view error_text_;

  int64_t now_ns_;
  int64_t started_ns_;
  int64_t received_ns_;    // last input
  int64_t idle_since_ns_;  // no streams since
  uint64_t frames_seen_ = 0;
  int64_t frame_since_ns_ = 0;  // the unfinished frame or header block began; 0: none
  int64_t ping_sent_ns_ = 0;    // keepalive PING under way; 0: none
  int64_t drained_ns_ = 0;      // Drain was called
  bool age_drain_ = false;
  bool final_goaway_due_ = false;  // the client has seen the notice
  // What the final GOAWAY says is the last stream that is served; streams above it, which come
  // before it is sent, must not be: their clients send them again.
  int32_t last_served_ = std::numeric_limits<int32_t>::max();
  int64_t next_wake_ns_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_HTTP2_SESSION_H_
