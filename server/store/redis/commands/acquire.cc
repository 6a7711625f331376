#include "server/store/redis/commands/acquire.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/store/decide.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/number_codec.h"
#include "server/store/redis/wire/remembered_grant.h"
#include "server/store/redis/wire/script_arguments.h"
#include "server/store/repeat.h"

namespace sluice::store::redis {

using algorithm::Kind;
namespace {

// The first number of a caller's answer (scripts/acquire.lua).
constexpr int64_t kWouldWait = -1;
constexpr int64_t kGranted = 1;
constexpr int64_t kRepeated = 2;
constexpr int64_t kNotRemembered = 3;

}  // namespace

AcquireCommand::AcquireCommand(CommandContext& context, absl::Span<const Bucket> buckets,
                               uint64_t set, std::vector<Caller> callers, Owner& owner)
    : BucketOperation(context, buckets), set_(set), owner_(owner) {
  callers_ = std::move(callers);
  AddOnceKeys();
  for (const Caller& caller : callers_) {
    const Acquisition& acquisition = *caller.acquisition;
    // An account of it is kept in the buckets.
    if (acquisition.settle_within_ns != 0) command_.DecideHere();
    if (acquisition.debit == Debit::kIfAllowed) continue;
    // Else the script divides no costs by those of a permit.
    if (acquisition.charged_by == nullptr && acquisition.once == nullptr) continue;
    for (const Charge& charge : acquisition.charges) {
      if (charge.permits > kMaxForcedTogether) command_.DecideHere();
    }
  }
}

void AcquireCommand::AddOnceKeys() {
  absl::flat_hash_map<std::string, uint32_t> places;
  for (Caller& caller : callers_) {
    if (caller.acquisition->once == nullptr) continue;
    std::string key = OnceKeyOf(caller.acquisition->once->id);
    const auto [place, added] =
        places.try_emplace(key, static_cast<uint32_t>(once_keys_.size() + 1));
    if (added) once_keys_.push_back({std::move(key)});
    caller.once = place->second;
  }
}

bool AcquireCommand::CallersWait() {
  DropAnswered();
  return !callers_.empty();
}

bool AcquireCommand::OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) {
  PendingAcquires& acquires = context_.acquires();
  for (Caller& caller : callers_) acquires.Answer(caller, Outcome::kStaleRule);
  return false;
}

void AcquireCommand::OnUnavailable(bool may_be_executed) {
  AnswerUnavailable(context_.acquires(), may_be_executed);
}

bool AcquireCommand::BuildScript(const FencingToken& token, std::vector<std::string>* words) {
  if (!CallersWait()) return false;
  *words = ScriptWords(Script::kAcquire, token);
  sent_.clear();
  for (const Caller& caller : callers_) {
    const Acquisition& acquisition = *caller.acquisition;
    const uint64_t given = caller.pending->receipt_id;
    const uint64_t receipt_id = !acquisition.want_receipt ? 0
                                : given != 0              ? given
                                                          : context_.ids().NewReceipt();
    const bool forced = acquisition.debit != Debit::kIfAllowed;
    sent_.push_back({receipt_id, forced});
    words->push_back(absl::StrCat(receipt_id));
    words->push_back(absl::StrCat(acquisition.max_wait_ns > 0 ? "-" : "", buckets_.size()));
    if (forced) words->back() += acquisition.debit == Debit::kForced ? 'f' : 'g';
    if (acquisition.once != nullptr) AppendOnce(caller, words);
    if (forced) {
      AppendForcedCharges(acquisition, words);
      continue;
    }
    for (size_t c = 0; c < buckets_.size(); ++c) {
      words->push_back(absl::StrCat(c));
      AppendCost(parameters_of(c), acquisition.charges[c].permits, words);
    }
  }
  return true;
}

void AcquireCommand::AppendOnce(const Caller& caller, std::vector<std::string>* words) {
  const Once& once = *caller.acquisition->once;
  words->back() += 'o';
  words->push_back(absl::StrCat(once.may_remember ? "" : "-", caller.once));
  words->push_back(FingerprintWord(once.fingerprint));
}

void AcquireCommand::AppendForcedCharges(const Acquisition& acquisition,
                                         std::vector<std::string>* words) const {
  const ForcedShares shares(acquisition);
  std::array<size_t, common::bounds::kMaxCharges> place;  // by charge: its number in the script
  size_t sent = 0;
  for (const size_t c : shares.order()) {
    place[c] = ++sent;
    std::string charged_by;
    for (size_t by = 0; acquisition.charged_by != nullptr && by < buckets_.size(); ++by) {
      if ((acquisition.charged_by[c] >> by & 1) != 0) absl::StrAppend(&charged_by, place[by], ",");
    }
    const uint64_t permits = acquisition.charges[c].permits;
    words->push_back(absl::StrCat(c));
    AppendCost(parameters_of(c), permits, words);
    AppendForced(parameters_of(c), permits, MaxOwed(*buckets_[c].rule->rule), charged_by,
                 shares.own(c), words);
  }
}

std::optional<size_t> AcquireCommand::DecidedBy(const Reply& reply) const {
  constexpr size_t kBucketNumbers = std::tuple_size_v<BucketNumbers>;
  const std::vector<Reply>& elements = reply.elements;
  if (elements.size() < 2) return std::nullopt;
  size_t texts = 0;
  size_t at = 2;
  size_t decided = 0;
  for (; decided < callers_.size() && at < elements.size(); ++decided) {
    const int64_t how = elements[at].integer;
    if (how == kWouldWait) break;
    if (how == kRepeated) {
      if (at + 1 >= elements.size() || elements[at + 1].type != Reply::Type::kString ||
          !ParseGrant(elements[at + 1].text).has_value()) {
        return std::nullopt;
      }
      ++texts;
      at += 2 + buckets_.size() * kBucketNumbers;
    } else if (how == kNotRemembered) {
      ++at;
    } else {
      at += 1 + buckets_.size() * (1 + kBucketNumbers + (sent_[decided].forced ? 2 : 0));
    }
  }
  // The last number is kWouldWait where the script stopped at a caller that would wait.
  const bool stops = decided < callers_.size();
  if (elements.size() != (stops ? at + 1 : at)) return std::nullopt;
  const auto integers = std::count_if(elements.begin(), elements.end(), [](const Reply& element) {
    return element.type == Reply::Type::kInteger;
  });
  if (static_cast<size_t>(integers) + texts != elements.size()) return std::nullopt;
  return decided;
}

void AcquireCommand::ReadCharges(Caller& caller, bool granted, const FencingToken& token,
                                 int64_t now_ns, ReplyNumbers* numbers) const {
  int64_t wait_ns = 0;
  for (size_t c = 0; c < buckets_.size(); ++c) {
    const bool fits = numbers->Next() == 1;
    const BucketNumbers after = NextBucket(numbers);
    if (caller.pending == nullptr) continue;
    const Rule& rule = *buckets_[c].rule->rule;
    const int64_t floor_us = FloorOf(token, c);
    caller.acquisition->results[c] =
        ResultOf(rule, fits, LevelOf(rule.parameters, after, now_ns, floor_us));
    if (fits || rule.shadow) continue;
    wait_ns = std::max(wait_ns, WaitNs(rule.parameters, caller.acquisition->charges[c].permits,
                                       after, now_ns, floor_us));
  }
  if (caller.pending != nullptr && !granted) caller.acquisition->retry_after_ns = wait_ns;
}

Outcome AcquireCommand::ReadRepeated(Caller& caller, const FencingToken& token, int64_t now_ns,
                                     ReplyNumbers* numbers) const {
  const RememberedGrant grant = ParseGrant(numbers->NextText()).value_or(RememberedGrant());
  std::vector<BucketNumbers> levels(buckets_.size());
  for (BucketNumbers& level : levels) level = NextBucket(numbers);
  if (caller.pending == nullptr) return Outcome::kPending;
  const Acquisition& acquisition = *caller.acquisition;
  // The script has the charges of a forced acquisition in this order.
  const ForcedShares shares(acquisition);
  for (size_t place = 0; place < levels.size(); ++place) {
    const size_t c = acquisition.debit == Debit::kIfAllowed ? place : shares.order()[place];
    const Rule& rule = *buckets_[c].rule->rule;
    acquisition.results[c] = {
        .level = LevelOf(rule.parameters, levels[place], now_ns, FloorOf(token, c))};
  }
  return Repeat(grant, now_ns, caller.acquisition);
}

void AcquireCommand::ReadForced(Caller& caller, const FencingToken& token, int64_t now_ns,
                                ReplyNumbers* numbers) const {
  if (caller.pending == nullptr) {
    for (size_t c = 0; c < buckets_.size(); ++c) {
      numbers->Next();
      NextBucket(numbers);
      numbers->Next();
      numbers->Next();
    }
    return;
  }
  const Acquisition& acquisition = *caller.acquisition;
  const ForcedShares shares(acquisition);
  for (const size_t c : shares.order()) {
    const bool fits = numbers->Next() == 1;
    const BucketNumbers after = NextBucket(numbers);
    const int64_t counted = numbers->Next();
    const int64_t counted_ticks = numbers->Next();
    const Rule& rule = *buckets_[c].rule->rule;
    ChargeResult& result = acquisition.results[c];
    result = ResultOf(rule, fits || acquisition.debit == Debit::kGiveBack,
                      LevelOf(rule.parameters, after, now_ns, FloorOf(token, c)));
    if (acquisition.debit == Debit::kGiveBack) continue;
    const algorithm::TokenBucket& bucket = rule.parameters.token_bucket;
    result.forgiven = acquisition.charges[c].permits -
                      (rule.parameters.kind == Kind::kTokenBucket
                           ? TicksOf(bucket, counted, counted_ticks) / bucket.unit_ticks
                           : static_cast<uint64_t>(counted));
  }
}

BucketOperation::Handled AcquireCommand::OnScriptReply(const Reply& reply,
                                                       const FencingToken& token) {
  context_.counters().decisions.Add(callers_.size());
  const std::optional<size_t> decided = DecidedBy(reply);
  if (!decided.has_value()) return Handled::kMalformed;
  PendingAcquires& acquires = context_.acquires();
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  for (size_t i = 0; i < *decided; ++i) {
    Caller& caller = callers_[i];
    const int64_t how = numbers.Next();
    if (caller.pending != nullptr) caller.acquisition->now_ns = now_ns;
    Outcome outcome = how == kGranted ? Outcome::kGranted : Outcome::kDenied;
    if (how == kRepeated) {
      outcome = ReadRepeated(caller, token, now_ns, &numbers);
    } else if (how == kNotRemembered) {
      outcome = Outcome::kNotRemembered;
    } else if (sent_[i].forced) {
      ReadForced(caller, token, now_ns, &numbers);
    } else {
      ReadCharges(caller, how == kGranted, token, now_ns, &numbers);
    }
    if (caller.pending == nullptr) continue;
    if (how == kGranted) caller.acquisition->receipt_id = sent_[i].receipt_id;
    acquires.Answer(caller, outcome);
  }
  return *decided < callers_.size() ? Handled::kUndecided : Handled::kDone;
}

void AcquireCommand::Decide(absl::Span<OpenBucket> open, int64_t now_ns) {
  // Ids follow those of bookings that another node made at the same instant.
  bool same_instant = false;
  for (const OpenBucket& bucket : open) {
    same_instant |=
        bucket.NotBeforeNs() == now_ns || bucket.slots() != nullptr || bucket.estimates() != 0;
  }
  const uint64_t after = same_instant ? LastBooking(open) : 0;
  outcomes_.assign(callers_.size(), Outcome::kPending);
  // Of all callers together: they are decided in one step of the loop.
  SearchBudget budget;
  for (size_t i = 0; i < callers_.size(); ++i) {
    if (callers_[i].pending == nullptr) continue;
    const uint64_t given = callers_[i].pending->receipt_id;
    const auto decide = [&] {
      return store::Decide(
          callers_[i].acquisition, open, now_ns, set_,
          [&] { return given != 0 ? given : context_.ids().NewBooking(now_ns, after); },
          OverflowPolicy::kDeny, &budget);
    };
    outcomes_[i] =
        callers_[i].once == 0 ? decide() : DecideOnce(callers_[i], open, now_ns, &budget, decide);
  }
}

Outcome AcquireCommand::DecideOnce(Caller& caller, absl::Span<OpenBucket> open, int64_t now_ns,
                                   SearchBudget* budget, absl::FunctionRef<Outcome()> decide) {
  Acquisition& acquisition = *caller.acquisition;
  acquisition.once->repeated = false;
  BucketOperation::OnceKey& key = once_keys_[caller.once - 1];
  // An earlier caller of this command may have the same id.
  const std::string& value = key.to_set.empty() ? key.known : key.to_set;
  if (!value.empty()) {
    // What is not ours is another request.
    const RememberedGrant grant =
        ParseGrant(value).value_or(RememberedGrant{~acquisition.once->fingerprint});
    bool held = true;
    for (size_t c = 0; c < open.size(); ++c) {
      acquisition.results[c] = {.level = open[c].LevelAt(now_ns, budget)};
      if (open[c].slots() == nullptr) continue;
      held &=
          RepeatSlots(acquisition.charges[c], grant, open[c].HeldUntilNs(grant.receipt_id, now_ns),
                      now_ns, &acquisition.results[c]);
    }
    const Outcome outcome = Repeat(grant, now_ns, &acquisition);
    return outcome == Outcome::kGranted && !held ? Outcome::kEnded : outcome;
  }
  acquisition.now_ns = now_ns;
  for (size_t c = 0; c < open.size(); ++c) acquisition.results[c].debited_before_ns = 0;
  if (!acquisition.once->may_remember) return Outcome::kNotRemembered;
  const Outcome outcome = decide();
  if (outcome == Outcome::kGranted) key.to_set = FormatGrant(GrantOf(acquisition));
  return outcome;
}

bool AcquireCommand::DecisionStands() const {
  for (size_t i = 0; i < callers_.size(); ++i) {
    if (outcomes_[i] == Outcome::kGranted && callers_[i].pending == nullptr) return false;
  }
  return true;
}

void AcquireCommand::OnDecided() {
  context_.counters().decisions.Add(callers_.size());
  PendingAcquires& acquires = context_.acquires();
  for (size_t i = 0; i < callers_.size(); ++i) acquires.Answer(callers_[i], outcomes_[i]);
}

void AcquireCommand::OnContended() {
  context_.LogError("redis_contended", "other nodes changed a bucket with bookings every time");
  PendingAcquires& acquires = context_.acquires();
  for (Caller& caller : callers_) acquires.Answer(caller, Outcome::kUnavailable);
}

}  // namespace sluice::store::redis
