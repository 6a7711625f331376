#include "server/store/redis/shard/shard.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/shard/cross_slot.h"
#include "server/store/redis/wire/parameters_text.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kLogBusyEveryNs = 10'000'000'000;

}  // namespace

Shard::Shard(StoreState& state, net::EventLoop& loop, net::Resolver& resolver,
             const EndpointOptions& options,
             absl::AnyInvocable<void(const absl::Status&)> on_connected)
    : state_(state),
      loop_(loop),
      endpoint_options_(options),
      settings_{state.options.name_space, options.budget_ns / 8, state.options.test_time},
      on_connected_(std::move(on_connected)),
      router_(MakeRouter({{loop_, resolver, counters_, state.fence_options, state.fences},
                          endpoint_options_,
                          *this})),
      local_(*this, state.sharing, *this),
      acquires_(
          counters_, [this](const Acquisition& acquisition) { local_.LearnRelaxed(acquisition); },
          [this] { turns_.OnAnswered(); }),
      queues_(*this, state.options.max_gathered),
      turns_(loop_, state.clock, acquires_, [this](const Caller& caller) { BeginOne(caller); }),
      queries_([this](QueryItem& item, int64_t deadline_ns, absl::AnyInvocable<void()> answered) {
        AskFor(item, deadline_ns, std::move(answered));
      }),
      closer_(*this),
      inbox_(loop, [this] {
        ended_ = true;
        turns_.End();
        queries_.End();
      }) {}

Shard::~Shard() = default;

void Shard::Connect() {
  loop_.Post([this] {
    loop_.AddResident(*this);
    router_->Start();
  });
}

void Shard::OnLoopStop() {
  ended_ = true;
  turns_.End();
  queries_.End();
  absl::flat_hash_set<CommandSender*> waiting;
  waiting.swap(sends_.waiting);
  for (CommandSender* sender : waiting) sender->Drop();
}

void Shard::Begin(AcquireOperation* operation) {
  const bool takes_turns = BatchTurns::IsBatch(*operation) && !local_.NeedsNoRedis(*operation);
  if (!takes_turns) return Begin(operation, /*receipt_id=*/0);
  if (!Admit(operation)) return;
  if (!MayWait(acquires_.waiting() + turns_.waiting())) {
    return acquires_.CompleteUnavailable(operation);
  }
  turns_.Begin(operation);
}

bool Shard::Admit(AcquireOperation* operation) {
  if (operation->acquisitions.empty()) {
    operation->Done();
    return false;
  }
  if (ended_ || (!state_.sharing.nodes->started() && router_->AllUnavailable())) {
    acquires_.CompleteUnavailable(operation);
    return false;
  }
  return true;
}

void Shard::Begin(AcquireOperation* operation, uint64_t receipt_id) {
  if (!Admit(operation)) return;
  // The last answer completes the operation, which may be gone then.
  const absl::Span<Acquisition> acquisitions = operation->acquisitions;
  PendingAcquire* const pending = acquires_.Begin(operation, receipt_id);
  for (Acquisition& acquisition : acquisitions) BeginOne(acquires_.Add(pending, acquisition));
}

void Shard::BeginOne(const Caller& caller) {
  if (local_.Acquire(caller)) return;
  Acquisition& acquisition = *caller.acquisition;
  Caller answered = caller;
  std::vector<ChargeGroup> groups;
  if (router_->Splits() && acquisition.charges.size() > 1) {
    groups = GroupsOf(*this, acquisition.charges);
  }
  const bool needs_one_slot = acquisition.max_wait_ns > 0 || acquisition.once != nullptr ||
                              acquisition.settle_within_ns != 0;
  if (needs_one_slot && groups.size() > 1) {
    acquisition.other_slot_charge = OtherSlotCharge(groups);
    acquires_.Answer(answered, Outcome::kSeveralSlots);
  } else if (ended_ || router_->AllUnavailable() || !MayWait(acquires_.waiting() - 1)) {
    acquires_.AnswerUnavailable(answered);
  } else if (groups.size() > 1) {
    StartCrossSlot(*this, std::move(groups), caller);
  } else {
    queues_.Add(caller);
  }
}

void Shard::AskFor(QueryItem& item, int64_t deadline_ns, absl::AnyInvocable<void()> answered) {
  if (local_.Query(item)) return answered();
  StartQuery(
      *this, {BucketOf(*item.rule, item.key)}, {1}, deadline_ns,
      [answered = std::move(answered), &item](absl::Span<const QueriedBucket> found) mutable {
        item.unavailable = found.empty();
        if (found.empty()) {
          item.source = Source::kStoreUnavailable;
        } else {
          item.exists = found[0].exists;
          item.level = found[0].level;
          item.waiting = found[0].bookings;
          item.next_grant_after_ns = found[0].next_grant_after_ns;
          item.refundable = found[0].refundable;
          item.holds = found[0].holds;
          item.next_end_after_ns = found[0].next_end_after_ns;
        }
        answered();
      });
}

void Shard::Begin(RefundOperation* operation) {
  std::fill_n(operation->refunded, operation->charges.size(), uint64_t{0});
  if (local_.Refund(operation)) return;
  if (router_->Splits() && operation->charges.size() > 1) {
    std::vector<ChargeGroup> groups = GroupsOf(*this, operation->charges);
    if (groups.size() > 1) return StartCrossSlot(*this, std::move(groups), operation);
  }
  StartRefund(*this, operation, BucketsOf(operation->charges));
}

void Shard::Begin(SettleOperation* operation) {
  if (router_->Splits() && operation->charges.size() > 1) {
    const std::vector<ChargeGroup> groups = GroupsOf(*this, operation->charges);
    if (groups.size() > 1) return StartCrossSlot(*this, groups, operation);
  }
  StartSettle(*this, operation);
}

void Shard::Reset(const Rule& rule, std::string_view key,
                  absl::AnyInvocable<void(ResetOutcome)> done) {
  if (rule.sharing != Sharing::kSplit)
    return StartReset(*this, BucketOf(rule, key), std::move(done));
  done(local_.Reset(rule, key) ? ResetOutcome::kReset : ResetOutcome::kNotInUse);
}

std::shared_ptr<const RuleEntry> Shard::EntryOf(const Rule& rule) {
  std::weak_ptr<const RuleEntry>& known = entries_[rule.id];
  std::shared_ptr<const RuleEntry> entry = known.lock();
  if (entry == nullptr) {
    entry = state_.rules.Find(rule.id);
    known = entry;
    // Entries of limits that changed, now and then.
    if (entries_.size() >= prune_entries_at_) {
      absl::erase_if(entries_, [](const auto& one) { return one.second.expired(); });
      prune_entries_at_ = std::max<size_t>(1024, 2 * entries_.size());
    }
  }
  return entry;
}

void Shard::OnConverted(const Bucket& bucket, std::string_view writer,
                        const algorithm::Parameters& from) {
  if (state_.rules.WroteAs(writer)) return;
  const Rule& rule = *bucket.rule->rule;
  state_.mismatches.OnConverted(rule.limit_name, bucket.keys[0], Describe(rule.parameters),
                                Describe(from));
}

bool Shard::MayWait(size_t waiting) {
  if (waiting < state_.options.max_waiting) return true;
  if (loop_.now_ns() >= log_busy_from_ns_) {
    log_busy_from_ns_ = loop_.now_ns() + kLogBusyEveryNs;
    LogError(
        "redis_busy",
        absl::StrCat("Redis gets more requests than it decides: ", waiting,
                     " wait on one event loop, and further ones are answered as if Redis were "
                     "unavailable; spread the keys over a Cluster, or let nodes decide more by "
                     "themselves (sharing: split or relaxed)"));
  }
  return false;
}

void Shard::LogError(std::string_view event, std::string_view what) {
  if (state_.log == nullptr) return;
  state_.log->Warning(event,
                      {{"error", common::ToAbsl(what)}, {"store", state_.options.url.ToString()}});
}

}  // namespace sluice::store::redis
