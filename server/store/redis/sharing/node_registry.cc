#include "server/store/redis/sharing/node_registry.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/store/redis/commands/debit.h"
#include "server/store/redis/commands/heartbeat.h"
#include "server/store/redis/shard/shard.h"

namespace sluice::store::redis {
namespace {

// Reports under way at once.
constexpr size_t kMaxReports = 256;
constexpr int64_t kLeaveNs = 200'000'000;

}  // namespace

Nodes::Nodes(const common::Clock& clock, Shard& shard, net::EventLoop& loop, std::string name_space,
             std::string id, int64_t ttl_ns, LocalBuckets& away, common::Log* log)
    : clock_(clock),
      shard_(shard),
      loop_(loop),
      name_space_(std::move(name_space)),
      id_(std::move(id)),
      away_(away),
      log_(log),
      membership_(ttl_ns),
      view_(std::make_shared<View>()) {
  Publish();
}

Nodes::~Nodes() = default;

void Nodes::Start() {
  if (started_.exchange(true)) return;
  loop_.Post([this] {
    loop_.AddResident(*this);
    resident_ = true;
    Beat();
    ArmNext();
  });
}

void Nodes::Back() {
  if (!started()) return;
  loop_.Post([this] {
    if (!resident_ || left_) return;
    Beat();
    ArmNext();
  });
}

void Nodes::AwaitFirst(int64_t most_ns) {
  if (!started()) return;
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(most_ns);
  common::MutexLock lock(&mu_);
  while (!first_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    changed_.WaitFor(&mu_, left);
  }
}

void Nodes::Leave() {
  if (!started()) return;
  loop_.Post([this] {
    left_ = true;
    timer_.Cancel();
    local_ = {};
    membership_ = Membership(membership_.ttl_ns());
    away_.Close();
    Publish();
    const std::string key = NodesKey(name_space_);
    Call call{key, {"HDEL", key, id_}, [this](const Reply*) {
                common::MutexLock lock(&mu_);
                gone_ = true;
                changed_.SignalAll();
              }};
    call.goes_ahead = true;
    shard_.Start(std::move(call));
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kLeaveNs);
  common::MutexLock lock(&mu_);
  while (!gone_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    changed_.WaitFor(&mu_, left);
  }
}

std::shared_ptr<const Nodes::View> Nodes::view() const {
  common::MutexLock lock(&mu_);
  return view_;
}

void Nodes::OnLoopStop() {
  left_ = true;
  timer_.Cancel();
}

void Nodes::ArmNext() {
  if (left_) return;
  loop_.ArmIn(timer_, std::max<int64_t>(membership_.IntervalNs(), 1'000'000));
}

void Nodes::OnTimer() {
  const int64_t now_ns = clock_.NowNs();
  membership_.Tick(now_ns);
  Follow(now_ns);
  Beat();
  ArmNext();
}

void Nodes::Beat() {
  if (beating_ || left_) return;
  beating_ = true;
  const int64_t now_ns = clock_.NowNs();
  const bool clear = membership_.Clear(Unreported());
  // Who hears of it later than this node believes to have said it would be misled.
  const int64_t not_after_us =
      redis_lead_.known() ? now_ns / 1000 + redis_lead_.us() + membership_.ttl_ns() / 4000 : 0;
  shard_.Start(
      HeartbeatCall{{NodesKey(name_space_), id_, membership_.announced(), clear,
                     membership_.ttl_ns(), not_after_us},
                    [this, now_ns, clear](const Reply* reply) { OnReply(now_ns, clear, reply); }});
}

void Nodes::OnReply(int64_t sent_ns, bool clear, const Reply* reply) {
  beating_ = false;
  if (left_) return;
  const int64_t now_ns = clock_.NowNs();
  std::optional<HeartbeatReply> answer;
  if (reply != nullptr && !reply->is_error()) {
    answer = ParseHeartbeat(*reply);
    if (reply->type == Reply::Type::kArray && !reply->elements.empty() &&
        reply->elements[0].type == Reply::Type::kInteger) {
      redis_lead_.OnAnswer(sent_ns / 1000, now_ns / 1000, reply->elements[0].integer);
    }
  } else if (reply != nullptr && !std::exchange(refused_, true)) {
    shard_.LogError("redis_heartbeat", ErrorText(*reply));
  }
  if (answer.has_value()) refused_ = false;
  const bool settled = !membership_.settling();
  if (answer.has_value()) {
    membership_.OnReply(sent_ns, now_ns, clear, *answer);
  } else {
    membership_.Tick(now_ns);
  }
  answered_ = answer.has_value();
  Follow(now_ns);
  {
    common::MutexLock lock(&mu_);
    if (!first_ && (!answered_ || !membership_.settling())) {
      first_ = true;
      changed_.SignalAll();
    }
  }
  if (!settled && !membership_.settling() && reported_ > 0) {
    if (log_ != nullptr) log_->Info("redis_reported", {{"permits", reported_}});
    reported_ = 0;
  }
  if (answered_) ArmNext();
}

void Nodes::Follow(int64_t now_ns) {
  const bool good = MayGrant(membership_.lenient(), membership_.lenient_until_ns(), now_ns);
  if (answered_) {
    if (!local_.none()) away_.Close();
    local_ = {};
    if (membership_.settling()) SendReports();
  } else if (local_.none()) {
    if (good && now_ns >= membership_.local_from_ns() && now_ns >= membership_.exact_until_ns()) {
      // What was not reported yet still is to be; these buckets are new.
      std::vector<LocalBuckets::Granted> rest = away_.TakeAll({now_ns, clock_.WallNs()});
      std::move(rest.begin(), rest.end(), std::back_inserter(unreported_));
      local_.changes.push_back({1, now_ns, membership_.lenient().divisor()});
      away_.Open();
    }
  } else if (!good) {
    away_.Close();
    local_ = {};
  }
  Publish();
}

void Nodes::SendReports() {
  const int64_t now_ns = clock_.NowNs();
  std::vector<LocalBuckets::Granted> rest = away_.TakeAll({now_ns, clock_.WallNs()});
  std::move(rest.begin(), rest.end(), std::back_inserter(unreported_));
  // A primary of a Cluster may stay away for long, and nobody is exact before all have reported.
  std::erase_if(unreported_,
                [&](const LocalBuckets::Granted& one) { return one.until_ns <= now_ns; });
  // Each once: what fails at once is tried again with the next heartbeat.
  for (size_t tries = unreported_.size(); tries > 0 && in_flight_ < kMaxReports; --tries) {
    if (unreported_.empty()) return;
    LocalBuckets::Granted one = std::move(unreported_.back());
    unreported_.pop_back();
    ++in_flight_;
    // A copy, in case it is not known whether it was executed: then it is sent again, and may be
    // debited twice.
    const LocalBuckets::Granted again = one;
    shard_.Start(ReportCall{std::move(one.rule), std::move(one.key), one.permits,
                            [this, again](const Reported& reported) {
                              --in_flight_;
                              if (!reported.known) {
                                unreported_.push_back(again);
                              } else {
                                reported_ += again.permits;
                                if (answered_ && !left_) SendReports();
                              }
                            }});
  }
}

void Nodes::Publish() {
  auto view = std::make_shared<View>();
  view->answered = answered_;
  view->strict = membership_.strict();
  view->lenient = membership_.lenient();
  view->strict_until_ns = membership_.strict_until_ns();
  view->lenient_until_ns = membership_.lenient_until_ns();
  view->joins_at_ns = membership_.joins_at_ns();
  view->exact_until_ns = membership_.settling() ? 0 : membership_.exact_until_ns();
  view->local = local_;
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
