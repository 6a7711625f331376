// MergedAcquisitions: the acquisitions of one call on their way to the store and back. Adds up
// charges on the same bucket, since the store decides on a bucket once per acquisition, and returns
// the bucket's result to each of them.
#ifndef SLUICE_SERVER_SERVICE_MERGED_ACQUISITIONS_H_
#define SLUICE_SERVER_SERVICE_MERGED_ACQUISITIONS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/types/span.h"
#include "server/store/store.h"

namespace sluice::service {

// Reusable: once its vectors have grown, it allocates nothing. Derive from it for Done(). Not
// thread-safe; not to be touched between Decide and Done.
//
//   work.Clear();
//   for each acquisition:
//     work.Begin(want_receipt);
//     work.Add(rule, key, permits) for each charge, those that `charges` adds last;
//     if it is bad (CheckMergedCharges): work.DropLast();
//   work.Decide(store, deadline_ns);   // -> work.Done() -> results, by index
class MergedAcquisitions : public store::AcquireOperation {
 public:
  MergedAcquisitions() = default;
  MergedAcquisitions(const MergedAcquisitions&) = delete;
  MergedAcquisitions& operator=(const MergedAcquisitions&) = delete;

  // Removes all acquisitions; keeps the memory.
  void Clear();

  // Starts the next acquisition, which may not be booked ahead until SetMaxWait.
  void Begin(bool want_receipt);
  void SetWantReceipt() { decided_.back().want_receipt = true; }
  void SetBehindOthers() { decided_.back().behind_others = true; }
  void SetMaxWait(int64_t max_wait_ns) { decided_.back().max_wait_ns = max_wait_ns; }
  // `once` stays alive and unchanged until Done.
  void SetOnce(store::Once* once) { decided_.back().once = once; }
  // Makes the last acquisition a forced one. To be called before its charges are added.
  void SetForced() { decided_.back().debit = store::Debit::kForced; }
  // Makes it an estimate. REQUIRES: Begin(true).
  void SetSettleWithin(int64_t within_ns) { decided_.back().settle_within_ns = within_ns; }

  // Adds a charge to the last acquisition. `rule` and the bytes of `key` stay alive until Done. A
  // second charge on the same bucket (limit and key) adds to the first; the sum saturates. Charges
  // over bounds::kMaxCharges are counted and not kept.
  void Add(const store::Rule& rule, std::string_view key, uint64_t permits);

  // Add of a charge that the limit of the `by`-th charge adds.
  void AddChargedBy(size_t by, const store::Rule& rule, std::string_view key, uint64_t permits);

  // Begin and Add of an acquisition for now, with one charge and no receipt.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void AddSingle(const store::Rule& rule, std::string_view key,
                                              uint64_t permits) {
    items_.push_back(
        {static_cast<uint32_t>(merged_of_.size()), 1, static_cast<uint32_t>(merged_.size()), 1});
    merged_.push_back({&rule, key, permits});
    merged_of_.push_back(0);
    decided_.push_back(kUndecided);
  }

  // The last acquisition: charges added, and those that are left of them, each on another bucket.
  size_t last_added() const { return items_.back().added; }
  absl::Span<const store::Charge> last_merged() const {
    return absl::MakeConstSpan(merged_).subspan(items_.back().first_merged);
  }

  void DropLast();

  // Acquisitions that were begun and not dropped, and their charges.
  size_t size() const { return items_.size(); }
  size_t merged_charges() const { return merged_.size(); }

  // Decides all acquisitions in order and calls Done() exactly once: before it returns, on this
  // thread, if the store is in memory or there is nothing to decide.
  void Decide(store::Store& store, int64_t deadline_ns);

  // ---- Results, after Done ----

  // Its `charges` are the merged ones, which a receipt is made of.
  const store::Acquisition& acquisition(size_t i) const { return decided_[i]; }
  // For a call that is held: its decision may change while it waits.
  store::Acquisition& mutable_acquisition(size_t i) { return decided_[i]; }

  // Charges of acquisition i, as they were added.
  size_t charges(size_t i) const { return items_[i].added; }

  // The result of the c-th charge added. Charges on one bucket share its result.
  const store::ChargeResult& charge(size_t i, size_t c) const {
    return results_[MergedIndex(i, c)];
  }

  // The rule that the c-th charge named.
  const store::Rule& rule(size_t i, size_t c) const { return *merged_[MergedIndex(i, c)].rule; }

  // Bytes of its vectors.
  size_t memory() const {
    return items_.capacity() * sizeof(Item) + decided_.capacity() * sizeof(store::Acquisition) +
           merged_.capacity() * sizeof(store::Charge) +
           results_.capacity() * sizeof(store::ChargeResult) + merged_of_.capacity() +
           charged_by_.capacity() * sizeof(uint16_t);
  }

 protected:
  ~MergedAcquisitions() = default;

 private:
  // Copied instead of made in place: gcc clears 88 bytes with `rep stos`, which takes longer to
  // begin than all other work to queue an acquisition.
  static const store::Acquisition kUndecided;

  struct Item {
    uint32_t first_added = 0;  // in merged_of_
    uint32_t added = 0;
    uint32_t first_merged = 0;  // in merged_ and results_
    uint32_t merged = 0;
  };

  size_t MergedIndex(size_t i, size_t c) const {
    return items_[i].first_merged + merged_of_[items_[i].first_added + c];
  }

  std::vector<Item> items_;
  std::vector<store::Acquisition> decided_;  // one for each item
  std::vector<store::Charge> merged_;
  std::vector<store::ChargeResult> results_;  // one for each of merged_
  // Acquisition::charged_by, one for each of merged_, as far as there are any.
  std::vector<uint16_t> charged_by_;
  std::vector<uint8_t> merged_of_;  // per charge added: its index among its item's merged
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_MERGED_ACQUISITIONS_H_
