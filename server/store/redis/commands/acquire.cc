#include "server/store/redis/commands/acquire.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/decide.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/reply_numbers.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {

using algorithm::Kind;

AcquireCommand::AcquireCommand(Shard& shard, Line& line, std::vector<Caller> callers)
    : ScriptCommand(shard), line_(line), callers_(std::move(callers)) {
  const algorithm::Parameters& parameters = line.buckets[0].rule->rule->parameters;
  general_ = line.buckets.size() > 1 || parameters.kind != Kind::kTokenBucket;
  for (const Caller& caller : callers_) general_ |= caller.acquisition->want_receipt;
  if (KnownAsBooked()) DecideHere();
}

void AcquireCommand::CollectLate(int64_t now_ns, std::vector<Caller>* late, int64_t* next_ns) {
  for (Caller& caller : callers_) {
    if (caller.job == nullptr) continue;
    if (caller.job->deadline_ns < now_ns) {
      caller.acquisition->may_be_debited = may_be_in_force();
      late->push_back(std::exchange(caller, {nullptr, caller.acquisition}));
    } else {
      *next_ns = std::min(*next_ns, caller.job->deadline_ns);
    }
  }
}

bool AcquireCommand::StillWaits() {
  callers_.erase(std::remove_if(callers_.begin(), callers_.end(),
                                [](const Caller& caller) { return caller.job == nullptr; }),
                 callers_.end());
  return !callers_.empty();
}

bool AcquireCommand::BuildScript(const FencingToken& term, std::vector<std::string>* words) {
  if (!StillWaits()) return false;
  if (general_) {
    BuildGeneral(term, words);
  } else {
    BuildRuns(term, words);
  }
  return true;
}

bool AcquireCommand::Handle(const Reply& reply) {
  shard_.counters().decisions.Add(callers_.size());
  return general_ ? HandleGeneral(reply) : HandleRuns(reply);
}

bool AcquireCommand::MismatchOfUnknown() {
  if (general_) return false;
  general_ = true;
  return true;
}

bool AcquireCommand::Stale(size_t, const std::shared_ptr<const RuleEntry>&) {
  for (Caller& caller : callers_) shard_.Answer(caller, Outcome::kStaleRule);
  return false;
}

void AcquireCommand::AnswerUnavailable() {
  for (Caller& caller : callers_) {
    if (caller.job != nullptr) {
      // What was decided here and is not known to be in force.
      caller.acquisition->wait_ns = 0;
      caller.acquisition->retry_after_ns = 0;
      caller.acquisition->receipt_id = 0;
      caller.acquisition->may_be_debited = may_be_in_force();
    }
    shard_.AnswerUnavailable(caller);
  }
}

void AcquireCommand::BuildRuns(const FencingToken& term, std::vector<std::string>* words) {
  const Bucket& bucket = line_.buckets[0];
  const algorithm::Parameters& parameters = bucket.rule->rule->parameters;
  runs_.clear();
  for (const Caller& caller : callers_) {
    const uint64_t permits = caller.acquisition->charges[0].permits;
    // A shadow limit makes nobody wait.
    const bool waits = caller.acquisition->max_wait_ns > 0 && !bucket.rule->rule->shadow;
    if (runs_.empty() || runs_.back().permits != permits || runs_.back().waits != waits) {
      runs_.push_back({permits, waits, 0});
    }
    ++runs_.back().callers;
  }
  std::string numbers = PackTokenBucket(parameters, term.floor_us, shard_.TestNowNs());
  for (const RunOfCallers& run : runs_) {
    const auto callers = static_cast<int64_t>(run.callers);
    PackRun(parameters, run.permits, run.waits ? -callers : callers, &numbers);
  }
  // Word by word, into the memory that they have.
  words->resize(8);
  (*words)[0] = "EVALSHA";
  (*words)[1] = TextOf(Script::kAcquireTokenBucket).sha;
  (*words)[2] = "2";
  (*words)[3] = bucket.keys[0];
  (*words)[4] = term.WordFor(bucket);
  (*words)[5] = bucket.rule->encoded_parameters;
  (*words)[6] = bucket.rule->writer;
  (*words)[7] = numbers;
}

bool AcquireCommand::HandleRuns(const Reply& reply) {
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  const Rule& rule = *line_.buckets[0].rule->rule;
  const algorithm::TokenBucket& parameters = rule.parameters.token_bucket;
  const int64_t lacking_us = numbers.Next();
  uint64_t lacking = TicksOf(parameters, lacking_us, numbers.Next());
  std::vector<int64_t> granted_of;
  bool stops = false;
  for (size_t r = 0; r < runs_.size() && !stops; ++r) {
    granted_of.push_back(numbers.Next());
    stops = runs_[r].waits && granted_of[r] < static_cast<int64_t>(runs_[r].callers);
  }
  if (!numbers.Good()) return false;
  if (stops) DecideHere();
  size_t next = 0;
  for (size_t r = 0; r < granted_of.size(); ++r) {
    const uint64_t permits = runs_[r].permits;
    for (size_t i = 0; i < runs_[r].callers; ++i) {
      Caller& caller = callers_[next++];
      const bool fits = static_cast<int64_t>(i) < granted_of[r];
      if (!fits && stops && r + 1 == granted_of.size()) return true;
      if (fits) lacking += permits * parameters.unit_ticks;
      if (caller.job == nullptr) continue;
      Acquisition& acquisition = *caller.acquisition;
      ChargeResult& result = acquisition.results[0];
      result.debited_before_ns = 0;
      // Seen from now: a bucket that is full again in so many ticks.
      result.level = algorithm::LevelAt(parameters, lacking, 0);
      result.reason = fits          ? Reason::kNone
                      : rule.shadow ? Reason::kShadowDenied
                                    : Reason::kNotEnough;
      acquisition.now_ns = now_ns;
      if (!fits && !rule.shadow) {
        acquisition.retry_after_ns = algorithm::EarliestNs(parameters, permits, lacking, 0);
        shard_.Answer(caller, Outcome::kDenied);
      } else {
        shard_.Answer(caller, Outcome::kGranted);
      }
    }
  }
  return true;
}

void AcquireCommand::BuildGeneral(const FencingToken& term, std::vector<std::string>* words) {
  *words = shard_.ScriptWords(Script::kAcquire, line_.buckets, term);
  ids_.clear();
  for (const Caller& caller : callers_) {
    const Acquisition& acquisition = *caller.acquisition;
    const uint64_t given = caller.job->receipt_id;
    ids_.push_back(!acquisition.want_receipt ? 0 : given != 0 ? given : shard_.NewReceipt());
    words->push_back(absl::StrCat(ids_.back()));
    words->push_back(absl::StrCat(acquisition.max_wait_ns > 0 ? "-" : "", line_.buckets.size()));
    for (size_t c = 0; c < line_.buckets.size(); ++c) {
      words->push_back(absl::StrCat(c));
      AppendCost(line_.buckets[c].rule->rule->parameters, acquisition.charges[c].permits, words);
    }
  }
}

bool AcquireCommand::HandleGeneral(const Reply& reply) {
  const size_t charges = line_.buckets.size();
  if (reply.elements.size() < 2) return false;
  for (const Reply& element : reply.elements) {
    if (element.type != Reply::Type::kInteger) return false;
  }
  // The last number is -1 where the script stopped at one who would wait.
  const bool stops =
      reply.elements.back().integer == -1 && (reply.elements.size() - 2) % (1 + charges * 8) == 1;
  const size_t decided = (reply.elements.size() - 2) / (1 + charges * 8);
  if (stops ? decided >= callers_.size()
            : reply.elements.size() != 2 + callers_.size() * (1 + charges * 8)) {
    return false;
  }
  if (stops) DecideHere();
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  for (size_t i = 0; i < decided; ++i) {
    Caller& caller = callers_[i];
    const bool granted = numbers.Next() == 1;
    int64_t wait_ns = 0;
    for (size_t c = 0; c < charges; ++c) {
      const bool fits = numbers.Next() == 1;
      const Report report = numbers.NextReport();
      if (caller.job == nullptr) continue;
      const Rule& rule = *line_.buckets[c].rule->rule;
      ChargeResult& result = caller.acquisition->results[c];
      result.debited_before_ns = 0;
      result.level = LevelOf(rule.parameters, report, now_ns, floor_us());
      result.reason = fits          ? Reason::kNone
                      : rule.shadow ? Reason::kShadowDenied
                                    : Reason::kNotEnough;
      if (!fits && !rule.shadow) {
        wait_ns = std::max(wait_ns, WaitNs(rule.parameters, caller.acquisition->charges[c].permits,
                                           report, now_ns, floor_us()));
      }
    }
    if (caller.job == nullptr) continue;
    Acquisition& acquisition = *caller.acquisition;
    acquisition.now_ns = now_ns;
    if (granted) {
      acquisition.receipt_id = ids_[i];
    } else {
      acquisition.retry_after_ns = wait_ns;
    }
    shard_.Answer(caller, granted ? Outcome::kGranted : Outcome::kDenied);
  }
  return true;
}

void AcquireCommand::DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) {
  // Another node's bookings of the same instant.
  bool same_instant = false;
  for (const OpenBucket& bucket : open) same_instant |= bucket.NotBeforeNs() == now_ns;
  const uint64_t after = same_instant ? LastBooking(open) : 0;
  outcomes_.assign(callers_.size(), Outcome::kPending);
  for (size_t i = 0; i < callers_.size(); ++i) {
    if (callers_[i].job == nullptr) continue;
    const uint64_t given = callers_[i].job->receipt_id;
    outcomes_[i] = Decide(callers_[i].acquisition, open, now_ns, line_.set,
                          [&] { return given != 0 ? given : shard_.NewBooking(now_ns, after); });
  }
}

void AcquireCommand::AnswerOpen() {
  shard_.counters().decisions.Add(callers_.size());
  for (size_t i = 0; i < callers_.size(); ++i) shard_.Answer(callers_[i], outcomes_[i]);
}

void AcquireCommand::AnswerContended() {
  shard_.LogError("redis_contended", "a bucket with bookings was changed by others all the time");
  for (Caller& caller : callers_) shard_.Answer(caller, Outcome::kUnavailable);
}

void AcquireCommand::Finish() { shard_.LineDone(line_); }

}  // namespace sluice::store::redis
