// Encodes and decodes the texts that gRPC puts into HTTP/2 headers: time-outs, status messages and
// binary metadata. Pure functions, for either side of a connection.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_
#define SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::transport {

// Parses "grpc-timeout": 1 to 8 digits and a unit, H M S m u n. Returns nanoseconds, INT64_MAX if
// they do not fit (99999999H is 11,000 years), nullopt if the text has another form.
std::optional<int64_t> ParseTimeout(std::string_view text);

// Encodes "grpc-message": bytes outside of ' '..'~', and '%', become %XX. Uses at most `max_bytes`
// of the text, and cuts between UTF-8 characters.
std::string PercentEncode(std::string_view text, size_t max_bytes);
// The inverse. Keeps an invalid %XX as it is.
std::string PercentDecode(std::string_view text);

// Values of metadata whose names end in "-bin": base64. Encoded without padding, decoded with or
// without. nullopt: not base64.
std::string EncodeBinary(std::string_view bytes);
std::optional<std::string> DecodeBinary(std::string_view text);

// Whether the metadata of that name is binary.
inline bool IsBinaryName(std::string_view name) {
  return name.size() >= 4 && name.substr(name.size() - 4) == "-bin";
}

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_
