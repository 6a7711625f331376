// Random histories on two limits that both charge a third: takes, reservations, forced debits,
// estimates, settlements and refunds. Every window of every bucket, as it was settled, is checked
// (window_checker.h), and that a parent counts no more than the limits that charge it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"
#include "tests/support/tiny_parameters.h"
#include "tests/support/window_checker.h"

namespace sluice::store {
namespace {

using algorithm::Kind;
using test_support::Grant;
using test_support::Wide;

constexpr size_t kBuckets = 3;
constexpr size_t kParent = 2;
constexpr int64_t kStartNs = 1000;
using Numbers = std::array<uint64_t, kBuckets>;

// A limit, and what its bucket counted.
struct Limit {
  std::shared_ptr<const Rule> rule;
  uint64_t unit = 1;  // a token bucket is checked in ticks
  // By the number of the debit. Bookings are in it from the moment they are granted.
  std::map<uint64_t, Grant> counted;

  const algorithm::Parameters& parameters() const { return rule->parameters; }
  bool tokens() const { return parameters().kind == Kind::kTokenBucket; }
  Wide capacity() const {
    return tokens() ? static_cast<Wide>(parameters().token_bucket.burst)
                    : static_cast<Wide>(algorithm::RateOf(parameters()).permits);
  }
  std::vector<Grant> InOrder() const {
    std::vector<Grant> grants;
    for (const auto& [number, one] : counted) {
      if (one.permits > 0) grants.push_back({one.at_ns, one.permits * unit});
    }
    std::stable_sort(grants.begin(), grants.end(),
                     [](const Grant& a, const Grant& b) { return a.at_ns < b.at_ns; });
    return grants;
  }

  // Empty: no window of the whole history holds more than may be owed.
  std::string CheckAll() const {
    const std::vector<Grant> grants = InOrder();
    const Wide most = capacity() + MaxOwed(*rule);
    const int64_t period_ns = algorithm::RateOf(parameters()).period_ns;
    switch (parameters().kind) {
      case Kind::kTokenBucket:
        return test_support::CheckRateInEveryWindow(grants,
                                                    uint64_t{1} << parameters().token_bucket.shift,
                                                    1, static_cast<uint64_t>(most) * unit);
      case Kind::kFixedWindow: {
        std::map<int64_t, Wide> windows;
        for (const Grant& one : grants) windows[one.at_ns / period_ns] += one.permits;
        for (const auto& [index, permits] : windows) {
          if (permits > most) return "window " + std::to_string(index);
        }
        return "";
      }
      default:
        return test_support::CheckCountInEveryWindow(grants, period_ns, most);
    }
  }

  // Whether a grant that was just counted, and was not forced, fits in each window that ends now.
  bool FitsUpTo(int64_t now_ns) const {
    Wide sum = 0;
    std::vector<Grant> grants = InOrder();
    std::erase_if(grants, [&](const Grant& one) { return one.at_ns > now_ns; });
    for (auto one = grants.rbegin(); one != grants.rend(); ++one) {
      sum += one->permits;
      const int64_t age_ns = now_ns - one->at_ns;
      const int64_t period_ns = algorithm::RateOf(parameters()).period_ns;
      Wide most = capacity();
      if (tokens()) {
        const algorithm::TokenBucket& token = parameters().token_bucket;
        most = (most + token.debt) * unit + (static_cast<Wide>(age_ns) << token.shift);
      } else if (parameters().kind == Kind::kFixedWindow) {
        if (one->at_ns / period_ns != now_ns / period_ns) return true;
      } else if (age_ns >= period_ns) {
        return true;
      }
      if (sum > most) return false;
    }
    return true;
  }
};

class History {
 public:
  History() {
    for (size_t i = 0; i < kBuckets; ++i) {
      const algorithm::Parameters parameters =
          testing::AnyTiny(static_cast<Kind>(*rc::gen::inRange(0, 4)));
      const uint64_t max_owed = algorithm::Debt(parameters) + *rc::gen::inRange<uint64_t>(0, 6);
      limits_[i].rule =
          testing::MakeRule(static_cast<uint32_t>(i + 1), parameters, /*shadow=*/false, max_owed);
      if (limits_[i].tokens()) limits_[i].unit = parameters.token_bucket.unit_ticks;
      store_.Register(limits_[i].rule);
    }
  }

  void Step() {
    clock_.Advance(*rc::gen::weightedOneOf<int64_t>(
        {{2, rc::gen::just(int64_t{0})}, {3, rc::gen::inRange<int64_t>(1, 12)}}));
    switch (*rc::gen::inRange(0, 8)) {
      case 0:
      case 1:
      case 2:
        return Acquire(/*forced=*/false);
      case 3:
        return Acquire(/*forced=*/true);
      case 4:
        return Refund();
      default:
        return Settle();
    }
  }

  void Check() {
    for (size_t i = 0; i < kBuckets; ++i) {
      const std::string over = limits_[i].CheckAll();
      if (!over.empty()) RC_FAIL("bucket " + std::to_string(i) + ": " + over);
    }
  }

 private:
  struct Taken {
    Numbers asked{};
    int64_t grant_time_ns = 0;  // 0: granted at once
    bool estimate = false;
    bool settled = false;  // perhaps with `more`
    Numbers actual{};      // of the children
  };

  // The children that the permits are of, and the parent, which they charge.
  void SetCharges(const Numbers& permits) {
    charges_.clear();
    of_.clear();
    charged_by_.clear();
    for (size_t i = 0; i < kBuckets; ++i) {
      if (permits[i] == 0) continue;
      charges_.push_back({limits_[i].rule.get(), "k", permits[i]});
      of_.push_back(i);
      charged_by_.push_back(0);
    }
    charged_by_.back() = static_cast<uint16_t>((1u << (charges_.size() - 1)) - 1);
  }

  void Acquire(bool forced) {
    Taken taken;
    const auto set = *rc::gen::inRange<unsigned>(1, 4);
    for (size_t i = 0; i < kParent; ++i) {
      if (set >> i & 1) taken.asked[i] = *rc::gen::inRange<uint64_t>(1, 6);
      taken.asked[kParent] += taken.asked[i];
    }
    SetCharges(taken.asked);
    for (const Charge& charge : charges_) {
      if (!forced && charge.permits > algorithm::MaxGrant(charge.rule->parameters)) return;
    }
    taken.estimate = *rc::gen::arbitrary<bool>();
    testing::AcquireOptions options = {.want_receipt = true, .charged_by = charged_by_};
    if (forced) options.debit = Debit::kForced;
    if (taken.estimate) options.settle_within_ns = *rc::gen::inRange<int64_t>(1, 60);
    if (!forced && *rc::gen::arbitrary<bool>()) {
      options.max_wait_ns = *rc::gen::inRange<int64_t>(1, 60);
    }
    const testing::Acquired acquired = testing::Acquire(store_, charges_, options);
    RC_ASSERT(acquired.granted() || !forced);
    if (!acquired.granted()) return;
    const uint64_t id = acquired.receipt_id;
    const int64_t now_ns = clock_.NowNs();
    taken.grant_time_ns = acquired.grant_time_ns();
    uint64_t by_children = 0;
    for (size_t c = 0; c < of_.size(); ++c) {
      Limit& limit = limits_[of_[c]];
      const uint64_t forgiven = acquired.charges[c].forgiven;
      RC_ASSERT(forgiven <= charges_[c].permits && (forced || forgiven == 0));
      const uint64_t counted = charges_[c].permits - forgiven;
      limit.counted[id] = {now_ns + acquired.wait_ns, counted};
      if (of_[c] != kParent) by_children += counted;
      if (of_[c] == kParent) RC_ASSERT(counted <= by_children);
      if (!forced && acquired.wait_ns == 0) RC_ASSERT(limit.FitsUpTo(now_ns));
    }
    taken_[id] = taken;
  }

  // Nullopt: there is none.
  std::optional<uint64_t> AnyTaken() const {
    if (taken_.empty()) return std::nullopt;
    return std::next(taken_.begin(), *rc::gen::inRange<size_t>(0, taken_.size()))->first;
  }

  void Refund() {
    const std::optional<uint64_t> id = AnyTaken();
    if (!id.has_value()) return;
    const Taken taken = taken_[*id];
    SetCharges(taken.asked);
    const testing::Refunded refunded = testing::Refund(store_, *id, charges_, taken.grant_time_ns);
    if (taken.settled) RC_ASSERT(refunded.outcome == RefundOutcome::kSettled);
    if (refunded.outcome != RefundOutcome::kRefunded) return;
    for (Limit& limit : limits_) limit.counted.erase(*id);
    taken_.erase(*id);
  }

  void Settle() {
    const std::optional<uint64_t> id = AnyTaken();
    if (!id.has_value() || !taken_[*id].estimate) return;
    Taken& taken = taken_[*id];
    SetCharges(taken.asked);
    const bool more = *rc::gen::inRange(0, 3) == 0;
    Numbers actual{};
    std::vector<uint64_t> named;
    for (const size_t i : of_) {
      if (i == kParent) continue;
      actual[i] = taken.actual[i] + *rc::gen::inRange<uint64_t>(0, 9);
      actual[kParent] += actual[i];
      named.push_back(actual[i]);
    }
    named.push_back(SettleOperation::kAsTaken);
    const testing::Settled settled = testing::Settle(
        store_, *id, charges_, named,
        {.more = more, .charged_by = charged_by_, .grant_time_ns = taken.grant_time_ns});
    if (taken.grant_time_ns > clock_.NowNs()) {
      RC_ASSERT(settled.outcome == SettleOutcome::kTooEarly);
      return;
    }
    const bool late = settled.outcome == SettleOutcome::kLate;
    RC_ASSERT(late || settled.outcome == SettleOutcome::kSettled);
    const uint64_t number = ++debits_;
    // In all settlements: with `more`, the parent may count later what a child counted before.
    uint64_t by_children = 0;
    for (size_t c = 0; c < of_.size(); ++c) {
      const size_t i = of_[c];
      Limit& limit = limits_[i];
      const SettledPermits& change = settled.permits[c];
      if (change.charged_now > 0) limit.counted[number] = {clock_.NowNs(), change.charged_now};
      if (i == kParent) RC_ASSERT(change.charged <= by_children);
      if (i != kParent) by_children += change.charged;
      if (late || more) {
        RC_ASSERT(change.given_back_now == 0u);
      } else {
        uint64_t& permits = limit.counted[*id].permits;
        permits = std::min(permits, actual[i]);
      }
    }
    taken.settled = true;
    taken.actual = actual;
    if (late || !more) taken_.erase(*id);
  }

  common::FakeClock clock_{kStartNs, kStartNs};
  MemoryStore store_{clock_};
  std::array<Limit, kBuckets> limits_;
  std::map<uint64_t, Taken> taken_;      // by receipt
  uint64_t debits_ = uint64_t{1} << 62;  // of settlements, above all receipts

  // Of the acquisition at hand.
  std::vector<Charge> charges_;
  std::vector<size_t> of_;
  std::vector<uint16_t> charged_by_;
};

RC_GTEST_PROP(MemoryStoreSettledTest, NoWindowOfTheSettledHistoryIsOver, ()) {
  History history;
  for (int steps = *rc::gen::inRange(1, 80); steps > 0; --steps) {
    history.Step();
    history.Check();
  }
}

}  // namespace
}  // namespace sluice::store
