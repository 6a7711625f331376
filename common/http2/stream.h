// Stream: one request and its response as a session drives them. Its user derives a class that
// handles the events.
#ifndef SLUICE_COMMON_HTTP2_STREAM_H_
#define SLUICE_COMMON_HTTP2_STREAM_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/http2/frames.h"
#include "common/http2/header_writer.h"
#include "common/http2/hpack_decoder.h"
#include "common/intrusive_list.h"

namespace sluice::http2 {

// The next part of what a stream sends after its first headers.
struct Body {
  enum class Then : uint8_t {
    kMore,      // more follows; without bytes: nothing until ResumeBody
    kEnd,       // this is the end of the stream
    kTrailers,  // this is the end of the body; OnSendTrailers follows
  };
  // Valid until OnBodySent.
  absl::Span<const uint8_t> bytes = {};
  Then then = Then::kMore;
};

// How a stream ended.
struct StreamEnd {
  enum class Kind : uint8_t {
    kComplete,      // both sides have ended it; or we have, and told the peer to stop
    kResetByPeer,   // RST_STREAM arrived
    kReset,         // Reset was called
    kError,         // what the peer sent on it breaks a rule: `text` says which
    kNotProcessed,  // at clients: the server has not looked at the request and never will
  };
  Kind kind = Kind::kComplete;
  ErrorCode code = ErrorCode::kNoError;
  const char* text = "";  // a constant
};

struct SendingStreams;  // the lists of streams that have something to send

// The events are called from within Session::Receive and Session::Send only. After
// Session::Reset none is called.
class Stream : private common::ListLink<Stream, SendingStreams> {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // ---- What the peer sends: a request (to servers), a response (to clients).

  // One field of the headers or, after OnHeadersDone, of the trailers. Valid until this returns.
  // `field.meaning`: header_names.h reads it. Not called for 1xx responses.
  virtual void OnHeader(const HpackField& field) = 0;
  // The headers are complete (once per stream). `end`: so is the message; OnEnd does not follow.
  virtual void OnHeadersDone(bool end) = 0;
  // The list of headers or trailers is larger than max_header_list_bytes; OnHeader is not called
  // for the rest.
  virtual void OnHeadersTooLarge() = 0;
  virtual void OnData(absl::Span<const uint8_t> data) = 0;
  // The message is complete (after the data, or with its trailers).
  virtual void OnEnd() = 0;

  // ---- What this side sends, once it was submitted.

  // Appends the first headers.
  virtual void OnSendHeaders(HeaderWriter& to) = 0;
  // Returns at most `room` bytes of the body.
  virtual Body OnSendBody(size_t room) = 0;
  // The session has copied the bytes that OnSendBody returned last.
  virtual void OnBodySent() {}
  virtual void OnSendTrailers(HeaderWriter& to) {}

  // 0: not opened yet.
  int32_t id() const { return id_; }
  // Whether its headers are in the output: the peer may see it.
  bool begun() const { return sending_ > Sending::kHeaders; }
  // When the request arrived, at the earliest. Set by a server's user, in OnRequest; resets of
  // short-lived streams count as a flood.
  int64_t arrived_ns = 0;

 protected:
  ~Stream() = default;

 private:
  friend class Session;
  friend class ServerSession;
  friend class ClientSession;
  friend class common::IntrusiveList<Stream, SendingStreams>;

  enum class Receiving : uint8_t {
    kHeaders,  // nothing has arrived
    kBody,     // the headers are complete
    kEnded,    // the peer has ended the stream
    kIgnored,  // the stream is about to be reset: what still arrives does not count
  };
  enum class Sending : uint8_t {
    kIdle,     // nothing was submitted
    kHeaders,  // the headers are due
    kBody,
    kWaiting,  // OnSendBody had nothing; until ResumeBody
    kEnded,    // END_STREAM was sent
  };
  // The list of the session that the stream is in.
  enum class Listed : uint8_t { kNone, kReady, kBlocked };

  static constexpr int64_t kNotAnnounced = -1;

  int32_t id_ = 0;
  Receiving receiving_ = Receiving::kHeaders;
  Sending sending_ = Sending::kIdle;
  Listed listed_ = Listed::kNone;
  bool has_body_ = false;       // a body or trailers follow the headers
  int32_t send_window_ = 0;     // negative after the peer has lowered INITIAL_WINDOW_SIZE
  int32_t receive_window_ = 0;  // bytes of DATA that the peer may still send
  int32_t consumed_ = 0;        // and by which its window was not enlarged again
  StreamEnd end_;               // with kIgnored: why the stream is reset
  // Bytes that content-length announced and that have not arrived.
  int64_t content_left_ = kNotAnnounced;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_STREAM_H_
