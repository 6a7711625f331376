// LateStore: wraps a store and delays its operations: a test decides when each is executed and when
// it is answered, in any order that a store across a network could produce.
#ifndef SLUICE_TESTS_SUPPORT_LATE_STORE_H_
#define SLUICE_TESTS_SUPPORT_LATE_STORE_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "server/store/store.h"

namespace sluice::testing {

// Thread-safe. The caller owns the operations; all of them end if Step is called until it returns
// false.
class LateStore final : public store::Store {
 public:
  struct Options {
    // Operations are executed in the order of the calls; else in any order.
    bool in_order = false;
    // Whether it can rebook.
    bool rebooks = false;
    // Percentage of operations that are answered "unavailable", whether executed or not.
    int lost_percent = 0;
    // Whether it says that other processes decide on its buckets.
    bool shared = false;
  };

  LateStore(store::Store& store, const Options& options, uint64_t seed)
      : store_(store), options_(options), random_(seed) {}

  std::string_view Kind() const override { return store_.Kind(); }
  bool UsesLocalClock() const override { return false; }
  bool Shared() const override { return options_.shared; }
  void Register(std::shared_ptr<const store::Rule> rule) override {
    store_.Register(std::move(rule));
  }
  store::StoreStats Stats() const override { return store_.Stats(); }

  void Acquire(store::AcquireOperation* operation) override {
    struct Inner final : store::AcquireOperation {
      void Done() override {}
    };
    Add({[this, operation] {
           Inner inner;
           inner.acquisitions = operation->acquisitions;
           inner.deadline_ns = operation->deadline_ns;
           store_.Acquire(&inner);
         },
         [operation](bool lost) {
           for (store::Acquisition& acquisition : operation->acquisitions) {
             if (lost) acquisition.outcome = store::Outcome::kUnavailable;
           }
           operation->Done();
         }});
  }
  void Query(store::QueryOperation* operation) override { store_.Query(operation); }
  void Refund(store::RefundOperation* operation) override {
    struct Inner final : store::RefundOperation {
      void Done() override {}
    };
    Add({[this, operation] {
           Inner inner;
           inner.receipt_id = operation->receipt_id;
           inner.grant_time_ns = operation->grant_time_ns;
           inner.charges = operation->charges;
           inner.refunded = operation->refunded;
           store_.Refund(&inner);
           operation->outcome = inner.outcome;
         },
         [operation](bool lost) {
           if (lost) operation->outcome = store::RefundOutcome::kUnavailable;
           operation->Done();
         }});
  }
  void Settle(store::SettleOperation* operation) override {
    struct Inner final : store::SettleOperation {
      void Done() override {}
    };
    Add({[this, operation] {
           Inner inner;
           inner.receipt_id = operation->receipt_id;
           inner.grant_time_ns = operation->grant_time_ns;
           inner.estimate = operation->estimate;
           inner.charges = operation->charges;
           inner.charged_by = operation->charged_by;
           inner.actual = operation->actual;
           inner.settled = operation->settled;
           inner.more = operation->more;
           store_.Settle(&inner);
           operation->decreased_charge = inner.decreased_charge;
           operation->actual_before = inner.actual_before;
           operation->outcome = inner.outcome;
         },
         [operation](bool lost) {
           if (lost) operation->outcome = store::SettleOutcome::kUnavailable;
           operation->Done();
         }});
  }
  void Renew(store::RenewOperation* operation) override {
    if (operation->items.empty()) return operation->Done();  // as Redis' store
    struct Inner final : store::RenewOperation {
      void Done() override {}
    };
    Add({[this, operation] {
           Inner inner;
           inner.items = operation->items;
           store_.Renew(&inner);
         },
         [operation](bool lost) {
           for (store::Renewal& renewal : operation->items) {
             if (lost) renewal.outcome = store::RenewOutcome::kUnavailable;
           }
           operation->Done();
         }});
  }
  void Move(store::MoveOperation* operation) override {
    struct Inner final : store::MoveOperation {
      void Done() override {}
    };
    Add({[this, operation] {
           Inner inner;
           inner.receipt_id = operation->receipt_id;
           inner.grant_time_ns = operation->grant_time_ns;
           inner.charges = operation->charges;
           store_.Move(&inner);
           operation->grant_time_ns = inner.grant_time_ns;
           operation->outcome = inner.outcome;
           if (inner.outcome == store::MoveOutcome::kMoved)
             moved_[inner.receipt_id] = inner.grant_time_ns;
         },
         [operation](bool lost) {
           if (lost) operation->outcome = store::MoveOutcome::kUnavailable;
           operation->Done();
         }});
  }
  void Rebook(store::RebookOperation* operation) override {
    struct Inner final : store::RebookOperation {
      void Done() override {}
    };
    Add({[this, operation] {
           if (!options_.rebooks) {
             operation->status = store::RebookStatus::kUnsupported;
             return;
           }
           Inner inner;
           inner.items = operation->items;
           store_.Rebook(&inner);
           operation->status = inner.status;
           for (const store::Rebooking& item : inner.items) moved_.erase(item.receipt_id);
         },
         [operation](bool lost) {
           if (lost) operation->status = store::RebookStatus::kUnavailable;
           operation->Done();
         }});
  }
  void Reset(const store::Rule& rule, std::string_view key, ResetDone done,
             void* context) override {
    store_.Reset(rule, key, done, context);
  }

  // Executes or answers one of what is under way. False: there is nothing.
  bool Step() {
    Operation operation;
    bool lost = false;
    {
      common::MutexLock lock(&mu_);
      if (waiting_.empty() && executed_.empty()) return false;
      const bool answer = waiting_.empty() || (!executed_.empty() && random_() % 2 == 0);
      std::vector<Operation>& from = answer ? executed_ : waiting_;
      const size_t n = answer || !options_.in_order ? random_() % from.size() : 0;
      operation = std::move(from[n]);
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(n));
      lost = static_cast<int>(random_() % 100) < options_.lost_percent;
      if (!answer) {
        // Under the lock, so that the order is the one that was drawn. A lost one may be lost on
        // its way there.
        if (!lost || random_() % 2 == 0) operation.execute();
        operation.lost = lost;
        executed_.push_back(std::move(operation));
        return true;
      }
    }
    operation.answer(operation.lost);
    return true;
  }

  // The grant time of a reservation that was booked for booked_ns: it may have been moved by an
  // operation that is not answered yet.
  int64_t MomentOf(uint64_t receipt_id, int64_t booked_ns) const {
    common::MutexLock lock(&mu_);
    const auto found = moved_.find(receipt_id);
    return found == moved_.end() ? booked_ns : std::min(booked_ns, found->second);
  }

  size_t under_way() const {
    common::MutexLock lock(&mu_);
    return waiting_.size() + executed_.size();
  }

 private:
  struct Operation {
    std::function<void()> execute;
    std::function<void(bool lost)> answer;
    bool lost = false;
  };

  void Add(Operation operation) {
    common::MutexLock lock(&mu_);
    waiting_.push_back(std::move(operation));
  }

  store::Store& store_;
  const Options options_;
  mutable common::Mutex mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  std::vector<Operation> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<Operation> executed_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, int64_t> moved_;  // by operations, hence under mu_
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_LATE_STORE_H_
