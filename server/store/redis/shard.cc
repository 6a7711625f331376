#include "server/store/redis/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/common/errors.h"
#include "server/common/strings.h"
#include "server/store/redis/redis_store.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::kNeverNs;

// The script for all kinds looks at each charge: fewer callers at once, so that others have their
// turn in Redis.
constexpr size_t kMaxGeneral = 64;
// How often a command that was not executed is sent again: its script was flushed, its bucket is
// of other figures. Each time somebody else did something that seldom happens.
constexpr int kMaxTries = 8;
constexpr int64_t kProbeEveryNs = 50'000'000;
// A connection on which nothing comes for so long is made anew.
constexpr int64_t kProbeTimeoutNs = 1'000'000'000;

BucketLevel ToBucketLevel(const algorithm::Level& level) {
  return {level.remaining, level.capacity, level.reset_after_ns, level.next_permit_after_ns};
}

bool IsMismatch(const Reply& reply) {
  return reply.type == Reply::Type::kArray && !reply.elements.empty() &&
         reply.elements[0].type == Reply::Type::kInteger && reply.elements[0].integer == -1;
}

// Takes the next numbers of an answer; says at the end whether there were as many as asked for.
class Numbers {
 public:
  explicit Numbers(const Reply& reply) : reply_(reply) {}
  int64_t Next() {
    if (at_ >= reply_.elements.size() || reply_.elements[at_].type != Reply::Type::kInteger) {
      good_ = false;
      return 0;
    }
    return reply_.elements[at_++].integer;
  }
  Report NextReport() {
    Report report;
    for (int64_t& number : report) number = Next();
    return report;
  }
  int64_t NextTime() {
    const int64_t us = Next();
    return us * 1000 + Next();
  }
  bool Good() const { return good_ && at_ == reply_.elements.size(); }

 private:
  const Reply& reply_;
  size_t at_ = 0;
  bool good_ = true;
};

// Answers to what nobody waits for: scripts that are loaded again.
class Ignored final : public Connection::Waiter {
 public:
  static Ignored& Get() {
    static Ignored ignored;
    return ignored;
  }
  void OnReply(Reply*) override {}
};

}  // namespace

// ---- Commands ----

// Sent, answered, perhaps sent again when Redis did not execute it, and destroyed by itself.
class Shard::Command : public Connection::Waiter {
 public:
  virtual ~Command() = default;

  static void Start(std::unique_ptr<Command> command) {
    Command* const self = command.release();
    if (!self->SendAgain()) self->End();
  }

  void OnReply(Reply* reply) final {
    shard_.in_flight_.pop_front();
    if (given_up_) return End();
    if (reply == nullptr) {
      shard_.counters_.lost.Add();
      Abandon();
      return End();
    }
    const bool converted = std::exchange(converting_, false);
    if (reply->HasCode("NOSCRIPT")) {
      // Flushed, or a script was lost in a failover. Nothing was executed.
      shard_.LoadScripts();
      if (++tries_ < kMaxTries && SendAgain()) return;
      Abandon();
    } else if (reply->is_error()) {
      shard_.OnErrorReply(*reply);
      Abandon();
    } else if (converted) {
      shard_.counters_.conversions.Add();
      if (SendAgain()) return;
    } else if (IsMismatch(*reply)) {
      if (++tries_ < kMaxTries && Mismatched(*reply)) return;
      if (tries_ >= kMaxTries) Abandon();
    } else if (!Handle(*reply)) {
      shard_.LogError("redis_answer", "an answer of another shape than the script's");
      Abandon();
    }
    End();
  }

  // Answers the callers without Redis; its answer, if it still comes, is dropped.
  void Abandon() {
    if (given_up_) return;
    given_up_ = true;
    AnswerAway();
  }

  virtual void CheckDeadlines(int64_t now_ns, int64_t* next_ns) {}

  int64_t sent_ns() const { return sent_ns_; }
  bool given_up() const { return given_up_; }

 protected:
  explicit Command(Shard& shard) : shard_(shard) {}

  // False: nobody waits for it any more.
  virtual bool Build(std::vector<std::string>* words) = 0;
  virtual absl::Span<Bucket> buckets() = 0;
  // False: not the answer to what was sent.
  virtual bool Handle(const Reply& reply) = 0;
  virtual void AnswerAway() = 0;
  // A bucket is of a newer rule of this process. True: to be sent again.
  virtual bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) = 0;
  // It will not be sent again, and was answered.
  virtual void Finish() {}
  // The script told no more than that it cannot decide. True: was sent again.
  virtual bool MismatchOfUnknown() { return false; }

  bool SendAgain() {
    std::vector<std::string> words;
    if (!Build(&words)) return false;
    return Send(words);
  }

  Shard& shard_;

 private:
  void End() {
    Finish();
    delete this;
  }

  bool Send(const std::vector<std::string>& words) {
    if (!shard_.connection_.ready() || !shard_.connection_.Send(words, this)) {
      Abandon();
      return false;
    }
    sent_ns_ = shard_.loop_.now_ns();
    shard_.in_flight_.push_back(this);
    shard_.counters_.commands.Add();
    shard_.Watch();
    return true;
  }

  // True: was sent again.
  bool Mismatched(const Reply& reply) {
    if (reply.elements.size() < 7) return MismatchOfUnknown();
    const Mismatch mismatch = shard_.Judge(buckets(), reply);
    switch (mismatch.what) {
      case Mismatch::What::kStale:
        return Stale(mismatch.bucket, mismatch.newer) && SendAgain();
      case Mismatch::What::kConvert:
        converting_ = true;
        return Send(mismatch.convert_words);
      case Mismatch::What::kForeign:
        break;
    }
    Abandon();
    return false;
  }

  int64_t sent_ns_ = 0;
  int tries_ = 0;
  bool given_up_ = false;
  bool converting_ = false;
};

class Shard::AcquireCommand final : public Command {
 public:
  AcquireCommand(Shard& shard, Line& line, std::vector<Caller> callers)
      : Command(shard), line_(line), callers_(std::move(callers)) {
    const algorithm::Parameters& parameters = line.buckets[0].rule->rule->parameters;
    general_ = line.buckets.size() > 1 || parameters.kind != Kind::kTokenBucket;
    for (const Caller& caller : callers_) general_ |= caller.acquisition->want_receipt;
  }

  void CheckDeadlines(int64_t now_ns, int64_t* next_ns) override {
    if (given_up()) return;
    for (Caller& caller : callers_) {
      if (caller.job == nullptr) continue;
      if (caller.job->deadline_ns < now_ns) {
        // Whether it was debited is not known.
        shard_.Answer(caller, Outcome::kUnavailable);
      } else {
        *next_ns = std::min(*next_ns, caller.job->deadline_ns);
      }
    }
  }

 protected:
  absl::Span<Bucket> buckets() override { return absl::MakeSpan(line_.buckets); }

  bool Build(std::vector<std::string>* words) override {
    callers_.erase(std::remove_if(callers_.begin(), callers_.end(),
                                  [](const Caller& caller) { return caller.job == nullptr; }),
                   callers_.end());
    if (callers_.empty()) return false;
    if (general_) {
      BuildGeneral(words);
    } else {
      BuildRuns(words);
    }
    return true;
  }

  bool Handle(const Reply& reply) override {
    shard_.counters_.decisions.Add(callers_.size());
    return general_ ? HandleGeneral(reply) : HandleRuns(reply);
  }

  bool MismatchOfUnknown() override {
    if (general_) return false;
    general_ = true;
    return SendAgain();
  }

  bool Stale(size_t, const std::shared_ptr<const RuleEntry>&) override {
    for (Caller& caller : callers_) shard_.Answer(caller, Outcome::kStaleRule);
    return false;
  }

  void AnswerAway() override {
    for (Caller& caller : callers_) shard_.AnswerAway(caller);
  }

  void Finish() override { shard_.LineDone(line_); }

 private:
  struct RunOfCallers {
    uint64_t permits;
    size_t callers;
  };

  void BuildRuns(std::vector<std::string>* words) {
    const Bucket& bucket = line_.buckets[0];
    const algorithm::Parameters& parameters = bucket.rule->rule->parameters;
    *words = {"EVALSHA",
              TextOf(Script::kAcquireTokenBucket).sha,
              "1",
              bucket.keys[0],
              shard_.TimeArgument(),
              bucket.rule->figures,
              bucket.rule->writer,
              absl::StrCat(1000 << parameters.token_bucket.shift)};
    runs_.clear();
    for (const Caller& caller : callers_) {
      const uint64_t permits = caller.acquisition->charges[0].permits;
      if (runs_.empty() || runs_.back().permits != permits) runs_.push_back({permits, 0});
      ++runs_.back().callers;
    }
    for (const RunOfCallers& run : runs_) {
      AppendCost(parameters, run.permits, words);
      words->push_back(absl::StrCat(run.callers));
    }
  }

  bool HandleRuns(const Reply& reply) {
    Numbers numbers(reply);
    const int64_t now_ns = numbers.NextTime();
    const Rule& rule = *line_.buckets[0].rule->rule;
    const algorithm::TokenBucket& parameters = rule.parameters.token_bucket;
    const int64_t lacking_us = numbers.Next();
    uint64_t lacking = TicksOf(parameters, lacking_us, numbers.Next());
    std::vector<int64_t> granted_of;
    for (size_t r = 0; r < runs_.size(); ++r) granted_of.push_back(numbers.Next());
    if (!numbers.Good()) return false;
    size_t next = 0;
    for (size_t r = 0; r < runs_.size(); ++r) {
      const uint64_t permits = runs_[r].permits;
      for (size_t i = 0; i < runs_[r].callers; ++i) {
        Caller& caller = callers_[next++];
        const bool fits = static_cast<int64_t>(i) < granted_of[r];
        if (fits) lacking += permits * parameters.unit_ticks;
        if (caller.job == nullptr) continue;
        Acquisition& acquisition = *caller.acquisition;
        ChargeResult& result = acquisition.results[0];
        // Seen from now: a bucket that is full again in so many ticks.
        result.level = ToBucketLevel(algorithm::LevelAt(parameters, lacking, 0));
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

  void BuildGeneral(std::vector<std::string>* words) {
    *words = shard_.ScriptWords(Script::kAcquire, line_.buckets);
    ids_.clear();
    for (const Caller& caller : callers_) {
      const Acquisition& acquisition = *caller.acquisition;
      ids_.push_back(acquisition.want_receipt ? shard_.NewReceipt() : 0);
      words->push_back(absl::StrCat(ids_.back()));
      words->push_back(absl::StrCat(line_.buckets.size()));
      for (size_t c = 0; c < line_.buckets.size(); ++c) {
        words->push_back(absl::StrCat(c));
        AppendCost(line_.buckets[c].rule->rule->parameters, acquisition.charges[c].permits, words);
      }
    }
  }

  bool HandleGeneral(const Reply& reply) {
    const size_t charges = line_.buckets.size();
    if (reply.elements.size() != 2 + callers_.size() * (1 + charges * 8)) return false;
    for (const Reply& element : reply.elements) {
      if (element.type != Reply::Type::kInteger) return false;
    }
    Numbers numbers(reply);
    const int64_t now_ns = numbers.NextTime();
    for (size_t i = 0; i < callers_.size(); ++i) {
      Caller& caller = callers_[i];
      const bool granted = numbers.Next() == 1;
      int64_t wait_ns = 0;
      for (size_t c = 0; c < charges; ++c) {
        const bool fits = numbers.Next() == 1;
        const Report report = numbers.NextReport();
        if (caller.job == nullptr) continue;
        const Rule& rule = *line_.buckets[c].rule->rule;
        ChargeResult& result = caller.acquisition->results[c];
        result.level = ToBucketLevel(LevelOf(rule.parameters, report, now_ns));
        result.reason = fits          ? Reason::kNone
                        : rule.shadow ? Reason::kShadowDenied
                                      : Reason::kNotEnough;
        if (!fits && !rule.shadow) {
          wait_ns = std::max(
              wait_ns,
              WaitNs(rule.parameters, caller.acquisition->charges[c].permits, report, now_ns));
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

  Line& line_;
  std::vector<Caller> callers_;
  bool general_ = false;
  std::vector<RunOfCallers> runs_;  // as they were sent
  std::vector<uint64_t> ids_;
};

struct Shard::QueryJob {
  QueryOperation* operation;
  size_t open;
};

class Shard::QueryCommand final : public Command {
 public:
  QueryCommand(Shard& shard, QueryJob* job, QueryItem* item)
      : Command(shard), job_(job), item_(item) {
    bucket_[0] = shard.BucketOf(*item->rule, item->key);
  }

 protected:
  absl::Span<Bucket> buckets() override { return absl::MakeSpan(bucket_); }
  bool Build(std::vector<std::string>* words) override {
    *words = shard_.ScriptWords(Script::kQuery, bucket_);
    AppendCost(bucket_[0].rule->rule->parameters, 1, words);
    return true;
  }
  bool Handle(const Reply& reply) override {
    Numbers numbers(reply);
    const int64_t now_ns = numbers.NextTime();
    const bool exists = numbers.Next() == 1;
    const Report report = numbers.NextReport();
    if (!numbers.Good()) return false;
    item_->exists = exists;
    item_->level = ToBucketLevel(LevelOf(bucket_[0].rule->rule->parameters, report, now_ns));
    Answered();
    return true;
  }
  void AnswerAway() override {
    item_->unavailable = true;
    item_->source = Source::kStoreAway;
    Answered();
  }
  // The newer figures are the ones that hold.
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>& newer) override {
    bucket_[0].rule = newer;
    return true;
  }

 private:
  void Answered() {
    if (--job_->open != 0) return;
    QueryOperation* const operation = job_->operation;
    delete job_;
    operation->Done();
  }

  QueryJob* const job_;
  QueryItem* const item_;
  std::array<Bucket, 1> bucket_;
};

class Shard::RefundCommand final : public Command {
 public:
  RefundCommand(Shard& shard, RefundOperation* operation) : Command(shard), operation_(operation) {
    for (const Charge& charge : operation->charges) {
      buckets_.push_back(shard.BucketOf(*charge.rule, charge.key));
    }
  }

 protected:
  absl::Span<Bucket> buckets() override { return absl::MakeSpan(buckets_); }
  bool Build(std::vector<std::string>* words) override {
    *words = shard_.ScriptWords(Script::kRefund, buckets_);
    words->push_back(absl::StrCat(operation_->receipt_id));
    return true;
  }
  bool Handle(const Reply& reply) override {
    Numbers numbers(reply);
    numbers.NextTime();
    bool any_open = false;
    std::vector<uint64_t> given(buckets_.size(), 0);
    for (size_t i = 0; i < buckets_.size(); ++i) {
      const bool open = numbers.Next() == 1;
      const int64_t a = numbers.Next();
      const int64_t b = numbers.Next();
      if (!open) continue;
      any_open = true;
      const algorithm::Parameters& parameters = buckets_[i].rule->rule->parameters;
      given[i] = parameters.kind == Kind::kTokenBucket
                     ? TicksOf(parameters.token_bucket, a, b) / parameters.token_bucket.unit_ticks
                     : static_cast<uint64_t>(a);
    }
    if (!numbers.Good()) return false;
    std::copy(given.begin(), given.end(), operation_->refunded);
    Answer(shard_.RefundOutcomeOf(operation_->receipt_id, any_open));
    return true;
  }
  void AnswerAway() override { Answer(RefundOutcome::kUnavailable); }
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>&) override {
    Answer(RefundOutcome::kStaleRule);
    return false;
  }

 private:
  void Answer(RefundOutcome outcome) {
    operation_->outcome = outcome;
    operation_->Done();
  }

  RefundOperation* const operation_;
  std::vector<Bucket> buckets_;
};

class Shard::ResetCommand final : public Command {
 public:
  ResetCommand(Shard& shard, ResetCall call) : Command(shard), call_(std::move(call)) {
    bucket_[0] = shard.BucketOf(*call_.rule->rule, call_.key);
  }

 protected:
  absl::Span<Bucket> buckets() override { return absl::MakeSpan(bucket_); }
  bool Build(std::vector<std::string>* words) override {
    *words = {"EVALSHA",          TextOf(Script::kReset).sha, "3",
              bucket_[0].keys[0], bucket_[0].keys[1],         bucket_[0].keys[2]};
    return true;
  }
  bool Handle(const Reply& reply) override {
    if (reply.type != Reply::Type::kInteger) return false;
    call_.done(call_.context, reply.integer == 1);
    return true;
  }
  void AnswerAway() override { call_.done(call_.context, false); }
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>&) override { return false; }

 private:
  ResetCall call_;
  std::array<Bucket, 1> bucket_;
};

// ---- Shard ----

Shard::Shard(RedisStore& store, net::EventLoop& loop, net::Resolver& resolver,
             const ConnectionOptions& options)
    : store_(store), loop_(loop), connection_(loop, resolver, options, *this) {}

Shard::~Shard() = default;

void Shard::Connect() {
  loop_.Post([this] { connection_.Start(); });
}

template <typename Item>
void Shard::Put(std::vector<Item> Inbox::* list, Item item) {
  bool post = false;
  {
    common::MutexLock lock(&mu_);
    (inbox_.*list).push_back(std::move(item));
    post = !std::exchange(inbox_.posted, true);
  }
  if (post) loop_.Post(static_cast<net::Task&>(*this));
}

void Shard::Start(AcquireOperation* operation) {
  if (loop_.InLoopThread()) return Begin(operation);
  Put(&Inbox::acquires, operation);
}
void Shard::Start(QueryOperation* operation) {
  if (loop_.InLoopThread()) return Begin(operation);
  Put(&Inbox::queries, operation);
}
void Shard::Start(RefundOperation* operation) {
  if (loop_.InLoopThread()) return Begin(operation);
  Put(&Inbox::refunds, operation);
}
void Shard::Start(ResetCall call) {
  if (loop_.InLoopThread()) return Begin(std::move(call));
  Put(&Inbox::resets, std::move(call));
}

void Shard::Run() {
  Inbox inbox;
  {
    common::MutexLock lock(&mu_);
    std::swap(inbox, inbox_);
  }
  for (AcquireOperation* operation : inbox.acquires) Begin(operation);
  for (QueryOperation* operation : inbox.queries) Begin(operation);
  for (RefundOperation* operation : inbox.refunds) Begin(operation);
  for (ResetCall& call : inbox.resets) Begin(std::move(call));
}

void Shard::Drop() {
  breaker_open_ = true;
  Run();
}

void Shard::Begin(AcquireOperation* operation) {
  const absl::Span<Acquisition> acquisitions = operation->acquisitions;
  if (acquisitions.empty()) return operation->Done();
  auto* const job = new Job{operation, acquisitions.size(), operation->deadline_ns};
  for (Acquisition& acquisition : acquisitions) {
    acquisition.source = Source::kStore;
    acquisition.wait_ns = 0;
    acquisition.retry_after_ns = 0;
    acquisition.now_ns = 0;
    acquisition.receipt_id = 0;
    ++waiting_;
    Caller caller{job, &acquisition};
    if (acquisition.max_wait_ns > 0) {
      Answer(caller, Outcome::kUnsupported);
    } else if (Away() || waiting_ > store_.options_.max_waiting) {
      AnswerAway(caller);
    } else {
      Line& line = LineOf(acquisition);
      line.gathered.push_back(caller);
      QueueLine(line);
      if (operation->deadline_ns < next_deadline_ns_) {
        next_deadline_ns_ = operation->deadline_ns;
        Watch();
      }
    }
    // The last answer completes the operation, which may be gone then.
  }
}

void Shard::Begin(QueryOperation* operation) {
  const absl::Span<QueryItem> items = operation->items;
  if (items.empty()) return operation->Done();
  auto* const job = new QueryJob{operation, items.size()};
  for (QueryItem& item : items) {
    item.source = Source::kStore;
    item.unavailable = false;
    item.exists = false;
    item.level = {};
    item.waiting = 0;
    item.next_moment_after_ns = 0;
    auto command = std::make_unique<QueryCommand>(*this, job, &item);
    if (Away()) {
      command->Abandon();
    } else {
      Command::Start(std::move(command));
    }
  }
}

void Shard::Begin(RefundOperation* operation) {
  std::fill_n(operation->refunded, operation->charges.size(), uint64_t{0});
  auto command = std::make_unique<RefundCommand>(*this, operation);
  if (Away()) {
    command->Abandon();
  } else {
    Command::Start(std::move(command));
  }
}

void Shard::Begin(ResetCall call) {
  auto command = std::make_unique<ResetCommand>(*this, std::move(call));
  if (Away()) {
    command->Abandon();
  } else {
    Command::Start(std::move(command));
  }
}

Shard::Bucket Shard::BucketOf(const Rule& rule, std::string_view key) {
  return {EntryOf(rule), KeysOf(store_.options_.name_space, rule.limit_name, key)};
}

std::shared_ptr<const RuleEntry> Shard::EntryOf(const Rule& rule) {
  std::weak_ptr<const RuleEntry>& known = entries_[rule.id];
  std::shared_ptr<const RuleEntry> entry = known.lock();
  if (entry == nullptr) {
    entry = store_.Find(rule.id);
    known = entry;
    // Of limits that changed, now and then.
    if (entries_.size() >= prune_entries_at_) {
      absl::erase_if(entries_, [](const auto& one) { return one.second.expired(); });
      prune_entries_at_ = std::max<size_t>(1024, 2 * entries_.size());
    }
  }
  return entry;
}

Shard::Line& Shard::LineOf(const Acquisition& acquisition) {
  std::string& name = line_name_;
  name.clear();
  for (const Charge& charge : acquisition.charges) {
    const auto size = static_cast<uint32_t>(charge.key.size());
    name.append(reinterpret_cast<const char*>(&charge.rule->id), sizeof(charge.rule->id));
    name.append(reinterpret_cast<const char*>(&size), sizeof(size));
    name.append(charge.key);
  }
  std::unique_ptr<Line>& line = lines_[name];
  if (line == nullptr) {
    line = std::make_unique<Line>();
    line->name = name;
    for (const Charge& charge : acquisition.charges) {
      line->buckets.push_back(BucketOf(*charge.rule, charge.key));
    }
  }
  return *line;
}

void Shard::QueueLine(Line& line) {
  if (line.in_flight || line.queued) return;
  line.queued = true;
  ready_lines_.push_back(&line);
  loop_.AtIterationEnd(*this);
}

void Shard::OnIterationEnd() {
  std::vector<Line*> lines;
  lines.swap(ready_lines_);
  const int64_t now_ns = store_.clock_.NowNs();
  for (Line* line : lines) {
    line->queued = false;
    SendLine(*line, now_ns);
  }
}

void Shard::SendLine(Line& line, int64_t now_ns) {
  size_t most = store_.options_.max_gathered;
  if (line.buckets.size() > 1 ||
      line.buckets[0].rule->rule->parameters.kind != Kind::kTokenBucket) {
    most = std::min(most, kMaxGeneral);
  }
  std::vector<Caller> callers;
  bool receipts = false;
  while (!line.gathered.empty() &&
         callers.size() < (receipts ? std::min(most, kMaxGeneral) : most)) {
    Caller caller = line.gathered.front();
    line.gathered.pop_front();
    if (caller.job->deadline_ns < now_ns) {
      caller.acquisition->now_ns = now_ns;
      Answer(caller, Outcome::kDeadlineExceeded);
      continue;
    }
    receipts |= caller.acquisition->want_receipt;
    callers.push_back(caller);
  }
  if (callers.empty()) return Forget(line);
  line.in_flight = true;
  if (Away()) {
    for (Caller& caller : callers) AnswerAway(caller);
    return LineDone(line);
  }
  Command::Start(std::make_unique<AcquireCommand>(*this, line, std::move(callers)));
}

void Shard::LineDone(Line& line) {
  line.in_flight = false;
  if (line.gathered.empty()) return Forget(line);
  QueueLine(line);
}

void Shard::Forget(Line& line) {
  if (line.in_flight || line.queued || !line.gathered.empty()) return;
  lines_.erase(line.name);
}

void Shard::Answer(Caller& caller, Outcome outcome) {
  Job* const job = std::exchange(caller.job, nullptr);
  if (job == nullptr) return;
  --waiting_;
  caller.acquisition->outcome = outcome;
  if (--job->open != 0) return;
  AcquireOperation* const operation = job->operation;
  delete job;
  operation->Done();
}

void Shard::AnswerAway(Caller& caller) {
  if (caller.job == nullptr) return;
  Acquisition& acquisition = *caller.acquisition;
  bool allow = true;
  for (size_t i = 0; i < acquisition.charges.size(); ++i) {
    const Rule& rule = *acquisition.charges[i].rule;
    if (!rule.shadow && !rule.allow_when_store_away) allow = false;
    ChargeResult& result = acquisition.results[i];
    result = {};
    result.level.capacity = algorithm::Capacity(rule.parameters);
    result.reason = Reason::kStoreAway;
  }
  acquisition.source = Source::kStoreAway;
  (allow ? counters_.allowed_away : counters_.denied_away).Add();
  Answer(caller, allow ? Outcome::kGranted : Outcome::kUnavailable);
}

void Shard::CheckDeadlines() {
  const int64_t now_ns = store_.clock_.NowNs();
  int64_t next_ns = kNoDeadline;
  // By place: a callback may send, and so append.
  for (size_t i = 0; i < in_flight_.size(); ++i) in_flight_[i]->CheckDeadlines(now_ns, &next_ns);
  std::vector<Caller> late;
  for (auto& [name, line] : lines_) {
    for (Caller& caller : line->gathered) {
      if (caller.job->deadline_ns < now_ns) {
        late.push_back(caller);
      } else {
        next_ns = std::min(next_ns, caller.job->deadline_ns);
      }
    }
    line->gathered.erase(
        std::remove_if(line->gathered.begin(), line->gathered.end(),
                       [&](const Caller& caller) { return caller.job->deadline_ns < now_ns; }),
        line->gathered.end());
  }
  next_deadline_ns_ = next_ns;
  for (Caller& caller : late) {
    caller.acquisition->now_ns = now_ns;
    Answer(caller, Outcome::kDeadlineExceeded);
  }
}

// ---- Away and back ----

void Shard::OpenBreaker(std::string_view why) {
  if (std::exchange(breaker_open_, true)) return;
  counters_.breaker_opened.Add();
  LogError("redis_away", why);
  // By place: callbacks may start operations, which are answered at once from here on.
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    if (in_flight_[i]->given_up()) continue;
    counters_.lost.Add();
    in_flight_[i]->Abandon();
  }
  std::vector<Caller> gathered;
  for (auto& [name, line] : lines_) {
    gathered.insert(gathered.end(), line->gathered.begin(), line->gathered.end());
    line->gathered.clear();
  }
  for (Caller& caller : gathered) AnswerAway(caller);
  Probe();
  Watch();
}

void Shard::Watch() {
  int64_t at_ns = net::TimerWheel::kNever;
  if (breaker_open_) {
    if (connection_.ready()) at_ns = loop_.now_ns() + kProbeEveryNs;
  } else if (!in_flight_.empty()) {
    at_ns = in_flight_.front()->sent_ns() + store_.options_.budget_ns;
  }
  if (next_deadline_ns_ != kNoDeadline) {
    const int64_t left_ns = std::max<int64_t>(next_deadline_ns_ - store_.clock_.NowNs(), 0);
    if (left_ns < at_ns - loop_.now_ns()) at_ns = loop_.now_ns() + left_ns;
  }
  if (at_ns == net::TimerWheel::kNever) return;
  if (watch_.armed() && watch_at_ns_ <= at_ns) return;
  watch_at_ns_ = at_ns;
  loop_.Arm(watch_, at_ns);
}

void Shard::OnWatch() {
  if (next_deadline_ns_ != kNoDeadline && store_.clock_.NowNs() > next_deadline_ns_) {
    CheckDeadlines();
  }
  if (breaker_open_) {
    Probe();
  } else if (!in_flight_.empty() &&
             loop_.now_ns() - in_flight_.front()->sent_ns() >= store_.options_.budget_ns) {
    return OpenBreaker("no answer within the budget");
  }
  Watch();
}

void Shard::Probe() {
  if (!connection_.ready()) return;
  if (probe_sent_ns_ != 0) {
    if (loop_.now_ns() - probe_sent_ns_ > kProbeTimeoutNs) {
      connection_.Restart(absl::DeadlineExceededError("Redis has not answered for a second"));
    }
    return;
  }
  if (connection_.Send(std::vector<std::string>{"PING"}, this)) probe_sent_ns_ = loop_.now_ns();
}

void Shard::OnReply(Reply* reply) {
  const int64_t took_ns = loop_.now_ns() - std::exchange(probe_sent_ns_, 0);
  if (reply == nullptr || reply->is_error() || !breaker_open_) return;
  if (took_ns < store_.options_.budget_ns) CloseBreaker();
}

void Shard::CloseBreaker() {
  if (!std::exchange(breaker_open_, false)) return;
  if (store_.log_ != nullptr) {
    store_.log_->Info("redis_back", {{"allowed_meanwhile", counters_.allowed_away.value()},
                                     {"denied_meanwhile", counters_.denied_away.value()}});
  }
}

void Shard::OnReady() {
  CloseBreaker();
  store_.FirstConnection(absl::OkStatus());
}

void Shard::OnLost(const absl::Status& why) { OpenBreaker(common::ToStd(why.message())); }

void Shard::OnFailed(const absl::Status& why) {
  // Once for each row of failures, and for each that is not mere absence.
  if (!breaker_open_ || !absl::IsUnavailable(why)) {
    LogError("redis_connect", common::ToStd(why.message()));
  }
  breaker_open_ = true;
  store_.FirstConnection(why);
}

void Shard::LoadScripts() {
  for (size_t i = 0; i < kScripts; ++i) {
    if (!connection_.ready()) return;
    connection_.Send(
        std::vector<std::string>{"SCRIPT", "LOAD", TextOf(static_cast<Script>(i)).text},
        &Ignored::Get());
  }
}

void Shard::OnErrorReply(const Reply& reply) {
  counters_.errors.Add();
  LogError("redis_error", reply.text);
  // It became a replica, or starts: not the server it was. The next connection looks again.
  if (reply.HasCode("READONLY") || reply.HasCode("LOADING") || reply.HasCode("MASTERDOWN")) {
    connection_.Restart(absl::UnavailableError(reply.text));
  }
}

// ---- What the commands need ----

std::string Shard::TimeArgument() const {
  const common::Clock* const clock = store_.options_.test_time;
  return clock == nullptr ? "" : TestTime(clock->NowNs());
}

std::vector<std::string> Shard::ScriptWords(Script script, absl::Span<const Bucket> buckets) const {
  std::vector<std::string> words = {"EVALSHA", TextOf(script).sha,
                                    absl::StrCat(3 * buckets.size())};
  for (const Bucket& bucket : buckets) {
    words.insert(words.end(), bucket.keys.begin(), bucket.keys.end());
  }
  words.push_back(TimeArgument());
  words.push_back(absl::StrCat(buckets.size()));
  for (const Bucket& bucket : buckets) {
    const RuleEntry& entry = *bucket.rule;
    AppendBucket(entry.rule->parameters, entry.figures, entry.writer, entry.rule->shadow, &words);
  }
  return words;
}

uint64_t Shard::NewReceipt() {
  return store_.next_receipt_.fetch_add(1, std::memory_order_relaxed);
}

RefundOutcome Shard::RefundOutcomeOf(uint64_t receipt_id, bool open) {
  if (open) {
    store_.used_receipts_.Add(receipt_id);
    return RefundOutcome::kRefunded;
  }
  return store_.used_receipts_.Contains(receipt_id) ? RefundOutcome::kAlreadyRefunded
                                                    : RefundOutcome::kExpired;
}

void Shard::LogError(std::string_view event, std::string_view what) {
  if (store_.log_ == nullptr) return;
  store_.log_->Warning(
      event, {{"error", common::ToAbsl(what)}, {"store", store_.options_.url.ToString()}});
}

Shard::Mismatch Shard::Judge(absl::Span<const Bucket> buckets, const Reply& reply) {
  Mismatch mismatch;
  mismatch.bucket = static_cast<size_t>(reply.elements[1].integer);
  if (mismatch.bucket >= buckets.size()) return mismatch;
  const Bucket& bucket = buckets[mismatch.bucket];
  const int64_t now_ns = reply.elements[2].integer * 1000 + reply.elements[3].integer;
  const std::string& state = reply.elements[4].text;
  const std::string& receipts = reply.elements[6].text;
  std::vector<std::string> runs;
  for (const Reply& run : reply.elements[5].elements) runs.push_back(run.text);
  const absl::StatusOr<StoredBucket> stored = ParseBucket(state, runs, receipts, now_ns);
  if (!stored.ok()) {
    counters_.errors.Add();
    LogError("redis_foreign_key", absl::StrCat(bucket.keys[0], ": ", stored.status().message()));
    return mismatch;
  }
  const std::vector<absl::string_view> writer = absl::StrSplit(stored->writer, '.');
  uint32_t rule_id = 0;
  if (writer.size() == 2 && writer[0] == store_.instance_ &&
      absl::SimpleAtoi(writer[1], &rule_id) && rule_id > bucket.rule->rule->id) {
    mismatch.newer = store_.Find(rule_id);
    if (mismatch.newer != nullptr) {
      mismatch.what = Mismatch::What::kStale;
      return mismatch;
    }
  }
  const algorithm::Parameters& to = bucket.rule->rule->parameters;
  if (bucket.rule->figures == Figures(stored->parameters)) return mismatch;  // of another program
  std::vector<std::string> formatted =
      FormatBucket(Convert(*stored, to, now_ns), bucket.rule->writer, now_ns);
  if (store_.options_.test_time != nullptr) formatted[0] = "3600000";
  mismatch.what = Mismatch::What::kConvert;
  mismatch.convert_words = {"EVALSHA",
                            TextOf(Script::kConvert).sha,
                            "3",
                            bucket.keys[0],
                            bucket.keys[1],
                            bucket.keys[2],
                            state,
                            receipts};
  mismatch.convert_words.insert(mismatch.convert_words.end(), formatted.begin(), formatted.end());
  return mismatch;
}

}  // namespace sluice::store::redis
