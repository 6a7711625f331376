// A node's heartbeat to Redis: its words, its answer, and the command (scripts/heartbeat.lua).
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/fencing/fencing_token.h"
#include "server/store/redis/sharing/membership.h"

namespace sluice::store::redis {

// What a node says of itself.
struct Heartbeat {
  std::string key;  // of the nodes' hash
  std::string id;
  uint32_t divisor = 0;
  bool clear = true;
  int64_t ttl_ns = 0;
  int64_t not_after_us = 0;  // on Redis' clock; 0: it may be said whenever
};

// Of the hash of all nodes; deployments with other name spaces do not know of each other.
std::string NodesKey(std::string_view name_space);

// `term`: of the data at the server that it is said to.
std::vector<std::string> HeartbeatWords(const Heartbeat& heartbeat, const FencingToken& term,
                                        std::string_view test_time = "");
// The answer. nullopt: it is none, or the heartbeat came too late to be heeded.
std::optional<HeartbeatReply> ParseHeartbeat(const Reply& reply);

struct HeartbeatCall {
  Heartbeat heartbeat;
  // Null: it was not sent, or not answered, in which case it may have been heeded.
  absl::AnyInvocable<void(const Reply*)> done;
};

// A heartbeat on its way (heartbeat.lua).
class HeartbeatCommand final : public Command {
 public:
  HeartbeatCommand(Shard& shard, HeartbeatCall call) : Command(shard), call_(std::move(call)) {}

 protected:
  std::string_view RoutingKey() const override { return call_.heartbeat.key; }
  // A node that is not heard of in time is taken for gone.
  bool GoesAhead() const override { return true; }
  bool Build(std::vector<std::string>* words) override;
  Next OnAnswer(const Reply& reply) override {
    call_.done(&reply);
    return Next::kEnd;
  }
  void OnError(const Reply& error) override { call_.done(&error); }
  void AnswerUnavailable() override { call_.done(nullptr); }

 private:
  HeartbeatCall call_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_
