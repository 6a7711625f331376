// HTTP/2 frames and header blocks as bytes, valid or not.
#ifndef SLUICE_TESTS_SUPPORT_HTTP2_FRAMES_H_
#define SLUICE_TESTS_SUPPORT_HTTP2_FRAMES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/http2/frames.h"

namespace sluice::testing {

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream_id,
                         std::string_view payload = "") {
  std::string out;
  for (const int shift : {16, 8, 0}) out.push_back(static_cast<char>(payload.size() >> shift));
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(stream_id >> shift));
  out.append(payload);
  return out;
}
inline std::string Frame(http2::FrameType type, uint8_t flags, uint32_t stream_id,
                         std::string_view payload = "") {
  return Frame(static_cast<uint8_t>(type), flags, stream_id, payload);
}

// Four bytes, the highest first.
inline std::string Uint32(uint32_t value) {
  std::string out(4, '\0');
  http2::WriteUint32(value, reinterpret_cast<uint8_t*>(out.data()));
  return out;
}
inline std::string Entry(http2::Setting setting, uint32_t value) {
  const auto id = static_cast<uint16_t>(setting);
  return std::string{static_cast<char>(id >> 8), static_cast<char>(id)} + Uint32(value);
}

inline const std::string kGreeting =
    std::string(http2::kPreface) + Frame(http2::FrameType::kSettings, 0, 0);

// A literal header field that is not indexed. Lengths below 127.
inline std::string Literal(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + std::string(name) +
         static_cast<char>(value.size()) + std::string(value);
}

// The header block of a gRPC request. 0x83: ":method: POST", 0x86: ":scheme: http".
inline std::string RequestHeaders(std::string_view path) {
  return "\x83\x86" + Literal(":path", path) + Literal(":authority", "a") +
         Literal("te", "trailers") + Literal("content-type", "application/grpc");
}

struct ParsedFrame {
  http2::FrameHeader header;
  std::string payload;
};
// The frames that `bytes` begin with.
inline std::vector<ParsedFrame> ParseFrames(std::string_view bytes) {
  std::vector<ParsedFrame> frames;
  if (bytes.substr(0, http2::kPreface.size()) == http2::kPreface) {
    bytes.remove_prefix(http2::kPreface.size());
  }
  while (bytes.size() >= http2::kFrameHeaderBytes) {
    const auto header = http2::ReadFrameHeader(reinterpret_cast<const uint8_t*>(bytes.data()));
    if (bytes.size() < http2::kFrameHeaderBytes + header.length) break;
    frames.push_back({header, std::string(bytes.substr(http2::kFrameHeaderBytes, header.length))});
    bytes.remove_prefix(http2::kFrameHeaderBytes + header.length);
  }
  return frames;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_HTTP2_FRAMES_H_
