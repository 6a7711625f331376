// Field numbers of sluice.v1.RateLimiter's messages, for the codecs that work without protobuf's
// objects: the server's and the client's are mirror images. A test compares them with the .proto
// file.
#ifndef SLUICE_COMMON_RATE_LIMITER_FIELDS_H_
#define SLUICE_COMMON_RATE_LIMITER_FIELDS_H_

#include <cstdint>

namespace sluice::common::fields {

struct Duration {
  enum : uint32_t { kSeconds = 1, kNanos = 2 };
};

struct Charge {
  enum : uint32_t { kLimit = 1, kKey = 2, kPermits = 3 };
};

struct AcquireRequest {
  enum : uint32_t {
    kCharges = 1,
    kMaxWait = 2,
    kHold = 3,
    kWantReceipt = 4,
    kForce = 5,
    kSettleWithin = 6,
    kRequestId = 7
  };
};

struct ChargeStatus {
  enum : uint32_t {
    kRemaining = 1,
    kCapacity = 2,
    kResetAfter = 3,
    kReason = 4,
    kLimit = 5,
    kForgiven = 6,
    kHeldFor = 7
  };
};

struct AcquireResponse {
  enum : uint32_t {
    kGranted = 1,
    kWait = 2,
    kRetryAfter = 3,
    kCharges = 4,
    kSource = 5,
    kReceipt = 6,
    kRepeated = 7
  };
};

struct AcquireBatchRequest {
  enum : uint32_t { kAcquisitions = 1 };
};

struct AcquireResult {
  enum : uint32_t { kResponse = 1, kError = 2 };
};

struct Error {
  enum : uint32_t { kCode = 1, kMessage = 2, kNothingTaken = 3 };
};

struct AcquireBatchResponse {
  enum : uint32_t { kResults = 1 };
};

// A bucket of QueryRequest and WatchRequest.
struct Bucket {
  enum : uint32_t { kLimit = 1, kKey = 2 };
};

struct QueryRequest {
  enum : uint32_t { kBuckets = 1 };
};

struct BucketStatus {
  enum : uint32_t {
    kLimit = 1,
    kKey = 2,
    kRemaining = 3,
    kCapacity = 4,
    kResetAfter = 5,
    kNextPermitAfter = 6,
    kExists = 7,
    kWaiting = 8,
    kNextGrantAfter = 9,
    kSource = 10,
    kError = 11,
    kOpenReceipts = 12,
    kRefundable = 13,
    kHolds = 14,
    kNextEndAfter = 15
  };
};

struct QueryResponse {
  enum : uint32_t { kBuckets = 1, kAt = 2 };
};

struct WatchRequest {
  enum : uint32_t { kBuckets = 1, kMinInterval = 2 };
};

struct RefundRequest {
  enum : uint32_t { kReceipt = 1 };
};

struct RefundedCharge {
  enum : uint32_t { kLimit = 1, kKey = 2, kPermits = 3 };
};

struct RefundResponse {
  enum : uint32_t { kOutcome = 1, kCharges = 2 };
};

struct SettleRequest {
  enum : uint32_t { kReceipt = 1, kActual = 2, kMore = 3 };
};

struct SettledCharge {
  enum : uint32_t { kLimit = 1, kKey = 2, kGivenBack = 3, kCharged = 4, kForgiven = 5 };
};

struct SettleResponse {
  enum : uint32_t { kOutcome = 1, kCharges = 2 };
};

struct SettleBatchRequest {
  enum : uint32_t { kSettlements = 1 };
};

struct SettleResult {
  enum : uint32_t { kResponse = 1, kError = 2 };
};

struct SettleBatchResponse {
  enum : uint32_t { kResults = 1 };
};

struct RenewRequest {
  enum : uint32_t { kReceipts = 1 };
};

struct RenewResult {
  enum : uint32_t { kOutcome = 1, kHeldFor = 2, kError = 3 };
};

struct RenewResponse {
  enum : uint32_t { kResults = 1 };
};

}  // namespace sluice::common::fields

#endif  // SLUICE_COMMON_RATE_LIMITER_FIELDS_H_
