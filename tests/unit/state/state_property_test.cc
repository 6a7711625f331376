// Random histories on all algorithms: a store whose process ends in order now and then, and a store
// that never stops, give the same answers.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/config/temp_dir.h"
#include "tests/unit/state/state_scene.h"

namespace sluice::state {
namespace {

using algorithm::Kind;
using store::Charge;
using testing::Acquired;
using testing::AcquireOptions;

template <typename T>
T Any(T from, T until) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(from, until));
}

std::vector<limits::LimitSpec> AnyLimits() {
  std::vector<limits::LimitSpec> all;
  for (const Kind kind : algorithm::kKinds) {
    // The first algorithm twice, so that the two are charged together.
    for (int i = 0; i < (kind == Kind::kTokenBucket ? 2 : 1); ++i) {
      const int64_t period_ns =
          *rc::gen::elementOf(std::vector<int64_t>{kSecondNs, 10 * kSecondNs, 60 * kSecondNs});
      limits::LimitSpec spec =
          LimitOf(kind, "limit" + std::to_string(all.size()), Any<uint64_t>(1, 12), period_ns);
      if (kind != Kind::kConcurrency && Any(0, 2) == 0) spec.max_owed = Any<uint64_t>(4, 9);
      if (kind == Kind::kTokenBucket) {
        spec.burst = Any<uint64_t>(1, 12);
        spec.debt = Any<uint64_t>(0, 4);
      }
      if (Any(0, 3) == 0 && kind == Kind::kTokenBucket) {
        spec.keys = {{"b", algorithm::Rate{Any<uint64_t>(1, 5), period_ns}, 3, {}}};
      }
      all.push_back(std::move(spec));
    }
  }
  return all;
}

// The store that never stops: as a Process, without a state.
struct Unstopped {
  Unstopped(Machine& machine, uint64_t seed) : clock(machine), store(clock, {.seed = seed}) {}
  MachineClock clock;
  store::MemoryStore store;
  limits::LimitRegistry registry{&store};
};

// One that was granted, and can be refunded or settled.
struct Granted {
  std::vector<std::pair<std::string, std::string>> buckets;
  std::vector<uint64_t> permits;
  uint64_t receipt_id = 0;
  int64_t grant_time_ns = 0;
  bool estimate = false;
};

void ExpectSame(const Acquired& a, const Acquired& b) {
  RC_ASSERT(a.outcome == b.outcome);
  RC_ASSERT(a.wait_ns == b.wait_ns);
  RC_ASSERT(a.retry_after_ns == b.retry_after_ns);
  RC_ASSERT(a.now_ns == b.now_ns);
  RC_ASSERT(a.receipt_id == b.receipt_id);
  RC_ASSERT(a.repeated == b.repeated);
  for (size_t i = 0; i < a.charges.size(); ++i) {
    RC_ASSERT(a.charges[i].level.remaining == b.charges[i].level.remaining);
    RC_ASSERT(a.charges[i].level.reset_after_ns == b.charges[i].level.reset_after_ns);
    RC_ASSERT(a.charges[i].level.next_permit_after_ns == b.charges[i].level.next_permit_after_ns);
    RC_ASSERT(a.charges[i].reason == b.charges[i].reason);
    RC_ASSERT(a.charges[i].forgiven == b.charges[i].forgiven);
  }
}

class History {
 public:
  History() {
    options_.limits = AnyLimits();
    Start();
    unstopped_ = std::make_unique<Unstopped>(unstopped_machine_, process_->store().seed());
    RC_ASSERT(unstopped_->registry.ApplyFile(options_.limits, options_.version).ok());
  }

  void Step() {
    const int64_t by_ns = *rc::gen::elementOf(std::vector<int64_t>{
        0, 0, 1, kSecondNs / 10, kSecondNs, 7 * kSecondNs, 61 * kSecondNs, 700 * kSecondNs});
    if (by_ns != 0 && Any(0, 2) == 0) Advance(by_ns);
    switch (Any(0, 10)) {
      case 0:
      case 1:
        return Restart();
      case 2:
        return EndOne();
      case 3:
        return Query();
      default:
        return Take();
    }
  }

 private:
  void Start() {
    process_.reset();
    process_ = std::make_unique<Process>(dir_.Path("state"), machine_, options_);
    RC_ASSERT(process_->status().ok());
  }
  void Advance(int64_t by_ns) {
    machine_.Advance(by_ns);
    unstopped_machine_.Advance(by_ns);
  }

  void Restart() {
    RC_ASSERT(process_->Drain().ok());
    process_.reset();
    const int64_t by_ns =
        *rc::gen::elementOf(std::vector<int64_t>{0, 1, kSecondNs / 3, 5 * kSecondNs});
    if (Any(0, 3) == 0) {
      machine_.Reboot(by_ns);
      unstopped_machine_.Advance(by_ns);
    } else {
      Advance(by_ns);
    }
    // The file may have changed meanwhile. To the other store that is a reload.
    if (Any(0, 4) == 0) {
      options_.limits = AnyLimits();
      options_.version += "+";
      RC_ASSERT(unstopped_->registry.ApplyFile(options_.limits, options_.version).ok());
    }
    Start();
  }

  const store::Rule& RuleOf(bool stopped, const std::string& limit, const std::string& key) {
    const auto table = stopped ? process_->registry().Current() : unstopped_->registry.Current();
    return table->Find(limit)->RuleFor(key);
  }
  store::MemoryStore& StoreOf(bool stopped) {
    return stopped ? process_->store() : unstopped_->store;
  }
  std::vector<Charge> ChargesOf(bool stopped, const Granted& what) {
    std::vector<Charge> charges;
    for (size_t i = 0; i < what.buckets.size(); ++i) {
      const auto& [limit, key] = what.buckets[i];
      charges.push_back({&RuleOf(stopped, limit, key), key, what.permits[i]});
    }
    return charges;
  }

  void Take() {
    Granted one;
    const size_t first = Any<size_t>(0, options_.limits.size());
    const size_t charges = Any<size_t>(1, 3);
    bool slots = false;
    bool owed = true;
    for (size_t i = 0; i < charges; ++i) {
      const limits::LimitSpec& limit = options_.limits[(first + i) % options_.limits.size()];
      one.buckets.emplace_back(limit.name, *rc::gen::elementOf(std::vector<std::string>{"a", "b"}));
      const uint64_t most =
          algorithm::MaxGrant(RuleOf(true, one.buckets[i].first, one.buckets[i].second).parameters);
      one.permits.push_back(Any<uint64_t>(1, most + 1));
      slots |= limit.algorithm == Kind::kConcurrency;
      owed &= limit.max_owed.has_value();
    }
    AcquireOptions options;
    options.want_receipt = slots || Any(0, 2) == 0;
    if (!slots && Any(0, 3) == 0) options.max_wait_ns = Any<int64_t>(1, 100) * kSecondNs;
    if (!slots && Any(0, 4) == 0) options.settle_within_ns = 20 * kSecondNs;
    if (!slots && owed && Any(0, 4) == 0) {
      options.debit = store::Debit::kForced;
      options.max_wait_ns = 0;
    }
    store::Once ids[2];
    const bool has_id = Any(0, 4) == 0;
    const uint64_t id = Any<uint64_t>(1, 4);
    Acquired got[2];
    for (const bool stopped : {false, true}) {
      AcquireOptions own = options;
      ids[stopped].id = {{id, id}};
      ids[stopped].fingerprint = 1;
      if (has_id) own.once = &ids[stopped];
      got[stopped] = testing::Acquire(StoreOf(stopped), ChargesOf(stopped, one), own);
    }
    ExpectSame(got[0], got[1]);
    if (!got[0].granted() || got[0].receipt_id == 0 || got[0].repeated) return;
    one.receipt_id = got[0].receipt_id;
    one.grant_time_ns = got[0].grant_time_ns();
    one.estimate = options.settle_within_ns != 0;
    granted_.push_back(std::move(one));
  }

  void EndOne() {
    if (granted_.empty()) return;
    const Granted& one = granted_[Any<size_t>(0, granted_.size())];
    if (one.estimate && Any(0, 2) == 0) {
      std::vector<uint64_t> actual;
      for (const uint64_t permits : one.permits) actual.push_back(Any<uint64_t>(0, permits + 3));
      testing::Settled settled[2];
      for (const bool stopped : {false, true}) {
        settled[stopped] =
            testing::Settle(StoreOf(stopped), one.receipt_id, ChargesOf(stopped, one), actual,
                            {.grant_time_ns = one.grant_time_ns});
      }
      RC_ASSERT(settled[0].outcome == settled[1].outcome);
      return;
    }
    testing::Refunded refunded[2];
    for (const bool stopped : {false, true}) {
      refunded[stopped] = testing::Refund(StoreOf(stopped), one.receipt_id, ChargesOf(stopped, one),
                                          one.grant_time_ns);
    }
    RC_ASSERT(refunded[0].outcome == refunded[1].outcome);
    RC_ASSERT(refunded[0].permits == refunded[1].permits);
  }

  void Query() {
    for (const limits::LimitSpec& limit : options_.limits) {
      for (const std::string key : {"a", "b"}) {
        store::QueryItem item[2];
        for (const bool stopped : {false, true}) {
          item[stopped] = testing::Query(StoreOf(stopped), RuleOf(stopped, limit.name, key), key);
        }
        RC_ASSERT(item[0].level.remaining == item[1].level.remaining);
        RC_ASSERT(item[0].level.reset_after_ns == item[1].level.reset_after_ns);
        RC_ASSERT(item[0].waiting == item[1].waiting);
        RC_ASSERT(item[0].next_grant_after_ns == item[1].next_grant_after_ns);
        RC_ASSERT(item[0].holds == item[1].holds);
        RC_ASSERT(item[0].refundable == item[1].refundable);
      }
    }
  }

  const config::TempDir dir_;
  Machine machine_;
  Machine unstopped_machine_;  // the same moments, and never booted again
  ProcessOptions options_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<Unstopped> unstopped_;
  std::vector<Granted> granted_;
};

RC_GTEST_PROP(StatePropertyTest, AStoreThatWasSavedAnswersAsOneThatNeverStopped, ()) {
  History history;
  const int steps = Any(1, 60);
  for (int i = 0; i < steps; ++i) history.Step();
}

}  // namespace
}  // namespace sluice::state
