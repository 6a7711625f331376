// Http2Session: the server's end of one HTTP/2 connection as bytes in and bytes out. It knows no
// sockets, no threads and no gRPC.
//
// nghttp2 parses and writes frames. The session enforces what nghttp2 leaves to its user: budgets
// against floods (frame_scanner.h), the size of header lists, frames on closed streams, time-outs
// for the greeting and for header blocks, keepalive, idle and age limits, and the order of a
// graceful end (shutdown notice, wait, final GOAWAY). request_rules.h decides which requests are
// malformed.
//
// Not thread-safe; never blocks. Each call that depends on time takes it (Clock::NowNs).
//
// For each piece of input:
//   session.Receive(bytes, now_ns);    // -> handler callbacks, which may submit responses
//   session.Send(room, &output);       // until it returns false; send the output
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
#include "common/buffer.h"
#include "server/transport/http2/frame_scanner.h"
#include "server/transport/http2/memory_pool.h"
#include "server/transport/http2/request_rules.h"

namespace sluice::transport {

using common::Buffer;

struct Http2Options {
  // Streams that a client may have open at once.
  uint32_t max_concurrent_streams = common::bounds::kMaxStreamsPerConnection;
  // Flow-control windows: bytes that a client may send ahead, per stream and per connection.
  uint32_t stream_window_bytes = 256 << 10;
  uint32_t connection_window_bytes = 1 << 20;
  // Names, values and 32 bytes each, of one request's headers.
  uint32_t max_header_list_bytes = common::bounds::kMaxHeaderListBytes;

  // From the start to the end of the client's first SETTINGS.
  int64_t greeting_timeout_ns = int64_t{10} * 1'000'000'000;
  // From the start of a frame or a header block to its end.
  int64_t frame_timeout_ns = int64_t{20} * 1'000'000'000;
  // A connection that received nothing for this long is sent a PING, and closed unless it receives
  // something within the time-out. 0: never.
  int64_t keepalive_ns = int64_t{60} * 1'000'000'000;
  int64_t keepalive_timeout_ns = int64_t{20} * 1'000'000'000;
  // A connection without streams for this long is drained. 0: never.
  int64_t max_idle_ns = int64_t{30} * 60 * 1'000'000'000;
  // A connection of this age is drained, and aborted after the grace. 0: never.
  int64_t max_age_ns = 0;
  int64_t max_age_grace_ns = int64_t{30} * 1'000'000'000;
  // A drain's longest pause between the shutdown notice and the final GOAWAY, in which streams that
  // the client has already opened still arrive. The answer to a PING ends the pause.
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
  nghttp2_session_callbacks* callbacks() const { return callbacks_; }
  nghttp2_option* nghttp2_options() const { return nghttp2_options_; }

 private:
  const Http2Options options_;
  MemoryPool memory_;
  nghttp2_session_callbacks* callbacks_ = nullptr;
  nghttp2_option* nghttp2_options_ = nullptr;
};

// One stream: what the session keeps of it, and its events, which the session's user handles in a
// derived class. The events are called from within Http2Session::Receive and Send only.
class Http2Stream {
 public:
  // The next part of a response's body.
  struct Body {
    enum class Then : uint8_t {
      kMore,      // more follows; without bytes: nothing until ResumeBody
      kEnd,       // this is the end of the stream
      kTrailers,  // this is the end of the body; SubmitTrailers was called
    };
    // Valid until Send returns or an event of this stream is called.
    absl::Span<const uint8_t> bytes;
    Then then = Then::kMore;
  };

  // One header, or one trailer (after OnHeadersDone). Names are not empty.
  virtual void OnHeader(std::string_view name, std::string_view value) = 0;
  // The headers are complete (once per request). `end`: so is the request.
  virtual void OnHeadersDone(bool end) = 0;
  // The header list is larger than max_header_list_bytes; OnHeader is not called for the rest.
  virtual void OnHeadersTooLarge() = 0;
  virtual void OnData(absl::Span<const uint8_t> data) = 0;
  // The request is complete (after the data, or with its trailers).
  virtual void OnEnd() = 0;
  // Returns at most `room` bytes of the response's body.
  virtual Body OnSendBody(size_t room) = 0;
  // The session has copied the bytes that OnSendBody returned last.
  virtual void OnBodySent() = 0;

  // Set by the session.
  int32_t id = 0;
  // Bytes that content-length announced and that have not arrived.
  int64_t content_left = RequestRules::kNotAnnounced;
  // When the request arrived, at the earliest. Set by the session's user, in OnRequest.
  int64_t arrived_ns = 0;

 protected:
  ~Http2Stream() = default;
};

// One field of a response's headers or trailers.
using HeaderField = nghttp2_nv;
enum class HeaderKind : uint8_t {
  kCopied = NGHTTP2_NV_FLAG_NONE,  // the session copies name and value
  // Copied, and kept out of the HPACK table: the value will not repeat.
  kUnindexed = NGHTTP2_NV_FLAG_NO_INDEX,
  // Name and value outlive the session.
  kConstant = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE,
};
// `name` in lower case.
inline HeaderField MakeHeader(std::string_view name, std::string_view value, HeaderKind kind) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), static_cast<uint8_t>(kind)};
}

class Http2Session {
 public:
  // Creates and ends the streams. Called from within Receive and Send only.
  class Handler {
   public:
    virtual ~Handler() = default;
    // A request begins. The stream stays valid until OnStreamClosed.
    virtual Http2Stream& OnRequest() = 0;
    // The session no longer uses the stream.
    virtual void OnStreamClosed(Http2Stream& stream) = 0;
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

  // Submits the response's headers. `has_body`: a body or trailers follow, and OnSendBody is asked
  // for them; else the headers are the whole response.
  void SubmitHeaders(Http2Stream& stream, absl::Span<const HeaderField> headers, bool has_body);
  void SubmitTrailers(Http2Stream& stream, absl::Span<const HeaderField> trailers);
  void ResumeBody(Http2Stream& stream);
  // The response that was submitted is complete before the request is: once it was sent, the stream
  // is reset with NO_ERROR, so that the client need not go on. nghttp2 drops responses of streams
  // whose reset is submitted, so the reset must wait.
  void EndsEarly() { ++early_ends_; }

  // The receiver took `bytes` of a stream's DATA: the client may send as many more. The session
  // itself restores the connection's window as data arrives, so that no stream blocks another; not
  // while it is held.
  void ConsumeStream(Http2Stream& stream, size_t bytes);
  void HoldConnectionWindow(bool hold);

  // Ends the stream at once.
  void Reset(Http2Stream& stream, uint32_t error_code);
  // Ends the session: what is queued is dropped, and a GOAWAY says why. `text` is a constant.
  void Terminate(uint32_t error_code, const char* text);

  // Bytes of memory that nghttp2 holds for it: streams, HPACK tables, frames.
  size_t memory() const { return memory_.bytes; }

  // Ends gracefully: accepts no new streams, finishes the open ones.
  void Drain(int64_t now_ns);
  bool draining() const { return drain_ != DrainState::kNone; }

  // Whether the session ends, with a GOAWAY, for what the peer sent or did not send in time.
  bool terminated() const { return terminated_; }

  // When to call OnTime; changes only within Receive, Drain and OnTime. INT64_MAX: never.
  int64_t next_wake_ns() const { return next_wake_ns_; }
  // Returns false if the connection must be aborted: keepalive failed, or the age grace passed.
  bool OnTime(int64_t now_ns);

  // Why the session ended itself; empty: it did not.
  std::string_view error_text() const { return error_text_; }

 private:
  friend class Http2Environment;  // registers Callbacks
  struct Callbacks;               // what nghttp2 calls
  enum class DrainState { kNone, kNotified, kFinal };

  void ResetStream(int32_t stream_id, uint32_t error_code);
  // Resets a stream whose request breaks the rules of HTTP.
  void Refuse(int32_t stream_id);
  // Judges a complete header block, and keeps the content-length that a request announced.
  bool CheckHeaderBlock(bool request, bool end);
  // Whether the request's body has the announced length, as far as it arrived.
  static bool CheckContent(Http2Stream& stream, size_t bytes, bool end);
  void SubmitFinalGoaway();
  void PlanWake();
  // Null: the session does not serve the stream.
  Http2Stream* FindStream(int32_t stream_id) const;

  Http2Environment& environment_;
  Handler& handler_;
  MemoryPool::Account memory_;
  nghttp2_session* session_ = nullptr;
  FrameScanner scanner_;

  // The stream whose headers are being received.
  Http2Stream* header_stream_ = nullptr;
  size_t header_bytes_ = 0;
  RequestRules rules_;
  // The streams whose RST_STREAM was received, and sent, last.
  int32_t reset_by_peer_ = 0;
  int32_t reset_by_us_ = 0;

  // Within Send: where frames go, how many bytes are wanted, and the body of the DATA frame that is
  // being made.
  Buffer* output_ = nullptr;
  size_t output_limit_ = 0;
  absl::Span<const uint8_t> body_;

  bool window_held_ = false;
  size_t window_owed_ = 0;  // DATA for which the connection's window was not restored
  size_t early_ends_ = 0;
  size_t open_streams_ = 0;
  bool terminated_ = false;  // takes no more input
  DrainState drain_ = DrainState::kNone;
  std::string_view error_text_;

  int64_t now_ns_;
  int64_t started_ns_;
  int64_t received_ns_;    // last input
  int64_t idle_since_ns_;  // no streams since
  uint64_t frames_seen_ = 0;
  int64_t frame_since_ns_ = 0;  // start of the unfinished frame or header block; 0: none
  int64_t ping_sent_ns_ = 0;    // keepalive PING without an answer; 0: none
  int64_t drained_ns_ = 0;      // Drain was called
  bool age_drain_ = false;
  bool final_goaway_due_ = false;  // the client has seen the shutdown notice
  // The last stream that is served, as the final GOAWAY names it. Streams above it that arrive
  // before it is sent must not be served: their clients will send them again.
  int32_t last_served_ = std::numeric_limits<int32_t>::max();
  int64_t next_wake_ns_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_HTTP2_SESSION_H_
