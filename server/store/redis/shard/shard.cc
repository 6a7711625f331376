#include "server/store/redis/shard/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/memory/hash.h"
#include "server/store/redis/commands/acquire.h"
#include "server/store/redis/commands/move.h"
#include "server/store/redis/commands/query.h"
#include "server/store/redis/commands/rebook.h"
#include "server/store/redis/commands/refund.h"
#include "server/store/redis/redis_store.h"
#include "server/store/redis/shard/cross_slot.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;

// The script for all kinds looks at each charge: fewer callers at once, so that others have their
// turn in Redis.
constexpr size_t kMaxGeneral = 64;
// Reservations are decided on this loop, at up to a few microseconds each.
constexpr size_t kMaxReservations = 256;
constexpr int64_t kLogBusyEveryNs = 10'000'000'000;

// Objects that are kept for their memory, of each kind.
constexpr size_t kMaxFree = 4096;

void Clear(Acquisition& acquisition) {
  acquisition.source = Source::kStore;
  acquisition.wait_ns = 0;
  acquisition.retry_after_ns = 0;
  acquisition.now_ns = 0;
  acquisition.receipt_id = 0;
  acquisition.may_be_debited = false;
}

}  // namespace

Shard::Shard(RedisStore& store, net::EventLoop& loop, net::Resolver& resolver,
             const EndpointOptions& options)
    : store_(store),
      loop_(loop),
      endpoint_options_(options),
      router_(MakeRouter({loop_, resolver, endpoint_options_, counters_, *this,
                          store.identification_, store.known_fences_})) {}

Shard::~Shard() = default;

void Shard::Connect() {
  loop_.Post([this] {
    loop_.AddResident(*this);
    router_->Start();
  });
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
void Shard::Start(MoveOperation* operation) {
  if (loop_.InLoopThread()) return Begin(operation);
  Put(&Inbox::moves, operation);
}
void Shard::Start(RebookOperation* operation) {
  if (loop_.InLoopThread()) return Begin(operation);
  Put(&Inbox::rebooks, operation);
}
void Shard::Start(ResetCall call) {
  if (loop_.InLoopThread()) return Begin(std::move(call));
  Put(&Inbox::resets, std::move(call));
}
void Shard::Start(Call call) {
  if (loop_.InLoopThread()) return Begin(std::move(call));
  Put(&Inbox::calls, std::move(call));
}

void Shard::Start(HeartbeatCall call) {
  Command::Start(std::make_unique<HeartbeatCommand>(*this, std::move(call)));
}

void Shard::Start(ReportCall call) {
  if (loop_.InLoopThread()) return Begin(std::move(call));
  Put(&Inbox::reports, std::move(call));
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
  for (MoveOperation* operation : inbox.moves) Begin(operation);
  for (RebookOperation* operation : inbox.rebooks) Begin(operation);
  for (ResetCall& call : inbox.resets) Begin(std::move(call));
  for (Call& call : inbox.calls) Begin(std::move(call));
  for (ReportCall& call : inbox.reports) Begin(std::move(call));
}

void Shard::Drop() {
  ended_ = true;
  Run();
}

void Shard::OnLoopStop() {
  ended_ = true;
  absl::flat_hash_set<Command*> later;
  later.swap(later_);
  for (Command* command : later) command->Drop();
}

int64_t Shard::NowNs() const { return store_.clock_.NowNs(); }

void Shard::GiveBack(RefundOperation* part) {
  Command::Start(std::make_unique<RefundCommand>(*this, part, /*remembered=*/false));
}

void Shard::Begin(AcquireOperation* operation, uint64_t receipt_id) {
  const absl::Span<Acquisition> acquisitions = operation->acquisitions;
  if (acquisitions.empty()) return operation->Done();
  const bool knows_nodes = store_.nodes_->started();
  if (ended_ || (!knows_nodes && router_->AllUnavailable())) return DecideUnavailable(operation);
  if (free_jobs_.empty()) free_jobs_.push_back(std::make_unique<Job>());
  Job* const job = free_jobs_.back().release();
  free_jobs_.pop_back();
  *job = {operation, acquisitions.size(), operation->deadline_ns, receipt_id};
  for (Acquisition& acquisition : acquisitions) {
    Clear(acquisition);
    ++waiting_;
    Caller caller{job, &acquisition};
    if (knows_nodes && (StartLocally(caller) || TakeRelaxed(caller))) continue;
    std::vector<ChargeGroup> groups;
    if (router_->Splits() && acquisition.charges.size() > 1) {
      groups = GroupsOf(*this, acquisition.charges);
    }
    if (acquisition.max_wait_ns > 0 && groups.size() > 1) {
      acquisition.elsewhere = ElsewhereThanFirst(groups);
      Answer(caller, Outcome::kSeveralSlots);
    } else if (router_->AllUnavailable() || !MayWait(waiting_ - 1)) {
      AnswerUnavailable(caller);
    } else if (groups.size() > 1) {
      StartScattered(*this, std::move(groups), caller);
    } else {
      Line& line = LineOf(acquisition);
      if (Away(line)) {
        Forget(line);
        AnswerUnavailable(caller);
        continue;
      }
      line.gathered.push_back(caller);
      QueueLine(line);
      if (operation->deadline_ns < next_deadline_ns_) {
        next_deadline_ns_ = operation->deadline_ns;
        WatchDeadlines();
      }
    }
    // The last answer completes the operation, which may be gone then.
  }
}

void Shard::DecideUnavailable(AcquireOperation* operation) {
  for (Acquisition& acquisition : operation->acquisitions) {
    Clear(acquisition);
    acquisition.outcome = DecideUnavailable(acquisition);
  }
  operation->Done();
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
    item.next_grant_after_ns = 0;
    if (QueryLocally(item)) {
      if (--job->open != 0) continue;
      delete job;
      return operation->Done();
    }
    Command::Start(std::make_unique<QueryCommand>(*this, job, &item));
  }
}

void Shard::Begin(RefundOperation* operation) {
  std::fill_n(operation->refunded, operation->charges.size(), uint64_t{0});
  if (RefundLocally(operation)) return;
  if (router_->Splits() && operation->charges.size() > 1) {
    std::vector<ChargeGroup> groups = GroupsOf(*this, operation->charges);
    if (groups.size() > 1) return StartScattered(*this, std::move(groups), operation);
  }
  Command::Start(std::make_unique<RefundCommand>(*this, operation));
}

void Shard::Begin(MoveOperation* operation) {
  Command::Start(std::make_unique<MoveCommand>(*this, operation));
}

void Shard::Begin(RebookOperation* operation) { StartRebook(*this, operation); }

void Shard::Begin(ReportCall call) {
  Command::Start(std::make_unique<ReportCommand>(*this, std::move(call)));
}

void Shard::Begin(ResetCall call) {
  if (call.rule != nullptr && call.rule->rule->sharing == Sharing::kSplit) {
    return call.done(call.context, store_.split_.Forget(*call.rule->rule, call.key)
                                       ? ResetOutcome::kReset
                                       : ResetOutcome::kNotInUse);
  }
  Command::Start(std::make_unique<ResetCommand>(*this, std::move(call)));
}

void Shard::Begin(Call call) {
  Command::Start(std::make_unique<CallCommand>(*this, std::move(call)));
}

Bucket Shard::BucketOf(const Rule& rule, std::string_view key) {
  return {EntryOf(rule), KeysOf(store_.options_.name_space, rule.limit_name, key, rule.hash_tag)};
}

uint64_t Shard::SetOf(const Bucket& bucket) {
  return memory::BucketHash(/*seed=*/0)(/*limit_id=*/0, bucket.keys[0]);
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

Line& Shard::LineOf(const Acquisition& acquisition) {
  std::string& name = line_name_;
  name.clear();
  for (const Charge& charge : acquisition.charges) {
    const auto size = static_cast<uint32_t>(charge.key.size());
    name.append(reinterpret_cast<const char*>(&charge.rule->id), sizeof(charge.rule->id));
    name.append(reinterpret_cast<const char*>(&size), sizeof(size));
    name.append(charge.key);
  }
  const auto found = lines_.find(absl::string_view(name));
  if (found != lines_.end()) return *found->second;
  if (free_lines_.empty()) free_lines_.push_back(std::make_unique<Line>(*this));
  std::unique_ptr<Line> line = std::move(free_lines_.back());
  free_lines_.pop_back();
  line->name = name;
  for (const Charge& charge : acquisition.charges) {
    line->buckets.push_back(BucketOf(*charge.rule, charge.key));
    line->set += SetOf(line->buckets.back());
  }
  Line& made = *line;
  lines_.emplace(made.name, std::move(line));
  return made;
}

bool Shard::Away(const Line& line) {
  const Endpoint* const endpoint = router_->EndpointOf(line.routing_key());
  return endpoint == nullptr || (endpoint->away() && !endpoint->starting());
}

void Shard::QueueLine(Line& line) {
  if (line.in_flight != nullptr || line.queued) return;
  line.queued = true;
  ready_lines_.push_back(&line);
  loop_.BeforeSleep(*this);
}

void Shard::OnIterationEnd() {
  std::vector<Line*> lines;
  lines.swap(ready_lines_);
  const int64_t now_ns = store_.clock_.NowNs();
  for (Line* line : lines) {
    line->queued = false;
    QueueAt(router_->EndpointOf(line->routing_key()), *line, now_ns);
  }
}

void Shard::QueueAt(Endpoint* endpoint, Line& line, int64_t now_ns) {
  if (endpoint == nullptr || !endpoint->full()) return SendLine(line, now_ns);
  line.queued = true;
  endpoint->AwaitRoom(line);
}

void Line::OnRoom(Endpoint& endpoint) { shard.LineHasRoom(*this, endpoint); }

void Shard::LineHasRoom(Line& line, Endpoint& endpoint) {
  line.queued = false;
  // Its slot may have moved meanwhile.
  Endpoint* const now_at = router_->EndpointOf(line.routing_key());
  if (now_at != &endpoint) return QueueAt(now_at, line, store_.clock_.NowNs());
  SendLine(line, store_.clock_.NowNs());
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
    if (caller.acquisition->max_wait_ns > 0) most = std::min(most, kMaxReservations);
    callers.push_back(caller);
  }
  if (callers.empty()) return Forget(line);
  auto command = std::make_unique<AcquireCommand>(*this, line, std::move(callers));
  line.in_flight = command.get();
  Command::StartInTurn(std::move(command));
}

void Shard::LineDone(Line& line) {
  line.in_flight = nullptr;
  if (line.gathered.empty()) return Forget(line);
  QueueLine(line);
}

void Shard::Forget(Line& line) {
  if (line.in_flight != nullptr || line.queued || !line.gathered.empty()) return;
  const auto found = lines_.find(absl::string_view(line.name));
  std::unique_ptr<Line> gone = std::move(found->second);
  lines_.erase(found);
  if (free_lines_.size() >= kMaxFree) return;
  gone->buckets.clear();
  gone->set = 0;
  free_lines_.push_back(std::move(gone));
}

void Shard::Answer(Caller& caller, Outcome outcome) {
  Job* const job = std::exchange(caller.job, nullptr);
  if (job == nullptr) return;
  --waiting_;
  Acquisition& acquisition = *caller.acquisition;
  acquisition.outcome = outcome;
  if (acquisition.charges.size() == 1 &&
      acquisition.charges[0].rule->sharing == Sharing::kRelaxed &&
      acquisition.source == Source::kStore &&
      (outcome == Outcome::kGranted || outcome == Outcome::kDenied)) {
    const Charge& charge = acquisition.charges[0];
    relaxed_.Learn(EntryOf(*charge.rule), charge.key, acquisition.results[0].level, NowNs());
  }
  if (--job->open != 0) return;
  AcquireOperation* const operation = job->operation;
  if (free_jobs_.size() < kMaxFree) {
    free_jobs_.emplace_back(job);
  } else {
    delete job;
  }
  operation->Done();
}

void Shard::AnswerUnavailable(Caller& caller) {
  if (caller.job != nullptr) Answer(caller, DecideUnavailable(*caller.acquisition));
}

bool Shard::MayWait(size_t waiting) {
  if (waiting < store_.options_.max_waiting) return true;
  if (loop_.now_ns() >= log_busy_from_ns_) {
    log_busy_from_ns_ = loop_.now_ns() + kLogBusyEveryNs;
    LogError("redis_busy", absl::StrCat("asked for more than it decides: ", waiting,
                                        " wait on one event loop, and who comes now is answered "
                                        "as if it were away; spread the keys over a Cluster, or "
                                        "let nodes decide more by themselves (sharing: split or "
                                        "relaxed)"));
  }
  return false;
}

Outcome Shard::DecideUnavailable(Acquisition& acquisition) {
  bool allow = true;
  for (size_t i = 0; i < acquisition.charges.size(); ++i) {
    const Rule& rule = *acquisition.charges[i].rule;
    if (!rule.shadow && !rule.allow_when_store_unavailable) allow = false;
    ChargeResult& result = acquisition.results[i];
    result = {};
    result.level.capacity = algorithm::Capacity(rule.parameters);
    result.reason = Reason::kStoreUnavailable;
  }
  acquisition.source = Source::kStoreUnavailable;
  (allow ? counters_.allowed_away : counters_.denied_away).Add();
  return allow ? Outcome::kGranted : Outcome::kUnavailable;
}

void Shard::CheckDeadlines() {
  const int64_t now_ns = store_.clock_.NowNs();
  int64_t next_ns = kNoDeadline;
  // Collected first: callbacks may make lines, and end them.
  std::vector<Caller> unknown;
  std::vector<Caller> late;
  for (auto& [name, line] : lines_) {
    if (line->in_flight != nullptr) line->in_flight->CollectLate(now_ns, &unknown, &next_ns);
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
  for (Caller& caller : unknown) {
    Answer(caller,
           caller.acquisition->may_be_debited ? Outcome::kUnavailable : Outcome::kDeadlineExceeded);
  }
  for (Caller& caller : late) {
    caller.acquisition->now_ns = now_ns;
    Answer(caller, Outcome::kDeadlineExceeded);
  }
}

void Shard::WatchDeadlines() {
  if (next_deadline_ns_ == kNoDeadline) return;
  const int64_t left_ns = std::max<int64_t>(next_deadline_ns_ - store_.clock_.NowNs(), 0);
  if (left_ns >= net::TimerWheel::kNever - loop_.now_ns()) return;
  const int64_t at_ns = loop_.now_ns() + left_ns;
  if (watch_.armed() && watch_at_ns_ <= at_ns) return;
  watch_at_ns_ = at_ns;
  loop_.Arm(watch_, at_ns);
}

void Shard::OnWatch() {
  if (next_deadline_ns_ != kNoDeadline && store_.clock_.NowNs() > next_deadline_ns_) {
    CheckDeadlines();
  }
  WatchDeadlines();
}

// ---- Away and back ----

void Shard::OnUnavailable(Endpoint& endpoint) {
  std::vector<Caller> gathered;
  for (auto& [name, line] : lines_) {
    if (line->gathered.empty() || router_->EndpointOf(line->routing_key()) != &endpoint) continue;
    gathered.insert(gathered.end(), line->gathered.begin(), line->gathered.end());
    line->gathered.clear();
  }
  for (Caller& caller : gathered) AnswerUnavailable(caller);
}

void Shard::OnConnected(const absl::Status& status) { store_.Connected(*this, status); }

}  // namespace sluice::store::redis
