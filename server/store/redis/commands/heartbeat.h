// Heartbeats: tell Redis that this node is there, and get all other nodes (scripts/heartbeat.lua).
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

// What a node says of itself.
struct Heartbeat {
  std::string key;  // of the nodes' hash
  std::string id;
  uint32_t divisor = 0;
  bool clear = true;  // it has nothing to debit
  int64_t ttl_ns = 0;
  int64_t not_after_us = 0;  // ignored later, on Redis' clock; 0: never ignored
};

struct HeartbeatReply {
  struct Node {
    std::string id;
    int64_t age_us = 0;
    uint32_t divisor = 0;
    bool clear = true;
  };
  int64_t now_us = 0;  // on Redis' clock
  bool is_new = false;
  // How long Redis has known any nodes at all: before, it may have lost the data of others.
  int64_t hash_age_us = 0;
  // How long this server may still answer after another one replaced it; 0: none can.
  int64_t lag_us = 0;
  // How long the former primary may still answer.
  int64_t held_us = 0;
  std::vector<Node> others;
};

// Key of the hash of all nodes. Deployments with other name spaces do not know of each other.
std::string NodesKey(std::string_view name_space);

// `token`: of the server that it is sent to.
std::vector<std::string> HeartbeatWords(const Heartbeat& heartbeat, const FencingToken& token,
                                        std::string_view test_time = "");
// nullopt: not the reply to a heartbeat, or the heartbeat came too late and was ignored.
std::optional<HeartbeatReply> ParseHeartbeat(const Reply& reply);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_
