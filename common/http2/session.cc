#include "common/http2/session.h"

#include <algorithm>
#include <cstring>

namespace sluice::http2 {

Session::Session(Role role, const SessionOptions& options, const HpackVocabulary& vocabulary,
                 int64_t now_ns)
    : role_(role),
      options_(options),
      preface_left_(role == Role::kServer ? kPreface : ""),
      decoder_(vocabulary),
      floods_(now_ns),
      now_ns_(now_ns),
      receive_window_(options.connection_window_bytes) {}

void Session::Open(Stream& stream, int32_t id) {
  stream.id_ = id;
  stream.receiving_ = Receiving::kHeaders;
  stream.sending_ = Sending::kIdle;
  stream.listed_ = Stream::Listed::kNone;
  stream.send_window_ = static_cast<int32_t>(peer_initial_window_);
  stream.receive_window_ = static_cast<int32_t>(options_.stream_window_bytes);
  stream.consumed_ = 0;
  stream.content_left_ = Stream::kNotAnnounced;
  stream.end_ = {};
  streams_.Insert(id, stream);
}

void Session::Close(Stream& stream, const StreamEnd& end) {
  if (stream.listed_ != Stream::Listed::kNone) Unlist(stream);
  if (data_stream_ == &stream) data_stream_ = nullptr;
  streams_.Remove(stream.id_);
  OnClosed(stream, end);
}

void Session::BeginSending(Stream& stream, bool has_body) {
  if (stream.receiving_ == Receiving::kIgnored || stream.sending_ != Sending::kIdle) return;
  stream.has_body_ = has_body;
  stream.sending_ = Sending::kHeaders;
  List(stream);
}

void Session::ResumeBody(Stream& stream) {
  if (stream.sending_ != Sending::kWaiting) return;
  stream.sending_ = Sending::kBody;
  List(stream);
}

void Session::Reset(Stream& stream, ErrorCode code) {
  if (stream.receiving_ == Receiving::kIgnored) return;
  stream.receiving_ = Receiving::kIgnored;
  stream.end_ = {StreamEnd::Kind::kReset, code, ""};
  List(stream);
}

void Session::FailStream(Stream& stream, ErrorCode code, const char* text) {
  if (stream.receiving_ == Receiving::kIgnored) return;
  stream.receiving_ = Receiving::kIgnored;
  stream.end_ = {StreamEnd::Kind::kError, code, text};
  List(stream);
}

void Session::Terminate(ErrorCode code, std::string_view text) {
  if (ended()) return;
  Fail(code, text);
  end_ = End::kTerminated;
}

void Session::Abandon() {
  end_ = End::kAbandoned;
  data_stream_ = nullptr;
}

bool Session::Fail(ErrorCode code, std::string_view text) {
  if (ended()) return false;
  end_ = End::kProtocolError;
  error_code_ = code;
  error_text_ = text;
  // The text is for the peer's logs. gRPC clients slow down on too_many_pings.
  WriteGoaway(last_peer_stream(), code, text);
  return false;
}

void Session::ConsumeStream(Stream& stream, size_t bytes) {
  stream.consumed_ += static_cast<int32_t>(bytes);
  if (stream.consumed_ < static_cast<int32_t>(options_.stream_window_bytes / 2)) return;
  if (stream.receiving_ > Receiving::kBody) return;
  WriteWindowUpdate(stream.id_, static_cast<size_t>(stream.consumed_));
  stream.receive_window_ += stream.consumed_;
  stream.consumed_ = 0;
}

void Session::HoldConnectionWindow(bool hold) {
  window_held_ = hold;
  if (!hold) RestoreConnectionWindow(0);
}

void Session::RestoreConnectionWindow(size_t bytes) {
  consumed_ += bytes;
  if (window_held_ || consumed_ < options_.connection_window_bytes / 2) return;
  WriteWindowUpdate(0, consumed_);
  receive_window_ += static_cast<int64_t>(consumed_);
  consumed_ = 0;
}

bool Session::CheckContent(Stream& stream, size_t bytes, bool end) {
  int64_t& left = stream.content_left_;
  if (left == Stream::kNotAnnounced) return true;
  const auto size = static_cast<int64_t>(bytes);
  if (size > left || (end && left > size)) {
    FailStream(stream, ErrorCode::kProtocolError, "the body differs from content-length");
    return false;
  }
  left -= size;
  return true;
}

void Session::SkipHeaders(const HeaderBlock& block) {
  const HpackError error = decoder_.Decode(block.bytes, [](const HpackField&) { return false; });
  if (error != HpackError::kNone) Fail(ErrorCode::kCompressionError, HpackErrorText(error));
}

size_t Session::memory() const {
  return reader_.memory() + decoder_.memory() + streams_.memory() + control_.capacity() +
         block_.capacity();
}

}  // namespace sluice::http2
