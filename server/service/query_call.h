// QueryCall: one Query, reusable like an AcquireCall. Takes nothing, never creates a bucket.
#ifndef SLUICE_SERVER_SERVICE_QUERY_CALL_H_
#define SLUICE_SERVER_SERVICE_QUERY_CALL_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/limits/limit_table.h"
#include "server/service/types.h"
#include "server/store/store.h"

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

  QueryCall() = default;
  QueryCall(const QueryCall&) = delete;
  QueryCall& operator=(const QueryCall&) = delete;

  void Reset(UnknownLimit unknown = UnknownLimit::kFailsCall, bool utf8_checked = true);
  void AddBucket(std::string_view limit, std::string_view key);

  // After completion. NOT_FOUND: unknown limit. INVALID_ARGUMENT: no bucket, over 256, a key over
  // 512 bytes. DEADLINE_EXCEEDED, UNAVAILABLE.
  const absl::Status& status() const { return status_; }
  // As many as AddBucket, in its order. REQUIRES: status() is OK.
  size_t size() const { return asked_.size(); }
  BucketStatus bucket(size_t i) const;
  // The server's wall clock at the answer, nanoseconds since 1970.
  int64_t wall_ns() const { return wall_ns_; }

 private:
  friend class RateLimiter;

  struct Asked {
    std::string_view limit;
    std::string_view key;
    uint32_t item = 0;   // in operation_.found
    absl::Status error;  // instead of an item
  };
  struct Operation final : public store::QueryOperation {
    explicit Operation(QueryCall* call) : call(call) {}
    void Done() override;
    QueryCall* const call;
    std::vector<store::QueryItem> found;
  };

  UnknownLimit unknown_ = UnknownLimit::kFailsCall;
  bool utf8_checked_ = true;
  size_t added_ = 0;  // those over the bound are not kept
  std::vector<Asked> asked_;
  Operation operation_{this};
  std::shared_ptr<const limits::LimitTable> table_;
  absl::Status status_;
  int64_t wall_ns_ = 0;

  RateLimiter* limiter_ = nullptr;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_QUERY_CALL_H_
