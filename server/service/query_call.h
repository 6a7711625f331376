// QueryCall: one Query, reusable like an AcquireCall. Takes nothing, never creates a bucket.
#ifndef SLUICE_SERVER_SERVICE_QUERY_CALL_H_
#define SLUICE_SERVER_SERVICE_QUERY_CALL_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/access/caller.h"
#include "server/service/collaborators.h"
#include "server/service/validation.h"
#include "server/store/store.h"

namespace sluice::service {

// A bucket in an answer of Query or Watch. `rule` may be gone.
struct BucketStatus : store::QueryItem {
  std::string_view limit;
  // Not OK: only `limit` and `key` are known.
  absl::Status error;
};

// Thread-compatible. The bytes of all views stay unchanged until the results were read.
class QueryCall final : private store::QueryOperation {
 public:
  // As AcquireCall::DoneFn.
  using DoneFn = void (*)(void* context, QueryCall* call);

  // What an unknown limit does: fails the call (Query), or is that bucket's error (Watch, whose
  // limit may be deleted while it is watched).
  enum class UnknownLimit : uint8_t { kFailsCall, kFailsBucket };

  QueryCall() = default;
  QueryCall(const QueryCall&) = delete;
  QueryCall& operator=(const QueryCall&) = delete;

  // Forgets the last request, keeps the memory.
  void Reset(UnknownLimit unknown = UnknownLimit::kFailsCall, Utf8 utf8 = Utf8::kChecked);
  // The caller. Null: it may do everything. REQUIRES: after Reset, which forgets it.
  void UseCaller(access::CallerPtr caller) { caller_ = std::move(caller); }
  void AddBucket(std::string_view limit, std::string_view key);
  // Buckets added, also those over the bound.
  size_t added() const { return added_; }

  // As AcquireCall's: DoneFn is called after each slice, and only the last has results.
  void DecideInSlices() { most_work = kSliceWork; }
  bool more() const { return undecided > 0; }
  size_t slice_cost() const { return work_in_decisions(); }

  // After completion. PERMISSION_DENIED: a limit that the caller may not use, also if it is
  // unknown. NOT_FOUND: unknown limit. INVALID_ARGUMENT: no bucket, over 256, a key over 512 bytes.
  // DEADLINE_EXCEEDED, UNAVAILABLE.
  const absl::Status& status() const { return status_; }
  // One for each AddBucket, in its order. REQUIRES: status() is OK.
  size_t size() const { return asked_.size(); }
  BucketStatus bucket(size_t i) const;
  // The server's wall clock at the answer, nanoseconds since 1970.
  int64_t wall_ns() const { return wall_ns_; }

  // Bytes of memory, with that of former requests.
  size_t memory() const {
    return sizeof(*this) + asked_.capacity() * sizeof(Asked) +
           found_.capacity() * sizeof(store::QueryItem);
  }
  // About the bytes that this request takes. Does not change while another thread answers it.
  size_t request_memory() const {
    return sizeof(*this) + asked_.size() * (sizeof(Asked) + sizeof(store::QueryItem));
  }

  // RateLimiter::Query and Validate.
  void Start(const Collaborators& with, int64_t deadline_ns, DoneFn done, void* context);
  void Continue();
  const absl::Status& Resolve(const limits::LimitRegistry& registry);

 private:
  struct Asked {
    std::string_view limit;
    std::string_view key;
    uint32_t item = 0;   // in found_
    absl::Status error;  // instead of an item
  };
  void Done() override;

  UnknownLimit unknown_ = UnknownLimit::kFailsCall;
  Utf8 utf8_ = Utf8::kChecked;
  size_t added_ = 0;  // buckets; those over the bound are not kept
  std::vector<Asked> asked_;
  std::vector<store::QueryItem> found_;
  access::CallerPtr caller_;
  LimitFinder limits_;
  absl::Status status_;
  int64_t wall_ns_ = 0;

  // Of the Query under way.
  const Collaborators* with_ = nullptr;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_QUERY_CALL_H_
