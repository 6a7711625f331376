#include "server/access/client_use.h"

#include <algorithm>
#include <iterator>

#include "common/bounds.h"
#include "common/errors.h"

namespace sluice::access {
namespace {

constexpr int64_t kLogPeriodNs = 60'000'000'000;

constexpr std::string_view kBoundNames[] = {"max_calls_per_second", "max_held_calls", "max_streams",
                                            "max_new_keys_per_minute", "max_table_share"};
static_assert(std::size(kBoundNames) == kClientBounds);

}  // namespace

std::string_view BoundName(ClientBound bound) { return kBoundNames[static_cast<size_t>(bound)]; }

void ClientUse::SetBounds(const ClientBounds& bounds) {
  for (size_t i = 0; i < kClientBounds; ++i) {
    most_[i].store(bounds.Of(static_cast<ClientBound>(i)), std::memory_order_relaxed);
  }
  static_assert(kNoBound == algorithm::SharedRate::kUnbounded);
  static_assert(common::bounds::kMaxClientBound <= algorithm::SharedRate::kMost);
  calls_.SetPermits(bounds.Of(ClientBound::kCallsPerSecond));
  new_keys_.SetPermits(bounds.Of(ClientBound::kNewKeysPerMinute));
}

bool ClientUse::Enter(ClientBound bound) {
  std::atomic<uint64_t>& open = open_[Index(bound)];
  uint64_t now = open.load(std::memory_order_relaxed);
  do {
    if (now >= most(bound)) return false;
  } while (!open.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
  return true;
}

absl::Status ClientUse::Refuse(ClientBound bound, uint64_t times, int64_t now_ns) {
  const size_t i = Index(bound);
  const uint64_t refused = refused_[i].fetch_add(times, std::memory_order_relaxed) + times;
  int64_t not_before_ns = log_not_before_[i].load(std::memory_order_relaxed);
  // Of several threads, the one that moves the time writes the line.
  if (log_ != nullptr && now_ns >= not_before_ns &&
      log_not_before_[i].compare_exchange_strong(not_before_ns, now_ns + kLogPeriodNs,
                                                 std::memory_order_relaxed)) {
    log_->Warning("client_over_bound",
                  {{"client", name_},
                   {"bound", common::ToAbsl(BoundName(bound))},
                   {"value", most(bound)},
                   {"refused", refused - logged_[i].exchange(refused, std::memory_order_relaxed)}});
  }
  return common::errors::ClientOverBound(name_, BoundName(bound), most(bound));
}

bool ClientPlace::Enter(std::shared_ptr<ClientUse> use, ClientBound bound) {
  if (!use->Enter(bound)) return false;
  use_ = std::move(use);
  bound_ = bound;
  return true;
}

std::shared_ptr<ClientUse> ClientUses::Of(const std::string& name) {
  const common::MutexLock lock(&mu_);
  if (uses_.size() >= sweep_at_) {
    absl::erase_if(uses_, [](const auto& one) { return one.second.expired(); });
    sweep_at_ = 2 * uses_.size() + 64;
  }
  std::weak_ptr<ClientUse>& kept = uses_[name];
  std::shared_ptr<ClientUse> use = kept.lock();
  if (use == nullptr) {
    const auto number =
        numbers_.try_emplace(name, std::min(numbers_.size() + 1, size_t{UINT16_MAX})).first->second;
    use = std::make_shared<ClientUse>(name, log_, number);
    kept = use;
  }
  return use;
}

}  // namespace sluice::access
