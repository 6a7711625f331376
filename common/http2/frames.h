// HTTP/2 frames as they are on the wire (RFC 9113, 4 and 6): types, flags, settings, error codes,
// and the nine bytes before each payload.
#ifndef SLUICE_COMMON_HTTP2_FRAMES_H_
#define SLUICE_COMMON_HTTP2_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice::http2 {

// What a client sends before its first frame.
inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline constexpr size_t kFrameHeaderBytes = 9;
// The largest payload that we accept, and that every peer accepts.
inline constexpr uint32_t kDefaultMaxFrameBytes = 16'384;
inline constexpr int32_t kMaxStreamId = 0x7FFFFFFF;
inline constexpr int32_t kMaxWindow = 0x7FFFFFFF;
// A window before SETTINGS or WINDOW_UPDATE change it.
inline constexpr int32_t kDefaultWindow = 65'535;

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

// Bits of FrameHeader::flags.
inline constexpr uint8_t kNoFlags = 0;
inline constexpr uint8_t kAck = 0x1;         // SETTINGS, PING
inline constexpr uint8_t kEndStream = 0x1;   // DATA, HEADERS
inline constexpr uint8_t kEndHeaders = 0x4;  // HEADERS, CONTINUATION
inline constexpr uint8_t kPadded = 0x8;      // DATA, HEADERS
inline constexpr uint8_t kPriority = 0x20;   // HEADERS

enum class Setting : uint16_t {
  kHeaderTableSize = 1,
  kEnablePush = 2,
  kMaxConcurrentStreams = 3,
  kInitialWindowSize = 4,
  kMaxFrameSize = 5,
  kMaxHeaderListSize = 6,
  kNoRfc7540Priorities = 9,
};

enum class ErrorCode : uint32_t {
  kNoError = 0,
  kProtocolError = 1,
  kInternalError = 2,
  kFlowControlError = 3,
  kSettingsTimeout = 4,
  kStreamClosed = 5,
  kFrameSizeError = 6,
  kRefusedStream = 7,
  kCancel = 8,
  kCompressionError = 9,
  kConnectError = 10,
  kEnhanceYourCalm = 11,
  kInadequateSecurity = 12,
  kHttp11Required = 13,
};

struct FrameHeader {
  uint32_t length = 0;
  FrameType type = FrameType::kData;  // may have values that are not named
  uint8_t flags = 0;
  int32_t stream_id = 0;

  bool has(uint8_t flag) const { return (flags & flag) != 0; }
};

inline uint32_t ReadUint32(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}
inline void WriteUint32(uint32_t value, uint8_t* to) {
  to[0] = static_cast<uint8_t>(value >> 24);
  to[1] = static_cast<uint8_t>(value >> 16);
  to[2] = static_cast<uint8_t>(value >> 8);
  to[3] = static_cast<uint8_t>(value);
}
// 31 bits: the first is reserved.
inline int32_t ReadUint31(const uint8_t* at) {
  return static_cast<int32_t>(ReadUint32(at) & 0x7FFFFFFF);
}

// REQUIRES: kFrameHeaderBytes at `at`.
inline FrameHeader ReadFrameHeader(const uint8_t* at) {
  return {uint32_t{at[0]} << 16 | uint32_t{at[1]} << 8 | at[2], static_cast<FrameType>(at[3]),
          at[4], ReadUint31(at + 5)};
}
inline void WriteFrameHeader(const FrameHeader& header, uint8_t* to) {
  to[0] = static_cast<uint8_t>(header.length >> 16);
  to[1] = static_cast<uint8_t>(header.length >> 8);
  to[2] = static_cast<uint8_t>(header.length);
  to[3] = static_cast<uint8_t>(header.type);
  to[4] = header.flags;
  WriteUint32(static_cast<uint32_t>(header.stream_id), to + 5);
}

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_FRAMES_H_
