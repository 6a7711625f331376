// Session: one end of an HTTP/2 connection as bytes in and bytes out (RFC 9113). It knows no
// sockets, no threads and no gRPC. ServerSession and ClientSession are the two roles.
//
// A session parses frames where they arrive, and writes them where they leave. It checks each
// frame against the RFC, against budgets for floods (flood_guard.h) and against the flow-control
// windows. What it holds for a peer is bounded.
//
// Not thread-safe; never blocks. Each call that depends on time takes it (Clock::NowNs).
//
// For each piece of input:
//   session.Receive(bytes, now_ns);    // -> events, which may submit messages
//   session.Send(room, &output);       // until it returns false; send the output
//   if (session.finished()) close, after the output
#ifndef SLUICE_COMMON_HTTP2_SESSION_H_
#define SLUICE_COMMON_HTTP2_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/types/span.h"
#include "common/bounds.h"
#include "common/buffer.h"
#include "common/http2/flood_guard.h"
#include "common/http2/frame_reader.h"
#include "common/http2/frames.h"
#include "common/http2/hpack_decoder.h"
#include "common/http2/hpack_encoder.h"
#include "common/http2/stream.h"
#include "common/http2/stream_table.h"
#include "common/intrusive_list.h"

namespace sluice::http2 {

// Bounds of both roles.
struct SessionOptions {
  // Flow-control windows: bytes that the peer may send ahead, per stream and per connection.
  // At least kDefaultWindow.
  uint32_t stream_window_bytes = 256 << 10;
  uint32_t connection_window_bytes = 1 << 20;
  // Names, values and 32 bytes each, of one header list.
  uint32_t max_header_list_bytes = common::bounds::kMaxHeaderListBytes;
};

class Session {
 public:
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Appends frames to `output` until there are none or it holds `limit` bytes or a little more
  // (the frames of a small message). Returns whether frames are left.
  bool Send(size_t limit, common::Buffer* output);
  // Whether Send has frames to append.
  bool wants_send() const {
    return !control_.empty() ||
           (!ended() && (!ready_.empty() || (send_window_ > 0 && !blocked_.empty())));
  }

  // OnSendBody had nothing, and now has.
  void ResumeBody(Stream& stream);

  // The receiver took `bytes` of a stream's DATA: the peer may send as many more. The session
  // itself restores the connection's window as data arrives, so that no stream blocks another; not
  // while it is held.
  void ConsumeStream(Stream& stream, size_t bytes);
  void HoldConnectionWindow(bool hold);

  // Ends the stream: RST_STREAM and OnStreamClosed follow, in Send. What still arrives on it is
  // dropped.
  void Reset(Stream& stream, ErrorCode code);
  // Ends the session: what is queued is dropped, and a GOAWAY says why. `text` is a constant.
  void Terminate(ErrorCode code, std::string_view text);
  // Ends the session and sends nothing more: the connection is gone. From now on the user may
  // destroy open streams. What it still submits or resets has no effect.
  void Abandon();

  // Whether the session takes no more input: it was terminated, or the peer broke a rule. The
  // GOAWAY may still have to be sent.
  bool ended() const { return end_ != End::kNone; }
  // Whether it ended by Terminate, a flood or a time-out. (A peer that broke a rule may still want
  // the requests handled that it sent before.)
  bool terminated() const { return end_ == End::kTerminated; }
  // Why it ended; empty: it did not.
  std::string_view error_text() const { return error_text_; }
  ErrorCode error_code() const { return error_code_; }

  // Bytes of memory that it holds beside its own size.
  size_t memory() const;

 protected:
  enum class Role : uint8_t { kServer, kClient };
  using Receiving = Stream::Receiving;
  using Sending = Stream::Sending;

  // A whole header block, joined and without padding.
  struct HeaderBlock {
    int32_t stream_id = 0;
    bool end_stream = false;
    absl::Span<const uint8_t> bytes = {};
  };

  Session(Role role, const SessionOptions& options, const HpackVocabulary& vocabulary,
          int64_t now_ns);
  virtual ~Session() = default;

  // ---- What differs between the roles. The events that the peer causes may end the session.

  // Judges the block and gives it to its stream. Decodes it in any case, for the HPACK table.
  virtual void OnHeaderBlock(const HeaderBlock& block) = 0;
  // Whether a stream that is not in the table was never opened.
  virtual bool IsIdle(int32_t stream_id) const = 0;
  // DATA arrives on a stream that is closed; it is dropped, unless the role ends the session.
  virtual void OnDataOnClosed(int32_t stream_id) = 0;
  virtual void OnResetReceived(Stream& stream, ErrorCode code) = 0;
  virtual void OnGoawayReceived(int32_t last_stream_id, ErrorCode code, std::string_view text) = 0;
  virtual void OnPingAckReceived(uint64_t payload) = 0;
  virtual void OnSettingsReceived() = 0;
  // The peer has ended the stream, which knows it.
  virtual void OnEndReceived(Stream& stream) = 0;
  // We have ended the stream, and the peer has not.
  virtual void OnEndSent(Stream& stream) = 0;
  // The stream has left the table; its user may destroy it.
  virtual void OnClosed(Stream& stream, const StreamEnd& end) = 0;
  // The peer's highest stream that was handled, for GOAWAY.
  virtual int32_t last_peer_stream() const = 0;

  // ---- For the roles.

  // Reads all of `data`, unless the session ends.
  void TakeInput(absl::Span<const uint8_t> data, int64_t now_ns);

  // Ends the session for what the peer sent. Returns false.
  bool Fail(ErrorCode code, std::string_view text);
  // Ends the session for a flood unless the peer is `within` its bound. Returns `within`.
  bool Bound(bool within, std::string_view text) {
    if (!within) Terminate(ErrorCode::kEnhanceYourCalm, text);
    return within;
  }
  // What the peer sent on the stream breaks a rule: it is reset, in Send.
  void FailStream(Stream& stream, ErrorCode code, const char* text);

  void Open(Stream& stream, int32_t id);
  void Close(Stream& stream, const StreamEnd& end);
  // Headers follow, in Send; `has_body`: and a body or trailers. Once per stream.
  void BeginSending(Stream& stream, bool has_body);

  // Gives a list of headers or trailers to its stream, as far as `rules` (request_rules.h,
  // response_rules.h) accept it. Returns false if the stream or the session has failed.
  template <typename Rules>
  bool TakeHeaders(Stream& stream, const HeaderBlock& block, Rules& rules);
  // Decodes a block whose fields are not used.
  void SkipHeaders(const HeaderBlock& block);
  // Whether so many bytes more, or the end, agree with content-length. If not, the stream fails.
  bool CheckContent(Stream& stream, size_t bytes, bool end);

  void WriteSettings(absl::Span<const std::pair<Setting, uint32_t>> settings);
  void WriteWindowUpdate(int32_t stream_id, size_t bytes);
  void WritePing(uint64_t payload, uint8_t flags);
  void WriteReset(int32_t stream_id, ErrorCode code);
  void WriteGoaway(int32_t last_stream_id, ErrorCode code, std::string_view text);

  const StreamTable& streams() const { return streams_; }
  Stream* Find(int32_t stream_id) const { return streams_.Find(stream_id); }
  FloodGuard& floods() { return floods_; }
  common::Buffer& control() { return control_; }
  uint32_t peer_max_streams() const { return peer_max_streams_; }
  // The peer's first SETTINGS have arrived.
  bool greeted() const { return greeted_; }
  // A frame or a header block has begun and is not complete.
  bool mid_frame() const { return reader_.mid_frame() || in_header_block(); }
  bool in_header_block() const { return block_stream_ != 0; }
  uint64_t frames() const { return reader_.frames(); }
  // The time of the last input, or of the role's last call that takes it.
  int64_t now_ns() const { return now_ns_; }
  void set_now_ns(int64_t now_ns) { now_ns_ = now_ns; }

 private:
  enum class End : uint8_t { kNone, kProtocolError, kTerminated, kAbandoned };
  using StreamList = common::IntrusiveList<Stream, SendingStreams>;
  using Listed = Stream::Listed;
  using Payload = absl::Span<const uint8_t>;

  // ---- session_receive.cc. The functions that return bool return false if the session has ended.
  void TakePreface(absl::Span<const uint8_t>* data);
  bool TakePiece(const FrameReader::Piece& piece);
  bool TakeData(const FrameReader::Piece& piece);
  bool BeginData(const FrameHeader& header, Payload* payload);
  Stream* FindForData(const FrameHeader& header);
  void EndData(const FrameHeader& header);
  bool TakeHeadersFrame(const FrameHeader& header, Payload payload);
  bool TakeContinuation(const FrameHeader& header, Payload payload);
  bool TakePriority(const FrameHeader& header, Payload payload);
  bool TakeReset(const FrameHeader& header, Payload payload);
  bool TakeSettings(const FrameHeader& header, Payload payload);
  bool ApplySetting(Setting setting, uint32_t value);
  // The peer's initial window has changed by so much: so do the windows of all streams.
  bool ChangeWindows(int64_t change);
  bool TakePing(const FrameHeader& header, Payload payload);
  bool TakeGoaway(const FrameHeader& header, Payload payload);
  bool TakeWindowUpdate(const FrameHeader& header, Payload payload);
  void RestoreConnectionWindow(size_t bytes);

  // ---- session_send.cc
  // The stream has something to send.
  void List(Stream& stream);
  void Unlist(Stream& stream);
  // Appends what one stream may send now: at most one DATA frame, and the headers around it.
  void SendFrom(Stream& stream, common::Buffer& output);
  void SendBody(Stream& stream, common::Buffer& output);
  void SendHeaders(Stream& stream, common::Buffer& output, bool trailers, bool end);
  // Makes CONTINUATION frames of what does not fit the HEADERS frame at `at`.
  static void SplitHeaders(int32_t stream_id, uint8_t flags, size_t at, common::Buffer& output);
  void SendReset(Stream& stream);
  void EndSending(Stream& stream);
  void TakeControl(common::Buffer& output);
  // Appends a control frame. Returns where its payload goes.
  uint8_t* WriteControl(const FrameHeader& header);

  const Role role_;
  const SessionOptions options_;
  std::string_view preface_left_;
  FrameReader reader_;
  HpackDecoder decoder_;
  HpackEncoder encoder_;
  FloodGuard floods_;
  StreamTable streams_;
  // Streams that have something to send: all that may, and those that wait for the connection's
  // window.
  StreamList ready_;
  StreamList blocked_;
  // Frames that precede those of the streams: answers to the peer's, window updates, resets.
  common::Buffer control_;

  // The header block that is not complete; its stream is 0: none.
  common::Buffer block_;
  int32_t block_stream_ = 0;
  bool block_end_stream_ = false;
  int continuations_ = 0;

  // The DATA frame that is arriving. Its stream is null: the content is dropped.
  Stream* data_stream_ = nullptr;
  size_t content_left_ = 0;  // without the padding

  int64_t now_ns_;
  int64_t send_window_ = kDefaultWindow;  // of the connection
  int64_t peer_initial_window_ = kDefaultWindow;
  int64_t receive_window_;    // bytes of DATA that the peer may still send
  size_t consumed_ = 0;       // and by which the connection's window was not enlarged again
  bool window_held_ = false;  // and must not be
  uint32_t peer_max_streams_ = 100;
  int settings_unacked_ = 0;  // ours
  bool greeted_ = false;
  End end_ = End::kNone;
  ErrorCode error_code_ = ErrorCode::kNoError;
  std::string_view error_text_;
};

template <typename Rules>
bool Session::TakeHeaders(Stream& stream, const HeaderBlock& block, Rules& rules) {
  enum class List : uint8_t { kFine, kTooLarge, kMuchTooLarge, kMalformed } list = List::kFine;
  const size_t bound = options_.max_header_list_bytes;
  size_t bytes = 0;
  const HpackError error = decoder_.Decode(block.bytes, [&](const HpackField& field) {
    bytes += field.bytes;
    if (bytes > bound) [[unlikely]] {
      if (list == List::kFine) stream.OnHeadersTooLarge();
      // A list that is a little too large is answered. The rest of one that is much too large (a
      // few bytes can expand to megabytes) is not read.
      list = bytes <= 4 * bound ? List::kTooLarge : List::kMuchTooLarge;
      return list == List::kTooLarge && stream.receiving_ != Stream::Receiving::kIgnored;
    }
    if (!rules.Judge(field)) [[unlikely]] {
      list = List::kMalformed;
      return false;
    }
    if (!rules.skips()) stream.OnHeader(field);
    return stream.receiving_ != Stream::Receiving::kIgnored;
  });
  if (error != HpackError::kNone) return Fail(ErrorCode::kCompressionError, HpackErrorText(error));
  if (stream.receiving_ == Stream::Receiving::kIgnored) return false;
  if (list == List::kMuchTooLarge) {
    constexpr int32_t kWeight = 20;
    if (Bound(floods_.resets.Spend(kWeight, now_ns_), "too_many_large_headers")) {
      FailStream(stream, ErrorCode::kEnhanceYourCalm, "the headers are much too large");
    }
    return false;
  }
  if (list == List::kMalformed || !rules.Complete(block.end_stream)) {
    FailStream(stream, ErrorCode::kProtocolError, "the headers are malformed");
    return false;
  }
  return true;
}

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_SESSION_H_
