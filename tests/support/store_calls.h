// Calls on a Store that wait for the answer, for tests. They work with stores that answer before
// the call returns and with stores that answer later, from another thread.
#ifndef SLUICE_TESTS_SUPPORT_STORE_CALLS_H_
#define SLUICE_TESTS_SUPPORT_STORE_CALLS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/store.h"

namespace sluice::testing {

// Lets a thread wait until another calls Notify.
class Notification {
 public:
  void Notify() {
    common::MutexLock lock(&mu_);
    notified_ = true;
    cv_.SignalAll();
  }
  void Wait() {
    common::MutexLock lock(&mu_);
    while (!notified_) cv_.Wait(&mu_);
  }

 private:
  common::Mutex mu_;
  common::CondVar cv_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

// A rule with a fresh id: each call makes a newer one.
inline std::shared_ptr<const store::Rule> MakeRule(uint32_t limit_id,
                                                   const algorithm::Parameters& parameters,
                                                   bool shadow = false,
                                                   std::optional<uint64_t> max_owed = {},
                                                   std::string_view hash_tag = "") {
  static std::atomic<uint32_t> next_id{1};
  auto rule = std::make_shared<store::Rule>();
  rule->id = next_id.fetch_add(1);
  rule->limit_id = limit_id;
  rule->limit_name = "limit" + std::to_string(limit_id);
  rule->parameters = parameters;
  rule->shadow = shadow;
  rule->max_owed = max_owed;
  rule->hash_tag = hash_tag;
  return rule;
}

struct Acquired {
  store::Outcome outcome = store::Outcome::kPending;
  store::Source source = store::Source::kStore;
  int64_t wait_ns = 0;
  int64_t retry_after_ns = 0;
  int64_t now_ns = 0;
  uint64_t receipt_id = 0;
  std::vector<store::ChargeResult> charges;
  bool may_be_debited = false;
  bool repeated = false;

  // What Refund takes beside the receipt's id.
  int64_t grant_time_ns() const { return wait_ns == 0 ? 0 : now_ns + wait_ns; }
  bool granted() const { return outcome == store::Outcome::kGranted; }
};

struct AcquireOptions {
  int64_t deadline_ns = store::kNoDeadline;
  bool want_receipt = false;
  int64_t max_wait_ns = 0;
  store::Debit debit = store::Debit::kIfAllowed;
  // Acquisition::charged_by of each acquisition.
  std::vector<uint16_t> charged_by = {};
  // Request ids, one for each acquisition; null: none.
  store::Once* once = nullptr;
  // Not 0: an estimate.
  int64_t settle_within_ns = 0;
  // Of a caller that waits for slots.
  const store::QueuePlace* place = nullptr;
};

inline std::vector<Acquired> AcquireBatch(store::Store& store,
                                          const std::vector<std::vector<store::Charge>>& batch,
                                          const AcquireOptions& options = {}) {
  struct Operation final : store::AcquireOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  std::vector<store::Acquisition> acquisitions(batch.size());
  std::vector<std::vector<store::ChargeResult>> results(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    results[i].resize(batch[i].size());
    acquisitions[i].charges = batch[i];
    acquisitions[i].results = results[i].data();
    acquisitions[i].want_receipt = options.want_receipt || options.settle_within_ns != 0;
    acquisitions[i].settle_within_ns = options.settle_within_ns;
    acquisitions[i].max_wait_ns = options.max_wait_ns;
    acquisitions[i].debit = options.debit;
    acquisitions[i].place = options.place;
    if (options.once != nullptr) acquisitions[i].once = &options.once[i];
    if (!options.charged_by.empty()) acquisitions[i].charged_by = options.charged_by.data();
  }
  operation.acquisitions = absl::MakeSpan(acquisitions);
  operation.deadline_ns = options.deadline_ns;
  store.Acquire(&operation);
  operation.done.Wait();
  std::vector<Acquired> acquired(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const store::Acquisition& a = acquisitions[i];
    acquired[i] = {a.outcome,
                   a.source,
                   a.wait_ns,
                   a.retry_after_ns,
                   a.now_ns,
                   a.receipt_id,
                   std::move(results[i]),
                   a.may_be_debited,
                   a.once != nullptr && a.once->repeated};
  }
  return acquired;
}

inline Acquired Acquire(store::Store& store, const std::vector<store::Charge>& charges,
                        const AcquireOptions& options = {}) {
  return std::move(AcquireBatch(store, {charges}, options)[0]);
}

inline Acquired Acquire(store::Store& store, const store::Rule& rule, std::string_view key,
                        uint64_t permits = 1, const AcquireOptions& options = {}) {
  return Acquire(store, std::vector<store::Charge>{{&rule, key, permits}}, options);
}

inline store::QueryItem Query(store::Store& store, const store::Rule& rule, std::string_view key) {
  struct Operation final : store::QueryOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  store::QueryItem item;
  item.rule = &rule;
  item.key = key;
  operation.items = absl::MakeSpan(&item, 1);
  store.Query(&operation);
  operation.done.Wait();
  return item;
}

struct Refunded {
  store::RefundOutcome outcome = store::RefundOutcome::kPending;
  std::vector<uint64_t> permits;
};

inline Refunded Refund(store::Store& store, uint64_t receipt_id,
                       const std::vector<store::Charge>& charges, int64_t grant_time_ns = 0,
                       const store::Once* once = nullptr,
                       const store::QueuePlace* place = nullptr) {
  struct Operation final : store::RefundOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  Refunded refunded;
  refunded.permits.resize(charges.size());
  operation.receipt_id = receipt_id;
  if (once != nullptr) operation.request_id = &once->id;
  operation.place = place;
  operation.grant_time_ns = grant_time_ns;
  operation.charges = charges;
  operation.refunded = refunded.permits.data();
  store.Refund(&operation);
  operation.done.Wait();
  refunded.outcome = operation.outcome;
  return refunded;
}

struct SettleOptions {
  bool more = false;
  // Of the acquisition.
  bool estimate = true;
  std::vector<uint16_t> charged_by = {};
  int64_t grant_time_ns = 0;
};

struct Settled {
  store::SettleOutcome outcome = store::SettleOutcome::kPending;
  std::vector<store::SettledPermits> permits;
};

inline Settled Settle(store::Store& store, uint64_t receipt_id,
                      const std::vector<store::Charge>& charges,
                      const std::vector<uint64_t>& actual, const SettleOptions& options = {}) {
  struct Operation final : store::SettleOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  Settled settled;
  settled.permits.resize(charges.size());
  operation.receipt_id = receipt_id;
  operation.grant_time_ns = options.grant_time_ns;
  operation.estimate = options.estimate;
  operation.charges = charges;
  if (!options.charged_by.empty()) operation.charged_by = options.charged_by.data();
  operation.actual = actual.data();
  operation.more = options.more;
  operation.settled = settled.permits.data();
  store.Settle(&operation);
  operation.done.Wait();
  settled.outcome = operation.outcome;
  return settled;
}

struct Moved {
  store::MoveOutcome outcome;
  int64_t grant_time_ns;
};

inline Moved Move(store::Store& store, uint64_t receipt_id,
                  const std::vector<store::Charge>& charges, int64_t grant_time_ns) {
  struct Operation final : store::MoveOperation {
    void Done() override { done.Notify(); }
    Notification done;
  };
  Operation operation;
  operation.receipt_id = receipt_id;
  operation.grant_time_ns = grant_time_ns;
  operation.charges = charges;
  store.Move(&operation);
  operation.done.Wait();
  return {operation.outcome, operation.grant_time_ns};
}

inline store::ResetOutcome ResetKey(store::Store& store, const store::Rule& rule,
                                    std::string_view key) {
  struct Answer {
    Notification done;
    store::ResetOutcome outcome = store::ResetOutcome::kUnavailable;
  };
  Answer answer;
  store.Reset(
      rule, key,
      [](void* context, store::ResetOutcome outcome) {
        static_cast<Answer*>(context)->outcome = outcome;
        static_cast<Answer*>(context)->done.Notify();
      },
      &answer);
  answer.done.Wait();
  return answer.outcome;
}

inline bool Reset(store::Store& store, const store::Rule& rule, std::string_view key) {
  return ResetKey(store, rule, key) == store::ResetOutcome::kReset;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_STORE_CALLS_H_
