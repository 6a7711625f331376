// The same random history through the Lua scripts and through the C++ algorithms gives the same
// decisions, levels and waiting times, to the nanosecond.
//
// In tests the scripts take the time as an argument (ARGV[1]).
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/algorithm/bucket_state.h"
#include "server/store/decide.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/wire/key_names.h"
#include "server/store/redis/wire/number_codec.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "tests/differential/script_calls.h"
#include "tests/unit/algorithm/any_parameters.h"

namespace sluice::store::redis {
namespace {

using algorithm::BucketState;
using algorithm::Kind;
using algorithm::kNeverNs;
using algorithm::Level;
using algorithm::Moment;
using algorithm::Parameters;
using ::sluice::testing::RedisValue;
using ::sluice::testing::Scripts;

// The C++ token bucket counts ticks in 62 bits from the boot on, so that only limits with ticks of
// whole nanoseconds reach the present wall clock time.
constexpr int64_t kTodayNs = 1'790'000'000'000'000'000;

struct Bucket {
  Parameters parameters;
  bool shadow = false;
  std::array<std::string, 3> keys;
  BucketState model{Parameters{}};
  int64_t floor_us = 0;
  uint64_t max_owed = 0;
};

Bucket NewBucket(const Parameters& parameters, bool shadow = false) {
  static int serial = 0;
  Bucket bucket;
  bucket.parameters = parameters;
  bucket.shadow = shadow;
  bucket.keys = KeysOf("test", "limit", absl::StrCat(++serial));
  bucket.model = BucketState(parameters);
  return bucket;
}

std::vector<std::string> KeysOfAll(const std::vector<Bucket>& buckets) {
  std::vector<std::string> keys;
  for (const Bucket& bucket : buckets) {
    keys.insert(keys.end(), bucket.keys.begin(), bucket.keys.end());
  }
  return keys;
}

std::vector<std::string> Prefix(const std::vector<Bucket>& buckets, int64_t now_ns) {
  std::vector<std::string> arguments = {TestTime(now_ns), absl::StrCat(buckets.size())};
  for (const Bucket& bucket : buckets) {
    AppendBucket(bucket.parameters, EncodeParameters(bucket.parameters), "w.1", bucket.shadow,
                 bucket.floor_us, &arguments);
  }
  return arguments;
}

// Reads the next numbers of a reply.
class Reader {
 public:
  explicit Reader(const RedisValue& value) : value_(value) {
    if (value.type != RedisValue::Type::kArray && value.type != RedisValue::Type::kString) {
      RC_FAIL("no numbers: " + value.text);
    }
  }
  int64_t Next() {
    if (value_.type == RedisValue::Type::kString) return UnpackNumber(value_.text, at_++).value();
    RC_ASSERT(at_ < value_.elements.size());
    RC_ASSERT(value_.elements[at_].type == RedisValue::Type::kInteger);
    return value_.elements[at_++].integer;
  }
  BucketNumbers NextBucket() {
    BucketNumbers report;
    for (int64_t& number : report) number = Next();
    return report;
  }
  void Time(int64_t now_ns) {
    const int64_t us = Next();
    RC_ASSERT(us * 1000 + Next() == now_ns);
  }
  bool AtEnd() const {
    return value_.type == RedisValue::Type::kString ? at_ * kPackedNumberBytes == value_.text.size()
                                                    : at_ == value_.elements.size();
  }

 private:
  const RedisValue& value_;
  size_t at_ = 0;
};

void CheckLevel(const Level& lua, const Level& model) {
  RC_ASSERT(lua.remaining == model.remaining);
  RC_ASSERT(lua.capacity == model.capacity);
  RC_ASSERT(lua.reset_after_ns == model.reset_after_ns);
  RC_ASSERT(lua.next_permit_after_ns == model.next_permit_after_ns);
}

int64_t ModelWaitNs(const Bucket& bucket, uint64_t permits, int64_t now_ns) {
  const int64_t earliest =
      bucket.model.EarliestNs(bucket.parameters, permits, Moment{now_ns, now_ns});
  return earliest == kNeverNs ? kNeverNs : earliest - now_ns;
}

// Acquisitions that charge all buckets, decided as in the memory store.
void Acquire(std::vector<Bucket>& buckets, const std::vector<std::vector<uint64_t>>& acquisitions,
             const std::vector<uint64_t>& receipts, int64_t now_ns) {
  std::vector<std::string> arguments = Prefix(buckets, now_ns);
  for (size_t a = 0; a < acquisitions.size(); ++a) {
    arguments.push_back(absl::StrCat(receipts[a]));
    arguments.push_back(absl::StrCat(buckets.size()));
    for (size_t i = 0; i < buckets.size(); ++i) {
      arguments.push_back(absl::StrCat(i));
      AppendCost(buckets[i].parameters, acquisitions[a][i], &arguments);
    }
  }
  const RedisValue answer = Scripts::Get().Run(Script::kAcquire, KeysOfAll(buckets), arguments);
  Reader reader(answer);
  reader.Time(now_ns);
  const Moment at{now_ns, now_ns};
  for (size_t a = 0; a < acquisitions.size(); ++a) {
    bool granted = true;
    std::vector<bool> fits;
    for (size_t i = 0; i < buckets.size(); ++i) {
      fits.push_back(buckets[i].model.CanTake(buckets[i].parameters, acquisitions[a][i], at));
      if (!fits[i] && !buckets[i].shadow) granted = false;
    }
    RC_ASSERT((reader.Next() == 1) == granted);
    for (size_t i = 0; i < buckets.size(); ++i) {
      Bucket& bucket = buckets[i];
      RC_ASSERT((reader.Next() == 1) == fits[i]);
      const int64_t wait_ns = granted ? 0 : ModelWaitNs(bucket, acquisitions[a][i], now_ns);
      if (granted && fits[i]) {
        RC_ASSERT(bucket.model.TryTake(bucket.parameters, acquisitions[a][i], at, receipts[a]));
      }
      const BucketNumbers report = reader.NextBucket();
      CheckLevel(LevelOf(bucket.parameters, report, now_ns),
                 bucket.model.LevelAt(bucket.parameters, at));
      if (!granted) {
        RC_ASSERT(WaitNs(bucket.parameters, acquisitions[a][i], report, now_ns) == wait_ns);
      }
    }
  }
  RC_ASSERT(reader.AtEnd());
}

// Permits that a script gives back, of its two numbers.
uint64_t PermitsOf(const Parameters& parameters, int64_t a, int64_t b) {
  const algorithm::TokenBucket& token = parameters.token_bucket;
  return parameters.kind == Kind::kTokenBucket ? TicksOf(token, a, b) / token.unit_ticks
                                               : static_cast<uint64_t>(a);
}

// A forced acquisition that charges all buckets, or one that gives back.
void Force(std::vector<Bucket>& buckets, const std::vector<uint64_t>& permits,
           const std::vector<uint16_t>& charged_by, Debit debit, uint64_t receipt, int64_t now_ns) {
  std::vector<Charge> charges(buckets.size());
  for (size_t i = 0; i < buckets.size(); ++i) charges[i].permits = permits[i];
  Acquisition acquisition;
  acquisition.charges = charges;
  acquisition.charged_by = charged_by.data();
  ForcedShares shares(acquisition);
  std::vector<std::string> arguments = Prefix(buckets, now_ns);
  arguments.push_back(absl::StrCat(receipt));
  arguments.push_back(absl::StrCat(buckets.size(), debit == Debit::kForced ? "f" : "g"));
  std::vector<size_t> place(buckets.size());
  size_t sent = 0;
  for (const size_t i : shares.order()) {
    place[i] = ++sent;
    std::string by;
    for (size_t c = 0; c < buckets.size(); ++c) {
      if ((charged_by[i] >> c & 1) != 0) absl::StrAppend(&by, place[c], ",");
    }
    arguments.push_back(absl::StrCat(i));
    AppendCost(buckets[i].parameters, permits[i], &arguments);
    AppendForced(buckets[i].parameters, permits[i], buckets[i].max_owed, by, shares.own(i),
                 &arguments);
  }
  const RedisValue answer = Scripts::Get().Run(Script::kAcquire, KeysOfAll(buckets), arguments);
  Reader reader(answer);
  reader.Time(now_ns);
  RC_ASSERT(reader.Next() == 1);
  const Moment at{now_ns, now_ns};
  for (const size_t i : shares.order()) {
    Bucket& bucket = buckets[i];
    const bool fits = bucket.model.CanTake(bucket.parameters, permits[i], at);
    RC_ASSERT((reader.Next() == 1) == fits);
    uint64_t counted = 0;
    if (debit == Debit::kForced) {
      const uint64_t share = shares.Of(i);
      counted = share - bucket.model.Force(bucket.parameters, share,
                                           CountableOwed(bucket.parameters, bucket.max_owed), at,
                                           receipt);
      shares.Counted(i, counted);
    } else {
      bucket.model.GiveBack(bucket.parameters, permits[i], at);
    }
    CheckLevel(LevelOf(bucket.parameters, reader.NextBucket(), now_ns),
               bucket.model.LevelAt(bucket.parameters, at));
    const int64_t a = reader.Next();
    const int64_t b = reader.Next();
    if (debit == Debit::kGiveBack) continue;
    RC_ASSERT(PermitsOf(bucket.parameters, a, b) == counted);
  }
  RC_ASSERT(reader.AtEnd());
}

void Query(std::vector<Bucket>& buckets, int64_t now_ns) {
  std::vector<std::string> arguments = Prefix(buckets, now_ns);
  for (const Bucket& bucket : buckets) AppendCost(bucket.parameters, 1, &arguments);
  const RedisValue answer = Scripts::Get().Run(Script::kQuery, KeysOfAll(buckets), arguments);
  Reader reader(answer);
  reader.Time(now_ns);
  for (const Bucket& bucket : buckets) {
    reader.Next();
    const Moment at{now_ns, now_ns};
    CheckLevel(LevelOf(bucket.parameters, reader.NextBucket(), now_ns),
               bucket.model.LevelAt(bucket.parameters, at));
    const algorithm::Refundable refundable = bucket.model.RefundableAt(bucket.parameters, at);
    RC_ASSERT(reader.Next() == static_cast<int64_t>(refundable.receipts));
    const int64_t a = reader.Next();
    RC_ASSERT(PermitsOf(bucket.parameters, a, reader.Next()) == refundable.permits);
  }
}

void Refund(std::vector<Bucket>& buckets, uint64_t receipt, int64_t now_ns) {
  std::vector<std::string> arguments = Prefix(buckets, now_ns);
  arguments.push_back(absl::StrCat(receipt));
  const RedisValue answer = Scripts::Get().Run(Script::kRefund, KeysOfAll(buckets), arguments);
  Reader reader(answer);
  reader.Time(now_ns);
  for (Bucket& bucket : buckets) {
    const bool open = reader.Next() == 1;
    const int64_t a = reader.Next();
    const int64_t b = reader.Next();
    const auto given = bucket.model.Refund(bucket.parameters, receipt, Moment{now_ns, now_ns});
    RC_ASSERT(open == given.has_value());
    if (!open) continue;
    RC_ASSERT(PermitsOf(bucket.parameters, a, b) == *given);
  }
}

// Converts the bucket to other parameters, as a store does on the next acquisition.
void ConvertTo(Bucket& bucket, const Parameters& to, int64_t now_ns) {
  const Parameters from = bucket.parameters;
  if (EncodeParameters(from) == EncodeParameters(to)) return;
  bucket.parameters = to;
  std::vector<Bucket> one = {bucket};
  std::vector<std::string> arguments = Prefix(one, now_ns);
  AppendCost(to, 1, &arguments);
  const std::vector<std::string> keys(bucket.keys.begin(), bucket.keys.end());
  const RedisValue met = Scripts::Get().Run(Script::kQuery, keys, arguments);
  RC_ASSERT(met.type == RedisValue::Type::kArray);
  if (met.elements[0].integer == -1) {
    const RedisValue read =
        Scripts::Get().Run(Script::kExchange, keys, {TestTime(now_ns), "0", "", ""});
    RC_ASSERT(read.elements.size() == 5u);
    const std::string& state = read.elements[2].text;
    const std::string& receipts = read.elements[3].text;
    std::vector<std::string> runs;
    for (const RedisValue& run : read.elements[4].elements) runs.push_back(run.text);
    auto stored = OpenBucket::Read(to, state, receipts, runs, now_ns);
    if (!stored.ok()) RC_FAIL(std::string(stored.status().message()));
    stored->Convert(to, now_ns);
    std::vector<std::string> formatted = stored->Format("w.2", /*version=*/"", now_ns);
    // The server's own clock has nothing to do with the test's.
    formatted[0] = "3600000";
    formatted.insert(formatted.begin(), {TestTime(now_ns), "1", state, receipts});
    RC_ASSERT(Scripts::Get().Run(Script::kExchange, keys, formatted).integer == 1);
    // A slower node that read the same changes nothing.
    RC_ASSERT(Scripts::Get().Run(Script::kExchange, keys, formatted).type ==
              RedisValue::Type::kArray);
  }
  bucket.model.Convert(from, to, Moment{now_ns, now_ns});
  // The memory store counts a token bucket's ticks from the boot on, Redis from now on: a debt of
  // more than 62 bits of ticks is cut at different times.
  if (to.kind == Kind::kTokenBucket && bucket.model.tat() == algorithm::kMaxTat) {
    RC_DISCARD("saturated");
  }
}

// Redis limits permits of windows to 2^53 (stored_bucket.h).
bool Countable(const Parameters& parameters) {
  return parameters.kind == Kind::kTokenBucket || algorithm::Capacity(parameters) <= kMaxCounted;
}

algorithm::AnyLimit AnyCountable() {
  for (;;) {
    const algorithm::AnyLimit any = algorithm::AnyParameters();
    if (Countable(any.parameters)) return any;
  }
}

bool ReachesToday(const Parameters& parameters) {
  return parameters.kind != Kind::kTokenBucket ||
         (parameters.token_bucket.shift == 0 &&
          parameters.token_bucket.burst_ticks + parameters.token_bucket.debt_ticks <
              (uint64_t{1} << 60));
}

int64_t Started(const std::vector<Bucket>& buckets) {
  for (const Bucket& bucket : buckets) {
    if (!ReachesToday(bucket.parameters)) return 0;
  }
  return *rc::gen::element<int64_t>(0, kTodayNs);
}

uint64_t Wanted(const Parameters& parameters, uint64_t permits) {
  // Mostly a number that can be granted.
  if (*rc::gen::inRange(0, 8) == 0) return permits;
  return 1 + permits % algorithm::MaxGrant(parameters);
}

RC_GTEST_PROP(RedisScriptsTest, DecideAsTheAlgorithmsDo, ()) {
  const int count = *rc::gen::weightedElement<int>({{4, 1}, {2, 2}, {1, 5}});
  std::vector<Bucket> buckets;
  std::vector<test_support::RandomParameters> random;
  for (int i = 0; i < count; ++i) {
    const algorithm::AnyLimit any = AnyCountable();
    buckets.push_back(NewBucket(any.parameters, *rc::gen::inRange(0, 6) == 0));
    random.push_back(any.random);
  }
  const bool receipts = *rc::gen::arbitrary<bool>();
  const int64_t start_ns = Started(buckets);
  int64_t elapsed_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  uint64_t next_receipt = 1;
  const int steps = *rc::gen::inRange(1, 40);
  for (int s = 0; s < steps; ++s) {
    const auto of = static_cast<size_t>(*rc::gen::inRange(0, count));
    const test_support::Step step =
        *test_support::AnyStep(random[of], algorithm::MaxGrant(buckets[of].parameters));
    elapsed_ns = test_support::Advanced(elapsed_ns, step);
    const int64_t now_ns = start_ns + elapsed_ns;
    switch (*rc::gen::inRange(0, 8)) {
      case 0:
        Query(buckets, now_ns);
        break;
      case 1:
        Refund(buckets, *rc::gen::inRange<uint64_t>(1, next_receipt + 1), now_ns);
        break;
      default: {
        const int together = *rc::gen::weightedElement<int>({{4, 1}, {1, 3}});
        std::vector<std::vector<uint64_t>> acquisitions;
        std::vector<uint64_t> ids;
        for (int t = 0; t < together; ++t) {
          std::vector<uint64_t>& permits = acquisitions.emplace_back();
          for (const Bucket& bucket : buckets) {
            permits.push_back(Wanted(bucket.parameters, step.permits));
          }
          ids.push_back(receipts && *rc::gen::arbitrary<bool>() ? next_receipt++ : 0);
        }
        Acquire(buckets, acquisitions, ids, now_ns);
      }
    }
  }
  Query(buckets, start_ns + elapsed_ns);
}

uint64_t AnyMaxOwed(const Parameters& parameters) {
  uint64_t most = kMaxCounted - 1;
  if (parameters.kind == Kind::kTokenBucket) {
    const algorithm::TokenBucket& token = parameters.token_bucket;
    // So that burst and max_owed still reach today.
    most = (uint64_t{1} << 60) / token.unit_ticks;
    most -= std::min(most, token.burst + token.debt);
  }
  const uint64_t beyond_debt =
      most == 0 ? 0
                : *rc::gen::oneOf(rc::gen::just(uint64_t{0}), test_support::Magnitude(most),
                                  test_support::Magnitude(std::min<uint64_t>(most, 50)));
  return algorithm::Debt(parameters) + beyond_debt;
}

// Transitive sets of charges, none of which charges itself (Acquisition::charged_by).
std::vector<uint16_t> AnyChargedBy(size_t charges) {
  std::vector<uint16_t> charged_by(charges);
  for (size_t i = 0; i < charges; ++i) {
    for (size_t by = i + 1; by < charges; ++by) {
      // The first is charged by the last, so that the script gets them in another order.
      if (*rc::gen::inRange(0, 2) == 0) charged_by[i] |= static_cast<uint16_t>(1u << by);
    }
  }
  for (size_t i = charges; i-- > 0;) {
    for (size_t by = 0; by < charges; ++by) {
      if ((charged_by[i] >> by & 1) != 0) charged_by[i] |= charged_by[by];
    }
  }
  return charged_by;
}

RC_GTEST_PROP(RedisScriptsTest, ForceAsTheAlgorithmsDo, ()) {
  const int count = *rc::gen::weightedElement<int>({{4, 1}, {2, 2}, {1, 5}});
  std::vector<Bucket> buckets;
  std::vector<test_support::RandomParameters> random;
  bool fixed = true;
  for (int i = 0; i < count; ++i) {
    const algorithm::AnyLimit any = AnyCountable();
    buckets.push_back(NewBucket(any.parameters, *rc::gen::inRange(0, 6) == 0));
    buckets.back().max_owed = AnyMaxOwed(any.parameters);
    random.push_back(any.random);
    fixed &= any.parameters.kind == Kind::kFixedWindow;
  }
  const std::vector<uint16_t> charged_by = AnyChargedBy(buckets.size());
  const int64_t start_ns = Started(buckets);
  int64_t elapsed_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  uint64_t next_receipt = 1;
  const int steps = *rc::gen::inRange(1, 40);
  for (int s = 0; s < steps; ++s) {
    const auto of = static_cast<size_t>(*rc::gen::inRange(0, count));
    const test_support::Step step =
        *test_support::AnyStep(random[of], algorithm::MaxGrant(buckets[of].parameters));
    elapsed_ns = test_support::Advanced(elapsed_ns, step);
    const int64_t now_ns = start_ns + elapsed_ns;
    std::vector<uint64_t> permits;
    for (const Bucket& bucket : buckets) {
      permits.push_back(Wanted(bucket.parameters, step.permits));
      if (count > 1) permits.back() = std::min(permits.back(), kMaxForcedTogether);
    }
    const uint64_t receipt = *rc::gen::arbitrary<bool>() ? next_receipt++ : 0;
    switch (*rc::gen::inRange(0, 6)) {
      case 0:
        Refund(buckets, *rc::gen::inRange<uint64_t>(1, next_receipt + 1), now_ns);
        break;
      case 1:
        Acquire(buckets, {permits}, {receipt}, now_ns);
        break;
      case 2:
        if (fixed) Force(buckets, permits, charged_by, Debit::kGiveBack, 0, now_ns);
        break;
      default:
        Force(buckets, permits, charged_by, Debit::kForced, receipt, now_ns);
    }
  }
  Query(buckets, start_ns + elapsed_ns);
}

RC_GTEST_PROP(RedisScriptsTest, GivingBackClosesReceiptsOfAWindowThatIsOver, ()) {
  std::vector<Bucket> buckets = {
      NewBucket(*algorithm::MakeFixedWindow({10, 1'000'000'000}, /*utc_offset_ns=*/0), false)};
  const int64_t end_ns = *rc::gen::inRange<int64_t>(1, 1'000'000) * 1'000'000'000;
  Acquire(buckets, {{1}}, {1}, end_ns - 10);
  Force(buckets, {1}, {0}, Debit::kGiveBack, 0, end_ns);
  Refund(buckets, 1, end_ns - 1);
}

RC_GTEST_PROP(RedisScriptsTest, ForcedDebitThatCountsNothingLeavesTheTimeThatALogHasSeen, ()) {
  std::vector<Bucket> buckets = {NewBucket(*algorithm::MakeSlidingLog({3, 1'000'000'000}), false)};
  const int64_t now_ns = *rc::gen::inRange<int64_t>(100, 1'000'000) * 1'000'000'000;
  Force(buckets, {3}, {0}, Debit::kForced, 1, now_ns);
  Force(buckets, {1}, {0}, Debit::kForced, 0, now_ns + 500'000'000);
  // The clock was set back.
  Refund(buckets, 1, now_ns - 2'000'000'000);
  Acquire(buckets, {{1}}, {0}, now_ns - 2'000'000'000);
}

RC_GTEST_PROP(RedisScriptsTest, ConvertAsTheAlgorithmsDo, ()) {
  algorithm::AnyLimit any = AnyCountable();
  std::vector<Bucket> buckets = {NewBucket(any.parameters)};
  int64_t now_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  uint64_t next_receipt = 1;
  const int steps = *rc::gen::inRange(1, 25);
  for (int s = 0; s < steps; ++s) {
    Bucket& bucket = buckets[0];
    const test_support::Step step =
        *test_support::AnyStep(any.random, algorithm::MaxGrant(bucket.parameters));
    // Forwards only: a log that becomes full forgets that the clock stepped back.
    now_ns = test_support::Advanced(now_ns, {std::abs(step.advance_ns), 1});
    switch (*rc::gen::inRange(0, 6)) {
      case 0: {
        if (*rc::gen::arbitrary<bool>()) {
          const algorithm::AnyLimit next = AnyCountable();
          ConvertTo(bucket, next.parameters, now_ns);
          any = next;
        } else {
          // The same algorithm with slightly different parameters.
          const auto permits = static_cast<uint64_t>(*rc::gen::inRange(1, 200));
          const int64_t period_ns = *rc::gen::element<int64_t>(1'000'000'000, 60'000'000'000);
          any.random = {permits, period_ns};
          ConvertTo(bucket,
                    algorithm::ParametersOf(bucket.parameters.kind, any.random,
                                            static_cast<uint64_t>(*rc::gen::inRange(1, 300)),
                                            static_cast<uint64_t>(*rc::gen::inRange(0, 20)),
                                            static_cast<uint32_t>(*rc::gen::inRange(1, 20))),
                    now_ns);
        }
        break;
      }
      case 1:
        Refund(buckets, *rc::gen::inRange<uint64_t>(1, next_receipt + 1), now_ns);
        break;
      default:
        Acquire(buckets, {{Wanted(bucket.parameters, step.permits)}},
                {*rc::gen::arbitrary<bool>() ? next_receipt++ : 0}, now_ns);
    }
  }
}

// Permits, and how many callers in a row want them.
using Runs = std::vector<std::pair<uint64_t, uint64_t>>;

// The script for token buckets.
class TokenBucketsCall {
 public:
  // now_ns negative: the server's time.
  TokenBucketsCall(int64_t now_ns, bool together, bool may_set_range = true,
                   const ServerClock& clock = ServerClock())
      : arguments_{
            PackHeader(now_ns, clock, together ? kReadTogether : kReadOneByOne, may_set_range)} {}
  // Of callers that do not wait.
  void Add(const Bucket& bucket, const Runs& runs) {
    AddBucket(bucket, runs.size());
    for (const auto& [permits, callers] : runs) {
      AddRun(bucket, permits, static_cast<int64_t>(callers));
    }
  }
  void AddBucket(const Bucket& bucket, size_t runs) {
    keys_.push_back(bucket.keys[0]);
    PackTokenBucket(bucket.parameters, arguments_.size() + 1, bucket.floor_us, runs,
                    arguments_.data());
    arguments_.push_back(absl::StrCat(EncodeParameters(bucket.parameters), " w.1 "));
  }
  // Negative: callers that wait.
  void AddRun(const Bucket& bucket, uint64_t permits, int64_t callers) {
    PackRun(bucket.parameters, permits, callers, arguments_.data());
  }
  RedisValue Run(const std::string& fence = "fence") const {
    return Scripts::Get().Run(Script::kAcquireTokenBuckets, keys_, arguments_, fence);
  }

 private:
  std::vector<std::string> keys_;
  std::vector<std::string> arguments_;
};

// When the key expires, by the server's clock in seconds (PEXPIRETIME is of Redis 7).
int64_t ExpiryS(const std::string& key) {
  constexpr char kScript[] =
      "local time = redis.call('TIME') "
      "return math.floor((time[1] * 1000 + time[2] / 1000 + redis.call('PTTL', KEYS[1])) / 1000 + "
      "0.5)";
  return Scripts::Get().Call({"EVAL", kScript, "1", key}).integer;
}

// The state as the script for token buckets has left it, without the time at which its key expires,
// which says when that is, and is not too early, and without the fence.
RedisValue StateOf(const Bucket& bucket) {
  RedisValue value = Scripts::Get().Call({"GET", bucket.keys[0]});
  const std::vector<std::string> words = absl::StrSplit(value.text, ' ');
  if (words.size() != 7) return value;
  // Keys of a test expire so many seconds later.
  constexpr int64_t kLater = 4'000'000'000;
  const int64_t expiry_s = std::stoll(words[5]);
  RC_ASSERT(ExpiryS(bucket.keys[0]) == expiry_s + kLater);
  RC_ASSERT(expiry_s > std::stoll(words[2]) / 1'000'000);
  RC_ASSERT(words[6] == "fence");
  value.text.resize(value.text.size() - words[5].size() - words[6].size() - 2);
  return value;
}

// The script for token buckets answers a batch of callers, and leaves the same state.
RC_GTEST_PROP(RedisScriptsTest, AnswerEachCallerOfABatch, ()) {
  const test_support::RandomParameters random = *test_support::AnyParameters();
  const algorithm::BurstAndDebt burst = algorithm::AnyBurst(random);
  Bucket bucket =
      NewBucket(algorithm::ParametersOf(Kind::kTokenBucket, random, burst.burst, burst.debt, 1));
  const algorithm::TokenBucket& token = bucket.parameters.token_bucket;
  uint64_t tat = 0;
  const int64_t start_ns = ReachesToday(bucket.parameters) ? kTodayNs : 0;
  int64_t elapsed_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  const int steps = *rc::gen::inRange(1, 30);
  for (int s = 0; s < steps; ++s) {
    Runs runs;
    const int count = *rc::gen::inRange(1, 4);
    test_support::Step step;
    for (int r = 0; r < count; ++r) {
      step = *test_support::AnyStep(random, algorithm::MaxGrant(bucket.parameters));
      runs.push_back({Wanted(bucket.parameters, step.permits), *rc::gen::inRange<uint64_t>(1, 50)});
    }
    elapsed_ns = test_support::Advanced(elapsed_ns, step);
    const int64_t now_ns = start_ns + elapsed_ns;
    TokenBucketsCall call(now_ns, /*together=*/true);
    call.Add(bucket, runs);
    const RedisValue answer = call.Run();
    StateOf(bucket);
    Reader reader(answer);
    reader.Time(now_ns);
    const uint64_t now_ticks = algorithm::ToTicks(token, now_ns);
    const int64_t us = reader.Next();
    RC_ASSERT(TicksOf(token, us, reader.Next()) == algorithm::ShortfallTicks(tat, now_ticks));
    for (const auto& [permits, callers] : runs) {
      uint64_t granted = 0;
      for (uint64_t i = 0; i < callers; ++i) {
        granted += algorithm::TryTake(token, permits, now_ticks, &tat);
      }
      RC_ASSERT(reader.Next() == static_cast<int64_t>(granted));
    }
  }
}

// ---- Token buckets in one script, or in several ----

struct Asked {
  size_t bucket;
  uint64_t permits;
  uint64_t callers;
  bool waits;
};
struct Answered {
  int64_t refused = 0;   // as the script says it; 0: decided
  bool decided = true;   // false: behind a caller that waits
  uint64_t granted = 0;  // callers
  uint64_t lacking = 0;  // ticks, before the first caller
  bool operator==(const Answered&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Answered& answer) {
    return out << answer.refused << " " << answer.decided << " " << answer.granted << " "
               << answer.lacking;
  }
};

// By one script: for each bucket its acquisitions, in their order.
std::vector<Answered> AnswersOf(const std::vector<Bucket>& buckets, absl::Span<const Asked> asked,
                                int64_t now_ns, bool together, bool may_set_range = true) {
  std::vector<size_t> order;
  std::map<size_t, std::vector<Asked>> runs;
  for (const Asked& one : asked) {
    if (runs[one.bucket].empty()) order.push_back(one.bucket);
    runs[one.bucket].push_back(one);
  }
  TokenBucketsCall call(now_ns, together, may_set_range);
  for (const size_t b : order) {
    call.AddBucket(buckets[b], runs[b].size());
    for (const Asked& one : runs[b]) {
      const auto callers = static_cast<int64_t>(one.callers);
      call.AddRun(buckets[b], one.permits, one.waits ? -callers : callers);
    }
  }
  const RedisValue reply = call.Run();
  Reader reader(reply);
  reader.Time(now_ns);
  std::map<size_t, std::vector<Answered>> answers;
  for (const size_t b : order) {
    const algorithm::TokenBucket& token = buckets[b].parameters.token_bucket;
    const int64_t us = reader.Next();
    uint64_t lacking = us < 0 ? 0 : TicksOf(token, us, reader.Next());
    bool decided = true;
    for (const Asked& one : runs[b]) {
      Answered& answer = answers[b].emplace_back();
      answer.refused = std::min<int64_t>(us, 0);
      answer.decided = decided;
      if (us < 0 || !decided) continue;
      answer.lacking = lacking;
      answer.granted = static_cast<uint64_t>(reader.Next());
      lacking += answer.granted * one.permits * token.unit_ticks;
      decided = !one.waits || answer.granted == one.callers;
    }
  }
  RC_ASSERT(reader.AtEnd());
  std::vector<Answered> in_order;
  std::map<size_t, size_t> next;
  for (const Asked& one : asked) in_order.push_back(answers[one.bucket][next[one.bucket]++]);
  return in_order;
}

// The same, of buckets without a caller that waits. Adds those that have one now.
std::vector<Answered> AnswersOfOthers(const std::vector<Bucket>& buckets,
                                      absl::Span<const Asked> asked, int64_t now_ns, bool together,
                                      bool may_set_range, std::set<size_t>* waiting) {
  std::vector<Asked> others;
  for (const Asked& one : asked) {
    if (!waiting->contains(one.bucket)) others.push_back(one);
  }
  std::vector<Answered> answers;
  if (!others.empty()) answers = AnswersOf(buckets, others, now_ns, together, may_set_range);
  std::vector<Answered> in_order;
  const std::set<size_t> waited = *waiting;
  size_t next = 0;
  for (const Asked& one : asked) {
    Answered& answer = in_order.emplace_back();
    answer.decided = false;
    if (waited.contains(one.bucket)) continue;
    answer = answers[next++];
    if (answer.refused == 0 && one.waits && (!answer.decided || answer.granted < one.callers)) {
      waiting->insert(one.bucket);
    }
  }
  return in_order;
}

// What the script does not decide: it says so, and decides the other buckets.
void Spoil(const Bucket& bucket) {
  const std::string parameters = EncodeParameters(bucket.parameters);
  switch (*rc::gen::inRange(0, 6)) {
    case 0:
      Scripts::Get().Call({"SET", bucket.keys[0], "hello"});
      break;
    case 1:
      Scripts::Get().Call({"RPUSH", bucket.keys[0], "not ours"});
      break;
    case 2:
      Scripts::Get().Call({"SET", bucket.keys[0], "t:7:8:9:0:0 w.1 1 0 0"});
      break;
    case 3:
      Scripts::Get().Call({"SET", bucket.keys[0], absl::StrCat(parameters, " w.1 1 0 1")});
      break;
    case 4:
      Scripts::Get().Call({"SET", bucket.keys[0], absl::StrCat(parameters, " w.1 @ 1")});
      break;
    default:
      // Another node wrote it.
      Scripts::Get().Call({"SET", bucket.keys[0], absl::StrCat(parameters, " v.9 0 0 0")});
  }
}

RC_GTEST_PROP(RedisScriptsTest, AnySplitIntoScriptsGivesTheSameAnswers, ()) {
  const auto count = static_cast<size_t>(*rc::gen::inRange(1, 7));
  std::vector<Bucket> one_by_one;
  std::vector<Bucket> split;
  std::vector<test_support::RandomParameters> random;
  bool today = true;
  for (size_t b = 0; b < count; ++b) {
    random.push_back(*test_support::AnyParameters());
    const algorithm::BurstAndDebt burst = algorithm::AnyBurst(random[b]);
    one_by_one.push_back(NewBucket(
        algorithm::ParametersOf(Kind::kTokenBucket, random[b], burst.burst, burst.debt, 1)));
    today &= ReachesToday(one_by_one[b].parameters);
    split.push_back(NewBucket(one_by_one[b].parameters));
  }
  int64_t now_ns = today ? kTodayNs : 0;
  for (size_t b = 0; b < count; ++b) {
    if (*rc::gen::inRange(0, 3) == 0) {
      const int64_t floor_us = now_ns / 1000 + *rc::gen::inRange<int64_t>(1, 20'000'000);
      one_by_one[b].floor_us = *rc::gen::arbitrary<bool>() ? floor_us : -floor_us;
      split[b].floor_us = one_by_one[b].floor_us;
    }
    if (*rc::gen::inRange(0, 4) != 0) continue;
    Spoil(one_by_one[b]);
    const RedisValue value = Scripts::Get().Call({"GET", one_by_one[b].keys[0]});
    Scripts::Get().Call(value.type == RedisValue::Type::kString
                            ? std::vector<std::string>{"SET", split[b].keys[0], value.text}
                            : std::vector<std::string>{"RPUSH", split[b].keys[0], "not ours"});
  }
  const int steps = *rc::gen::inRange(1, 12);
  for (int s = 0; s < steps; ++s) {
    std::vector<Asked> asked(static_cast<size_t>(*rc::gen::inRange(1, 12)));
    for (Asked& one : asked) {
      one.bucket = *rc::gen::inRange<size_t>(0, count);
      const Parameters& parameters = one_by_one[one.bucket].parameters;
      const test_support::Step step =
          *test_support::AnyStep(random[one.bucket], algorithm::MaxGrant(parameters));
      one.permits = Wanted(parameters, step.permits);
      one.callers = *rc::gen::weightedElement<uint64_t>({{3, 1}, {1, 2}, {1, 40}});
      one.waits = *rc::gen::inRange(0, 4) == 0;
      now_ns = test_support::Advanced(now_ns, step);
    }
    std::set<size_t> waiting;
    std::set<size_t> waiting_of_split;
    for (size_t at = 0; at < asked.size();) {
      const size_t size = *rc::gen::inRange<size_t>(1, asked.size() - at + 1);
      const auto script = absl::MakeConstSpan(asked).subspan(at, size);
      std::vector<Answered> expected;
      for (size_t i = 0; i < size; ++i) {
        expected.push_back(
            AnswersOfOthers(one_by_one, script.subspan(i, 1), now_ns, true, true, &waiting)[0]);
      }
      RC_ASSERT(AnswersOfOthers(split, script, now_ns, *rc::gen::arbitrary<bool>(),
                                *rc::gen::arbitrary<bool>(), &waiting_of_split) == expected);
      at += size;
    }
    for (size_t b = 0; b < count; ++b) {
      const RedisValue left = StateOf(one_by_one[b]);
      const RedisValue right = StateOf(split[b]);
      RC_ASSERT(left.type == right.type);
      RC_ASSERT(left.text == right.text);
    }
  }
}

TEST(RedisScriptsTest, ScriptForTokenBucketsWorksWithoutMgetAndSetrange) {
  const Parameters parameters = *algorithm::MakeTokenBucket({1, 1'000'000'000}, 10, 0);
  const std::vector<Bucket> buckets = {NewBucket(parameters), NewBucket(parameters)};
  const std::vector<Asked> asked = {{0, 1, 1, false}, {1, 1, 11, false}};
  const auto refused = [&](bool together) {
    TokenBucketsCall call(kTodayNs, together);
    for (const Bucket& bucket : buckets) call.Add(bucket, {{1, 1}});
    return call.Run().type == RedisValue::Type::kError;
  };
  EXPECT_FALSE(refused(/*together=*/true));
  Scripts::Get().Call({"ACL", "SETUSER", "default", "-mget", "-setrange"});
  EXPECT_TRUE(refused(/*together=*/true));
  EXPECT_TRUE(refused(/*together=*/false));
  const std::vector<Answered> answers =
      AnswersOf(buckets, asked, kTodayNs, /*together=*/false, /*may_set_range=*/false);
  Scripts::Get().Call({"ACL", "SETUSER", "default", "+mget", "+setrange"});
  EXPECT_EQ(answers[0].granted, 1u);
  EXPECT_EQ(answers[1].granted, 9u);
}

// ---- After data loss ----

RedisValue AcquireOne(const Bucket& bucket, uint64_t permits, uint64_t receipt, int64_t now_ns) {
  std::vector<std::string> arguments = Prefix({bucket}, now_ns);
  arguments.push_back(absl::StrCat(receipt));
  arguments.insert(arguments.end(), {"1", "0"});
  AppendCost(bucket.parameters, permits, &arguments);
  return Scripts::Get().Run(Script::kAcquire, {bucket.keys.begin(), bucket.keys.end()}, arguments);
}

// Returns the time to wait; 0 if granted.
int64_t TryOne(const Bucket& bucket, uint64_t permits, int64_t now_ns) {
  const RedisValue answer = AcquireOne(bucket, permits, 0, now_ns);
  Reader reader(answer);
  reader.Time(now_ns);
  const bool granted = reader.Next() == 1;
  RC_ASSERT(reader.Next() == (granted ? 1 : 0));
  const BucketNumbers report = reader.NextBucket();
  const Level level = LevelOf(bucket.parameters, report, now_ns, bucket.floor_us);
  const int64_t wait_ns = WaitNs(bucket.parameters, permits, report, now_ns, bucket.floor_us);
  if (granted) return 0;
  RC_ASSERT(wait_ns > 0);
  RC_ASSERT(level.remaining < static_cast<int64_t>(permits));
  if (permits == 1) RC_ASSERT(level.next_permit_after_ns == wait_ns);
  RC_ASSERT(level.reset_after_ns > 0);
  return wait_ns;
}

RC_GTEST_PROP(RedisScriptsTest, BucketsStartEmptyAtTheFloor, ()) {
  const algorithm::AnyLimit any = AnyCountable();
  Bucket bucket = NewBucket(any.parameters);
  const Parameters& parameters = bucket.parameters;
  const int64_t start_ns = ReachesToday(parameters) ? kTodayNs : 0;
  int64_t elapsed_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  const uint64_t most = algorithm::MaxGrant(parameters);
  uint64_t receipt = 0;
  const int before = *rc::gen::inRange(0, 6);
  for (int i = 0; i < before; ++i) {
    const test_support::Step step = *test_support::AnyStep(any.random, most);
    // The floor is after all grants.
    elapsed_ns = std::max(elapsed_ns, test_support::Advanced(elapsed_ns, step));
    if (*rc::gen::arbitrary<bool>()) receipt = static_cast<uint64_t>(i) + 1;
    AcquireOne(bucket, Wanted(parameters, step.permits), receipt, start_ns + elapsed_ns);
  }
  const int64_t now_us = (start_ns + elapsed_ns) / 1000 + 1;
  bucket.floor_us = now_us + *rc::gen::inRange<int64_t>(0, 20'000'000);
  const int64_t floor_ns = bucket.floor_us * 1000;
  // Receipts from before the loss are worth nothing.
  if (receipt != 0) {
    std::vector<std::string> arguments = Prefix({bucket}, now_us * 1000);
    arguments.push_back(absl::StrCat(receipt));
    Scripts::Get().Run(Script::kRefund, {bucket.keys.begin(), bucket.keys.end()}, arguments);
  }

  const uint64_t permits = 1 + *rc::gen::arbitrary<uint64_t>() % most;
  const int64_t wait_ns = TryOne(bucket, permits, now_us * 1000);
  RC_ASSERT(wait_ns > 0 || floor_ns == now_us * 1000);
  if (wait_ns == kNeverNs || wait_ns == 0) return;
  const int64_t then_ns = now_us * 1000 + wait_ns;
  RC_ASSERT(then_ns >= floor_ns);
  if (parameters.kind == Kind::kTokenBucket) {
    // The greatest possible debt is paid, and all permits taken have accrued since.
    const algorithm::TokenBucket& p = parameters.token_bucket;
    const uint64_t since = std::max(p.debt_ticks, permits * p.unit_ticks);
    RC_ASSERT(then_ns == floor_ns + algorithm::ToNsRoundedUp(p, since));
  }
  RC_ASSERT(TryOne(bucket, permits, then_ns - 1) > 0);
  RC_ASSERT(TryOne(bucket, permits, then_ns) == 0);
}

TEST(RedisScriptsTest, OneOfTwoNodesReplacesFenceAndFloorNeverFalls) {
  FenceStep step;
  step.write = *Fence::Parse("a 1 x 0 0 0 0");
  const auto mark = [&](const std::string& found) {
    return Scripts::Get().Call(ReplaceFenceWords(step, "marks", found)).text;
  };
  EXPECT_EQ(mark(""), "a 1 x 0 0 0 0");
  // Another node was faster.
  step.write.word = "y";
  EXPECT_EQ(mark(""), "a 1 x 0 0 0 0");
  EXPECT_EQ(mark("b 1 z 0 0 0 0"), "a 1 x 0 0 0 0");
  step.floor_after_us = 5'000'000;
  const auto time = Scripts::Get().Call({"TIME"});
  const int64_t before_us =
      std::stoll(time.elements[0].text) * 1'000'000 + std::stoll(time.elements[1].text);
  const std::string second = mark("a 1 x 0 0 0 0");
  const Fence fence = *Fence::Parse(second);
  EXPECT_EQ(fence.word, "y");
  EXPECT_GE(fence.floor_us, before_us + 5'000'000);
  EXPECT_LT(fence.floor_us, before_us + 3'600'000'000);
  step.write.floor_us = fence.floor_us + 1'000'000'000'000;
  // Each loss has a later floor than the one before.
  EXPECT_EQ(Fence::Parse(mark(second))->floor_us, step.write.floor_us + 1);
}

TEST(RedisScriptsTest, RaisesOfSeveralNodesAddUp) {
  FenceStep step;
  step.write = *Fence::Parse("a 1 x 5 0 0 0");
  step.write.limits["closed"] = {.floor_us = 90};
  const auto raise = [&](uint64_t known, const PromiseRaise& raise, int64_t passed_us = 0) {
    Fence fence = step.write;
    fence.raises = known;
    const RedisValue reply =
        Scripts::Get().Call(RaisePromiseWords("raised", fence, raise, passed_us));
    return reply.text.empty() ? absl::StrCat(reply.integer) : reply.text;
  };
  EXPECT_EQ(raise(0, {.all_us = 5}), "-1");
  Scripts::Get().Call(ReplaceFenceWords(step, "raised", ""));
  EXPECT_EQ(raise(0, {}), "0");
  EXPECT_EQ(raise(0, {.all_us = 6}), "a 1 x 5 0 6 0 1 closed 90 0 0");
  EXPECT_EQ(raise(1, {.all_us = 5}), "0");
  // A node that lacks a raise gets it.
  EXPECT_EQ(raise(0, {}), "a 1 x 5 0 6 0 1 closed 90 0 0");
  EXPECT_EQ(raise(0, {.limits = {{"90", {.promised_us = 70}}}}),
            "a 1 x 5 0 6 0 2 closed 90 0 0 90 0 70 0");
  EXPECT_EQ(raise(2, {.limits = {{"90", {.promised_us = 69}}}}), "0");
  EXPECT_EQ(raise(2, {.limits = {{"90", {.promised_us = 71}}, {"closed", {.promised_us = 95}}}}),
            "a 1 x 5 0 6 0 3 closed 90 95 0 90 0 71 0");
  // A promise of data that stands counts after a floor is lifted.
  EXPECT_EQ(raise(3, {.limits = {{"90", {.lifted_us = 90}}, {"closed", {.lifted_us = 90}}}}),
            "a 1 x 5 0 6 0 4 closed 90 95 90 90 0 91 90");
  // Promises that have passed are forgotten. Floors and what is lifted only when they are before
  // the floor of all: notes of slots have the floors still.
  EXPECT_EQ(raise(4, {.all_us = 96, .limits = {{"soon", {.promised_us = 91}}}}, 90),
            "a 1 x 5 0 96 0 5 closed 90 95 90 90 0 91 90 soon 0 91 0");
  EXPECT_EQ(raise(5, {.all_us = 97}, 99), "a 1 x 5 0 97 0 6 closed 90 95 90 90 0 91 90");
  Scripts::Get().Call({"SET", "raised", "a 1 x 90 0 97 0 6 closed 90 95 90 90 0 91 90"});
  EXPECT_EQ(raise(6, {.all_us = 98}, 99), "a 1 x 90 0 98 0 7");
  // Fences of before there were raises of limits.
  Scripts::Get().Call({"SET", "raised", "a 1 x 5 0 6 0"});
  EXPECT_EQ(raise(0, {}), "0");
  EXPECT_EQ(raise(0, {.limits = {{"api", {.promised_us = 7}}}}), "a 1 x 5 0 6 0 1 api 0 7 0");
}

TEST(RedisScriptsTest, SlotNotesTheLatestFloorsThatItBrings) {
  const auto note = [](int64_t floor_us, const std::map<std::string, int64_t>& floors) {
    FenceStep step;
    step.write = *Fence::Parse("x 1 w 0 0 0 0");
    step.write.floor_us = floor_us;
    for (const auto& [limit, at_us] : floors) step.write.limits[limit].floor_us = at_us;
    Scripts::Get().Call({"DEL", "slot:fence"});
    Scripts::Get().Call(
        ReplaceFenceWords(step, "slot:fence", "", std::vector<std::string>{"slot:floor"}));
    return Scripts::Get().Call({"GET", "slot:floor"}).text;
  };
  EXPECT_EQ(note(0, {}), "");
  EXPECT_EQ(note(10, {}), "10");
  EXPECT_EQ(note(5, {{"far", 90}}), "10 far 90");
  EXPECT_EQ(note(20, {{"far", 80}}), "20 far 90");
  const std::string both = note(30, {{"too", 25}, {"also", 70}});
  EXPECT_EQ(both.size(), std::string("30 far 90 also 70").size());
  EXPECT_EQ(ParseSlotFloors(both).limits.at("also"), 70);
  EXPECT_EQ(note(75, {}), "75 far 90");
  EXPECT_EQ(note(90, {}), "90");
  // Too long: all limits get the latest.
  std::map<std::string, int64_t> many;
  for (int i = 0; i < 100; ++i) many[absl::StrCat("limit", i)] = 1000 + i;
  EXPECT_EQ(note(0, many), "1099");
}

TEST(RedisScriptsTest, SlotNotesEndsOfHoldsApartFromFloorsOfLimits) {
  std::map<std::string, int64_t> floors = {{"rate", 2'000}};
  const auto note = [&] {
    FenceStep step;
    step.write = *Fence::Parse("x 1 w 0 0 0 0");
    step.write.floor_us = 1'000;
    for (const auto& [name, at_us] : floors) step.write.limits[name].floor_us = at_us;
    Scripts::Get().Call({"DEL", "slot:fence"});
    Scripts::Get().Call({"DEL", "slot:floor"});
    Scripts::Get().Call(
        ReplaceFenceWords(step, "slot:fence", "", std::vector<std::string>{"slot:floor"}));
    return ParseSlotFloors(Scripts::Get().Call({"GET", "slot:floor"}).text);
  };
  floors[HoldsEntry("calls", 60'000'000)] = 61'000'000;
  EXPECT_EQ(note().limits, (decltype(SlotFloors::limits)(floors.begin(), floors.end())));
  // Too many: those of all limits are put together.
  for (int i = 0; i < 200; ++i) {
    floors[HoldsEntry(absl::StrCat("calls", i), 60'000'000)] = 50'000'000 + i;
  }
  floors[HoldsEntry("others", 1 << 20)] = 1'500'000;
  const decltype(SlotFloors::limits) together = {{HoldsEntryOfAny(60'000'000), 61'000'000},
                                                 {HoldsEntryOfAny(1 << 20), 1'500'000}};
  SlotFloors noted = note();
  EXPECT_EQ(noted.floor_us, 1'000);
  EXPECT_EQ(noted.limits.at("rate"), 2'000);
  noted.limits.erase("rate");
  EXPECT_EQ(noted.limits, together);
  // All limits get the latest floor of one, not the end of a hold.
  for (int i = 0; i < 100; ++i) floors[absl::StrCat("limit", i)] = 3'000 + i;
  noted = note();
  EXPECT_EQ(noted.floor_us, 3'099);
  EXPECT_EQ(noted.limits, together);
}

TEST(RedisScriptsTest, DecideNothingWhenFenceWasReplaced) {
  Bucket bucket = NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 10, 0));
  FenceStep step;
  step.write = *Fence::Parse("a 1 x 0 0 0 0");
  const auto take = [&] {
    TokenBucketsCall call(/*now_ns=*/-1, /*together=*/true);
    call.Add(bucket, {{1, 1}});
    const RedisValue answer = call.Run(WordKey("t", "x"));
    return answer.type == RedisValue::Type::kError && answer.text == "FENCE replaced"
               ? -1
               : UnpackNumber(answer.text, 4).value();
  };
  EXPECT_EQ(take(), -1);
  EXPECT_EQ(Scripts::Get().Call({"EXISTS", bucket.keys[0]}).integer, 0);
  const std::string first = Scripts::Get().Call(ReplaceFenceWords(step, "t", "")).text;
  EXPECT_EQ(take(), 1);
  step.write.word = "y";
  Scripts::Get().Call(ReplaceFenceWords(step, "t", first));
  EXPECT_EQ(take(), -1);
}

// In real time, keys live until their bucket is full, and not much longer.
TEST(RedisScriptsTest, KeysExpireWhenTheirBucketIsFull) {
  struct Case {
    Parameters parameters;
    int64_t at_least_ms, at_most_ms;
  };
  const std::vector<Case> cases = {
      {*algorithm::MakeTokenBucket({1, 1'000'000'000}, 10, 0), 3000, 3010},
      {*algorithm::MakeSlidingLog({10, 5'000'000'000}), 4990, 5010},
      {*algorithm::MakeSlidingWindow({10, 5'000'000'000}, 10), 5000, 10'010},
      // A period after its end, which is at most a period ahead.
      {*algorithm::MakeFixedWindow({10, 5'000'000'000}, 0), 5000, 10'010},
  };
  for (const Case& one : cases) {
    std::vector<Bucket> buckets = {NewBucket(one.parameters)};
    std::vector<std::string> arguments = Prefix(buckets, 0);
    arguments[0] = "";
    arguments.insert(arguments.end(), {"0", "1", "0"});
    AppendCost(one.parameters, 3, &arguments);
    Scripts::Get().Run(Script::kAcquire, KeysOfAll(buckets), arguments);
    const int64_t ttl = Scripts::Get().Call({"PTTL", buckets[0].keys[0]}).integer;
    EXPECT_GE(ttl, one.at_least_ms - 50) << EncodeParameters(one.parameters);
    EXPECT_LE(ttl, one.at_most_ms) << EncodeParameters(one.parameters);
  }
}

// A later one leaves the time as it is.
TEST(RedisScriptsTest, KeysOfTokenBucketsExpireSomeSecondsAfterTheyAreFull) {
  const Bucket bucket = NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 100, 0));
  const auto take = [&](uint64_t permits) {
    TokenBucketsCall call(/*now_ns=*/-1, /*together=*/true);
    call.Add(bucket, {{permits, 1}});
    call.Run();
    return ExpiryS(bucket.keys[0]);
  };
  const int64_t expiry_s = take(20);
  const int64_t ttl_ms = Scripts::Get().Call({"PTTL", bucket.keys[0]}).integer;
  EXPECT_GT(ttl_ms, 20'000 + 10'000);
  EXPECT_LE(ttl_ms, 20'000 + 10'000 + 6'000);
  EXPECT_EQ(take(1), expiry_s);
  EXPECT_EQ(take(8), expiry_s);
  EXPECT_GT(take(50), expiry_s + 50);
}

// The TAT is by the corrected time, the key's life by the server's clock.
TEST(RedisScriptsTest, KeysOfTokenBucketsLiveLongEnoughWhileTheClockIsCorrected) {
  constexpr int64_t kAheadS = 3600;
  const Bucket bucket = NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 100, 0));
  const auto take = [&](uint64_t permits) {
    TokenBucketsCall call(/*now_ns=*/-1, /*together=*/true, /*may_set_range=*/true,
                          {.correction_us = kAheadS * 1'000'000});
    call.Add(bucket, {{permits, 1}});
    call.Run();
    const std::string state = Scripts::Get().Call({"GET", bucket.keys[0]}).text;
    const std::vector<std::string> words = absl::StrSplit(state, ' ');
    const int64_t expiry_s = ExpiryS(bucket.keys[0]);
    EXPECT_EQ(words[5], absl::StrCat(expiry_s));
    EXPECT_GT(expiry_s, std::stoll(words[2]) / 1'000'000 + kAheadS);
    return expiry_s;
  };
  const int64_t expiry_s = take(20);
  EXPECT_EQ(take(8), expiry_s);
  EXPECT_GT(take(50), expiry_s + 50);
}

// Whatever the number of the parts of a microsecond.
TEST(RedisScriptsTest, MostDecisionsWriteTheTatAlone) {
  const Bucket bucket = NewBucket(*algorithm::MakeTokenBucket({1'000'003, 1'000'000'000}, 100, 0));
  const auto take = [&](int64_t now_ns) {
    TokenBucketsCall call(now_ns, /*together=*/true);
    call.Add(bucket, {{1, 1}});
    call.Run();
  };
  take(kTodayNs);
  Scripts::Get().Call({"CONFIG", "RESETSTAT"});
  constexpr int kMore = 300;
  for (int i = 1; i <= kMore; ++i) take(kTodayNs + i * 1'000'037);
  const std::string stats = Scripts::Get().Call({"INFO", "commandstats"}).text;
  EXPECT_NE(stats.find(absl::StrCat("cmdstat_setrange:calls=", kMore, ",")), std::string::npos)
      << stats;
}

// As after its slot has moved: MIGRATE takes along what is left of a key's life.
TEST(RedisScriptsTest, KeyLivesLongEnoughAlthoughAnotherServersClockWasAhead) {
  const Bucket bucket = NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 100, 0));
  const std::string& key = bucket.keys[0];
  const auto take = [&](uint64_t permits, const std::string& fence) {
    TokenBucketsCall call(/*now_ns=*/-1, /*together=*/true);
    call.Add(bucket, {{permits, 1}});
    call.Run(fence);
    return Scripts::Get().Call({"GET", key}).text;
  };
  Scripts::Get().Call({"SET", "there", "w"});
  Scripts::Get().Call({"APPEND", "there", "w"});
  const std::string state = take(20, "there");
  const std::string expiry = absl::StrCat(ExpiryS(key));
  ASSERT_NE(state.find(expiry), std::string::npos) << state;
  Scripts::Get().Call({"SET", key,
                       absl::StrReplaceAll(state, {{expiry, absl::StrCat(ExpiryS(key) + 3600)}}),
                       "KEEPTTL"});
  const std::vector<std::string> words = absl::StrSplit(take(70, "fence"), ' ');
  EXPECT_GT(ExpiryS(key), std::stoll(words[2]) / 1'000'000);
}

TEST(RedisScriptsTest, DenialWritesNothing) {
  std::vector<Bucket> buckets = {NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 1, 0)),
                                 NewBucket(*algorithm::MakeSlidingLog({5, 1'000'000'000}))};
  std::vector<std::string> arguments = Prefix(buckets, 1'000'000'000);
  arguments.insert(arguments.end(), {"7", "2", "0"});
  AppendCost(buckets[0].parameters, 2, &arguments);
  arguments.push_back("1");
  AppendCost(buckets[1].parameters, 1, &arguments);
  const RedisValue answer = Scripts::Get().Run(Script::kAcquire, KeysOfAll(buckets), arguments);
  EXPECT_EQ(answer.elements[2].integer, 0);
  for (const std::string& key : KeysOfAll(buckets)) {
    EXPECT_EQ(Scripts::Get().Call({"EXISTS", key}).integer, 0) << key;
  }
}

TEST(RedisScriptsTest, LeaveKeyOfAnotherTypeUnchanged) {
  std::vector<Bucket> buckets = {NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 1, 0))};
  Scripts::Get().Call({"RPUSH", buckets[0].keys[0], "not ours"});
  std::vector<std::string> arguments = Prefix(buckets, 1'000'000'000);
  arguments.insert(arguments.end(), {"0", "1", "0"});
  AppendCost(buckets[0].parameters, 1, &arguments);
  const RedisValue answer = Scripts::Get().Run(Script::kAcquire, KeysOfAll(buckets), arguments);
  EXPECT_EQ(answer.type, RedisValue::Type::kError);
  EXPECT_NE(answer.text.find("WRONGTYPE"), std::string::npos) << answer.text;
  EXPECT_EQ(Scripts::Get().Call({"LLEN", buckets[0].keys[0]}).integer, 1);
}

TEST(RedisScriptsTest, ReturnForeignStringAndLeaveItUnchanged) {
  std::vector<Bucket> buckets = {NewBucket(*algorithm::MakeTokenBucket({1, 1'000'000'000}, 1, 0))};
  Scripts::Get().Call({"SET", buckets[0].keys[0], "hello"});
  std::vector<std::string> arguments = Prefix(buckets, 1'000'000'000);
  arguments.insert(arguments.end(), {"0", "1", "0"});
  AppendCost(buckets[0].parameters, 1, &arguments);
  const RedisValue answer = Scripts::Get().Run(Script::kAcquire, KeysOfAll(buckets), arguments);
  ASSERT_EQ(answer.elements.size(), 2u);
  EXPECT_EQ(answer.elements[0].integer, -1);
  const RedisValue read = Scripts::Get().Run(
      Script::kExchange, {buckets[0].keys.begin(), buckets[0].keys.end()}, {"", "0", "", ""});
  ASSERT_EQ(read.elements.size(), 5u);
  EXPECT_FALSE(ParseBucket(read.elements[2].text, {}, "", 0).ok());
  EXPECT_EQ(Scripts::Get().Call({"GET", buckets[0].keys[0]}).text, "hello");
}

}  // namespace
}  // namespace sluice::store::redis
