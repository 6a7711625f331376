// Command: one request to Redis. It is built, sent (command_sender.h), and gets its reply; its
// return value then says what happens next.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/commands/command_sender.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

// What follows a reply.
struct Next {
  enum class What : uint8_t {
    kDone,     // its callers were answered
    kAbandon,  // its callers are answered without Redis
    kSend,     // it is built and sent again
    kRetry,    // the same, but only a few times: something rare happened each time
  };
  What what = What::kDone;
  int64_t after_ns = 0;  // kSend, kRetry: not before
};

// Belongs to its shard's loop.
class Command {
 public:
  virtual std::string_view RoutingKey() const = 0;
  // It is sent at once, even if others wait for room. For a few commands that keep a node alive.
  virtual bool urgent() const { return false; }
  // Replaces `words`, whose memory is reused. False: no caller waits any more; it is not sent.
  virtual bool Build(std::vector<std::string>* words) = 0;
  // The reply, which is not an error.
  virtual Next OnReply(const Reply& reply) = 0;
  // An error that sending again does not cure.
  virtual void OnError(const Reply&) { OnUnavailable(); }
  // Answers the callers without Redis.
  virtual void OnUnavailable() = 0;
  // The last call: destroys the command.
  virtual void OnEnd() = 0;

 protected:
  explicit Command(CommandContext& context) : context_(context), sender_(*this, context) {}
  ~Command() = default;

  friend class CommandSender;
  CommandContext& context_;
  CommandSender sender_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_
