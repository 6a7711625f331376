// HeartbeatCommand: tells Redis that this node is there, and gets all other nodes
// (scripts/heartbeat.lua).
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
#include "server/store/redis/fencing/fence.h"

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
  // How long this server may go on answering when another has taken its place; 0: none takes it.
  int64_t lag_us = 0;
  // How long the server whose place it took may still go on.
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

class HeartbeatCommand final : public Command {
 public:
  // Gets the reply. Null: it was not sent, or not answered; then it may have been executed.
  using Done = absl::AnyInvocable<void(const Reply*)>;

  static void Start(CommandContext& context, Heartbeat heartbeat, Done done) {
    CommandSender::Start(*new HeartbeatCommand(context, std::move(heartbeat), std::move(done)));
  }

 private:
  HeartbeatCommand(CommandContext& context, Heartbeat heartbeat, Done done)
      : Command(context), heartbeat_(std::move(heartbeat)), done_(std::move(done)) {}

  std::string_view RoutingKey() const override { return heartbeat_.key; }
  // Other nodes take a node that is not heard of in time for gone.
  bool urgent() const override { return true; }
  bool Build(std::vector<std::string>* words) override {
    const FencingToken& token = context_.router().TokenFor(sender_.endpoint(), RoutingKey());
    *words = HeartbeatWords(heartbeat_, token, context_.settings().TimeArgument());
    return true;
  }
  Next OnReply(const Reply& reply) override {
    done_(&reply);
    return {};
  }
  void OnError(const Reply& error) override { done_(&error); }
  void OnUnavailable() override { done_(nullptr); }
  void OnEnd() override { delete this; }

  const Heartbeat heartbeat_;
  Done done_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_HEARTBEAT_H_
