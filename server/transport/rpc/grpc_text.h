// Encodes and decodes the texts that gRPC puts into HTTP/2 headers: time-outs and status messages.
// Pure functions.
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

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_GRPC_TEXT_H_
