// Shared by the tests of HeldCallers: limits that change, an alarm without a thread, and callers
// that record their answers.
#ifndef SLUICE_TESTS_UNIT_WAITING_WAITING_SCENE_H_
#define SLUICE_TESTS_UNIT_WAITING_WAITING_SCENE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
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

// The current limits by name. Thread-safe.
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

// Decides the acquisition on a store that answers at once.
inline void Decide(store::Store& store, store::Acquisition& acquisition) {
  struct Operation final : store::AcquireOperation {
    void Done() override {}
  } operation;
  operation.acquisitions = absl::MakeSpan(&acquisition, 1);
  store.Acquire(&operation);
}

// Many callers on many threads; counts the answers and those before the grant time.
class CallerCrowd {
 public:
  struct Request {
    const Rule* rule;
    int64_t max_wait_ns;
  };

  // Decides on `store`, which answers at once.
  CallerCrowd(const common::Clock& clock, store::Store& store, Limits& limits)
      : clock_(clock), store_(store), limits_(limits) {}

  // Each thread makes `each` requests, holds the callers that have to wait, and cancels every
  // fifth. `after` runs after each request.
  void Run(
      HeldCallers& held_callers, int threads, int each,
      const std::function<Request(int i)>& request,
      const std::function<void(int thread, int i)>& after = [](int, int) {}) {
    members_.resize(static_cast<size_t>(threads * each));
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        for (int i = 0; i < each; ++i) {
          auto& member = members_[static_cast<size_t>(t * each + i)];
          member = std::make_unique<Member>(*this);
          member->generation = limits_.Generation();
          const Request asked = request(i);
          member->charge_ = {asked.rule, "k", 1};
          member->decided_.max_wait_ns = asked.max_wait_ns;
          Decide(store_, member->decided_);
          if (member->decided_.outcome == Outcome::kGranted && member->decided_.wait_ns > 0) {
            member->since_ns = clock_.NowNs();
            member->until_ns = member->since_ns + asked.max_wait_ns;
            held_.fetch_add(1);
            held_callers.Hold(member.get());
            if (i % 5 == 0) held_callers.Cancel(member.get());
          }
          after(t, i);
        }
      });
    }
    for (std::thread& thread : running) thread.join();
  }

  // Waits for all answers, at most a minute.
  void AwaitAnswers() const {
    const int64_t end_ns = clock_.NowNs() + kMinute;
    while (answered() < held() && clock_.NowNs() < end_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  int held() const { return held_.load(); }
  int answered() const { return answered_.load(); }
  int early() const { return early_.load(); }

 private:
  struct Member final : HeldCaller {
    explicit Member(CallerCrowd& crowd) : crowd_(crowd) {
      decided_.charges = absl::MakeSpan(&charge_, 1);
      decided_.results = &result_;
      acquisition = &decided_;
    }
    void OnAnswer(HeldOutcome outcome) override {
      if (outcome == HeldOutcome::kGrantTime && crowd_.clock_.NowNs() < grant_time_ns()) {
        crowd_.early_.fetch_add(1);
      }
      crowd_.answered_.fetch_add(1);
    }
    CallerCrowd& crowd_;
    Charge charge_;
    store::ChargeResult result_;
    store::Acquisition decided_;
  };

  const common::Clock& clock_;
  store::Store& store_;
  Limits& limits_;
  std::vector<std::unique_ptr<Member>> members_;
  std::atomic<int> held_{0};
  std::atomic<int> answered_{0};
  std::atomic<int> early_{0};
};

inline algorithm::Parameters PerSecond(uint64_t permits, uint64_t burst = 1) {
  return algorithm::MakeTokenBucket({permits, kSecond}, burst, 0).value();
}

}  // namespace sluice::waiting

#endif  // SLUICE_TESTS_UNIT_WAITING_WAITING_SCENE_H_
