#include "server/store/redis/topology/cluster_primary.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/store/redis/fencing/fence.h"

namespace sluice::store::redis {
namespace {

// A server that answered CLUSTERDOWN gets no commands for so long.
constexpr int64_t kDownNs = 50'000'000;
constexpr int64_t kLogDownEveryNs = 10'000'000'000;
// A server without slots that was sent nothing is dropped after so long.
constexpr int64_t kUnusedNs = 30'000'000'000;

}  // namespace

void ClusterPrimary::OnDown(std::string_view why) {
  const int64_t now_ns = context_.loop.now_ns();
  down_until_ns_ = now_ns + kDownNs;
  if (now_ns < log_down_from_ns_) return;
  log_down_from_ns_ = now_ns + kLogDownEveryNs;
  endpoint().LogError("redis_cluster_down", why);
}

bool ClusterPrimary::unused() const {
  return context_.loop.now_ns() - used_ns_ > kUnusedNs && endpoint().idle();
}

void ClusterPrimary::OnAvailable() {
  resolved_ = true;
  failure_ = absl::OkStatus();
  down_until_ns_ = 0;
  cluster_.OnPrimaryAvailable();
}

void ClusterPrimary::OnFailed(const absl::Status& why) {
  resolved_ = true;
  failure_ = why;
  cluster_.OnPrimaryFailed();
}

// The highest slot first: tools that move slots begin with the lowest.
std::vector<std::string> ClusterPrimary::FenceKeys() const {
  std::vector<std::string> keys;
  const auto add = [&](std::string key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  };
  const std::vector<uint16_t> slots = slots_.SlotsOf(address());
  if (slots.empty()) return keys;
  add(FenceKeyInSlot(name_space(), slots.back()));
  add(FenceKeyInSlot(name_space(), slots.front()));
  for (const auto& [key, fence] : context_.known.All()) {
    if (slots_.Has(address(), SlotOf(key))) add(key);
  }
  return keys;
}

std::vector<std::string> ClusterPrimary::FloorKeys(bool unread) const {
  std::vector<std::string> keys;
  for (const uint16_t slot : slots_.SlotsOf(address())) {
    if (unread && slots_.FloorsOf(slot) != nullptr) continue;
    keys.push_back(FloorKey(name_space(), slot));
  }
  return keys;
}

void ClusterPrimary::OnFloors(absl::Span<const std::string> keys, absl::Span<const Reply> floors) {
  // Most slots have the same.
  absl::flat_hash_map<std::string_view, std::shared_ptr<const SlotFloors>> read;
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint16_t slot = SlotOf(keys[i]);
    // The slot may have left, or not be here yet: then its floors are read where it is.
    if (!slots_.Has(address(), slot) || floors[i].type != Reply::Type::kString) continue;
    auto& noted = read[floors[i].text];
    if (noted == nullptr) {
      noted = std::make_shared<const SlotFloors>(ParseSlotFloors(floors[i].text));
    }
    slots_.SetFloors(slot, noted);
  }
}

}  // namespace sluice::store::redis
