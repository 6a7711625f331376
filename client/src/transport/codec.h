// Encodes the requests of sluice.v1.RateLimiter and decodes its answers, without protobuf.
//
// Decoders accept the bytes that protobuf's parser accepts, and also text that is not UTF-8. They
// return false if the bytes are not such a message, or if it has more elements than a server sends
// (common/bounds.h): few bytes may not become much memory. The value is then unspecified.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_CODEC_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_CODEC_H_

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/connection.h"
#include "sluice/decision.h"

namespace sluice::client_internal {

// These append one message of gRPC to `out`: its flags and length, then the request.
void EncodeAcquire(const Acquisition& acquisition, std::string* out);
void EncodeAcquireBatch(std::span<const Acquisition> batch, std::string* out);
void EncodeQuery(std::span<const Bucket> buckets, std::string* out);
void EncodeWatch(std::span<const Bucket> buckets, std::chrono::nanoseconds min_interval,
                 std::string* out);
void EncodeRefund(std::string_view receipt, std::string* out);
void EncodeRenew(std::span<const std::string> receipts, std::string* out);
void EncodeSettle(const Settlement& settlement, std::string* out);
void EncodeSettleBatch(std::span<const Settlement> batch, std::string* out);

bool Decode(std::string_view bytes, Decision* decision);
bool Decode(std::string_view bytes, BatchDecisions* decisions);
bool Decode(std::string_view bytes, std::vector<BucketStatus>* buckets);
bool Decode(std::string_view bytes, RefundResult* result);
bool Decode(std::string_view bytes, std::vector<Renewal>* renewals);
bool Decode(std::string_view bytes, SettleResult* result);
bool Decode(std::string_view bytes, BatchSettlements* results);

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_CODEC_H_
