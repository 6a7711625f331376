// QueryCall: one Query, reusable like an AcquireCall. Takes nothing, never creates a bucket.
#ifndef SLUICE_SERVER_SERVICE_QUERY_CALL_H_
#define SLUICE_SERVER_SERVICE_QUERY_CALL_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "server/service/types.h"

namespace sluice::service {

class RateLimiter;

// Thread-compatible. Views stay the caller's, as in AcquireCall.
class QueryCall {
 public:
  // As AcquireCall::DoneFn.
  using DoneFn = void (*)(void* context, QueryCall* call);

  // What an unknown limit does: fails the call (Query), or is that bucket's error (Watch, whose
  // limit may be deleted while it is watched).
  enum class UnknownLimit : uint8_t { kFailsCall, kFailsBucket };

  QueryCall();
  ~QueryCall();
  QueryCall(const QueryCall&) = delete;
  QueryCall& operator=(const QueryCall&) = delete;

  void Reset(UnknownLimit unknown = UnknownLimit::kFailsCall, bool utf8_checked = true);
  void AddBucket(std::string_view limit, std::string_view key);

  // After completion. NOT_FOUND: unknown limit. INVALID_ARGUMENT: no bucket, over 256, a key over
  // 512 bytes. DEADLINE_EXCEEDED, UNAVAILABLE.
  const absl::Status& status() const;
  // As many as AddBucket, in its order. REQUIRES: status() is OK.
  size_t size() const;
  BucketStatus bucket(size_t i) const;
  // The server's wall clock at the answer, nanoseconds since 1970.
  int64_t wall_ns() const;

 private:
  friend class RateLimiter;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_QUERY_CALL_H_
