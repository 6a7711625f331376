// Callers that wait for slots, from the request to the store in memory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/log.h"
#include "server/service/bucket_watch.h"
#include "server/service/limit_admin.h"
#include "server/service/registry_rules.h"
#include "server/service/renew_call.h"
#include "server/waiting/held_callers.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using testing::HasSubstr;

limits::LimitSpec Slots(std::string name, uint64_t permits, int64_t hold_for_ns = 60 * kSecond) {
  return Concurrency(std::move(name), permits, hold_for_ns);
}

struct Asked {
  std::string limit;
  uint64_t permits = 1;
};

// Cancelled if it is not answered before.
struct Held {
  ~Held() {
    if (!answered) limiter->CancelHeld(&call);
  }

  AcquireCall call;
  bool answered = false;
  int64_t answered_ns = 0;
  std::vector<Asked> asked;
  const common::Clock* clock = nullptr;
  RateLimiter* limiter = nullptr;

  bool granted() const { return answered && call.result(0).status.ok() && call.result(0).granted; }
  bool denied() const { return answered && call.result(0).status.ok() && !call.result(0).granted; }
  std::string receipt() const { return std::string(call.result(0).receipt); }
};

// Held calls need an alarm; the test advances by itself.
class SlotsWaitingTest : public ServiceTest {
 protected:
  struct NoAlarm final : waiting::Alarm {
    void SetAt(int64_t) override {}
  };

  SlotsWaitingTest() { limiter_.UseHeldCallers(&held_callers_); }

  std::unique_ptr<Held> Hold(std::vector<Asked> asked, int64_t max_wait_ns = 3600 * kSecond,
                             int64_t deadline_ns = store::kNoDeadline,
                             std::optional<WireDuration> settle_within = std::nullopt) {
    auto held = std::make_unique<Held>();
    held->clock = &clock_;
    held->limiter = &limiter_;
    held->asked = std::move(asked);
    held->call.Reset(AcquireCall::Form::kUnary);
    held->call.BeginAcquisition(
        {.max_wait = {max_wait_ns / kSecond, static_cast<int32_t>(max_wait_ns % kSecond)},
         .hold = true,
         .settle_within = settle_within});
    for (const Asked& one : held->asked) held->call.AddCharge(one.limit, "k", one.permits);
    limiter_.Acquire(
        &held->call, deadline_ns,
        [](void* context, AcquireCall*) {
          auto* const of = static_cast<Held*>(context);
          of->answered = true;
          of->answered_ns = of->clock->NowNs();
        },
        held.get());
    Advance(0);
    return held;
  }
  std::unique_ptr<Held> Hold(const std::string& limit, uint64_t permits = 1) {
    return Hold({{limit, permits}});
  }
  // The receipt; empty: denied.
  std::string Take(std::string_view limit, uint64_t permits = 1) {
    const AcquisitionResult result = Acquire(limit, "k", permits);
    EXPECT_TRUE(result.status.ok()) << result.status;
    return std::string(result.receipt);
  }
  void End(const std::string& receipt) {
    RefundCall refund;
    ASSERT_TRUE(Refund(receipt, &refund).ok()) << refund.status();
    Advance(0);
  }
  // Stops at each moment at which a caller is to be looked at.
  void Advance(int64_t by_ns) {
    const int64_t until_ns = clock_.NowNs() + by_ns;
    while (true) {
      const int64_t next_ns = held_callers_.Advance();
      if (next_ns <= clock_.NowNs()) continue;
      if (next_ns > until_ns) break;
      clock_.Advance(next_ns - clock_.NowNs());
    }
    clock_.Advance(until_ns - clock_.NowNs());
  }
  uint64_t Waiting(std::string_view limit) {
    QueryCall call;
    call.Reset();
    call.AddBucket(limit, "k");
    limiter_.Query(&call, store::kNoDeadline, [](void*, QueryCall*) {}, nullptr);
    return call.bucket(0).waiting;
  }

  RegistryRules rules_{registry_};
  NoAlarm alarm_;
  waiting::HeldCallers held_callers_{store_, clock_, rules_, alarm_};
};

TEST_F(SlotsWaitingTest, GetsASlotWhenAnotherCallerEnds) {
  Load({Slots("slots", 1)});
  const std::string held = Take("slots");
  const auto waiting = Hold("slots");
  Advance(10 * kSecond);
  EXPECT_FALSE(waiting->answered);
  EXPECT_EQ(Waiting("slots"), 1u);
  End(held);
  ASSERT_TRUE(waiting->granted());
  EXPECT_EQ(waiting->call.result(0).wait_ns, 0);
  EXPECT_EQ(waiting->call.charge(0, 0).held_for_ns, 60 * kSecond);
  EXPECT_EQ(Waiting("slots"), 0u);
  EXPECT_EQ(Remaining("slots", "k"), 0);
  End(waiting->receipt());
  EXPECT_EQ(Remaining("slots", "k"), 1);
}

TEST_F(SlotsWaitingTest, GetsASlotAndAnEstimateWhenAnotherCallerSettles) {
  auto tokens = PerSecond("tokens", 20);
  tokens.rate.period_ns = 24 * 3600 * kSecond;
  tokens.max_owed = 5;
  Load({Slots("slots", 1), tokens});
  const std::string held = Take("slots");
  const auto waiting =
      Hold({{"slots"}, {"tokens", 10}}, 60 * kSecond, store::kNoDeadline, WireDuration{600, 0});
  const auto settle = [&](const std::string& receipt, std::optional<uint64_t> tokens_used) {
    SettleCall call;
    call.Reset(SettleCall::Form::kUnary);
    call.BeginSettlement();
    call.SetReceipt(receipt);
    if (tokens_used.has_value()) call.AddActual("tokens", "k", *tokens_used);
    limiter_.Settle(&call, store::kNoDeadline, [](void*, SettleCall*) {}, nullptr);
    EXPECT_EQ(call.result(0).outcome, store::SettleOutcome::kSettled) << call.result(0).status;
    Advance(0);
  };
  settle(held, std::nullopt);
  ASSERT_TRUE(waiting->granted());
  EXPECT_EQ(Remaining("tokens", "k"), 10);
  settle(waiting->receipt(), 4);
  EXPECT_EQ(Remaining("tokens", "k"), 16);
  EXPECT_EQ(Remaining("slots", "k"), 1);
}

TEST_F(SlotsWaitingTest, GetsASlotWhenAHoldEndsByItself) {
  Load({Slots("slots", 1)});
  ASSERT_FALSE(Take("slots").empty());
  const int64_t start_ns = clock_.NowNs();
  const auto waiting = Hold("slots");
  Advance(60 * kSecond - 1);
  EXPECT_FALSE(waiting->answered);
  Advance(1);
  ASSERT_TRUE(waiting->granted());
  EXPECT_EQ(waiting->answered_ns, start_ns + 60 * kSecond);
}

TEST_F(SlotsWaitingTest, WaitsLongerIfTheHoldIsRenewed) {
  Load({Slots("slots", 1)});
  const std::string held = Take("slots");
  const auto waiting = Hold("slots");
  Advance(30 * kSecond);
  RenewCall renew;
  renew.AddReceipt(held);
  limiter_.Renew(&renew, store::kNoDeadline, [](void*, RenewCall*) {}, nullptr);
  ASSERT_TRUE(renew.result(0).renewed);
  Advance(60 * kSecond - 1);
  EXPECT_FALSE(waiting->answered);
  Advance(1);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SlotsWaitingTest, ServesCallersInTheOrderOfArrivalWhateverTheyAskFor) {
  Load({Slots("slots", 2)});
  const std::string first = Take("slots");
  const std::string second = Take("slots");
  const auto large = Hold("slots", 2);
  const auto small = Hold("slots");
  End(first);
  EXPECT_FALSE(large->answered || small->answered) << "the small one does not pass the large one";
  EXPECT_EQ(Remaining("slots", "k"), 1);
  EXPECT_TRUE(Take("slots").empty()) << "nor does a caller that does not wait";
  EXPECT_EQ(call_.charge(0, 0).reason, store::Reason::kNotEnough);
  EXPECT_GT(call_.result(0).retry_after_ns, 0);
  End(second);
  ASSERT_TRUE(large->granted());
  EXPECT_FALSE(small->answered);
  End(large->receipt());
  ASSERT_TRUE(small->granted());
  EXPECT_FALSE(Take("slots").empty()) << "no caller waits any more";
}

TEST_F(SlotsWaitingTest, KeepsTheOrderInAllLinesOfACaller) {
  Load({Slots("a", 1), Slots("b", 1)});
  const std::string of_a = Take("a");
  const std::string of_b = Take("b");
  const auto both = Hold({{"a"}, {"b"}});
  const auto after = Hold("b");
  End(of_b);
  EXPECT_FALSE(both->answered || after->answered);
  End(of_a);
  ASSERT_TRUE(both->granted());
  EXPECT_FALSE(after->answered);
  End(both->receipt());
  EXPECT_TRUE(after->granted());
  EXPECT_FALSE(Take("a").empty());
}

TEST_F(SlotsWaitingTest, OvertakesNoCallerInABatch) {
  Load({Slots("slots", 2), PerSecond("rate", 5)});
  const std::string held = Take("slots");
  const auto waiting = Hold("slots", 2);
  call_.Reset(AcquireCall::Form::kBatch);
  for (const char* limit : {"slots", "rate", "slots"}) {
    call_.BeginAcquisition({});
    call_.AddCharge(limit, "k", 1);
  }
  Run(&call_);
  EXPECT_FALSE(call_.result(0).granted);
  EXPECT_TRUE(call_.result(1).granted);
  EXPECT_FALSE(call_.result(2).granted);
  End(held);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SlotsWaitingTest, CancelLeavesNothingAndLetsTheNextCallerIn) {
  Load({Slots("slots", 2)});
  const std::string held = Take("slots");
  auto large = Hold("slots", 2);
  const auto small = Hold("slots");
  EXPECT_FALSE(small->answered);
  limiter_.CancelHeld(&large->call);
  ASSERT_TRUE(large->answered);
  EXPECT_EQ(large->call.result(0).status.code(), absl::StatusCode::kCancelled);
  Advance(0);
  ASSERT_TRUE(small->granted());
  EXPECT_EQ(held_callers_.size(), 0u);
  large.reset();
  End(held);
  End(small->receipt());
  EXPECT_EQ(Remaining("slots", "k"), 2);
}

TEST_F(SlotsWaitingTest, DeniesWhenMaxWaitIsOver) {
  Load({Slots("slots", 2)});
  const std::string held = Take("slots", 2);
  const int64_t start_ns = clock_.NowNs();
  const auto first = Hold({{"slots", 1}}, 5 * kSecond);
  const auto second = Hold({{"slots", 1}}, 4 * kSecond);
  const auto third = Hold({{"slots", 1}}, 4 * kSecond, start_ns + 2 * kSecond);
  Advance(4 * kSecond);
  ASSERT_TRUE(second->denied() && third->denied());
  EXPECT_EQ(second->answered_ns, start_ns + 4 * kSecond);
  EXPECT_EQ(second->call.charge(0, 0).reason, store::Reason::kNotEnough);
  EXPECT_EQ(third->answered_ns, start_ns + 2 * kSecond) << "its call's deadline";
  EXPECT_FALSE(first->answered);
  Advance(kSecond);
  EXPECT_TRUE(first->denied());
  EXPECT_EQ(first->call.result(0).receipt, "");
  EXPECT_EQ(held_callers_.size(), 0u);
  End(held);
  EXPECT_EQ(Remaining("slots", "k"), 2);
}

TEST_F(SlotsWaitingTest, GetsASlotThatIsFreedAtTheEndOfItsMaxWait) {
  Load({Slots("slots", 1, 5 * kSecond)});
  ASSERT_FALSE(Take("slots").empty());
  const auto waiting = Hold({{"slots", 1}}, 5 * kSecond);
  Advance(5 * kSecond);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SlotsWaitingTest, BooksItsRatesWhenItHasItsSlots) {
  Load({Slots("slots", 1), PerSecond("rate", 1)});
  const std::string held = Take("slots");
  ASSERT_TRUE(Acquire("rate", "k").granted);
  const auto waiting = Hold({{"slots"}, {"rate"}});
  EXPECT_EQ(Remaining("rate", "k"), 0);
  Advance(5 * kSecond);
  EXPECT_EQ(Remaining("rate", "k"), 1) << "while it waits for slots, it has nothing of the rate";
  ASSERT_TRUE(Acquire("rate", "k").granted);
  const int64_t freed_ns = clock_.NowNs();
  End(held);
  EXPECT_FALSE(waiting->answered) << "it has the slot, and waits for its grant time";
  EXPECT_TRUE(Take("slots").empty());
  Advance(kSecond);
  ASSERT_TRUE(waiting->granted());
  EXPECT_EQ(waiting->answered_ns, freed_ns + kSecond);
  End(waiting->receipt());
  EXPECT_EQ(Remaining("slots", "k"), 1);
}

TEST_F(SlotsWaitingTest, CancelAfterItGotItsSlotsLetsTheNextCallerIn) {
  Load({Slots("slots", 1), PerSecond("rate", 1)});
  const std::string held = Take("slots");
  ASSERT_TRUE(Acquire("rate", "k").granted);
  const auto both = Hold({{"slots"}, {"rate"}});
  const auto next = Hold("slots");
  End(held);
  EXPECT_FALSE(both->answered || next->answered);
  limiter_.CancelHeld(&both->call);
  Advance(0);
  EXPECT_TRUE(next->granted());
}

TEST_F(SlotsWaitingTest, DeniesACallerWhoseRatesAreTooLateAndLetsTheNextOneIn) {
  Load({Slots("slots", 1), PerSecond("rate", 1)});
  const std::string held = Take("slots");
  const auto both = Hold({{"slots"}, {"rate"}}, 2 * kSecond);
  const auto next = Hold("slots");
  EXPECT_FALSE(both->answered);
  // Others book the rate for 3 s.
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Acquire("rate", "k", 1, {.max_wait = {60, 0}}).granted);
  End(held);
  ASSERT_TRUE(both->denied());
  EXPECT_TRUE(next->granted());
}

TEST_F(SlotsWaitingTest, DeniesAtOnceACallerWhoseSlotsAreFreeAndWhoseRatesAreTooLate) {
  Load({Slots("slots", 1), PerSecond("rate", 1)});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Acquire("rate", "k", 1, {.max_wait = {60, 0}}).granted);
  EXPECT_TRUE(Hold({{"slots"}, {"rate"}}, 2 * kSecond)->denied());
  EXPECT_EQ(Remaining("slots", "k"), 1);
}

TEST_F(SlotsWaitingTest, RaisedPermitsLetCallersIn) {
  Load({Slots("slots", 1)});
  ASSERT_FALSE(Take("slots").empty());
  const auto first = Hold("slots");
  const auto second = Hold("slots");
  Load({Slots("slots", 2)});
  held_callers_.LimitsChanged();
  Advance(0);
  EXPECT_TRUE(first->granted());
  EXPECT_FALSE(second->answered);
}

TEST_F(SlotsWaitingTest, LoweredPermitsDenyACallerThatAsksForMore) {
  Load({Slots("slots", 2)});
  ASSERT_FALSE(Take("slots").empty());
  const auto large = Hold("slots", 2);
  const auto small = Hold("slots");
  Load({Slots("slots", 1)});
  held_callers_.LimitsChanged();
  Advance(0);
  EXPECT_TRUE(large->denied());
  EXPECT_FALSE(small->answered);
  Advance(60 * kSecond);
  EXPECT_TRUE(small->granted());
}

TEST_F(SlotsWaitingTest, LoweredMaxWaitDeniesAllThatWaitedForLonger) {
  Load({Slots("slots", 1)});
  ASSERT_FALSE(Take("slots").empty());
  const auto first = Hold("slots");
  const auto second = Hold("slots");
  Advance(10 * kSecond);
  const auto third = Hold("slots");
  auto spec = Slots("slots", 1);
  spec.max_wait_ns = 5 * kSecond;
  Load({spec});
  held_callers_.LimitsChanged();
  Advance(0);
  EXPECT_TRUE(first->denied() && second->denied());
  EXPECT_FALSE(third->answered);
  Advance(5 * kSecond);
  EXPECT_TRUE(third->denied());
}

TEST_F(SlotsWaitingTest, DeletedLimitDeniesItsCallers) {
  Load({Slots("slots", 1), PerSecond("rate", 1)});
  ASSERT_FALSE(Take("slots").empty());
  const auto first = Hold("slots");
  const auto second = Hold({{"rate"}, {"slots"}});
  Load({PerSecond("rate", 1)});
  held_callers_.LimitsChanged();
  Advance(0);
  EXPECT_TRUE(first->denied() && second->denied());
  EXPECT_EQ(Remaining("rate", "k"), 1);
}

TEST_F(SlotsWaitingTest, LimitThatBecomesARateServesItsCallers) {
  Load({Slots("slots", 1)});
  ASSERT_FALSE(Take("slots").empty());
  const auto first = Hold("slots");
  const auto second = Hold("slots");
  Load({PerSecond("slots", 1)});
  held_callers_.LimitsChanged();
  Advance(0);
  EXPECT_TRUE(first->granted());
  EXPECT_FALSE(second->answered);
  Advance(kSecond);
  EXPECT_TRUE(second->granted());
}

TEST_F(SlotsWaitingTest, AdminLetsCallersIn) {
  Load({Slots("slots", 1)});
  ASSERT_FALSE(Take("slots").empty());
  const auto first = Hold("slots");
  const auto second = Hold("slots");
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  const absl::Cleanup close_null = [null] { close(null); };
  common::Log log(clock_, common::LogLevel::kError, null);
  LimitAdmin admin(limiter_.collaborators(), log, "test", [] { return limits::FileStatus(); });
  uint64_t id = 0;
  admin.ListHolds("slots", "k", 1, [&](absl::StatusOr<ListedHolds> holds) {
    if (holds.ok() && !holds->holds.empty()) id = holds->holds[0].receipt_id;
  });
  ASSERT_NE(id, 0u);
  admin.EndHold("slots", "k", id, [](absl::StatusOr<bool>) {});
  Advance(0);
  EXPECT_TRUE(first->granted());
  EXPECT_FALSE(second->answered);
  admin.ResetKey("slots", "k", [](absl::StatusOr<bool>) {});
  Advance(0);
  EXPECT_TRUE(second->granted());
}

TEST_F(SlotsWaitingTest, DrainAnswersAllAndTakesNothing) {
  Load({Slots("slots", 1)});
  const std::string held = Take("slots");
  std::vector<std::unique_ptr<Held>> waiting;
  for (int i = 0; i < 10; ++i) waiting.push_back(Hold("slots"));
  EXPECT_EQ(held_callers_.size(), 10u);
  held_callers_.Drain();
  for (const auto& one : waiting) {
    ASSERT_TRUE(one->answered);
    EXPECT_EQ(one->call.result(0).status.code(), absl::StatusCode::kUnavailable);
  }
  const auto late = Hold("slots");
  ASSERT_TRUE(late->answered);
  EXPECT_EQ(late->call.result(0).status.code(), absl::StatusCode::kUnavailable);
  End(held);
  EXPECT_EQ(Remaining("slots", "k"), 1);
}

TEST_F(SlotsWaitingTest, ShadowLimitsKeepNobodyWaiting) {
  auto shadow = Slots("shadow", 1);
  shadow.mode = limits::Mode::kShadow;
  Load({shadow, Slots("slots", 1)});
  ASSERT_FALSE(Take("shadow").empty());
  EXPECT_TRUE(Hold("shadow")->granted());
  const std::string held = Take("slots");
  const auto waiting = Hold({{"shadow"}, {"slots"}});
  EXPECT_FALSE(waiting->answered);
  EXPECT_FALSE(Take("shadow").empty()) << "granted, and reported as denied";
  End(held);
  EXPECT_TRUE(waiting->granted());
}

TEST_F(SlotsWaitingTest, MaxWaitWithoutHoldIsRefused) {
  Load({Slots("slots", 1)});
  const AcquisitionResult refused = Acquire("slots", "k", 1, {.max_wait = {1, 0}});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status.message(),
            "max_wait: limit \"slots\" has algorithm concurrency, and it is not known when slots "
            "will be free; say hold: true to be answered when they are, or leave max_wait out and "
            "ask again after retry_after");
}

// Random arrivals, releases, renewals, cancellations, resets and changes of limits: at every moment
// no more is held than permitted, no caller is passed by one that came after it, and none waits
// that could have its slots.
class SlotsWaitingHistory : public SlotsWaitingTest {
 protected:
  static constexpr int kLimits = 3;

  static std::string Name(size_t limit) { return "slots" + std::to_string(limit); }

  void Change() {
    std::vector<limits::LimitSpec> specs;
    for (size_t i = 0; i < kLimits; ++i) {
      permits_[i] = 3 + Below(4);
      specs.push_back(Slots(Name(i), permits_[i], (1 + static_cast<int64_t>(Below(5))) * kSecond));
    }
    Load(std::move(specs));
    held_callers_.LimitsChanged();
  }
  uint64_t Below(uint64_t n) { return random_() % n; }

  std::vector<Asked> AnyCharges() {
    std::vector<Asked> asked;
    for (size_t i = 0; i < kLimits; ++i) {
      if (Below(2) == 0) asked.push_back({Name(i), 1 + Below(3)});
    }
    if (asked.empty()) asked.push_back({Name(0), 1});
    return asked;
  }
  static bool Share(const std::vector<Asked>& a, const std::vector<Asked>& b) {
    return std::any_of(a.begin(), a.end(), [&](const Asked& x) {
      return std::any_of(b.begin(), b.end(), [&](const Asked& y) { return x.limit == y.limit; });
    });
  }

  // Moves those that were answered out of waiting_, which is in the order of arrival.
  void Collect() {
    for (size_t i = 0; i < waiting_.size(); ++i) {
      if (!waiting_[i]->granted()) continue;
      for (size_t before = 0; before < i; ++before) {
        ASSERT_TRUE(waiting_[before]->answered ||
                    !Share(waiting_[before]->asked, waiting_[i]->asked))
            << "a caller was passed";
      }
      receipts_.push_back(waiting_[i]->receipt());
    }
    std::erase_if(waiting_, [](const auto& one) { return one->answered; });
  }
  void Check() {
    int64_t free[kLimits];
    for (size_t i = 0; i < kLimits; ++i) {
      free[i] = Remaining(Name(i), "k");
      // Lowering leaves holds.
      ASSERT_TRUE(free[i] >= 0 || lowered_);
    }
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const bool first = std::none_of(
          waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(i),
          [&](const auto& before) { return Share(before->asked, waiting_[i]->asked); });
      if (!first) continue;
      const auto& asked = waiting_[i]->asked;
      ASSERT_FALSE(std::all_of(asked.begin(), asked.end(), [&](const Asked& one) {
        return free[one.limit.back() - '0'] >= static_cast<int64_t>(one.permits);
      })) << "a caller waits for slots that are free";
    }
    ASSERT_EQ(held_callers_.size(), waiting_.size());
  }
  void Renew() {
    if (receipts_.empty()) return;
    RenewCall call;
    call.AddReceipt(receipts_[Below(receipts_.size())]);
    limiter_.Renew(&call, store::kNoDeadline, [](void*, RenewCall*) {}, nullptr);
  }
  void RefundAny() {
    if (receipts_.empty()) return;
    std::swap(receipts_[Below(receipts_.size())], receipts_.back());
    RefundCall refund;
    ASSERT_TRUE(Refund(receipts_.back(), &refund).ok());
    receipts_.pop_back();
  }
  void TakeWithoutWaiting() {
    const std::vector<Asked> asked = AnyCharges();
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({});
    for (const Asked& one : asked) call_.AddCharge(one.limit, "k", one.permits);
    Run(&call_);
    if (!call_.result(0).granted) return;
    receipts_.emplace_back(call_.result(0).receipt);
    for (const auto& one : waiting_) {
      ASSERT_FALSE(Share(one->asked, asked)) << "a caller that waits was passed";
    }
  }
  void Step() {
    switch (Below(16)) {
      case 0:
        if (Below(4) == 0) {
          Change();
          lowered_ = true;
        }
        break;
      case 1:
        if (!waiting_.empty()) limiter_.CancelHeld(&waiting_[Below(waiting_.size())]->call);
        break;
      case 2:
        Advance(static_cast<int64_t>(Below(3)) * kSecond / 2);
        break;
      case 3:
      case 4:
        Renew();
        break;
      case 5:
      case 6:
      case 7:
        TakeWithoutWaiting();
        break;
      case 8:
      case 9:
      case 10:
      case 11:
        RefundAny();
        break;
      default:
        waiting_.push_back(Hold(AnyCharges(), (1 + static_cast<int64_t>(Below(20))) * kSecond / 2));
    }
    Advance(0);
  }

  std::mt19937_64 random_;
  uint64_t permits_[kLimits] = {};
  bool lowered_ = false;
  std::vector<std::unique_ptr<Held>> waiting_;
  std::vector<std::string> receipts_;
};

TEST_F(SlotsWaitingHistory, PassesNoCallerAndLeavesNoSlotUnused) {
  for (uint64_t round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    random_.seed(round);
    lowered_ = false;
    Change();
    Advance(0);
    for (int step = 0; step < 200; ++step) {
      Step();
      ASSERT_NO_FATAL_FAILURE(Collect());
      ASSERT_NO_FATAL_FAILURE(Check());
      if (HasFatalFailure()) return;
    }
    for (const auto& one : waiting_) limiter_.CancelHeld(&one->call);
    waiting_.clear();
    receipts_.clear();
    Advance(20 * kSecond);
    EXPECT_EQ(held_callers_.size(), 0u);
    for (size_t i = 0; i < kLimits; ++i) {
      EXPECT_EQ(Remaining(Name(i), "k"), static_cast<int64_t>(permits_[i]));
    }
  }
}

// The store has no place of theirs, so Query, Watch and ListKeys add them.
TEST_F(SlotsWaitingTest, CallersInLineAreSeenByWatchAndAmongTheTopKeys) {
  struct Sink final : WatchSink {
    bool Ready() override { return true; }
    void OnUpdate(absl::Span<const BucketStatus> changed, int64_t) override {
      waiting.push_back(changed[0].waiting);
    }
    void OnEnd(const absl::Status&) override {}
    std::vector<uint64_t> waiting;
  };
  Load({Slots("slots", 1)});
  WatchHub hub(limiter_);
  const int null = open("/dev/null", O_WRONLY);
  const absl::Cleanup close_null = [null] { close(null); };
  common::Log log(clock_, common::LogLevel::kError, null);
  LimitAdmin admin(limiter_.collaborators(), log, "test", [] { return limits::FileStatus(); });
  const auto listed = [&] {
    uint64_t waiting = 0;
    admin.ListKeys("slots", KeyOrder::kUse, 10, [&](absl::StatusOr<ListedKeys> keys) {
      ASSERT_TRUE(keys.ok()) << keys.status();
      ASSERT_EQ(keys->keys.size(), 1u);
      waiting = keys->keys[0].waiting;
    });
    return waiting;
  };
  const auto sink = std::make_shared<Sink>();
  const std::string held = Take("slots");
  ASSERT_TRUE(hub.Start({.buckets = {{"slots", "k"}}, .min_interval = {}}, sink).ok());
  hub.Tick();
  EXPECT_EQ(listed(), 0u);
  const auto one = Hold("slots");
  const auto other = Hold("slots");
  Advance(kSecond);
  hub.Tick();
  EXPECT_EQ(listed(), 2u);
  End(held);
  ASSERT_TRUE(one->granted());
  Advance(kSecond);
  hub.Tick();
  EXPECT_EQ(listed(), 1u);
  EXPECT_THAT(sink->waiting, testing::ElementsAre(0, 2, 1));
}

}  // namespace
}  // namespace sluice::service
