// The texts of gRPC's wire: time-outs, status messages and binary metadata in HTTP/2 headers.
// Pure functions, for either side of a connection.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_
#define SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::transport {

// "grpc-timeout": 1 to 8 digits and a unit, H M S m u n. Nanoseconds, INT64_MAX when they do not
// fit (99999999H is 11,000 years); nullopt when it is not of that form.
std::optional<int64_t> ParseTimeout(std::string_view text);

// "grpc-message": bytes outside of ' '..'~', and '%', as %XX. Cut off at `max_bytes` of input, at
// a boundary between UTF-8 characters.
std::string PercentEncode(std::string_view text, size_t max_bytes);
// The inverse. What is no valid %XX stays as it is.
std::string PercentDecode(std::string_view text);

// Values of metadata whose names end in "-bin": base64, sent without padding, taken with or
// without. nullopt: it is none.
std::string EncodeBinary(std::string_view bytes);
std::optional<std::string> DecodeBinary(std::string_view text);

// Whether `name` is that of binary metadata.
inline bool IsBinaryName(std::string_view name) {
  return name.size() >= 4 && name.substr(name.size() - 4) == "-bin";
}

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_
