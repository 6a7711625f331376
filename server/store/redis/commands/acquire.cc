#include "server/store/redis/commands/acquire.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "server/store/decide.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/number_codec.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {

using algorithm::Kind;
namespace {

ChargeResult ResultOf(const Rule& rule, bool fits, const BucketLevel& level) {
  ChargeResult result;
  result.level = level;
  if (!fits) result.reason = rule.shadow ? Reason::kShadowDenied : Reason::kNotEnough;
  return result;
}

}  // namespace

AcquireCommand::AcquireCommand(CommandContext& context, absl::Span<const Bucket> buckets,
                               uint64_t set, std::vector<Caller> callers, Owner& owner)
    : BucketOperation(context, buckets), set_(set), callers_(std::move(callers)), owner_(owner) {
  general_ = buckets.size() > 1 || parameters_of(0).kind != Kind::kTokenBucket;
  for (const Caller& caller : callers_) {
    const Acquisition& acquisition = *caller.acquisition;
    general_ |= acquisition.want_receipt || acquisition.debit != Debit::kIfAllowed;
    if (acquisition.charged_by == nullptr) continue;
    for (const Charge& charge : acquisition.charges) {
      if (charge.permits > kMaxForcedTogether) command_.DecideHere();
    }
  }
}

void AcquireCommand::CollectLate(int64_t now_ns, std::vector<Caller>* late, int64_t* next_ns) {
  for (Caller& caller : callers_) {
    if (caller.pending == nullptr) continue;
    if (caller.pending->deadline_ns < now_ns) {
      caller.acquisition->may_be_debited = command_.may_be_executed();
      // The acquisition is gone once the caller is answered.
      late->push_back(std::exchange(caller, {nullptr, nullptr}));
    } else {
      *next_ns = std::min(*next_ns, caller.pending->deadline_ns);
    }
  }
}

bool AcquireCommand::CallersWait() {
  std::erase_if(callers_, [](const Caller& caller) { return caller.pending == nullptr; });
  return !callers_.empty();
}

bool AcquireCommand::BuildScript(const FencingToken& token, std::vector<std::string>* words) {
  if (!CallersWait()) return false;
  if (general_) {
    BuildGeneral(token, words);
  } else {
    BuildRuns(token, words);
  }
  return true;
}

BucketOperation::Handled AcquireCommand::OnScriptReply(const Reply& reply,
                                                       const FencingToken& token) {
  context_.counters().decisions.Add(callers_.size());
  return general_ ? OnGeneralReply(reply, token) : OnRunsReply(reply);
}

bool AcquireCommand::OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) {
  PendingAcquires& acquires = context_.acquires();
  for (Caller& caller : callers_) acquires.Answer(caller, Outcome::kStaleRule);
  return false;
}

void AcquireCommand::OnUnavailable(bool may_be_executed) {
  PendingAcquires& acquires = context_.acquires();
  for (Caller& caller : callers_) {
    if (caller.pending != nullptr) {
      // What was decided here and is not known to be in force.
      caller.acquisition->wait_ns = 0;
      caller.acquisition->retry_after_ns = 0;
      caller.acquisition->receipt_id = 0;
      caller.acquisition->may_be_debited = may_be_executed;
    }
    acquires.AnswerUnavailable(caller);
  }
}

void AcquireCommand::BuildRuns(const FencingToken& token, std::vector<std::string>* words) {
  const Bucket& bucket = buckets_[0];
  const algorithm::Parameters& parameters = parameters_of(0);
  runs_.clear();
  for (const Caller& caller : callers_) {
    const uint64_t permits = caller.acquisition->charges[0].permits;
    // A shadow limit makes no caller wait.
    const bool waits = caller.acquisition->max_wait_ns > 0 && !bucket.rule->rule->shadow;
    if (runs_.empty() || runs_.back().permits != permits || runs_.back().waits != waits) {
      runs_.push_back({permits, waits, 0});
    }
    ++runs_.back().callers;
  }
  std::string numbers =
      PackTokenBucket(parameters, FloorOf(token, 0), context_.settings().TestNowNs(), token.clock);
  for (const Run& run : runs_) {
    const auto callers = static_cast<int64_t>(run.callers);
    PackRun(parameters, run.permits, run.waits ? -callers : callers, &numbers);
  }
  // Word by word, into the memory that they have.
  words->resize(8);
  (*words)[0] = "EVALSHA";
  (*words)[1] = TextOf(Script::kAcquireTokenBucket).sha;
  (*words)[2] = "2";
  (*words)[3] = bucket.keys[0];
  (*words)[4] = token.WordFor(bucket);
  (*words)[5] = bucket.rule->encoded_parameters;
  (*words)[6] = bucket.rule->writer;
  (*words)[7] = numbers;
}

BucketOperation::Handled AcquireCommand::OnRunsReply(const Reply& reply) {
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  const Rule& rule = *buckets_[0].rule->rule;
  const algorithm::TokenBucket& parameters = rule.parameters.token_bucket;
  const int64_t lacking_us = numbers.Next();
  uint64_t lacking = TicksOf(parameters, lacking_us, numbers.Next());
  std::vector<int64_t> granted_of;
  bool stops = false;
  for (size_t r = 0; r < runs_.size() && !stops; ++r) {
    granted_of.push_back(numbers.Next());
    stops = runs_[r].waits && granted_of[r] < static_cast<int64_t>(runs_[r].callers);
  }
  if (!numbers.Good()) return Handled::kMalformed;
  PendingAcquires& acquires = context_.acquires();
  size_t next = 0;
  for (size_t r = 0; r < granted_of.size(); ++r) {
    const uint64_t permits = runs_[r].permits;
    for (size_t i = 0; i < runs_[r].callers; ++i) {
      Caller& caller = callers_[next++];
      const bool fits = static_cast<int64_t>(i) < granted_of[r];
      if (!fits && stops && r + 1 == granted_of.size()) return Handled::kUndecided;
      if (fits) lacking += permits * parameters.unit_ticks;
      if (caller.pending == nullptr) continue;
      Acquisition& acquisition = *caller.acquisition;
      // Seen from now: a bucket that is full again in so many ticks.
      acquisition.results[0] = ResultOf(rule, fits, algorithm::LevelAt(parameters, lacking, 0));
      acquisition.now_ns = now_ns;
      const bool denied = !fits && !rule.shadow;
      if (denied) {
        acquisition.retry_after_ns = algorithm::EarliestNs(parameters, permits, lacking, 0);
      }
      acquires.Answer(caller, denied ? Outcome::kDenied : Outcome::kGranted);
    }
  }
  return Handled::kDone;
}

void AcquireCommand::BuildGeneral(const FencingToken& token, std::vector<std::string>* words) {
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
    if (forced) {
      AppendForcedCharges(acquisition, words);
      continue;
    }
    words->push_back(absl::StrCat(acquisition.max_wait_ns > 0 ? "-" : "", buckets_.size()));
    for (size_t c = 0; c < buckets_.size(); ++c) {
      words->push_back(absl::StrCat(c));
      AppendCost(parameters_of(c), acquisition.charges[c].permits, words);
    }
  }
}

void AcquireCommand::AppendForcedCharges(const Acquisition& acquisition,
                                         std::vector<std::string>* words) const {
  words->push_back(absl::StrCat(buckets_.size(), acquisition.debit == Debit::kForced ? "f" : "g"));
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
    AppendForced(parameters_of(c), permits, MaxOwed(*buckets_[c].rule->rule), charged_by, words);
  }
}

size_t AcquireCommand::GeneralNumbers(bool forced) const {
  constexpr size_t kOfCharge = 1 + std::tuple_size_v<BucketNumbers>;
  return 1 + buckets_.size() * (forced ? kOfCharge + 2 : kOfCharge);
}

void AcquireCommand::ReadForced(Caller& caller, const FencingToken& token, int64_t now_ns,
                                ReplyNumbers* numbers) const {
  if (caller.pending == nullptr) {
    for (size_t left = GeneralNumbers(/*forced=*/true) - 1; left > 0; --left) numbers->Next();
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

BucketOperation::Handled AcquireCommand::OnGeneralReply(const Reply& reply,
                                                        const FencingToken& token) {
  const size_t charges = buckets_.size();
  if (reply.elements.size() < 2) return Handled::kMalformed;
  for (const Reply& element : reply.elements) {
    if (element.type != Reply::Type::kInteger) return Handled::kMalformed;
  }
  size_t decided = 0;
  size_t size = 2;
  for (; decided < callers_.size(); ++decided) {
    const size_t next = size + GeneralNumbers(sent_[decided].forced);
    if (next > reply.elements.size()) break;
    size = next;
  }
  // The last number is -1 where the script stopped at a caller that would wait.
  const bool stops = decided < callers_.size();
  if (reply.elements.size() != (stops ? size + 1 : size) ||
      (stops && reply.elements.back().integer != -1)) {
    return Handled::kMalformed;
  }
  PendingAcquires& acquires = context_.acquires();
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  for (size_t i = 0; i < decided; ++i) {
    Caller& caller = callers_[i];
    const bool granted = numbers.Next() == 1;
    int64_t wait_ns = 0;
    const bool forced = sent_[i].forced;
    if (forced) ReadForced(caller, token, now_ns, &numbers);
    for (size_t c = 0; c < charges && !forced; ++c) {
      const bool fits = numbers.Next() == 1;
      const BucketNumbers after = NextBucket(&numbers);
      if (caller.pending == nullptr) continue;
      const Rule& rule = *buckets_[c].rule->rule;
      caller.acquisition->results[c] =
          ResultOf(rule, fits, LevelOf(rule.parameters, after, now_ns, FloorOf(token, c)));
      if (!fits && !rule.shadow) {
        wait_ns = std::max(wait_ns, WaitNs(rule.parameters, caller.acquisition->charges[c].permits,
                                           after, now_ns, FloorOf(token, c)));
      }
    }
    if (caller.pending == nullptr) continue;
    Acquisition& acquisition = *caller.acquisition;
    acquisition.now_ns = now_ns;
    if (granted) {
      acquisition.receipt_id = sent_[i].receipt_id;
    } else {
      acquisition.retry_after_ns = wait_ns;
    }
    acquires.Answer(caller, granted ? Outcome::kGranted : Outcome::kDenied);
  }
  return stops ? Handled::kUndecided : Handled::kDone;
}

void AcquireCommand::Decide(absl::Span<OpenBucket> open, int64_t now_ns) {
  // Ids follow those of bookings that another node made at the same instant.
  bool same_instant = false;
  for (const OpenBucket& bucket : open) same_instant |= bucket.NotBeforeNs() == now_ns;
  const uint64_t after = same_instant ? LastBooking(open) : 0;
  outcomes_.assign(callers_.size(), Outcome::kPending);
  // Of all callers together: they are decided in one step of the loop.
  SearchBudget budget;
  for (size_t i = 0; i < callers_.size(); ++i) {
    if (callers_[i].pending == nullptr) continue;
    const uint64_t given = callers_[i].pending->receipt_id;
    outcomes_[i] = store::Decide(
        callers_[i].acquisition, open, now_ns, set_,
        [&] { return given != 0 ? given : context_.ids().NewBooking(now_ns, after); },
        OverflowPolicy::kDeny, &budget);
  }
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
