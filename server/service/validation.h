// Checks of requests, for all use cases, and the unchecked values that a transport fills in. Each
// error names the field, its value and the bound. A check formats nothing unless it fails.
#ifndef SLUICE_SERVER_SERVICE_VALIDATION_H_
#define SLUICE_SERVER_SERVICE_VALIDATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/strings.h"
#include "server/limits/limit_table.h"
#include "server/store/store.h"

namespace sluice::service {

// A length of time as it came over the wire, unchecked.
struct WireDuration {
  int64_t seconds = 0;
  int32_t nanos = 0;
};

// The options of one acquisition.
struct AcquisitionOptions {
  WireDuration max_wait = {};
  bool hold = false;
  bool want_receipt = false;
  bool force = false;
  bool once = false;  // it has a request id (AcquireCall::SetRequestId)
  std::optional<WireDuration> settle_within = {};
  bool can_return_receipt = true;  // false: the answer has no place for a receipt, so no slots

  // For now or never, without a receipt and a request id.
  bool plain() const {
    return max_wait.seconds == 0 && max_wait.nanos == 0 && !want_receipt && !force && !once &&
           !settle_within.has_value();
  }
};

// Whether the transport's decoder has checked that strings are UTF-8. If not, the use case does,
// and names the field that is not.
enum class Utf8 : uint8_t { kChecked, kUnchecked };

// A message within a request, by the list elements that lead to it.
class FieldPath {
 public:
  // The request itself.
  FieldPath() = default;

  // Element `index` of a list in this message. `list` is a literal. At most two levels.
  FieldPath Element(std::string_view list, size_t index) const {
    FieldPath path = *this;
    path.steps_[path.depth_++] = {list, index};
    return path;
  }

  // "acquisitions[3].charges[0].key" for "key".
  std::string Field(std::string_view name) const;

 private:
  struct Step {
    std::string_view list;
    size_t index = 0;
  };
  Step steps_[2];
  size_t depth_ = 0;
};

// Finds the limits that one request names, in one table. Remembers the last one found, since most
// callers name the same limit repeatedly. Not thread-safe.
class LimitFinder {
 public:
  // Null: holds no table.
  void Use(std::shared_ptr<const limits::LimitTable> table) {
    table_ = std::move(table);
    last_limit_ = nullptr;
    suggested_ = false;
  }

  // Null if there is no such limit. Valid as long as the table. REQUIRES: Use was called with a
  // table; the bytes of `name` stay until the next Use.
  ABSL_ATTRIBUTE_ALWAYS_INLINE const limits::Limit* Find(std::string_view name) {
    if (last_limit_ == nullptr || !common::SameBytes(name, last_name_)) {
      last_name_ = name;
      last_limit_ = table_->Find(name);
    }
    return last_limit_;
  }

  // Find, or NOT_FOUND. Only the first error suggests another name, and not if the thread has
  // suggested many lately: the search for it costs more than all the rest of the request.
  absl::StatusOr<const limits::Limit*> FindOrError(const FieldPath& path, std::string_view field,
                                                   std::string_view name);

  const std::shared_ptr<const limits::LimitTable>& table() const { return table_; }

 private:
  std::shared_ptr<const limits::LimitTable> table_;
  std::string_view last_name_;
  const limits::Limit* last_limit_ = nullptr;
  bool suggested_ = false;
};

// `path` in the functions below is the message that has the checked fields. INVALID_ARGUMENT, or as
// stated.

// A whole call: the number of acquisitions in a batch, of buckets in a Query or a Watch.
absl::Status CheckAcquisitionCount(size_t acquisitions);
absl::Status CheckBucketCount(size_t buckets);

// `max_wait` and `hold` of an acquisition. Returns max_wait in nanoseconds.
absl::StatusOr<int64_t> CheckOptions(const FieldPath& path, const AcquisitionOptions& options,
                                     bool in_batch);

// `settle_within` of an acquisition, in nanoseconds; 0: it has none.
absl::StatusOr<int64_t> CheckSettleWithin(const FieldPath& path, const AcquisitionOptions& options);

// The number of charges of an acquisition, before or after the limits' own `charges` were added.
absl::Status CheckChargeCount(const FieldPath& acquisition, size_t charges);

// `limit` and `key` of a bucket; returns the limit. NOT_FOUND.
absl::StatusOr<const limits::Limit*> CheckBucket(const FieldPath& path, std::string_view limit,
                                                 std::string_view key, Utf8 utf8,
                                                 LimitFinder& limits);
absl::Status CheckKey(const FieldPath& path, std::string_view key);

// `limit`, `key` and `permits` of a charge; returns the limit. `force`: of its acquisition.
// NOT_FOUND.
absl::StatusOr<const limits::Limit*> CheckCharge(const FieldPath& path, std::string_view limit,
                                                 std::string_view key, uint64_t permits, bool force,
                                                 Utf8 utf8, LimitFinder& limits);
// `permits` of a charge, against one rule that it debits.
absl::Status CheckPermits(const FieldPath& path, uint64_t permits, const store::Rule& rule);

// `permits` of a forced charge, and that the rule of its bucket allows force.
absl::Status CheckForced(const FieldPath& path, uint64_t permits, const store::Rule& rule);
// That a bucket that forced charges add can be debited by force.
absl::Status CheckForcedParent(const FieldPath& acquisition, const store::Rule& rule);

// The charges of one acquisition, once those on the same bucket were added up (saturating).
// `added`: how many there were before.
absl::Status CheckMergedCharges(const FieldPath& acquisition, size_t added,
                                absl::Span<const store::Charge> merged);

// That reservations on the charges' buckets in a shared store are possible.
absl::Status CheckBooksAhead(const FieldPath& acquisition, absl::Span<const store::Charge> charges);

// `request_id` of an acquisition, and that nothing in its options forbids one.
absl::Status CheckRequestId(const FieldPath& acquisition, std::string_view request_id,
                            const AcquisitionOptions& options);
// That grants on the charges' buckets in a shared store can be remembered.
absl::Status CheckRemembers(const FieldPath& acquisition, absl::Span<const store::Charge> charges);
// That estimates on the charges' buckets in a shared store can be settled.
absl::Status CheckEstimates(const FieldPath& acquisition, absl::Span<const store::Charge> charges);
// That the charges on rates in a shared store can be settled with `slots`.
absl::Status CheckRatesOfSlots(const FieldPath& acquisition, const store::Rule& slots,
                               absl::Span<const store::Charge> charges);
// The rule of the first charge on slots; null: there is none.
const store::Rule* SlotsOf(absl::Span<const store::Charge> charges);
// `max_holds` of ListHolds, with the default filled in.
absl::StatusOr<uint32_t> CheckMaxHolds(uint32_t max_holds);

// `min_interval` of a Watch, in nanoseconds.
absl::StatusOr<int64_t> CheckMinInterval(WireDuration min_interval);

// `reason` of a PutLimit.
absl::Status CheckReason(std::string_view reason);
// `expires_after` of a PutLimit, in nanoseconds.
absl::StatusOr<int64_t> CheckExpiresAfter(WireDuration expires_after);

// `max_keys` of ListKeys, with the default filled in.
absl::StatusOr<uint32_t> CheckMaxKeys(uint32_t max_keys);

// Nanoseconds; saturates. INVALID_ARGUMENT: seconds and nanos are no duration.
absl::StatusOr<int64_t> ToNanoseconds(std::string_view field, WireDuration duration);

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_VALIDATION_H_
