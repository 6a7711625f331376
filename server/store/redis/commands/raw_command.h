#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_RAW_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_RAW_COMMAND_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/store/redis/commands/command.h"

namespace sluice::store::redis {

// RedisStore::Call: any command, to whoever decides for `key`.
struct Call {
  std::string key;
  std::vector<std::string> words;
  // Null: it was not sent, or not answered, in which case it may have been executed.
  absl::AnyInvocable<void(const Reply*)> done;
  bool goes_ahead = false;  // see Command::GoesAhead
};

class CallCommand final : public Command {
 public:
  CallCommand(Shard& shard, Call call) : Command(shard), call_(std::move(call)) {}

 protected:
  std::string_view RoutingKey() const override { return call_.key; }
  bool GoesAhead() const override { return call_.goes_ahead; }
  bool Build(std::vector<std::string>* words) override {
    *words = call_.words;
    return true;
  }
  Next OnAnswer(const Reply& reply) override {
    call_.done(&reply);
    return Next::kEnd;
  }
  void OnError(const Reply& error) override { call_.done(&error); }
  void AnswerUnavailable() override { call_.done(nullptr); }

 private:
  Call call_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_RAW_COMMAND_H_
