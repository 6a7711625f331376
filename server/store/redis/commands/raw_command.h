// RawCommand: any words, sent once to the server of `key`.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_RAW_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_RAW_COMMAND_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/store/redis/commands/command.h"

namespace sluice::store::redis {

class RawCommand final : public Command {
 public:
  // Gets the reply, which may be an error. Null: it was not sent, or not answered; then it may have
  // been executed.
  using Done = absl::AnyInvocable<void(const Reply*)>;

  static void Start(CommandContext& context, std::string key, std::vector<std::string> words,
                    Done done, bool urgent = false) {
    CommandSender::Start(
        *new RawCommand(context, std::move(key), std::move(words), std::move(done), urgent));
  }

 private:
  RawCommand(CommandContext& context, std::string key, std::vector<std::string> words, Done done,
             bool urgent)
      : Command(context),
        key_(std::move(key)),
        words_(std::move(words)),
        done_(std::move(done)),
        urgent_(urgent) {}

  std::string_view RoutingKey() const override { return key_; }
  bool urgent() const override { return urgent_; }
  bool Build(std::vector<std::string>* words) override {
    *words = words_;
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
  const std::vector<std::string> words_;
  Done done_;
  const bool urgent_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_RAW_COMMAND_H_
