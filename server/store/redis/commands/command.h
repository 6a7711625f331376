// Command: one request to Redis. It is built, sent (command_sender.h), and gets its reply; its
// return value then says what happens next. RawCommand: any words, sent once.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
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
  // False: not to be sent yet; the command calls its sender's Resume later.
  virtual bool Ready() { return true; }
  // How much it asks of the server (script_size.h), once it is built.
  virtual size_t units() const { return 1; }
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

class RawCommand final : public Command {
 public:
  // Gets the reply, which may be an error. Null: it was not sent, or not answered; then it may have
  // been executed.
  using Done = absl::AnyInvocable<void(const Reply*)>;
  // Makes the words. The token is that of the server that they are sent to.
  using Words = absl::AnyInvocable<std::vector<std::string>(const FencingToken&)>;

  static void Start(CommandContext& context, std::string key, std::vector<std::string> words,
                    Done done, bool urgent = false) {
    StartBuilt(
        context, std::move(key), [words = std::move(words)](const FencingToken&) { return words; },
        std::move(done), urgent);
  }
  static void StartBuilt(CommandContext& context, std::string key, Words words, Done done,
                         bool urgent) {
    CommandSender::Start(
        *new RawCommand(context, std::move(key), std::move(words), std::move(done), urgent));
  }

 private:
  RawCommand(CommandContext& context, std::string key, Words words, Done done, bool urgent)
      : Command(context),
        key_(std::move(key)),
        words_(std::move(words)),
        done_(std::move(done)),
        urgent_(urgent) {}

  std::string_view RoutingKey() const override { return key_; }
  bool urgent() const override { return urgent_; }
  bool Build(std::vector<std::string>* words) override {
    *words = words_(context_.router().TokenFor(sender_.endpoint(), key_));
    return true;
  }
  Next OnReply(const Reply& reply) override {
    done_(&reply);
    return {};
  }
  void OnError(const Reply& error) override { done_(&error); }
  void OnUnavailable() override { done_(nullptr); }
  void OnEnd() override { delete this; }

  const std::string key_;
  Words words_;
  Done done_;
  const bool urgent_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_
