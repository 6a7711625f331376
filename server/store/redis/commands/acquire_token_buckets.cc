#include "server/store/redis/commands/acquire_token_buckets.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/redis/connection/script_size.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {
namespace {

// Of a word of a command, beside its own bytes.
constexpr size_t kWordBytes = 8;

}  // namespace

bool TokenBucketBatch::Waits(const Acquisition& acquisition) const {
  // A shadow limit makes no caller wait.
  return acquisition.max_wait_ns > 0 && !bucket().rule->rule->shadow;
}

bool TokenBucketBatch::BeginsRun(const Acquisition& acquisition) const {
  return runs_.empty() || runs_.back().permits != acquisition.charges[0].permits ||
         runs_.back().waits != Waits(acquisition);
}

void TokenBucketBatch::Add(const Caller& caller) {
  const Acquisition& acquisition = *caller.acquisition;
  if (BeginsRun(acquisition)) {
    runs_.push_back({acquisition.charges[0].permits, Waits(acquisition), 0});
  }
  ++runs_.back().callers;
  callers_.push_back(caller);
}

bool TokenBucketBatch::IsOfSameBucket(const TokenBucketBatch& other) const {
  const Rule& one = *bucket().rule->rule;
  const Rule& another = *other.bucket().rule->rule;
  // Each rule has a batch for each key. So keys are compared only after a reload.
  return one.limit_id == another.limit_id && one.id != another.id &&
         bucket().keys[0] == other.bucket().keys[0];
}

std::vector<Caller> TokenBucketBatch::TakeCallers() {
  DropAnswered();
  runs_.clear();
  return std::exchange(callers_, {});
}

bool TokenBucketBatch::MayBeExecuted() const { return command_->MayBeExecuted(); }

void TokenBucketBatch::MakeRuns() {
  if (!DropAnswered()) return;
  const std::vector<Caller> callers = std::exchange(callers_, {});
  runs_.clear();
  for (const Caller& caller : callers) Add(caller);
}

void TokenBucketBatch::Pack(size_t limit, const FencingToken& token, std::string* numbers) const {
  const Rule& rule = *bucket().rule->rule;
  PackTokenBucket(rule.parameters, limit, token.FloorOf(rule), runs_.size(), numbers);
  for (const Run& run : runs_) {
    const auto callers = static_cast<int64_t>(run.callers);
    PackRun(rule.parameters, run.permits, run.waits ? -callers : callers, numbers);
  }
}

void TokenBucketBatch::Read(ReplyNumbers* numbers) {
  constexpr int64_t kBooked = -2;
  constexpr int64_t kElsewhere = -3;
  decided_ = Decided::kAll;
  const int64_t lacking_us = numbers->Next();
  if (lacking_us < 0) {
    decided_ = lacking_us == kBooked      ? Decided::kNoneBooked
               : lacking_us == kElsewhere ? Decided::kNoneElsewhere
                                          : Decided::kNone;
    return;
  }
  lacking_ = TicksOf(bucket().rule->rule->parameters.token_bucket, lacking_us, numbers->Next());
  for (Run& run : runs_) {
    run.granted = static_cast<size_t>(std::max<int64_t>(numbers->Next(), 0));
    if (run.waits && run.granted < run.callers) {
      decided_ = Decided::kToOneThatWaits;
      return;
    }
  }
}

void TokenBucketBatch::Answer(PendingAcquires& acquires, int64_t now_ns) {
  const Rule& rule = *bucket().rule->rule;
  const algorithm::TokenBucket& parameters = rule.parameters.token_bucket;
  uint64_t lacking = lacking_;
  size_t next = 0;
  for (const Run& run : runs_) {
    for (size_t i = 0; i < run.callers; ++i) {
      const bool fits = i < run.granted;
      if (!fits && run.waits) return;
      if (fits) lacking += run.permits * parameters.unit_ticks;
      Caller& caller = callers_[next++];
      if (caller.pending == nullptr) continue;
      Acquisition& acquisition = *caller.acquisition;
      // Seen from now: a bucket that is full again in so many ticks.
      acquisition.results[0] = ResultOf(rule, fits, algorithm::LevelAt(parameters, lacking, 0));
      acquisition.now_ns = now_ns;
      const bool denied = !fits && !rule.shadow;
      if (denied) {
        acquisition.retry_after_ns = algorithm::EarliestNs(parameters, run.permits, lacking, 0);
      }
      acquires.Answer(caller, denied ? Outcome::kDenied : Outcome::kGranted);
    }
  }
}

void TokenBucketsCommand::StartInTurn(CommandContext& context,
                                      std::vector<TokenBucketBatch*> batches) {
  CommandSender::StartInTurn(*new TokenBucketsCommand(context, std::move(batches)));
}

TokenBucketsCommand::TokenBucketsCommand(CommandContext& context,
                                         std::vector<TokenBucketBatch*> batches)
    : Command(context), batches_(std::move(batches)) {
  for (TokenBucketBatch* const batch : batches_) batch->command_ = this;
}

bool TokenBucketsCommand::Build(std::vector<std::string>* words) {
  sent_.clear();
  units_ = 0;
  for (TokenBucketBatch* const batch : batches_) {
    batch->MakeRuns();
    if (batch->callers_.empty()) continue;
    sent_.push_back(batch);
    units_ += batch->runs();
  }
  if (sent_.empty()) return false;
  Router& router = context_.router();
  Endpoint& endpoint = sender_.endpoint();
  // Keys would be of one slot, and refused together while it moves.
  const bool declared = sent_.size() == 1 || !router.Splits();
  const size_t count = sent_.size();
  const FencingToken* token = &router.TokenFor(endpoint, sent_[0]->bucket().keys[0]);
  const int64_t reading = !declared                ? -static_cast<int64_t>(count)
                          : endpoint.rights().mget ? kReadTogether
                                                   : kReadOneByOne;
  std::string numbers = PackHeader(context_.settings().TestNowNs(), token->clock, reading,
                                   endpoint.rights().setrange);
  // The places of their words, behind the numbers and the buckets that are not declared.
  const size_t first_limit = declared ? 2 : 2 + count;
  std::vector<const RuleEntry*> limits;
  for (const TokenBucketBatch* const batch : sent_) {
    const RuleEntry* const limit = batch->bucket().rule.get();
    auto found = std::find(limits.begin(), limits.end(), limit);
    if (found == limits.end()) found = limits.insert(found, limit);
    // Each slot has its floor.
    if (!declared) token = &router.TokenFor(endpoint, batch->bucket().keys[0]);
    batch->Pack(first_limit + static_cast<size_t>(found - limits.begin()), *token, &numbers);
  }
  // Word by word, into the memory that they have.
  words->resize(3 + (declared ? 1 : 0) + count + 1 + limits.size());
  auto word = words->begin();
  *word++ = "EVALSHA";
  *word++ = TextOf(Script::kAcquireTokenBuckets).sha;
  *word++ = declared ? absl::StrCat(count + 1) : "0";
  if (!declared) *word++ = numbers;
  for (const TokenBucketBatch* const batch : sent_) *word++ = batch->bucket().keys[0];
  if (declared) *word++ = token->WordFor(sent_[0]->bucket());
  if (declared) *word++ = numbers;
  for (const RuleEntry* const limit : limits) {
    *word++ = absl::StrCat(limit->encoded_parameters, " ", limit->writer, " ");
  }
  token->AppendWord(words);
  // The script ignores what follows the numbers.
  size_t bytes = 0;
  for (const std::string& one : *words) bytes += one.size() + kWordBytes;
  const size_t least = units_ * ScriptSize::kLeastBytes;
  std::string& padded = (*words)[declared ? 3 + count + 1 : 3];
  if (bytes < least) padded.append(least - bytes, '\0');
  return true;
}

Next TokenBucketsCommand::OnReply(const Reply& reply) {
  ReplyNumbers numbers(reply);
  const int64_t now_ns = numbers.NextTime();
  for (TokenBucketBatch* const batch : sent_) batch->Read(&numbers);
  if (!numbers.Good()) {
    context_.LogError("redis_answer", "a reply that is not in the script's form");
    for (TokenBucketBatch* const batch : batches_) {
      batch->AnswerUnavailable(context_.acquires(), /*may_be_executed=*/true);
    }
    return {};
  }
  sender_.OnBegan(now_ns);
  using Decided = TokenBucketBatch::Decided;
  for (TokenBucketBatch* const batch : sent_) {
    context_.counters().decisions.Add(batch->callers());
    if (batch->decided_ == Decided::kAll || batch->decided_ == Decided::kToOneThatWaits) {
      batch->Answer(context_.acquires(), now_ns);
    }
  }
  return {};
}

void TokenBucketsCommand::OnUnavailable() {
  for (TokenBucketBatch* const batch : batches_) {
    batch->AnswerUnavailable(context_.acquires(), MayBeExecuted());
  }
}

void TokenBucketsCommand::OnEnd() {
  using Decided = TokenBucketBatch::Decided;
  CommandContext& context = context_;
  const std::vector<TokenBucketBatch*> batches = std::move(batches_);
  delete this;
  for (TokenBucketBatch* const batch : batches) {
    batch->MakeRuns();
    const Decided decided = std::exchange(batch->decided_, Decided::kAll);
    batch->command_ = nullptr;
    if (batch->callers_.empty()) {
      batch->OnAnswered();
    } else if (decided == Decided::kNoneElsewhere && batches.size() > 1) {
      StartInTurn(context, {batch});
    } else {
      batch->OnUndecided(decided != Decided::kNone);
    }
  }
}

}  // namespace sluice::store::redis
