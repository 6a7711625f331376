// What tests of the waiting line share: limits that change, an alarm that does not ring, callers
// that keep what they were answered.
#ifndef SLUICE_TESTS_UNIT_WAITING_WAITING_SCENE_H_
#define SLUICE_TESTS_UNIT_WAITING_WAITING_SCENE_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/store.h"
#include "server/waiting/held_callers.h"
#include "tests/support/store_calls.h"

namespace sluice::waiting {

using store::Charge;
using store::Outcome;
using store::Rule;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kMinute = 60 * kSecond;

// Limits by name, which tests change. Thread-safe.
class Limits final : public RuleSource {
 public:
  explicit Limits(store::Store& store) : store_(store) {}

  const Rule& Set(uint32_t limit_id, const algorithm::Parameters& parameters) {
    auto rule = testing::MakeRule(limit_id, parameters);
    store_.Register(rule);
    common::MutexLock lock(&mu_);
    all_.push_back(rule);
    ++generation_;
    return *(current_[rule->limit_name] = rule);
  }
  void Delete(const std::string& name) {
    common::MutexLock lock(&mu_);
    current_.erase(name);
    ++generation_;
  }

  uint64_t Generation() override {
    common::MutexLock lock(&mu_);
    return generation_;
  }
  Refreshed Refresh(absl::Span<Charge> charges, std::shared_ptr<const void>*) override {
    common::MutexLock lock(&mu_);
    Refreshed refreshed = Refreshed::kSame;
    for (Charge& charge : charges) {
      const auto found = current_.find(charge.rule->limit_name);
      if (found == current_.end()) {
        refreshed = Refreshed::kGone;
      } else if (charge.rule != found->second.get()) {
        charge.rule = found->second.get();
        if (refreshed == Refreshed::kSame) refreshed = Refreshed::kChanged;
      }
    }
    return refreshed;
  }

 private:
  store::Store& store_;
  common::Mutex mu_;
  std::vector<std::shared_ptr<const Rule>> all_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::shared_ptr<const Rule>> current_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 1;
};

class ManualAlarm final : public Alarm {
 public:
  void SetAt(int64_t at_ns) override { at_ns_ = at_ns; }
  int64_t at_ns_ = HeldCallers::kNever;
};

class Caller final : public HeldCaller {
 public:
  Caller(const common::Clock& clock, std::vector<Charge> charges)
      : clock_(clock), charges_(std::move(charges)), results_(charges_.size()) {
    decided_.charges = charges_;
    decided_.results = results_.data();
    acquisition = &decided_;
  }
  void OnAnswer(HeldOutcome outcome) override {
    answers_.push_back(outcome);
    answered_ns_ = clock_.NowNs();
  }
  bool answered() const { return !answers_.empty(); }

  const common::Clock& clock_;
  std::vector<Charge> charges_;
  std::vector<store::ChargeResult> results_;
  store::Acquisition decided_;
  std::vector<HeldOutcome> answers_;
  int64_t answered_ns_ = 0;
};

inline algorithm::Parameters PerSecond(uint64_t permits, uint64_t burst = 1) {
  return algorithm::MakeTokenBucket({permits, kSecond}, burst, 0).value();
}

}  // namespace sluice::waiting

#endif  // SLUICE_TESTS_UNIT_WAITING_WAITING_SCENE_H_
