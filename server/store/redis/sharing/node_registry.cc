#include "server/store/redis/sharing/node_registry.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/store/redis/commands/command.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

// Debits in flight at once.
constexpr size_t kMaxDebits = 256;
// Looked at in a step.
constexpr size_t kMaxTries = 1024;
// Local buckets that are taken in a step, some tenths of a millisecond.
constexpr size_t kTakenInStep = 1024;
constexpr int64_t kLeaveNs = 200'000'000;
// When a rule was registered that long ago, the calls that begin use it.
constexpr int64_t kTableInUseNs = 50'000'000;

}  // namespace

NodeRegistry::NodeRegistry(CommandContext& context, std::string id, int64_t ttl_ns,
                           LocalBuckets& local_buckets, LocalBuckets& split_buckets,
                           common::Log* log)
    : context_(context),
      id_(std::move(id)),
      local_buckets_(local_buckets),
      split_buckets_(split_buckets),
      log_(log),
      membership_(ttl_ns) {
  Publish();
}

NodeRegistry::~NodeRegistry() = default;

void NodeRegistry::Start() {
  if (started_.exchange(true)) return;
  context_.loop().Post([this] {
    context_.loop().AddResident(*this);
    resident_ = true;
    SendHeartbeat();
    ArmNext();
  });
}

void NodeRegistry::OnAvailable() {
  if (!started()) return;
  context_.loop().Post([this] {
    if (!resident_ || left_) return;
    SendHeartbeat();
    ArmNext();
  });
}

void NodeRegistry::AwaitFirst(int64_t most_ns) {
  if (!started()) return;
  common::MutexLock lock(&mu_);
  Await(settled_once_, most_ns);
}

void NodeRegistry::Await(const bool& done, int64_t most_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(most_ns);
  while (!done) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    changed_.WaitFor(&mu_, left);
  }
}

void NodeRegistry::DebitSplit(std::shared_ptr<const Rule> rule) {
  if (!started()) return;
  context_.loop().Post([this, rule = std::move(rule)]() mutable {
    no_longer_split_.emplace_back(std::move(rule), context_.clock().NowNs());
  });
}

void NodeRegistry::Leave(int64_t most_ns) {
  if (!started()) return;
  // Until all is debited, heartbeats go on: the others must not decide exactly before.
  context_.loop().Post([this] {
    leaving_ = true;
    local_ = {};
    TakeGranted(local_buckets_.size());
    Publish();
    CheckAllDebited();
    if (answered_) SendDebits();
  });
  {
    common::MutexLock lock(&mu_);
    Await(all_debited_, most_ns);
  }
  context_.loop().Post([this] {
    left_ = true;
    timer_.Cancel();
    membership_ = Membership(membership_.ttl_ns());
    Publish();
    uint64_t lost = debiting_;
    for (const LocalBuckets::Granted& one : undebited_) lost += one.permits;
    if (log_ != nullptr && lost > 0) log_->Warning("redis_not_debited", {{"permits", lost}});
    const std::string key = NodesKey(context_.settings().name_space);
    RawCommand::Start(
        context_, key, {"HDEL", key, id_},
        [this](const Reply*) {
          common::MutexLock lock(&mu_);
          left_confirmed_ = true;
          changed_.SignalAll();
        },
        /*urgent=*/true);
  });
  common::MutexLock lock(&mu_);
  Await(left_confirmed_, kLeaveNs);
}

std::shared_ptr<const NodeRegistry::View> NodeRegistry::view() const {
  common::MutexLock lock(&mu_);
  return view_;
}

void NodeRegistry::OnLoopStop() {
  left_ = true;
  timer_.Cancel();
}

void NodeRegistry::ArmNext() {
  if (left_) return;
  context_.loop().ArmIn(timer_, std::max<int64_t>(membership_.IntervalNs(), 1'000'000));
}

void NodeRegistry::OnTimer() {
  const int64_t now_ns = context_.clock().NowNs();
  membership_.Tick(now_ns);
  Follow(now_ns);
  SendHeartbeat();
  ArmNext();
}

void NodeRegistry::SendHeartbeat() {
  if (in_flight_ || left_) return;
  in_flight_ = true;
  const int64_t now_ns = context_.clock().NowNs();
  const bool clear = membership_.Clear(HasUndebited());
  // A node that learns of it later would be misled.
  const int64_t not_after_us =
      redis_lead_.known() ? now_ns / 1000 + redis_lead_.us() + membership_.ttl_ns() / 4000 : 0;
  const Heartbeat heartbeat = {NodesKey(context_.settings().name_space),
                               id_,
                               membership_.announced(),
                               clear,
                               membership_.ttl_ns(),
                               not_after_us};
  // Other nodes take a node that is not heard of in time for gone: urgent.
  RawCommand::StartBuilt(
      context_, heartbeat.key,
      [this, heartbeat](const FencingToken& token) {
        return HeartbeatWords(heartbeat, token, context_.settings().TimeArgument(token));
      },
      [this, now_ns, clear](const Reply* reply) { OnReply(now_ns, clear, reply); },
      /*urgent=*/true);
}

void NodeRegistry::OnReply(int64_t sent_ns, bool clear, const Reply* reply) {
  in_flight_ = false;
  if (left_) return;
  const int64_t now_ns = context_.clock().NowNs();
  std::optional<HeartbeatReply> answer;
  if (reply != nullptr && !reply->is_error()) {
    answer = ParseHeartbeat(*reply);
    if (reply->type == Reply::Type::kArray && !reply->elements.empty() &&
        reply->elements[0].type == Reply::Type::kInteger) {
      redis_lead_.OnAnswer(sent_ns / 1000, now_ns / 1000, reply->elements[0].integer);
    }
  } else if (reply != nullptr && !std::exchange(refusal_logged_, true)) {
    context_.LogError("redis_heartbeat", ErrorText(*reply));
  }
  if (answer.has_value()) refusal_logged_ = false;
  if (answer.has_value()) {
    membership_.OnReply(sent_ns, now_ns, clear, *answer);
  } else {
    membership_.Tick(now_ns);
  }
  answered_ = answer.has_value();
  Follow(now_ns);
  {
    common::MutexLock lock(&mu_);
    if (!settled_once_ && (!answered_ || !membership_.settling())) {
      settled_once_ = true;
      changed_.SignalAll();
    }
  }
  if (answered_) ArmNext();
}

void NodeRegistry::Follow(int64_t now_ns) {
  const bool good = MayGrant(membership_.lenient(), membership_.lenient_until_ns(), now_ns);
  if (answered_) {
    if (!local_.none()) local_buckets_.SetOpen(false);
    local_ = {};
    if (membership_.settling() || HasUndebited()) SendDebits();
  } else if (local_.none()) {
    if (good && !leaving_ && now_ns >= membership_.local_from_ns() &&
        now_ns >= membership_.exact_until_ns()) {
      // What was not debited yet still has to be; these buckets are new.
      TakeGranted(kTakenInStep);
      if (local_buckets_.size() > 0) {
        FollowSoon();
      } else {
        local_.changes.push_back({1, now_ns, membership_.lenient().divisor()});
        local_buckets_.SetOpen(true);
      }
    }
  } else if (!good) {
    local_buckets_.SetOpen(false);
    local_ = {};
  }
  Publish();
}

void NodeRegistry::FollowSoon() {
  if (std::exchange(follows_soon_, true)) return;
  context_.loop().Post([this] {
    follows_soon_ = false;
    if (!left_) Follow(context_.clock().NowNs());
  });
}

void NodeRegistry::TakeGranted(size_t most) {
  const algorithm::Moment now = {context_.clock().NowNs(), context_.clock().WallNs()};
  const auto take = [this](std::vector<LocalBuckets::Granted> granted) {
    std::move(granted.begin(), granted.end(), std::back_inserter(undebited_));
  };
  take(local_buckets_.Take(most, now));
  std::erase_if(no_longer_split_, [&](const auto& one) {
    const auto& [rule, since_ns] = one;
    if (!leaving_ && now.now_ns - since_ns < kTableInUseNs) return false;
    split_buckets_.EndLimit(*rule);
    ended_from_ = 0;
    return true;
  });
  while (ended_from_ != LocalBuckets::kEnd) {
    take(split_buckets_.TakeEnded(now, &ended_from_));
    if (!leaving_) break;
  }
}

void NodeRegistry::SendDebits() {
  TakeGranted(kMaxDebits);
  StartDebits();
  // Most buckets may have nothing to debit.
  const bool may_take = undebited_.empty() && local_buckets_.size() > 0;
  if (may_take || ended_from_ != LocalBuckets::kEnd) FollowSoon();
}

void NodeRegistry::StartDebits() {
  const int64_t now_ns = context_.clock().NowNs();
  // Each once: what fails is tried again with the next heartbeat, after the others.
  for (size_t tries = std::min(undebited_.size(), kMaxTries);
       tries > 0 && debits_in_flight_ < kMaxDebits && !undebited_.empty(); --tries) {
    LocalBuckets::Granted one = std::move(undebited_.front());
    undebited_.pop_front();
    // A primary of a Cluster may stay unavailable for long, and no node is exact before all have
    // debited what they granted.
    if (one.until_ns <= now_ns) continue;
    ++debits_in_flight_;
    // If it is not known whether a debit was executed it is sent again, and may count twice.
    auto rule = one.rule;
    const std::string key = one.key;
    const uint64_t permits = one.permits;
    debiting_ += permits;
    StartDebit(context_, std::move(rule), key, permits,
               [this, one = std::move(one)](const DebitResult& result) {
                 --debits_in_flight_;
                 debiting_ -= one.permits;
                 if (!result.known) return undebited_.push_back(one);
                 debited_ += one.permits;
                 if (!answered_ || left_) return CheckAllDebited();
                 // Many replies may come at once: only Follow takes more buckets.
                 StartDebits();
                 if (undebited_.empty() && local_buckets_.size() > 0) FollowSoon();
               });
  }
  CheckAllDebited();
}

void NodeRegistry::CheckAllDebited() {
  if (HasUndebited()) return;
  if (log_ != nullptr && debited_ > 0) log_->Info("redis_debited", {{"permits", debited_}});
  debited_ = 0;
  if (!leaving_) return;
  common::MutexLock lock(&mu_);
  all_debited_ = true;
  changed_.SignalAll();
}

void NodeRegistry::Publish() {
  auto view = std::make_shared<View>(View{answered_, membership_, local_, {}});
  view->nodes.push_back(
      {id_, true, false,
       std::max(membership_.strict().divisor(), membership_.lenient().divisor())});
  for (const HeartbeatReply::Node& other : membership_.others()) {
    view->nodes.push_back({other.id, false, membership_.Lapsed(other), other.divisor});
  }
  const auto& others = membership_.others();
  count_.store(1 + static_cast<size_t>(
                       std::count_if(others.begin(), others.end(),
                                     [this](const auto& one) { return membership_.Counts(one); })),
               std::memory_order_relaxed);
  common::MutexLock lock(&mu_);
  view_ = std::move(view);
}

}  // namespace sluice::store::redis
