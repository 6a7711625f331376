// The same random history of reservations and estimates on Redis and on the memory store gives the
// same grant times, levels, waiting times and settlements, to the nanosecond.
//
// The test acts as a node: it calls the scripts for buckets without bookings, and otherwise does an
// optimistic update: it reads buckets, decides, and replaces them. Another call may come between
// the read and the replacement; the memory store then gets that call first.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "server/store/decide.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/wire/key_names.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "server/store/settle.h"
#include "tests/differential/script_calls.h"
#include "tests/support/store_calls.h"
#include "tests/unit/algorithm/any_parameters.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::Parameters;
using ::sluice::testing::Acquired;
using ::sluice::testing::MakeRule;
using ::sluice::testing::RedisValue;
using ::sluice::testing::Refunded;
using ::sluice::testing::Scripts;

constexpr int64_t kTodayNs = 1'790'000'000'000'000'000;
constexpr int64_t kMaxWaitNs = int64_t{24} * 3600 * 1'000'000'000;

struct Party {
  std::shared_ptr<const Rule> rule;
  test_support::RandomParameters random;
  std::array<std::string, 3> keys;
  uint64_t owed_beyond_debt = 0;
};

uint64_t MaxOwedOf(const Party& party, const Parameters& parameters) {
  return std::min(algorithm::Debt(parameters) + party.owed_beyond_debt,
                  algorithm::GreatestOwed(parameters));
}

// A reservation, or a grant with a receipt, on both stores.
struct Given {
  std::vector<size_t> parties;
  std::vector<uint64_t> permits;
  uint64_t redis_id;
  uint64_t memory_id;
  int64_t grant_time_ns;  // 0: then
  // Of an estimate: until when both stores keep it at least; 0: it is none.
  int64_t kept_until_ns;
  int64_t within_ns;
};

class Sides {
 public:
  explicit Sides(int64_t start_ns) : clock_(start_ns, start_ns), memory_(clock_, {}) {}

  void Add(const algorithm::AnyLimit& any, bool shadow) {
    static int serial = 0;
    Party& party = parties_.emplace_back();
    party.owed_beyond_debt = *rc::gen::inRange<uint64_t>(0, 20);
    party.rule = MakeRule(static_cast<uint32_t>(parties_.size()), any.parameters, shadow,
                          MaxOwedOf(party, any.parameters));
    party.random = any.random;
    party.keys = KeysOf("book", party.rule->limit_name, absl::StrCat(++serial));
    memory_.Register(party.rule);
  }

  // Other parameters of the same limit.
  void Change(size_t of, const algorithm::AnyLimit& any) {
    Party& party = parties_[of];
    party.rule = MakeRule(party.rule->limit_id, any.parameters, party.rule->shadow,
                          MaxOwedOf(party, any.parameters));
    party.random = any.random;
    memory_.Register(party.rule);
    // Both convert now, not at the next access.
    interference_ = nullptr;
    Exchange({of}, [](absl::Span<OpenBucket>, int64_t) {});
    const QueryItem memory = ::sluice::testing::Query(memory_, *party.rule, "k");
    // A debt of more than 62 bits of ticks is cut at different times.
    if (memory.level.reset_after_ns >= int64_t{1} << 56) RC_DISCARD("saturated");
  }

  void Advance(int64_t by_ns) { clock_.Advance(by_ns); }
  int64_t now_ns() const { return clock_.NowNs(); }
  const Party& party(size_t i) const { return parties_[i]; }
  // Runs between the next read and its replacement.
  void Interfere(std::function<void()> with) { interference_ = std::move(with); }
  const std::deque<Given>& given() const { return given_; }

  void Acquire(const std::vector<size_t>& of, const std::vector<uint64_t>& permits,
               int64_t max_wait_ns, bool want_receipt, bool force, int64_t within_ns) {
    std::vector<Charge> charges = Charges(of, permits);
    std::vector<ChargeResult> results(of.size());
    Acquisition acquisition;
    acquisition.charges = charges;
    acquisition.results = results.data();
    acquisition.max_wait_ns = max_wait_ns;
    acquisition.want_receipt = want_receipt;
    acquisition.debit = force ? Debit::kForced : Debit::kIfAllowed;
    acquisition.settle_within_ns = within_ns;
    acquisition.want_receipt |= within_ns != 0;
    if (max_wait_ns > 0 || acquisition.want_receipt || force || !ByScript(of, &acquisition)) {
      Exchange(of, [&](absl::Span<OpenBucket> buckets, int64_t now_ns) {
        uint64_t set = 0;
        for (const size_t i : of) set += 1000003 * i + 17;
        acquisition.outcome =
            Decide(&acquisition, buckets, now_ns, set, [&] { return next_receipt_++; });
      });
    }
    charges = Charges(of, permits);
    const Acquired memory = ::sluice::testing::Acquire(memory_, charges,
                                                       {.want_receipt = want_receipt,
                                                        .max_wait_ns = max_wait_ns,
                                                        .debit = acquisition.debit,
                                                        .settle_within_ns = within_ns});
    RC_ASSERT(acquisition.outcome == memory.outcome);
    RC_ASSERT(acquisition.wait_ns == memory.wait_ns);
    RC_ASSERT(acquisition.retry_after_ns == memory.retry_after_ns);
    RC_ASSERT(acquisition.now_ns == memory.now_ns);
    RC_ASSERT((acquisition.receipt_id != 0) == (memory.receipt_id != 0));
    for (size_t i = 0; i < of.size(); ++i) {
      RC_ASSERT(results[i].reason == memory.charges[i].reason);
      RC_ASSERT(results[i].forgiven == memory.charges[i].forgiven);
      CheckLevel(results[i].level, memory.charges[i].level);
    }
    if (memory.receipt_id == 0) return;
    given_.push_back(
        {of, permits, acquisition.receipt_id, memory.receipt_id, memory.grant_time_ns(),
         within_ns == 0 ? 0
                        : memory.now_ns + memory.wait_ns + within_ns + algorithm::Estimate::kKeptNs,
         within_ns});
  }

  void Settle(size_t which) {
    Given& given = given_[which];
    if (Forgotten(given)) return;
    const std::vector<Charge> charges = Charges(given.parties, given.permits);
    std::vector<uint64_t> actual;
    for (const uint64_t permits : given.permits) {
      actual.push_back(*rc::gen::inRange(0, 4) == 0
                           ? SettleOperation::kAsTaken
                           : *rc::gen::inRange<uint64_t>(0, 2 * permits + 2));
    }
    SettleOperationOf operation;
    std::vector<SettledPermits> settled(charges.size());
    operation.receipt_id = given.redis_id;
    operation.charges = charges;
    operation.actual = actual.data();
    operation.more = *rc::gen::inRange(0, 3) == 0;
    operation.settled = settled.data();
    SettleOutcome outcome;
    Exchange(given.parties, [&](absl::Span<OpenBucket> buckets, int64_t now_ns) {
      operation.grant_time_ns = given.grant_time_ns;  // it may have been moved meanwhile
      outcome = store::Settle(&operation, buckets, now_ns);
    });
    const ::sluice::testing::Settled memory =
        ::sluice::testing::Settle(memory_, given.memory_id, charges, actual,
                                  {.more = operation.more, .grant_time_ns = given.grant_time_ns});
    RC_ASSERT(outcome == memory.outcome);
    RC_ASSERT(settled == memory.permits);
    if (outcome != SettleOutcome::kSettled || !operation.more) return;
    given.kept_until_ns = now_ns() + given.within_ns + algorithm::Estimate::kKeptNs;
  }

  void Refund(size_t which) {
    Given& given = given_[which];
    if (given.kept_until_ns != 0 && Forgotten(given)) return;
    const std::vector<Charge> charges = Charges(given.parties, given.permits);
    std::vector<uint64_t> refunded(charges.size());
    RefundOperationOf operation;
    operation.receipt_id = given.redis_id;
    operation.grant_time_ns = given.grant_time_ns;
    operation.charges = charges;
    operation.refunded = refunded.data();
    bool open = false;
    bool settled = false;
    Exchange(given.parties, [&](absl::Span<OpenBucket> buckets, int64_t now_ns) {
      operation.grant_time_ns = given.grant_time_ns;  // it may have been moved meanwhile
      settled = WasSettled(given.redis_id, buckets);
      std::fill(refunded.begin(), refunded.end(), 0);
      open = !settled && store::Refund(operation, buckets, now_ns);
    });
    const Refunded memory =
        ::sluice::testing::Refund(memory_, given.memory_id, charges, given.grant_time_ns);
    RC_ASSERT(open == (memory.outcome == RefundOutcome::kRefunded));
    RC_ASSERT(settled == (memory.outcome == RefundOutcome::kSettled));
    RC_ASSERT(refunded == memory.permits);
  }

  void Move(size_t which) {
    Given& given = given_[which];
    if (given.grant_time_ns == 0) return;
    const std::vector<Charge> charges = Charges(given.parties, given.permits);
    MoveOutcome outcome;
    int64_t grant_time_ns;
    Exchange(given.parties, [&](absl::Span<OpenBucket> buckets, int64_t now_ns) {
      grant_time_ns = given.grant_time_ns;
      outcome = store::Move(given.redis_id, charges, buckets, now_ns, &grant_time_ns);
    });
    MoveOperationOf memory_move;
    memory_move.charges = charges;
    memory_move.receipt_id = given.memory_id;
    memory_move.grant_time_ns = given.grant_time_ns;
    memory_.Move(&memory_move);
    RC_ASSERT(outcome == memory_move.outcome);
    RC_ASSERT(grant_time_ns == memory_move.grant_time_ns);
    if (given.kept_until_ns != 0) {
      given.kept_until_ns -= given.grant_time_ns - memory_move.grant_time_ns;
    }
    given.grant_time_ns = memory_move.grant_time_ns;
  }

  void Query(size_t of) {
    BucketLevel level;
    uint64_t waiting = 0;
    int64_t next_ns = 0;
    algorithm::Refundable refundable;
    Exchange(
        {of},
        [&](absl::Span<OpenBucket> buckets, int64_t now_ns) {
          const algorithm::Level l = buckets[0].LevelAt(now_ns);
          level = {l.remaining, l.capacity, l.reset_after_ns, l.next_permit_after_ns};
          refundable = buckets[0].RefundableAt(now_ns);
          waiting = buckets[0].bookings();
          next_ns = waiting == 0 ? 0 : buckets[0].NextGrantTimeNs() - now_ns;
        },
        /*replace=*/false);
    const QueryItem memory = ::sluice::testing::Query(memory_, *parties_[of].rule, "k");
    RC_ASSERT(waiting == memory.waiting);
    RC_ASSERT(next_ns == memory.next_grant_after_ns);
    // Estimates that are over are forgotten sooner or later.
    if (std::none_of(given_.begin(), given_.end(), [&](const Given& given) {
          return given.kept_until_ns != 0 && Forgotten(given);
        })) {
      RC_ASSERT(refundable == memory.refundable);
    }
    CheckLevel(level, memory.level);
  }

  void Reset(size_t of) {
    Exchange({of},
             [&](absl::Span<OpenBucket> buckets, int64_t now_ns) { buckets[0].Reset(now_ns); });
    ::sluice::testing::Reset(memory_, *parties_[of].rule, "k");
  }

 private:
  struct MoveOperationOf final : MoveOperation {
    void Done() override {}
  };
  struct RefundOperationOf final : RefundOperation {
    void Done() override {}
  };
  struct SettleOperationOf final : SettleOperation {
    void Done() override {}
  };

  // It is no estimate, or the stores may have forgotten it.
  bool Forgotten(const Given& given) const { return given.kept_until_ns < now_ns(); }

  static void CheckLevel(const BucketLevel& redis, const BucketLevel& memory) {
    RC_ASSERT(redis.remaining == memory.remaining);
    RC_ASSERT(redis.capacity == memory.capacity);
    RC_ASSERT(redis.reset_after_ns == memory.reset_after_ns);
    RC_ASSERT(redis.next_permit_after_ns == memory.next_permit_after_ns);
  }

  std::vector<Charge> Charges(const std::vector<size_t>& of,
                              const std::vector<uint64_t>& permits) const {
    std::vector<Charge> charges;
    for (size_t i = 0; i < of.size(); ++i) {
      const Rule* const rule = parties_[of[i]].rule.get();
      // Parameters may have changed since the permits were taken.
      charges.push_back({rule, "k", std::min(permits[i], algorithm::MaxGrant(rule->parameters))});
    }
    return charges;
  }

  std::vector<std::string> KeysOfAll(const std::vector<size_t>& of) const {
    std::vector<std::string> keys;
    for (const size_t i : of) {
      keys.insert(keys.end(), parties_[i].keys.begin(), parties_[i].keys.end());
    }
    return keys;
  }

  // Returns false if the script reports bookings or other parameters.
  bool ByScript(const std::vector<size_t>& of, Acquisition* acquisition) {
    std::vector<std::string> arguments = {TestTime(now_ns()), absl::StrCat(of.size())};
    for (const size_t i : of) {
      const Rule& rule = *parties_[i].rule;
      AppendBucket(rule.parameters, EncodeParameters(rule.parameters), "w.1", rule.shadow, 0,
                   &arguments);
    }
    arguments.insert(arguments.end(), {"0", absl::StrCat(of.size())});
    for (size_t i = 0; i < of.size(); ++i) {
      arguments.push_back(absl::StrCat(i));
      AppendCost(parties_[of[i]].rule->parameters, acquisition->charges[i].permits, &arguments);
    }
    const RedisValue answer = Scripts::Get().Run(Script::kAcquire, KeysOfAll(of), arguments);
    if (answer.type != RedisValue::Type::kArray) RC_FAIL("script: " + answer.text);
    if (answer.elements[0].integer < 0) return false;
    size_t at = 2;
    const auto next = [&] { return answer.elements.at(at++).integer; };
    acquisition->now_ns = now_ns();
    acquisition->outcome = next() == 1 ? Outcome::kGranted : Outcome::kDenied;
    for (size_t i = 0; i < of.size(); ++i) {
      const Rule& rule = *parties_[of[i]].rule;
      ChargeResult& result = acquisition->results[i];
      const bool fits = next() == 1;
      BucketNumbers report;
      for (int64_t& number : report) number = next();
      result.reason = fits          ? Reason::kNone
                      : rule.shadow ? Reason::kShadowDenied
                                    : Reason::kNotEnough;
      const algorithm::Level l = LevelOf(rule.parameters, report, now_ns());
      result.level = {l.remaining, l.capacity, l.reset_after_ns, l.next_permit_after_ns};
      if (acquisition->outcome == Outcome::kGranted || rule.shadow || fits) continue;
      acquisition->retry_after_ns =
          std::max(acquisition->retry_after_ns,
                   WaitNs(rule.parameters, acquisition->charges[i].permits, report, now_ns()));
    }
    return true;
  }

  template <typename DecideFn>
  void Exchange(const std::vector<size_t>& of, DecideFn decide, bool replace = true) {
    const std::vector<std::string> keys = KeysOfAll(of);
    for (int tries = 0;; ++tries) {
      RC_ASSERT(tries < 8);
      std::vector<std::string> arguments = {TestTime(now_ns()), "0"};
      for (const size_t i : of) {
        const auto known = cache_.find(i);
        const StoredBookings stored =
            known == cache_.end() ? StoredBookings() : known->second.stored();
        arguments.insert(
            arguments.end(),
            {stored.state, stored.state.empty() ? "" : absl::StrCat(stored.generation)});
      }
      const RedisValue read = Scripts::Get().Run(Script::kExchange, keys, arguments);
      if (read.type != RedisValue::Type::kArray) RC_FAIL("read: " + read.text);
      std::vector<OpenBucket> buckets;
      arguments[1] = "1";
      for (size_t i = 0; i < of.size(); ++i) {
        const Party& party = parties_[of[i]];
        const std::string& state = read.elements.at(2 + 3 * i).text;
        const std::string& receipts = read.elements.at(3 + 3 * i).text;
        std::vector<std::string> runs;
        for (const RedisValue& run : read.elements.at(4 + 3 * i).elements) {
          runs.push_back(run.text);
        }
        const bool same = IsBooked(state) && state == arguments[2 + 2 * i];
        if (same) RC_ASSERT(receipts.empty() && runs.empty());
        if (same && tries == 0 && *rc::gen::arbitrary<bool>()) {
          buckets.push_back(cache_.at(of[i]));
        } else {
          // Made from the chunks that are known and those that were read.
          std::optional<OpenBucket> known;
          if (const auto found = cache_.find(of[i]); found != cache_.end()) known = found->second;
          auto bucket = OpenBucket::Read(party.rule->parameters, state, receipts, runs, now_ns(),
                                         std::move(known));
          if (absl::IsNotFound(bucket.status())) {
            // What is known is of bookings that were all folded since.
            cache_.erase(of[i]);
            break;
          }
          if (!bucket.ok()) RC_FAIL(std::string(bucket.status().message()));
          buckets.push_back(*std::move(bucket));
        }
        arguments[2 + 2 * i] = state;
        arguments[3 + 2 * i] =
            IsBooked(state) ? absl::StrCat(buckets[i].stored().generation) : receipts;
        if (EncodeParameters(buckets[i].parameters()) != EncodeParameters(party.rule->parameters)) {
          buckets[i].Convert(party.rule->parameters, now_ns());
        }
      }
      if (buckets.size() < of.size()) continue;
      const int64_t at_ns = BeginAt(absl::MakeSpan(buckets), now_ns());
      decide(absl::MakeSpan(buckets), at_ns);
      if (!replace) return;
      for (OpenBucket& bucket : buckets) {
        if (!bucket.changed()) {
          const std::vector<std::string> unchanged = OpenBucket::FormatUnchanged();
          arguments.insert(arguments.end(), unchanged.begin(), unchanged.end());
          continue;
        }
        std::vector<std::string> words =
            bucket.Format("w.1", absl::StrCat("v", ++next_version_), at_ns);
        words[0] = "3600000";
        arguments.insert(arguments.end(), words.begin(), words.end());
      }
      bool interfered = false;
      if (interference_) {
        interfered = true;
        const std::function<void()> interference = std::exchange(interference_, nullptr);
        interference();
      }
      const RedisValue replaced = Scripts::Get().Run(Script::kExchange, keys, arguments);
      if (replaced.type == RedisValue::Type::kArray) {
        RC_ASSERT(interfered);
        continue;
      }
      RC_ASSERT(replaced.integer == 1);
      for (size_t i = 0; i < of.size(); ++i) {
        if (buckets[i].changed()) buckets[i].Written("w.1");
        // Now and then what is known is older than what is in Redis.
        if (buckets[i].stored().state.empty() || *rc::gen::inRange(0, 4) == 0) continue;
        cache_.insert_or_assign(of[i], std::move(buckets[i]));
      }
      return;
    }
  }

  common::FakeClock clock_;
  MemoryStore memory_;
  std::vector<Party> parties_;
  std::deque<Given> given_;
  std::map<size_t, OpenBucket> cache_;
  std::function<void()> interference_;
  uint64_t next_receipt_ = 1000;
  uint64_t next_version_ = 0;
};

algorithm::AnyLimit AnyCountable() {
  for (;;) {
    algorithm::AnyLimit any = algorithm::AnyParameters();
    if (any.parameters.kind == Kind::kTokenBucket ||
        algorithm::Capacity(any.parameters) <= kMaxCounted) {
      return any;
    }
  }
}

// The same algorithm or another, with slightly different parameters.
algorithm::AnyLimit AnyOther(const Parameters& from) {
  algorithm::AnyLimit any;
  any.random = {static_cast<uint64_t>(*rc::gen::inRange(1, 200)),
                *rc::gen::element<int64_t>(1'000'000'000, 60'000'000'000)};
  const Kind kind = *rc::gen::inRange(0, 3) == 0 ? algorithm::AnyKind() : from.kind;
  any.parameters =
      algorithm::ParametersOf(kind, any.random, static_cast<uint64_t>(*rc::gen::inRange(1, 300)),
                              static_cast<uint64_t>(*rc::gen::inRange(0, 20)),
                              static_cast<uint32_t>(*rc::gen::inRange(1, 20)));
  return any;
}

// The memory store counts a token bucket's ticks in 62 bits from the zero of its clock.
bool ReachesToday(const Parameters& parameters) {
  return parameters.kind != Kind::kTokenBucket ||
         (parameters.token_bucket.shift == 0 &&
          parameters.token_bucket.burst_ticks + parameters.token_bucket.debt_ticks <
              (uint64_t{1} << 60));
}

void RandomStep(Sides& sides, size_t count, bool changes) {
  const auto of = static_cast<size_t>(*rc::gen::inRange<size_t>(0, count));
  const size_t given = sides.given().size();
  // Mostly one of the last few.
  const auto any_given = [&] {
    return given - 1 -
           static_cast<size_t>(*rc::gen::inRange<size_t>(0, std::min(given, size_t{12})));
  };
  switch (*rc::gen::inRange(0, 19)) {
    case 0:
      return sides.Query(of);
    case 1:
    case 2:
      if (given != 0) sides.Refund(any_given());
      return;
    case 3:
      if (given != 0) sides.Move(any_given());
      return;
    case 4:
      if (*rc::gen::inRange(0, 8) == 0) sides.Reset(of);
      return;
    case 16:
    case 17:
    case 18:
      if (given != 0) sides.Settle(any_given());
      return;
    case 5:
      if (changes) sides.Change(of, AnyOther(sides.party(of).rule->parameters));
      return;
    default:
      break;
  }
  std::vector<size_t> parties;
  std::vector<uint64_t> permits;
  const size_t first = *rc::gen::inRange(0, 3) == 0 ? 0 : of;
  const size_t last = first == of ? of : count - 1;
  for (size_t i = first; i <= last; ++i) {
    const Parameters& parameters = sides.party(i).rule->parameters;
    const test_support::Step step =
        *test_support::AnyStep(sides.party(i).random, algorithm::MaxGrant(parameters));
    parties.push_back(i);
    permits.push_back(*rc::gen::inRange(0, 12) == 0
                          ? step.permits
                          : 1 + step.permits % algorithm::MaxGrant(parameters));
  }
  const bool force = *rc::gen::inRange(0, 5) == 0;
  const int64_t max_wait_ns = force || *rc::gen::inRange(0, 3) == 0
                                  ? 0
                                  : std::min(kMaxWaitNs, sides.party(of).random.period_ns *
                                                             *rc::gen::element<int64_t>(1, 2, 10));
  constexpr int64_t kHour = 3'600'000'000'000;
  const int64_t within_ns =
      *rc::gen::arbitrary<bool>() ? 0 : *rc::gen::element<int64_t>(1, kHour / 60, 24 * kHour);
  sides.Acquire(parties, permits, max_wait_ns, *rc::gen::inRange(0, 4) == 0, force, within_ns);
}

void RandomHistory(bool changes) {
  const int count = *rc::gen::weightedElement<int>({{3, 1}, {3, 2}, {1, 4}});
  std::vector<algorithm::AnyLimit> limits;
  bool today = !changes;
  for (int i = 0; i < count; ++i) {
    limits.push_back(AnyCountable());
    today = today && ReachesToday(limits.back().parameters);
  }
  const int64_t elapsed_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  Sides sides((today && *rc::gen::arbitrary<bool>() ? kTodayNs : 0) + elapsed_ns);
  for (const algorithm::AnyLimit& limit : limits) {
    sides.Add(limit, *rc::gen::inRange(0, 6) == 0);
  }
  const int steps = *rc::gen::inRange(1, 60);
  for (int s = 0; s < steps; ++s) {
    if (*rc::gen::inRange(0, 2) == 0) {
      const auto of = static_cast<size_t>(*rc::gen::inRange(0, count));
      const test_support::Step step = *test_support::AnyStep(
          sides.party(of).random, algorithm::MaxGrant(sides.party(of).rule->parameters));
      sides.Advance(std::abs(step.advance_ns) / *rc::gen::element<int64_t>(1, 4, 50));
    }
    if (*rc::gen::inRange(0, 6) == 0) {
      sides.Interfere([&] { RandomStep(sides, limits.size(), false); });
    }
    RandomStep(sides, limits.size(), changes);
    sides.Interfere(nullptr);
  }
  for (size_t i = 0; i < limits.size(); ++i) sides.Query(i);
}

RC_GTEST_PROP(RedisBookingsTest, AreDecidedAsInMemory, ()) { RandomHistory(/*changes=*/false); }

RC_GTEST_PROP(RedisBookingsTest, StandWhenParametersChange, ()) { RandomHistory(/*changes=*/true); }

}  // namespace
}  // namespace sluice::store::redis
