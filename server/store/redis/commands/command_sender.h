// CommandSender: sends one command to the server of its key, and sends it again when Redis did not
// execute it (a flushed script, a moved slot, a replaced fence).
//
// Never sends again what may have been executed.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_SENDER_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_SENDER_H_

#include <cstdint>
#include <memory>

#include "common/net/timer_wheel.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

class Command;
class CommandContext;

// A part of its command. Belongs to its shard's loop.
class CommandSender final : private Endpoint::Request, private Endpoint::RoomWaiter {
 public:
  CommandSender(Command& command, CommandContext& context) : command_(command), context_(context) {}

  // Sends the command, behind commands that wait for room at its server. The command must be on the
  // heap: its OnEnd follows, perhaps before this returns.
  static void Start(Command& command);
  // Sends it before commands that wait for room.
  static void StartInTurn(Command& command);

  // The command is ready, after it was not.
  void Resume();

  // The loop ends while the command waits to be sent: ends it.
  void Drop();

  // The reply that is being handled is of a script that began at this time of the server's clock.
  // REQUIRES: in OnReply.
  void OnBegan(int64_t server_ns) { TookPlaceAt(server_ns); }
  // It was sent, and no reply says that it was not executed.
  bool answer_missing() const { return answer_missing_; }
  // The server that it is sent to, or was last. REQUIRES: in Build, or later.
  Endpoint& endpoint() const { return *endpoint_; }

 private:
  void OnAnswered(Reply* reply) override;
  void OnRoom(Endpoint& endpoint) override;
  void Abandon() override;

  // These return whether the command is in flight, or will be. If not it is to be ended.
  bool SendAgain();
  bool SendTo(Endpoint* endpoint, bool asking);
  bool AwaitRoom(Endpoint& endpoint);
  bool SendLater(int64_t after_ns);
  bool OnErrorReply(const Reply& error);
  // Counts how often the command was sent again. False: too often; it was abandoned.
  bool MayRetry();
  void OnTimer();
  void End();

  Command& command_;
  CommandContext& context_;
  Endpoint* endpoint_ = nullptr;
  int tries_ = 0;
  bool asking_ = false;
  bool answer_missing_ = false;
  std::unique_ptr<net::Timer> timer_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_SENDER_H_
