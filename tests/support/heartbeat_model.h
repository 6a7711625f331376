// A model of scripts/heartbeat.lua in C++: the registry of nodes in Redis, on a clock of the test.
#ifndef SLUICE_TESTS_SUPPORT_HEARTBEAT_MODEL_H_
#define SLUICE_TESTS_SUPPORT_HEARTBEAT_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "server/store/redis/sharing/membership.h"

namespace sluice::testing {

// A copy stands for a replica.
class HeartbeatModel {
 public:
  // The fields of the fence.
  struct Data {
    std::string word;
    int64_t lag_us = 0;
    int64_t floor_us = 0;
  };
  Data data;

  // Returns nullopt if `now_us` is after `not_after_us`; 0 means no deadline.
  std::optional<store::redis::HeartbeatReply> Beat(const std::string& id, int64_t now_us,
                                                   uint32_t divisor, bool clear, int64_t ttl_us,
                                                   int64_t not_after_us = 0) {
    if (not_after_us != 0 && now_us > not_after_us) return std::nullopt;
    store::redis::HeartbeatReply reply;
    reply.now_us = now_us;
    reply.is_new = true;
    if (since_us_ < 0 || since_us_ > now_us) since_us_ = now_us;
    reply.hash_age_us = now_us - since_us_;
    if (word_ == data.word) {
      lag_us_ = std::max(lag_us_, data.lag_us);
    } else {
      const int64_t until_us = now_us + std::max(lag_us_, data.lag_us);
      held_us_ = std::max(held_us_, std::min(until_us, data.floor_us));
      lag_us_ = data.lag_us;
      word_ = data.word;
    }
    reply.lag_us = lag_us_;
    reply.held_us = std::max<int64_t>(held_us_ - now_us, 0);
    const int64_t keep_us = std::max(10 * ttl_us, 2 * (ttl_us + lag_us_));
    for (auto it = nodes_.begin(); it != nodes_.end();) {
      const auto current = it++;
      const int64_t age_us = std::max<int64_t>(now_us - current->second.at_us, 0);
      if (current->first == id) {
        reply.is_new = age_us >= ttl_us;
      } else if (age_us >= keep_us) {
        nodes_.erase(current);
      } else {
        reply.others.push_back(
            {current->first, age_us, current->second.divisor, current->second.clear});
      }
    }
    nodes_[id] = {now_us, divisor, clear};
    return reply;
  }
  void Leave(const std::string& id) { nodes_.erase(id); }
  void Lose() {
    nodes_.clear();
    since_us_ = -1;
    word_.clear();
    lag_us_ = held_us_ = 0;
  }

 private:
  struct Node {
    int64_t at_us = 0;
    uint32_t divisor = 0;
    bool clear = true;
  };
  std::map<std::string, Node> nodes_;
  int64_t since_us_ = -1;  // -1: no registry
  std::string word_;       // the fence at the last write
  int64_t lag_us_ = 0;
  int64_t held_us_ = 0;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_HEARTBEAT_MODEL_H_
