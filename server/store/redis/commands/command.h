// Command: something that Redis is asked to do. It is sent once the server has room for it, perhaps
// sent again when Redis did not execute it (a flushed script, a moved slot), answered once, and
// destroys itself.
//
// Never sent again when it is not known whether it was executed. Belongs to its shard's loop.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/timer_wheel.h"
#include "server/store/redis/connection/connection.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

class Shard;

class Command : private Connection::Waiter, private Endpoint::RoomWaiter {
 public:
  virtual ~Command() = default;

  // Sends it to whoever decides for its key, behind those who wait for room there.
  static void Start(std::unique_ptr<Command> command);
  // The same, of one whose turn it is.
  static void StartInTurn(std::unique_ptr<Command> command);

  // Answers the callers without Redis; its answer, if it still comes, is dropped.
  void Abandon();
  // The loop ends while it waits to be sent: abandons and destroys it.
  void Drop();
  bool given_up() const { return given_up_; }

 protected:
  explicit Command(Shard& shard) : shard_(shard) {}

  // What the router looks at.
  virtual std::string_view RoutingKey() const = 0;
  // It is sent at once, whoever waits for room: what the node needs to be one of several. Few are.
  virtual bool GoesAhead() const { return false; }
  // Replaces what is in `words`, whose memory is used again and again. False: nobody waits for it
  // any more.
  virtual bool Build(std::vector<std::string>* words) = 0;

  enum class Next : uint8_t {
    kEnd,      // answered, or abandoned
    kInFlight  // was sent again, or will be, and will be answered
  };
  // The answer, which is not an error.
  virtual Next OnAnswer(const Reply& reply) = 0;
  // An error that the router has no cure for.
  virtual void OnError(const Reply&) { Abandon(); }
  virtual void AnswerUnavailable() = 0;
  // It will not be sent again, and was answered.
  virtual void Finish() {}

  // Builds it anew and sends it to whoever decides for its key now, at once if there is room there,
  // else later. False: nobody waits for it, or it could not be sent and was abandoned.
  bool SendAgain();
  // The same after a while. The command is in flight meanwhile.
  void SendLater(int64_t after_ns);
  // Counts how often it was sent again. False: often enough, somebody else did something that
  // seldom happens each time; it was abandoned.
  bool MayTry();

  // It was sent and has no answer from which it is known that nothing was executed.
  bool answer_missing() const { return answer_missing_; }

  // Where it is sent, or was sent last. REQUIRES: in Build, or later.
  Endpoint& endpoint() const { return *endpoint_; }

  Shard& shard_;

 private:
  friend class Endpoint;

  void OnReply(Reply* reply) final;
  void OnRoom(Endpoint& endpoint) final;
  bool SendTo(Endpoint* endpoint, bool asking);
  // False: too many wait already; it was abandoned.
  bool AwaitRoom(Endpoint& endpoint);
  // True: was, or will be, sent again.
  bool Cure(const Reply& error);
  void OnLater();
  void End();

  Endpoint* endpoint_ = nullptr;  // where it was sent last
  Endpoint::Lane* lane_ = nullptr;
  int64_t sent_ns_ = 0;     // on the endpoint's PollingClock
  int64_t sent_at_ns_ = 0;  // on the loop's
  int tries_ = 0;
  bool asking_ = false;
  bool answer_missing_ = false;
  bool given_up_ = false;
  std::unique_ptr<net::Timer> later_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_COMMAND_H_
