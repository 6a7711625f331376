// The half of Session that reads frames.
#include <algorithm>
#include <cstring>

#include "common/bounds.h"
#include "common/http2/session.h"

namespace sluice::http2 {
namespace {

using common::bounds::kMaxContinuations;
using common::bounds::kMaxControlBytes;
using common::bounds::kMaxSettings;

// Encoded bytes of a header list that is decoded, as a multiple of max_header_list_bytes.
constexpr size_t kMaxBlockFactor = 4;
constexpr size_t kSettingBytes = 6;
constexpr uint32_t kMostFrameBytes = (1 << 24) - 1;
constexpr size_t kPriorityBytes = 5;
constexpr size_t kPingBytes = 8;
constexpr size_t kGoawayBytes = 8;

std::string_view Text(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void Session::TakeInput(absl::Span<const uint8_t> data, int64_t now_ns) {
  now_ns_ = now_ns;
  if (!preface_left_.empty()) TakePreface(&data);
  FrameReader::Piece piece;
  while (!ended()) {
    switch (reader_.Next(&data, &piece)) {
      case FrameReader::Result::kPiece:
        if (!TakePiece(piece)) return;
        if (control_.size() > kMaxControlBytes) {
          Terminate(ErrorCode::kEnhanceYourCalm, "too many frames to answer");
        }
        break;
      case FrameReader::Result::kNeedsInput:
        return;
      case FrameReader::Result::kTooLarge:
        Fail(ErrorCode::kFrameSizeError, "a frame is larger than SETTINGS_MAX_FRAME_SIZE");
        return;
    }
  }
}

void Session::TakePreface(absl::Span<const uint8_t>* data) {
  const size_t size = std::min(preface_left_.size(), data->size());
  if (Text(data->first(size)) != preface_left_.substr(0, size)) {
    Terminate(ErrorCode::kProtocolError, "not an HTTP/2 client");
    return;
  }
  preface_left_.remove_prefix(size);
  data->remove_prefix(size);
}

bool Session::TakePiece(const FrameReader::Piece& piece) {
  const FrameHeader& header = piece.header;
  if (!greeted_) [[unlikely]] {
    if (header.type != FrameType::kSettings || header.has(kAck)) {
      return Fail(ErrorCode::kProtocolError, "the first frame is not SETTINGS");
    }
    greeted_ = true;
  }
  if (block_stream_ != 0 &&
      (header.type != FrameType::kContinuation || header.stream_id != block_stream_)) {
    return Fail(ErrorCode::kProtocolError, "a frame within a header block");
  }
  switch (header.type) {
    case FrameType::kData:
      return TakeData(piece);
    case FrameType::kHeaders:
      return TakeHeadersFrame(header, piece.payload);
    case FrameType::kPriority:
      return TakePriority(header, piece.payload);
    case FrameType::kRstStream:
      return TakeReset(header, piece.payload);
    case FrameType::kSettings:
      return TakeSettings(header, piece.payload);
    case FrameType::kPushPromise:
      return Fail(ErrorCode::kProtocolError, "PUSH_PROMISE");
    case FrameType::kPing:
      return TakePing(header, piece.payload);
    case FrameType::kGoaway:
      return TakeGoaway(header, piece.payload);
    case FrameType::kWindowUpdate:
      return TakeWindowUpdate(header, piece.payload);
    case FrameType::kContinuation:
      return TakeContinuation(header, piece.payload);
  }
  return Bound(floods_.unknown.Spend(1, now_ns_), "too_many_unknown_frames");
}

// ---- DATA

bool Session::TakeData(const FrameReader::Piece& piece) {
  absl::Span<const uint8_t> payload = piece.payload;
  if (piece.first && !BeginData(piece.header, &payload)) return false;
  const size_t content = std::min(content_left_, payload.size());
  content_left_ -= content;
  RestoreConnectionWindow(payload.size());
  if (data_stream_ != nullptr) {
    if (content < payload.size()) ConsumeStream(*data_stream_, payload.size() - content);
    if (content > 0 && data_stream_->receiving_ == Receiving::kBody) {
      data_stream_->OnData(payload.first(content));
    }
  }
  if (piece.last) EndData(piece.header);
  return !ended();
}

// Leaves in `payload` what follows the length of the padding.
bool Session::BeginData(const FrameHeader& header, Payload* payload) {
  if (header.stream_id == 0) return Fail(ErrorCode::kProtocolError, "DATA on stream 0");
  size_t padding = 0;
  size_t padding_bytes = 0;  // with its length
  if (header.has(kPadded)) {
    if (header.length == 0) return Fail(ErrorCode::kProtocolError, "DATA without its padding");
    padding = (*payload)[0];
    padding_bytes = padding + 1;
    if (padding_bytes > header.length) {
      return Fail(ErrorCode::kProtocolError, "the padding of DATA is longer than the frame");
    }
    payload->remove_prefix(1);
  }
  // All of a frame counts, also if its stream is gone (RFC 9113, 6.9.1).
  if (header.length > receive_window_) {
    return Fail(ErrorCode::kFlowControlError, "DATA beyond the connection's window");
  }
  receive_window_ -= header.length;
  content_left_ = header.length - padding_bytes;
  if (padding_bytes > 0) RestoreConnectionWindow(1);
  if (content_left_ == 0 && !header.has(kEndStream) &&
      !Bound(floods_.empty_data.Spend(1, now_ns_), "too_many_empty_data")) {
    return false;
  }
  data_stream_ = FindForData(header);
  if (data_stream_ != nullptr && !CheckContent(*data_stream_, content_left_, /*end=*/false)) {
    data_stream_ = nullptr;
  }
  if (data_stream_ != nullptr && padding_bytes > 0) ConsumeStream(*data_stream_, 1);
  return !ended();
}

// The stream to which a DATA frame belongs. Null: none; its content is dropped, or the session has
// ended.
Stream* Session::FindForData(const FrameHeader& header) {
  Stream* const stream = streams_.Find(header.stream_id);
  if (stream == nullptr) {
    if (IsIdle(header.stream_id)) {
      Fail(ErrorCode::kProtocolError, "DATA on an idle stream");
    } else {
      OnDataOnClosed(header.stream_id);
    }
    return nullptr;
  }
  switch (stream->receiving_) {
    case Receiving::kHeaders:
      FailStream(*stream, ErrorCode::kProtocolError, "DATA before HEADERS");
      return nullptr;
    case Receiving::kEnded:
      Fail(ErrorCode::kStreamClosed, "DATA after the end of its stream");
      return nullptr;
    case Receiving::kIgnored:
      return nullptr;
    case Receiving::kBody:
      break;
  }
  if (static_cast<int64_t>(header.length) > stream->receive_window_) {
    FailStream(*stream, ErrorCode::kFlowControlError, "DATA beyond the stream's window");
    return nullptr;
  }
  stream->receive_window_ -= static_cast<int32_t>(header.length);
  return stream;
}

void Session::EndData(const FrameHeader& header) {
  Stream* const stream = std::exchange(data_stream_, nullptr);
  if (!header.has(kEndStream) || stream == nullptr || stream->receiving_ != Receiving::kBody ||
      !CheckContent(*stream, 0, /*end=*/true)) {
    return;
  }
  stream->receiving_ = Receiving::kEnded;
  stream->OnEnd();
  OnEndReceived(*stream);
}

// ---- Headers

bool Session::TakeHeadersFrame(const FrameHeader& header, Payload payload) {
  if (header.stream_id == 0) return Fail(ErrorCode::kProtocolError, "HEADERS on stream 0");
  size_t padding = 0;
  if (header.has(kPadded)) {
    if (payload.empty()) return Fail(ErrorCode::kProtocolError, "HEADERS without their padding");
    padding = payload[0];
    payload.remove_prefix(1);
  }
  if (header.has(kPriority)) {
    if (payload.size() < kPriorityBytes) {
      return Fail(ErrorCode::kFrameSizeError, "HEADERS without their priority");
    }
    if (ReadUint31(payload.data()) == header.stream_id) {
      return Fail(ErrorCode::kProtocolError, "a stream depends on itself");
    }
    payload.remove_prefix(kPriorityBytes);
  }
  if (padding > payload.size()) {
    return Fail(ErrorCode::kProtocolError, "the padding of HEADERS is longer than the frame");
  }
  payload.remove_suffix(padding);
  const bool end_stream = header.has(kEndStream);
  if (header.has(kEndHeaders)) {
    OnHeaderBlock({header.stream_id, end_stream, payload});
    return !ended();
  }
  block_stream_ = header.stream_id;
  block_end_stream_ = end_stream;
  continuations_ = 0;
  block_.Append(payload);
  return true;
}

bool Session::TakeContinuation(const FrameHeader& header, Payload payload) {
  if (block_stream_ == 0) return Fail(ErrorCode::kProtocolError, "CONTINUATION without HEADERS");
  if (!Bound(++continuations_ <= kMaxContinuations &&
                 block_.size() + payload.size() <= kMaxBlockFactor * options_.max_header_list_bytes,
             "too_many_continuations")) {
    return false;
  }
  block_.Append(payload);
  if (!header.has(kEndHeaders)) return true;
  OnHeaderBlock({std::exchange(block_stream_, 0), block_end_stream_, block_.view()});
  block_.Clear(0);
  return !ended();
}

// ---- The frames without content

bool Session::TakePriority(const FrameHeader& header, Payload payload) {
  if (!Bound(floods_.priorities.Spend(1, now_ns_), "too_many_priorities")) return false;
  if (header.stream_id == 0) return Fail(ErrorCode::kProtocolError, "PRIORITY on stream 0");
  if (payload.size() != kPriorityBytes) {
    return Fail(ErrorCode::kFrameSizeError, "PRIORITY has not 5 bytes");
  }
  if (ReadUint31(payload.data()) == header.stream_id) {
    return Fail(ErrorCode::kProtocolError, "a stream depends on itself");
  }
  return true;
}

bool Session::TakeReset(const FrameHeader& header, Payload payload) {
  if (header.stream_id == 0) return Fail(ErrorCode::kProtocolError, "RST_STREAM on stream 0");
  if (payload.size() != sizeof(uint32_t)) {
    return Fail(ErrorCode::kFrameSizeError, "RST_STREAM has not 4 bytes");
  }
  if (Stream* const stream = streams_.Find(header.stream_id); stream != nullptr) {
    OnResetReceived(*stream, static_cast<ErrorCode>(ReadUint32(payload.data())));
    return !ended();
  }
  if (IsIdle(header.stream_id)) {
    return Fail(ErrorCode::kProtocolError, "RST_STREAM on an idle stream");
  }
  return Bound(floods_.resets.Spend(1, now_ns_), "too_many_resets");
}

bool Session::TakeSettings(const FrameHeader& header, Payload payload) {
  if (!Bound(floods_.settings.Spend(1, now_ns_), "too_many_settings")) return false;
  if (header.stream_id != 0) return Fail(ErrorCode::kProtocolError, "SETTINGS on a stream");
  if (header.has(kAck)) {
    if (!payload.empty()) return Fail(ErrorCode::kFrameSizeError, "SETTINGS with ACK and entries");
    if (settings_unacked_ == 0) return Fail(ErrorCode::kProtocolError, "ACK of no SETTINGS");
    --settings_unacked_;
    return true;
  }
  if (payload.size() % kSettingBytes != 0) {
    return Fail(ErrorCode::kFrameSizeError, "SETTINGS with a part of an entry");
  }
  if (!Bound(payload.size() <= kMaxSettings * kSettingBytes, "too many entries in SETTINGS")) {
    return false;
  }
  const int64_t window_before = peer_initial_window_;
  for (; !payload.empty(); payload.remove_prefix(kSettingBytes)) {
    const auto setting = static_cast<Setting>(payload[0] << 8 | payload[1]);
    if (!ApplySetting(setting, ReadUint32(payload.data() + 2))) return false;
  }
  if (peer_initial_window_ != window_before &&
      !ChangeWindows(peer_initial_window_ - window_before)) {
    return false;
  }
  WriteControl({0, FrameType::kSettings, kAck, 0});
  OnSettingsReceived();
  return !ended();
}

bool Session::ApplySetting(Setting setting, uint32_t value) {
  switch (setting) {
    case Setting::kHeaderTableSize:
      encoder_.SetPeerTableBytes(value);
      return true;
    case Setting::kEnablePush:
      // Servers must not enable what only they may do.
      return value <= (role_ == Role::kServer ? 1u : 0u) ||
             Fail(ErrorCode::kProtocolError, "SETTINGS_ENABLE_PUSH is not valid");
    case Setting::kMaxConcurrentStreams:
      peer_max_streams_ = value;
      return true;
    case Setting::kInitialWindowSize:
      if (value > static_cast<uint32_t>(kMaxWindow)) {
        return Fail(ErrorCode::kFlowControlError, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1");
      }
      // TakeSettings changes the windows once, however many values a frame has.
      peer_initial_window_ = value;
      return true;
    case Setting::kMaxFrameSize:
      // We send none larger than what each peer accepts.
      return (value >= kDefaultMaxFrameBytes && value <= kMostFrameBytes) ||
             Fail(ErrorCode::kProtocolError, "SETTINGS_MAX_FRAME_SIZE is not valid");
    case Setting::kMaxHeaderListSize:
      return true;  // advice; our lists are small
    case Setting::kNoRfc7540Priorities:
      return value <= 1 ||
             Fail(ErrorCode::kProtocolError, "SETTINGS_NO_RFC7540_PRIORITIES is not valid");
  }
  return true;
}

bool Session::ChangeWindows(int64_t change) {
  bool overflow = false;
  streams_.ForEach([&](Stream& stream) {
    const int64_t window = stream.send_window_ + change;
    overflow = overflow || window > kMaxWindow;
    if (overflow) return;
    stream.send_window_ = static_cast<int32_t>(window);
    if (window > 0 && stream.sending_ == Sending::kBody) List(stream);
  });
  return !overflow || Fail(ErrorCode::kFlowControlError, "a stream's window is above 2^31-1");
}

bool Session::TakePing(const FrameHeader& header, Payload payload) {
  const bool ack = header.has(kAck);
  Budget& budget = ack ? floods_.unknown : floods_.pings;
  if (!Bound(budget.Spend(1, now_ns_), ack ? "too_many_ping_acks" : "too_many_pings")) return false;
  if (header.stream_id != 0) return Fail(ErrorCode::kProtocolError, "PING on a stream");
  if (payload.size() != kPingBytes) return Fail(ErrorCode::kFrameSizeError, "PING has not 8 bytes");
  const uint64_t content =
      uint64_t{ReadUint32(payload.data())} << 32 | ReadUint32(payload.data() + 4);
  if (ack) {
    OnPingAckReceived(content);
  } else {
    WritePing(content, kAck);
  }
  return !ended();
}

bool Session::TakeGoaway(const FrameHeader& header, Payload payload) {
  if (!Bound(floods_.unknown.Spend(1, now_ns_), "too_many_goaways")) return false;
  if (header.stream_id != 0) return Fail(ErrorCode::kProtocolError, "GOAWAY on a stream");
  if (payload.size() < kGoawayBytes) {
    return Fail(ErrorCode::kFrameSizeError, "GOAWAY has less than 8 bytes");
  }
  OnGoawayReceived(ReadUint31(payload.data()),
                   static_cast<ErrorCode>(ReadUint32(payload.data() + 4)),
                   Text(payload.subspan(kGoawayBytes)));
  return !ended();
}

bool Session::TakeWindowUpdate(const FrameHeader& header, Payload payload) {
  if (!Bound(floods_.window_updates.Spend(1, now_ns_), "too_many_window_updates")) return false;
  if (payload.size() != sizeof(uint32_t)) {
    return Fail(ErrorCode::kFrameSizeError, "WINDOW_UPDATE has not 4 bytes");
  }
  const int32_t more = ReadUint31(payload.data());
  if (header.stream_id == 0) {
    if (more == 0) return Fail(ErrorCode::kProtocolError, "WINDOW_UPDATE of 0");
    send_window_ += more;
    return send_window_ <= kMaxWindow ||
           Fail(ErrorCode::kFlowControlError, "the connection's window is above 2^31-1");
  }
  Stream* const stream = streams_.Find(header.stream_id);
  if (stream == nullptr) {
    return !IsIdle(header.stream_id) ||
           Fail(ErrorCode::kProtocolError, "WINDOW_UPDATE on an idle stream");
  }
  if (more == 0) {
    FailStream(*stream, ErrorCode::kProtocolError, "WINDOW_UPDATE of 0");
  } else if (int64_t{stream->send_window_} + more > kMaxWindow) {
    FailStream(*stream, ErrorCode::kFlowControlError, "a stream's window is above 2^31-1");
  } else {
    stream->send_window_ += more;
    if (stream->sending_ == Sending::kBody && stream->send_window_ > 0) List(*stream);
  }
  return true;
}

}  // namespace sluice::http2
