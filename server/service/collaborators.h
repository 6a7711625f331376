// Collaborators: what the use cases of the data plane work with.
#ifndef SLUICE_SERVER_SERVICE_COLLABORATORS_H_
#define SLUICE_SERVER_SERVICE_COLLABORATORS_H_

#include <cstddef>
#include <cstdint>

#include "common/clock.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/store/store.h"
#include "server/waiting/held_callers.h"

namespace sluice::service {

class KeyUsage;
class ReceiptSigner;
class RememberedRoom;

// Everything outlives the calls that use it.
struct Collaborators {
  limits::LimitRegistry& registry;
  store::Store& store;
  const common::Clock& clock;
  common::Metrics& metrics;
  KeyUsage& usage;
  const ReceiptSigner& signer;
  // Null: `hold` is UNIMPLEMENTED.
  waiting::HeldCallers* held_callers = nullptr;
  RememberedRoom* room = nullptr;
};

// Callers of this process that wait for slots of the bucket; the store does not know them.
inline uint64_t CallersInLine(const Collaborators& with, const store::QueryItem& bucket) {
  if (with.held_callers == nullptr || !algorithm::IsConcurrency(bucket.rule->parameters)) return 0;
  return with.held_callers->InLine({bucket.rule, bucket.key, 1});
}

// How often a request is resolved again because its limits changed meanwhile. Each time means a
// reload between the look-up of a limit and the decision, which takes less than a microsecond.
inline constexpr size_t kMaxAttempts = 8;

// The work of a slice, in decisions on one bucket, and in the store's steps.
inline constexpr size_t kSliceDecisions = store::Operation::kSliceDecisions;
inline constexpr int64_t kSliceWork = store::Operation::kSliceWork;

// The work of opening a receipt, in decisions on one bucket: checking its MAC takes most of it.
inline constexpr size_t kReceiptCost = 16;
inline constexpr size_t ReceiptCost(size_t bytes) { return kReceiptCost + bytes / 64; }

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_COLLABORATORS_H_
