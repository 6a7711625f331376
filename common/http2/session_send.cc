// The half of Session that writes frames.
#include <algorithm>
#include <cstring>

#include "common/http2/session.h"

namespace sluice::http2 {
namespace {

// Bytes of control frames that stay allocated.
constexpr size_t kKeepControlBytes = 512;

}  // namespace

// ---- The lists of streams

void Session::List(Stream& stream) {
  // The lists of an abandoned session have streams that were destroyed.
  if (stream.listed_ == Listed::kReady || end_ == End::kAbandoned) return;
  if (stream.listed_ == Listed::kBlocked) Unlist(stream);
  stream.listed_ = Listed::kReady;
  ready_.PushBack(stream);
}

void Session::Unlist(Stream& stream) {
  (stream.listed_ == Listed::kReady ? ready_ : blocked_).Remove(stream);
  stream.listed_ = Listed::kNone;
}

bool Session::Send(size_t limit, common::Buffer* output) {
  TakeControl(*output);
  while (!ended()) {
    Stream* const next = send_window_ > 0 && !blocked_.empty() ? blocked_.front() : ready_.front();
    if (next == nullptr) return false;
    if (output->size() >= limit) return true;
    SendFrom(*next, *output);
    TakeControl(*output);
  }
  return false;
}

void Session::TakeControl(common::Buffer& output) {
  if (control_.empty()) return;
  output.Append(control_.view());
  control_.Clear(kKeepControlBytes);
}

void Session::SendFrom(Stream& stream, common::Buffer& output) {
  Unlist(stream);
  if (stream.receiving_ == Receiving::kIgnored) {
    SendReset(stream);
    return;
  }
  if (stream.sending_ == Sending::kHeaders) {
    SendHeaders(stream, output, /*trailers=*/false, /*end=*/!stream.has_body_);
    if (!stream.has_body_) {
      EndSending(stream);
      return;
    }
    stream.sending_ = Sending::kBody;
  }
  if (stream.sending_ == Sending::kBody) SendBody(stream, output);
}

void Session::SendBody(Stream& stream, common::Buffer& output) {
  const int64_t window = std::min<int64_t>(stream.send_window_, send_window_);
  if (window <= 0) {
    // A stream without a window of its own is listed again when that opens.
    if (stream.send_window_ > 0) {
      stream.listed_ = Listed::kBlocked;
      blocked_.PushBack(stream);
    }
    return;
  }
  const Body body =
      stream.OnSendBody(std::min<size_t>(static_cast<size_t>(window), kDefaultMaxFrameBytes));
  const size_t size = body.bytes.size();
  if (size == 0 && body.then == Body::Then::kMore) {
    stream.sending_ = Sending::kWaiting;
    return;
  }
  const bool end = body.then == Body::Then::kEnd;
  if (size > 0 || end) {
    uint8_t* const to = output.Reserve(kFrameHeaderBytes + size);
    WriteFrameHeader(
        {static_cast<uint32_t>(size), FrameType::kData, end ? kEndStream : kNoFlags, stream.id_},
        to);
    if (size > 0) std::memcpy(to + kFrameHeaderBytes, body.bytes.data(), size);
    output.Commit(kFrameHeaderBytes + size);
    stream.send_window_ -= static_cast<int32_t>(size);
    send_window_ -= static_cast<int64_t>(size);
    floods_.SentUseful();
    stream.OnBodySent();
  }
  if (body.then == Body::Then::kMore) {
    List(stream);  // behind the others
    return;
  }
  if (!end) SendHeaders(stream, output, /*trailers=*/true, /*end=*/true);
  EndSending(stream);
}

void Session::SendHeaders(Stream& stream, common::Buffer& output, bool trailers, bool end) {
  const size_t at = output.size();
  output.Reserve(kFrameHeaderBytes);
  output.Commit(kFrameHeaderBytes);
  HeaderWriter writer(encoder_, output);
  trailers ? stream.OnSendTrailers(writer) : stream.OnSendHeaders(writer);
  const size_t size = output.size() - at - kFrameHeaderBytes;
  const uint8_t flags = end ? kEndStream : kNoFlags;
  if (size > kDefaultMaxFrameBytes) {
    SplitHeaders(stream.id_, flags, at, output);
  } else {
    WriteFrameHeader({static_cast<uint32_t>(size), FrameType::kHeaders,
                      static_cast<uint8_t>(flags | kEndHeaders), stream.id_},
                     output.data() + at);
  }
  floods_.SentUseful();
}

// The first part stays where it is.
void Session::SplitHeaders(int32_t stream_id, uint8_t flags, size_t at, common::Buffer& output) {
  common::Buffer rest;
  const size_t first_end = at + kFrameHeaderBytes + kDefaultMaxFrameBytes;
  rest.Append(output.view().subspan(first_end));
  output.Truncate(first_end);
  WriteFrameHeader({kDefaultMaxFrameBytes, FrameType::kHeaders, flags, stream_id},
                   output.data() + at);
  while (!rest.empty()) {
    const size_t size = std::min<size_t>(rest.size(), kDefaultMaxFrameBytes);
    uint8_t* const to = output.Reserve(kFrameHeaderBytes + size);
    WriteFrameHeader({static_cast<uint32_t>(size), FrameType::kContinuation,
                      size == rest.size() ? kEndHeaders : kNoFlags, stream_id},
                     to);
    std::memcpy(to + kFrameHeaderBytes, rest.data(), size);
    output.Commit(kFrameHeaderBytes + size);
    rest.Consume(size);
  }
}

void Session::EndSending(Stream& stream) {
  stream.sending_ = Sending::kEnded;
  if (stream.receiving_ == Receiving::kEnded) {
    Close(stream, {});
  } else {
    OnEndSent(stream);
  }
}

void Session::SendReset(Stream& stream) {
  const StreamEnd end = stream.end_;
  // Streams that the peer makes us reset count as its own resets.
  const bool its_fault = end.code != ErrorCode::kNoError && end.code != ErrorCode::kCancel;
  if (its_fault) Bound(floods_.resets.Spend(1, now_ns_), "too_many_stream_errors");
  // The server never sees a stream whose headers were not sent.
  if (role_ == Role::kServer || stream.begun()) WriteReset(stream.id_, end.code);
  Close(stream, end);
}

// ---- Control frames

uint8_t* Session::WriteControl(const FrameHeader& header) {
  uint8_t* const to = control_.Reserve(kFrameHeaderBytes + header.length);
  WriteFrameHeader(header, to);
  control_.Commit(kFrameHeaderBytes + header.length);
  return to + kFrameHeaderBytes;
}

void Session::WriteSettings(absl::Span<const std::pair<Setting, uint32_t>> settings) {
  constexpr uint32_t kEntryBytes = 6;
  uint8_t* to = WriteControl(
      {static_cast<uint32_t>(settings.size()) * kEntryBytes, FrameType::kSettings, kNoFlags, 0});
  for (const auto& [setting, value] : settings) {
    const auto id = static_cast<uint16_t>(setting);
    to[0] = static_cast<uint8_t>(id >> 8);
    to[1] = static_cast<uint8_t>(id);
    WriteUint32(value, to + 2);
    to += kEntryBytes;
  }
  ++settings_unacked_;
}

void Session::WriteWindowUpdate(int32_t stream_id, size_t bytes) {
  WriteUint32(static_cast<uint32_t>(bytes),
              WriteControl({4, FrameType::kWindowUpdate, kNoFlags, stream_id}));
}

void Session::WriteReset(int32_t stream_id, ErrorCode code) {
  WriteUint32(static_cast<uint32_t>(code),
              WriteControl({4, FrameType::kRstStream, kNoFlags, stream_id}));
}

void Session::WritePing(uint64_t payload, uint8_t flags) {
  uint8_t* const to = WriteControl({8, FrameType::kPing, flags, 0});
  WriteUint32(static_cast<uint32_t>(payload >> 32), to);
  WriteUint32(static_cast<uint32_t>(payload), to + 4);
}

void Session::WriteGoaway(int32_t last_stream_id, ErrorCode code, std::string_view text) {
  uint8_t* const to =
      WriteControl({static_cast<uint32_t>(8 + text.size()), FrameType::kGoaway, kNoFlags, 0});
  WriteUint32(static_cast<uint32_t>(last_stream_id), to);
  WriteUint32(static_cast<uint32_t>(code), to + 4);
  if (!text.empty()) std::memcpy(to + 8, text.data(), text.size());
}

}  // namespace sluice::http2
