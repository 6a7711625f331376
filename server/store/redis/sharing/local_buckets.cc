#include "server/store/redis/sharing/local_buckets.h"

#include <algorithm>
#include <limits>

#include "absl/hash/hash.h"
#include "common/bounds.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::Moment;
using algorithm::Parameters;
using algorithm::TokenBucket;

// The retry time for more permits than the share can hold: nodes may have left by then.
constexpr int64_t kOtherShareNs = 1'000'000'000;

// What a bucket takes in its map beside itself: its pointer, in a map that is between 7/16 and 7/8
// full.
constexpr size_t kSlotBytes = 24;

// What TakeEnded looks at in a call, at most a millisecond: buckets, and maps. One that is taken
// counts as eight.
constexpr size_t kLookedAt = 8192;
constexpr size_t kTakenAs = 8;

// The TAT of a bucket that is `lacking` permits below full.
uint64_t Tat(const TokenBucket& bucket, uint64_t lacking, int64_t now_ns) {
  const uint64_t most = algorithm::kMaxTat / bucket.unit_ticks;
  const uint64_t ticks = std::min(lacking, most) * bucket.unit_ticks;
  return std::min(algorithm::ToTicks(bucket, now_ns) + ticks, algorithm::kMaxTat);
}

// A bucket that is as empty as it can be.
algorithm::BucketState Emptied(const Parameters& parameters, Moment at) {
  algorithm::BucketState state(parameters);
  state.Force(parameters, std::numeric_limits<uint64_t>::max(), algorithm::Debt(parameters), at);
  return state;
}

// The divisor of a window's parameters; 0: the window is not open yet.
uint32_t WindowDivisor(const RuleEntry& rule, const ShareHistory& history, int64_t now_ns) {
  const int64_t window_ns = WindowNs(rule.rule->parameters);
  if (rule.split_since_ns > now_ns - window_ns) return 0;
  return history.GreatestOf(now_ns, window_ns);
}

}  // namespace

std::optional<Parameters> ShareOf(const Parameters& whole, uint32_t divisor) {
  if (divisor == 1) return whole;
  algorithm::Rate rate = RateOf(whole);
  if (whole.kind == Kind::kTokenBucket &&
      rate.period_ns <= common::bounds::kMaxPeriodNs / divisor) {
    rate.period_ns *= divisor;
  } else {
    rate.permits /= divisor;
  }
  if (rate.permits == 0) return std::nullopt;
  Parameters part = whole;
  part.token_bucket.burst /= divisor;
  part.token_bucket.debt /= divisor;
  const auto made =
      VisitMember(part.kind, [&](auto member) { return algorithm::WithRate(part.*member, rate); });
  // Burst and debt that are both less than the divisor.
  if (!made.ok()) return std::nullopt;
  return *made;
}

// The map uses the low bits of the same hash.
size_t LocalBuckets::PlaceOf(const Name& name) { return (absl::HashOf(name) >> 32) % kMaps; }

template <typename Use>
auto LocalBuckets::WithBucket(const Name& name, Use use) {
  const size_t place = PlaceOf(name);
  Stripe& stripe = StripeAt(place);
  common::MutexLock lock(&stripe.mu);
  Map& map = MapAt(stripe, place);
  const auto found = map.find(name);
  return use(found == map.end() ? nullptr : &found->second);
}

LocalBuckets::Bucket LocalBuckets::New(std::shared_ptr<const RuleEntry> rule) {
  Bucket bucket;
  bucket.state = algorithm::BucketState(rule->rule->parameters);
  bucket.rule = std::move(rule);
  return bucket;
}

bool LocalBuckets::Advance(Bucket& bucket, const std::shared_ptr<const RuleEntry>& rule,
                           const ShareHistory& history, Moment at) {
  if (bucket.rule->rule->id > rule->rule->id) return false;
  const auto advance = [&] {
    if (bucket.rule->rule->parameters.kind == Kind::kTokenBucket) {
      AdvanceToken(bucket, history);
    } else {
      AdvanceWindow(bucket, history, at);
    }
  };
  const auto begin_from_scratch = [&] {
    const size_t bytes = bucket.bytes;
    bucket = New(rule);
    bucket.bytes = bytes;
    advance();
  };
  advance();
  if (bucket.rule->rule->id == rule->rule->id) return true;
  // The limit has changed.
  const std::shared_ptr<const RuleEntry> old = std::exchange(bucket.rule, rule);
  if (rule->split_since_ns > old->split_since_ns) {
    // Others decided it in between.
    begin_from_scratch();
    return true;
  }
  const Parameters& before = old->rule->parameters;
  const Parameters& whole = rule->rule->parameters;
  if (whole == before) return true;
  const uint32_t divisor = whole.kind == Kind::kTokenBucket
                               ? history.divisor()
                               : WindowDivisor(*rule, history, at.now_ns);
  std::optional<Parameters> share;
  if (divisor != 0) share = ShareOf(whole, divisor);
  if (bucket.parameters.has_value() && share.has_value()) {
    bucket.state.Convert(*bucket.parameters, *share, at);
  } else if (before.kind == whole.kind && whole.kind != Kind::kTokenBucket) {
    // What was counted counts on while the share is nothing: shares differ in their permits alone.
    bucket.state.Convert(bucket.parameters.value_or(before), share.value_or(whole), at);
  } else if (bucket.granted == 0) {
    begin_from_scratch();
    return true;
  } else {
    // What was granted is not known in permits of the new limit.
    bucket.state = Emptied(share.value_or(whole), at);
  }
  bucket.parameters = share;
  bucket.divisor = divisor;
  bucket.serial = history.changes.back().serial;
  return true;
}

void LocalBuckets::AdvanceToken(Bucket& bucket, const ShareHistory& history) {
  const Parameters& whole = bucket.rule->rule->parameters;
  // Changes since then are no longer kept: starts empty.
  if (bucket.serial < history.changes.front().serial) bucket.divisor = 0;
  for (const ShareHistory::Change& change : history.changes) {
    if (bucket.divisor != 0 && change.serial <= bucket.serial) continue;
    const std::optional<Parameters> share = ShareOf(whole, change.divisor);
    if (share.has_value()) {
      const int64_t at_ns = std::max(change.at_ns, bucket.rule->split_since_ns);
      const TokenBucket& to = share->token_bucket;
      const auto burst = static_cast<int64_t>(to.burst);
      const auto debt = static_cast<int64_t>(to.debt);
      int64_t holds = -debt;
      if (bucket.divisor != 0) {
        int64_t before = 0;
        int64_t debt_before = 0;
        if (bucket.parameters.has_value()) {
          const TokenBucket& from = bucket.parameters->token_bucket;
          before = algorithm::Remaining(from, bucket.state.tat(), algorithm::ToTicks(from, at_ns));
          debt_before = static_cast<int64_t>(from.debt);
        }
        // Additional debt counts as made: other nodes may have made it.
        holds = std::min(before, burst) - std::max<int64_t>(debt - debt_before, 0);
      }
      bucket.state =
          algorithm::BucketState::FromTat(Tat(to, static_cast<uint64_t>(burst - holds), at_ns));
    }
    bucket.parameters = share;
    bucket.divisor = change.divisor;
    bucket.serial = change.serial;
  }
}

void LocalBuckets::AdvanceWindow(Bucket& bucket, const ShareHistory& history, Moment at) {
  const uint32_t divisor = WindowDivisor(*bucket.rule, history, at.now_ns);
  if (divisor == 0) {
    // Nothing is granted for a period, whatever was counted.
    bucket.parameters.reset();
    bucket.divisor = 0;
    return;
  }
  if (divisor == bucket.divisor) return;
  std::optional<Parameters> share = ShareOf(bucket.rule->rule->parameters, divisor);
  if (bucket.parameters.has_value() && share.has_value()) {
    bucket.state.Convert(*bucket.parameters, *share, at);
  }
  bucket.parameters = share;
  bucket.divisor = divisor;
}

BucketLevel LocalBuckets::LevelOf(const Bucket& bucket, const ShareHistory& history, Moment at) {
  if (bucket.parameters.has_value()) {
    return bucket.state.LevelAt(*bucket.parameters, at);
  }
  BucketLevel level;
  const int64_t window_ns = WindowNs(bucket.rule->rule->parameters);
  if (bucket.divisor == 0 && window_ns != 0) {
    const auto share = ShareOf(bucket.rule->rule->parameters, history.divisor());
    level.capacity = share.has_value() ? algorithm::Capacity(*share) : 0;
    const int64_t since_ns = std::max(history.changes.front().at_ns, bucket.rule->split_since_ns);
    level.reset_after_ns = std::max<int64_t>(since_ns + window_ns - at.now_ns, 1);
    level.next_permit_after_ns = level.reset_after_ns;
  }
  return level;
}

// Locks are taken in the order of the stripes.
Outcome LocalBuckets::Acquire(absl::Span<const Part> parts, Moment at, uint64_t receipt_id,
                              int64_t* retry_after_ns, Kept kept) {
  std::vector<Held> held(parts.size());
  std::vector<Stripe*> stripes;
  for (size_t i = 0; i < parts.size(); ++i) {
    held[i].name = {parts[i].rule->rule->limit_id, std::string(parts[i].key)};
    const size_t place = PlaceOf(held[i].name);
    held[i].stripe = &StripeAt(place);
    held[i].map = &MapAt(*held[i].stripe, place);
    stripes.push_back(held[i].stripe);
  }
  std::sort(stripes.begin(), stripes.end());
  stripes.erase(std::unique(stripes.begin(), stripes.end()), stripes.end());
  for (Stripe* stripe : stripes) stripe->mu.Lock();
  bool open = true;
  for (const Stripe* stripe : stripes) open = open && stripe->open;
  bool split = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& least = held[i].stripe->least_rule_ids;
    const auto found = least.find(held[i].name.first);
    split = split && (found == least.end() || parts[i].rule->rule->id >= found->second);
  }
  Outcome outcome = split ? Outcome::kUnavailable : Outcome::kStaleRule;
  if (open && split) {
    FindOrMake(parts, receipt_id, absl::MakeSpan(held));
    outcome = Decide(parts, absl::MakeSpan(held), at, receipt_id, retry_after_ns, kept);
    for (const Held& one : held) {
      if (one.bucket != nullptr) Recount(one.name, *one.bucket);
    }
  }
  for (Stripe* stripe : stripes) stripe->mu.Unlock();
  return outcome;
}

void LocalBuckets::FindOrMake(absl::Span<const Part> parts, uint64_t receipt_id,
                              absl::Span<Held> held) {
  const size_t max_bytes = max_bytes_.load(std::memory_order_relaxed);
  const bool full = bytes() >= max_bytes;
  size_t made = 0;
  size_t bytes_made = 0;
  for (Held& one : held) {
    const auto found = one.map->find(one.name);
    if (found != one.map->end()) {
      one.bucket = &found->second;
    } else {
      ++made;
      bytes_made += kSlotBytes + sizeof(Map::value_type) + one.name.second.size();
    }
  }
  // New buckets leave room in which those that exist may grow.
  const bool room =
      size() + made <= max_buckets_ && bytes() + bytes_made <= max_bytes - max_bytes / 8;
  for (size_t i = 0; i < held.size(); ++i) {
    Held& one = held[i];
    if (one.bucket != nullptr) {
      if (full && MayGrow(parts[i], *one.bucket, receipt_id)) one.bucket = nullptr;
    } else if (room) {
      one.bucket = &one.map->emplace(one.name, New(parts[i].rule)).first->second;
      Recount(one.name, *one.bucket);
      size_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

bool LocalBuckets::MayGrow(const Part& part, const Bucket& bucket, uint64_t receipt_id) {
  if (receipt_id != 0) return true;
  const Kind kind = part.rule->rule->parameters.kind;
  // A sliding window has all its counters from its first permit on.
  return kind == Kind::kSlidingLog ||
         (kind == Kind::kSlidingWindow && bucket.state.MemoryBytes() == sizeof(bucket.state));
}

void LocalBuckets::Recount(const Name& name, Bucket& bucket) {
  const size_t bytes = kSlotBytes + sizeof(Map::value_type) + name.second.size() +
                       bucket.state.MemoryBytes() - sizeof(bucket.state);
  if (bytes == bucket.bytes) return;
  // A difference below 0 wraps around.
  bytes_.fetch_add(bytes - bucket.bytes, std::memory_order_relaxed);
  bucket.bytes = bytes;
}

void LocalBuckets::CountOut(const Bucket& bucket) {
  size_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(bucket.bytes, std::memory_order_relaxed);
}

Outcome LocalBuckets::Decide(absl::Span<const Part> parts, absl::Span<Held> held, Moment at,
                             uint64_t receipt_id, int64_t* retry_after_ns, Kept kept) {
  Outcome outcome = Outcome::kGranted;
  *retry_after_ns = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    const Part& part = parts[i];
    ChargeResult& result = *part.result;
    result = {};
    const bool shadow = part.rule->rule->shadow;
    if (held[i].bucket == nullptr) {
      result.reason = shadow ? Reason::kShadowDenied : Reason::kOverflow;
      if (shadow) continue;
      *retry_after_ns = std::max(*retry_after_ns, kOverflowRetryNs);
      outcome = Outcome::kDenied;
      continue;
    }
    Bucket& bucket = *held[i].bucket;
    if (!Advance(bucket, part.rule, *part.history, at)) return Outcome::kStaleRule;
    held[i].fits = bucket.parameters.has_value() &&
                   part.permits <= algorithm::MaxGrant(*bucket.parameters) &&
                   bucket.state.CanTake(*bucket.parameters, part.permits, at);
    if (held[i].fits) continue;
    if (shadow) {
      result.reason = Reason::kShadowDenied;
    } else {
      result.reason = WhyNot(part, bucket, at, retry_after_ns);
      outcome = Outcome::kDenied;
    }
  }
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i].bucket == nullptr) continue;
    Bucket& bucket = *held[i].bucket;
    if (outcome == Outcome::kGranted && held[i].fits) {
      // NOLINTNEXTLINE(bugprone-unchecked-optional-access): a bucket in which permits fit has them
      bucket.state.TryTake(*bucket.parameters, parts[i].permits, at, receipt_id,
                           /*evicted=*/nullptr, /*set=*/0, kept);
      bucket.granted += parts[i].permits;
    }
    parts[i].result->level = LevelOf(bucket, *parts[i].history, at);
  }
  return outcome;
}

Reason LocalBuckets::WhyNot(const Part& part, const Bucket& bucket, Moment at,
                            int64_t* retry_after_ns) {
  // A window that is not open yet has no share to compare with.
  const bool known = bucket.parameters.has_value();
  if (known ? part.permits > algorithm::MaxGrant(*bucket.parameters) : bucket.divisor != 0) {
    *retry_after_ns = std::max(*retry_after_ns, kOtherShareNs);
    return Reason::kShareTooSmall;
  }
  int64_t wait_ns = LevelOf(bucket, *part.history, at).next_permit_after_ns;
  if (known) {
    const int64_t earliest_ns = bucket.state.EarliestNs(*bucket.parameters, part.permits, at);
    wait_ns = earliest_ns == algorithm::kNeverNs ? 0 : earliest_ns - at.now_ns;
  }
  *retry_after_ns = std::max(*retry_after_ns, wait_ns);
  return Reason::kNotEnough;
}

bool LocalBuckets::Query(const std::shared_ptr<const RuleEntry>& rule, std::string_view key,
                         const ShareHistory& history, Moment at, BucketLevel* level,
                         algorithm::Refundable* refundable) {
  return WithBucket({rule->rule->limit_id, std::string(key)}, [&](const Bucket* found) {
    Bucket bucket = found != nullptr ? *found : New(rule);
    // The bucket may be of a newer rule: then that rule counts.
    if (!Advance(bucket, rule, history, at)) Advance(bucket, bucket.rule, history, at);
    *level = LevelOf(bucket, history, at);
    if (bucket.parameters.has_value()) {
      *refundable = bucket.state.RefundableAt(*bucket.parameters, at);
    }
    return found != nullptr;
  });
}

std::optional<uint64_t> LocalBuckets::Refund(const Rule& rule, std::string_view key,
                                             uint64_t receipt_id, Moment at) {
  return WithBucket({rule.limit_id, std::string(key)},
                    [&](Bucket* bucket) -> std::optional<uint64_t> {
                      if (bucket == nullptr || !bucket->parameters.has_value()) return std::nullopt;
                      const auto given = bucket->state.Refund(*bucket->parameters, receipt_id, at);
                      bucket->granted -= std::min(bucket->granted, given.value_or(0));
                      return given;
                    });
}

void LocalBuckets::CloseReceipt(const Rule& rule, std::string_view key, uint64_t receipt_id) {
  WithBucket({rule.limit_id, std::string(key)}, [&](Bucket* bucket) {
    if (bucket != nullptr) bucket->state.CloseReceipt(receipt_id);
  });
}

void LocalBuckets::KeepReceiptNoLonger(const Rule& rule, std::string_view key,
                                       uint64_t receipt_id) {
  WithBucket({rule.limit_id, std::string(key)}, [&](Bucket* bucket) {
    if (bucket != nullptr) bucket->state.KeepReceiptNoLonger(receipt_id);
  });
}

bool LocalBuckets::Forget(const Rule& rule, std::string_view key) {
  const Name name(rule.limit_id, key);
  const size_t place = PlaceOf(name);
  Stripe& stripe = StripeAt(place);
  common::MutexLock lock(&stripe.mu);
  Map& map = MapAt(stripe, place);
  const auto found = map.find(name);
  if (found == map.end()) return false;
  CountOut(found->second);
  map.erase(found);
  return true;
}

void LocalBuckets::SetOpen(bool open) {
  for (Stripe& stripe : stripes_) {
    common::MutexLock lock(&stripe.mu);
    stripe.open = open;
  }
}

std::vector<LocalBuckets::Granted> LocalBuckets::Take(size_t most, Moment at) {
  std::vector<Granted> all;
  for (Stripe& stripe : stripes_) {
    common::MutexLock lock(&stripe.mu);
    stripe.open = false;
    if (size() == 0) continue;
    for (Map& map : stripe.maps) {
      if (most == 0) break;
      for (auto it = map.begin(); most > 0 && it != map.end(); --most) {
        const auto current = it++;
        AppendGranted(current->first.second, current->second, at, &all);
        CountOut(current->second);
        map.erase(current);
      }
    }
  }
  return all;
}

void LocalBuckets::EndLimit(const Rule& rule) {
  for (Stripe& stripe : stripes_) {
    common::MutexLock lock(&stripe.mu);
    stripe.least_rule_ids[rule.limit_id] = rule.id;
  }
}

std::vector<LocalBuckets::Granted> LocalBuckets::TakeEnded(Moment at, size_t* from) {
  std::vector<Granted> all;
  for (size_t looked_at = 0; *from < kMaps && looked_at < kLookedAt; ++*from) {
    Stripe& stripe = StripeAt(*from);
    common::MutexLock lock(&stripe.mu);
    Map& map = MapAt(stripe, *from);
    looked_at += 1 + map.size();
    for (auto it = map.begin(); it != map.end();) {
      const auto current = it++;
      const auto& [name, bucket] = *current;
      const auto ended = stripe.least_rule_ids.find(name.first);
      // It may be split again.
      if (ended == stripe.least_rule_ids.end() || bucket.rule->rule->id >= ended->second) continue;
      AppendGranted(name.second, bucket, at, &all);
      looked_at += kTakenAs - 1;
      CountOut(bucket);
      map.erase(current);
    }
  }
  if (*from >= kMaps) *from = kEnd;
  return all;
}

void LocalBuckets::AppendGranted(const std::string& key, const Bucket& bucket, Moment at,
                                 std::vector<Granted>* all) {
  if (bucket.granted == 0) return;
  // Of a share that is nothing now, it is not known what it lacks.
  const Parameters& whole = bucket.rule->rule->parameters;
  const BucketLevel level = bucket.parameters.has_value()
                                ? bucket.state.LevelAt(*bucket.parameters, at)
                                : Emptied(whole, at).LevelAt(whole, at);
  const auto lacking =
      static_cast<uint64_t>(static_cast<int64_t>(level.capacity) - level.remaining);
  const uint64_t permits = std::min(bucket.granted, lacking);
  if (permits == 0) return;
  all->push_back(
      {bucket.rule, key, permits, at.now_ns + std::min(level.reset_after_ns, kNever - at.now_ns)});
}

void LocalBuckets::Sweep(const ShareHistory& strict, const ShareHistory& lenient, Moment at) {
  for (size_t i = 0; i < kMapsSwept; ++i) {
    const size_t place = next_sweep_.fetch_add(1, std::memory_order_relaxed) % kMaps;
    Stripe& stripe = StripeAt(place);
    common::MutexLock lock(&stripe.mu);
    Map& map = MapAt(stripe, place);
    for (auto it = map.begin(); it != map.end();) {
      const auto current = it++;
      Bucket& bucket = current->second;
      const ShareHistory& history =
          bucket.rule->rule->split_when_store_unavailable ? lenient : strict;
      if (history.none()) continue;
      Advance(bucket, bucket.rule, history, at);
      if (bucket.parameters.has_value()) {
        bucket.state.CloseWorthless(*bucket.parameters, at);
        if (bucket.state.IsFull(*bucket.parameters, at)) {
          CountOut(bucket);
          map.erase(current);
          continue;
        }
        // Frees what its receipts took.
        if (bucket.state.IsPlainTokenBucket() &&
            bucket.state.MemoryBytes() > sizeof(bucket.state)) {
          bucket.state = algorithm::BucketState::FromTat(bucket.state.tat());
        }
      }
      Recount(current->first, bucket);
    }
  }
}

}  // namespace sluice::store::redis
