// Values that pass between a transport and the use cases. They know no wire: a transport fills
// them from the bytes that it received and encodes the answers.
#ifndef SLUICE_SERVER_SERVICE_TYPES_H_
#define SLUICE_SERVER_SERVICE_TYPES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
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
};

// Whether the transport's decoder has checked that strings are UTF-8. If not, the use case does,
// and names the field that is not.
enum class Utf8 : uint8_t { kChecked, kUnchecked };

// A bucket after a decision, for one charge.
struct ChargeStatus {
  store::BucketLevel level;
  store::Reason reason = store::Reason::kNone;
  // Empty for a requested charge; the limit's name for one that `charges` added.
  std::string_view limit;
};

// A bucket in an answer of Query or Watch. `rule` may be gone.
struct BucketStatus : store::QueryItem {
  std::string_view limit;
  // Not OK: only `limit` and `key` are known.
  absl::Status error;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_TYPES_H_
