// Values that pass between a transport and the use cases. They know no wire: a transport fills
// them from whatever it received and encodes what it gets back.
#ifndef SLUICE_SERVER_SERVICE_TYPES_H_
#define SLUICE_SERVER_SERVICE_TYPES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/store/store.h"

namespace sluice::service {

// A length of time as it came over the wire, unchecked: the use cases say what is wrong with it.
struct WireDuration {
  int64_t seconds = 0;
  int32_t nanos = 0;
};

// A bucket after a decision, for one charge.
struct ChargeStatus {
  store::BucketLevel level;
  store::Reason reason = store::Reason::kNone;
  // Empty for a requested charge; the limit's name for one that `charges` added.
  std::string_view limit;
};

// A bucket as Query and Watch see it.
struct BucketStatus {
  std::string_view limit;
  std::string_view key;
  store::BucketLevel level;
  bool exists = false;
  store::Source source = store::Source::kStore;
  uint64_t waiting = 0;
  int64_t next_grant_after_ns = 0;  // 0: nobody waits
  // Set instead of the parameters.
  absl::Status error;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_TYPES_H_
