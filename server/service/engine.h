// Engine: charges -> decision. Adds up charges on the same bucket, hands the acquisition to the
// store, and spreads the results back over the charges as they were asked for.
#ifndef SLUICE_SERVER_SERVICE_ENGINE_H_
#define SLUICE_SERVER_SERVICE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/store/store.h"

namespace sluice::service {

// A reusable work area for one AcquireOperation on the store: a caller keeps one (per thread, per
// stream) and pays no allocation once its vectors have grown. Derive from it to be told when the
// operation is done. Not thread-safe; not to be touched between Engine::Acquire and Done.
//
//   work.Clear();
//   for each acquisition asked for:
//     work.Begin(max_wait_ns, want_receipt);
//     work.Add(rule, key, permits) for each charge, parents last;   (or work.Fail(status))
//     work.End();
//   engine.Acquire(&work, deadline_ns);   // -> work.Done() -> results, by the same index
//
// An acquisition that was refused (its End() was not OK, or Fail was called) keeps its index and
// its status; the store does not see it and the others are decided without it.
class AcquireWork : public store::AcquireOperation {
 public:
  AcquireWork() = default;
  AcquireWork(const AcquireWork&) = delete;
  AcquireWork& operator=(const AcquireWork&) = delete;

  // Makes it empty; keeps the memory.
  void Clear();

  // Starts the next acquisition. REQUIRES: the one before was ended.
  void Begin(int64_t max_wait_ns, bool want_receipt);

  // A charge of it. `rule` and the bytes of `key` stay alive until Done. A second charge on the
  // same bucket (limit and key) adds to the first.
  void Add(const store::Rule& rule, std::string_view key, uint64_t permits);

  // Refuses the acquisition begun, for the caller's reason. End() then returns it.
  void Fail(absl::Status status);

  // Begin, Add and End of an acquisition for now, with one charge that the caller has checked to
  // be of at least one permit and at most what the rule could ever grant.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void AddChecked(const store::Rule& rule, std::string_view key,
                                               uint64_t permits) {
    Item& item = items_.emplace_back();
    item.decided = static_cast<uint32_t>(decided_.size());
    item.first_requested = static_cast<uint32_t>(merged_of_.size());
    item.first_merged = static_cast<uint32_t>(merged_.size());
    item.requested = item.merged = 1;
    merged_.push_back({&rule, key, permits});
    merged_of_.push_back(0);
    decided_.push_back(kUndecided);
  }

  // INVALID_ARGUMENT: no charges, more than bounds::kMaxCharges (counted before adding up),
  // permits 0, a bucket's sum above what its rule could ever grant.
  absl::Status End();

  // Acquisitions begun since Clear().
  size_t size() const { return items_.size(); }

  // ---- Results, after Done ----

  // Why acquisition i was refused before it was decided; OK: it was decided.
  const absl::Status& status(size_t i) const { return items_[i].status; }

  // REQUIRES: status(i).ok(). Outcome, wait_ns, retry_after_ns, now_ns, source, receipt_id; its
  // `charges` are the merged ones, which a receipt is made of.
  const store::Acquisition& acquisition(size_t i) const { return decided_[items_[i].decided]; }

  // For who holds the answer back until the moment, which may change meanwhile.
  store::Acquisition& mutable_acquisition(size_t i) { return decided_[items_[i].decided]; }

  // Charges of acquisition i, as they were added.
  size_t charges(size_t i) const { return items_[i].requested; }

  // REQUIRES: status(i).ok(). The result of the c-th charge added; of charges on the same bucket
  // each has the bucket's.
  const store::ChargeResult& charge(size_t i, size_t c) const {
    return results_[items_[i].first_merged + merged_of_[items_[i].first_requested + c]];
  }

  // The rule that the c-th charge named.
  const store::Rule& rule(size_t i, size_t c) const {
    return *merged_[items_[i].first_merged + merged_of_[items_[i].first_requested + c]].rule;
  }

 protected:
  ~AcquireWork() = default;

 private:
  friend class Engine;

  // Copied, and not made in place: gcc clears 88 bytes with `rep stos`, which takes longer to begin
  // than all else that is done to queue an acquisition.
  static const store::Acquisition kUndecided;

  struct Item {
    absl::Status status;
    uint32_t decided = 0;          // index in decided_
    uint32_t first_requested = 0;  // in merged_of_
    uint32_t requested = 0;
    uint32_t first_merged = 0;  // in merged_ and results_
    uint32_t merged = 0;
  };

  // Points the acquisitions at their charges, now that the vectors no longer move.
  void Seal();

  std::vector<Item> items_;
  std::vector<store::Acquisition> decided_;
  std::vector<store::Charge> merged_;
  std::vector<store::ChargeResult> results_;  // as many as merged_
  std::vector<uint8_t> merged_of_;            // per charge added: its index among its item's merged
  int64_t max_wait_ns_ = 0;
  bool want_receipt_ = false;
};

// Thread-safe; never blocks. The store outlives it.
class Engine {
 public:
  explicit Engine(store::Store& store) : store_(store) {}

  // Decides all acquisitions of `work`, in order, and calls its Done() exactly once: before it
  // returns, on this thread, where the store is in memory.
  void Acquire(AcquireWork* work, int64_t deadline_ns);

  store::Store& store() const { return store_; }

 private:
  store::Store& store_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_ENGINE_H_
