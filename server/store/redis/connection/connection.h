// Connection: one connection to one Redis server, reconnected as long as its loop runs.
//
// On connecting it authenticates, selects the database, checks that the server is suitable for
// buckets, and loads the scripts; only then is it ready. When it breaks it reconnects after a
// random pause whose bound doubles from 10 ms to 1 s. Commands are pipelined and answered in order.
//
// Belongs to its loop. Never sends a command twice: a command whose connection broke may have been
// executed, and its waiter is told so.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CONNECTION_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/connector.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "common/net/stream.h"
#include "common/net/tls_context.h"
#include "server/store/redis/connection/redis_url.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

struct ConnectionOptions {
  RedisUrl url;
  std::shared_ptr<const net::TlsContext> tls;  // null: plaintext
  // Only for CLUSTER SLOTS: the server may be a replica, and gets no scripts.
  bool any_role = false;
  // Serve on a server that may evict keys, that is, fill buckets.
  bool allow_eviction = false;
  // For connecting, and for each reply until it is ready.
  int64_t connect_timeout_ns = int64_t{2} * 1'000'000'000;
  // The longest pause between attempts to connect.
  int64_t most_pause_ns = int64_t{1} * 1'000'000'000;
};

class Connection final : private net::StreamHandler {
 public:
  // Gets a command's reply. Null: the connection broke; whether the command was executed is not
  // known.
  class Waiter {
   public:
    virtual void OnReply(Reply* reply) = 0;

   protected:
    ~Waiter() = default;
  };

  // Called on the loop.
  class Owner {
   public:
    // The server's INFO, which the connection accepts. Not OK: the owner does not accept it.
    virtual absl::Status OnInfo(const std::string& info) { return absl::OkStatus(); }
    virtual void OnReady() = 0;
    // It was ready, and no longer is. All waiters were called before.
    virtual void OnLost(const absl::Status& why) = 0;
    // An attempt to get ready failed.
    virtual void OnFailed(const absl::Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  // All outlive it. `resolver` is destroyed before the loop.
  Connection(net::EventLoop& loop, net::Resolver& resolver, const ConnectionOptions& options,
             Owner& owner);
  // REQUIRES: on the loop, or the loop has ended.
  ~Connection() override;

  void Start();
  // Closes it until Start. Waiters get null; the owner is not called.
  void Stop();
  // After Stop: it may be destroyed.
  bool stopped() const { return stopped_ && stream_ == nullptr; }
  bool ready() const { return state_ == State::kReady; }
  // See net::Stream. REQUIRES: ready().
  int64_t round_trip_ns() const { return stream_->round_trip_ns(); }
  // How long data that is still unread may have waited in the socket, by the reads of this
  // iteration of the loop. 0: there was nothing to read.
  int64_t UnreadNs() const { return read_at_ns_ == loop_.now_ns() ? unread_ns_ : 0; }

  // The most bytes that may wait for the server to read them do. REQUIRES: ready().
  bool full() const { return stream_->pending_output() >= kMaxOutputBytes; }
  // The caller bounds how many are pending. REQUIRES: ready().
  void Send(absl::Span<const std::string> words, Waiter* waiter);
  // The same, with a function for the reply; it gets null at once if the connection is not ready.
  void Call(absl::Span<const std::string> words, absl::AnyInvocable<void(const Reply*)> done);
  // Closes the connection and connects again.
  void Restart(absl::Status why);
  // The same, to another address from now on. The URL's TLS name stays.
  void MoveTo(const net::Address& address, absl::Status why);

 private:
  static constexpr size_t kMaxOutputBytes = size_t{4} << 20;

  enum class State : uint8_t { kClosed, kConnecting, kPreparing, kReady };

  void Connect();
  // A reply while preparing. Not OK: this server cannot be used.
  absl::Status Prepared(const Reply& reply);
  // Sent after the reply to INFO: Redis closes a connection that sends more than 16 KiB before it
  // is authenticated, and its error about the password can be lost with the connection.
  void SendScripts();
  // Why it was not established, with what to do.
  absl::Status Unreached(const absl::Status& why) const;
  absl::Status CheckInfo(const std::string& info) const;
  void OnTimer();

  void OnOpen() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnEnd() override;
  void OnClosed(const absl::Status& why) override;

  net::EventLoop& loop_;
  net::Resolver& resolver_;
  ConnectionOptions options_;
  Owner& owner_;

  State state_ = State::kClosed;
  net::Stream* stream_ = nullptr;
  std::unique_ptr<ReplyReader> reader_;
  std::deque<Waiter*> pending_;
  // While preparing: what the next reply answers.
  enum class Step : uint8_t { kAuth, kSelect, kInfo, kScript };
  std::deque<Step> steps_;
  absl::Status failure_;  // given to the stream's Abort
  bool stopped_ = true;
  bool was_ready_ = false;
  bool answered_ = false;  // anything, since it was opened
  int64_t pause_ns_ = 0;
  std::minstd_rand random_;
  std::string output_;
  int64_t read_at_ns_ = 0;  // the iteration of the last OnData
  int64_t unread_ns_ = 0;   // how long its data had waited
  net::Timer timer_{net::Timer::To<&Connection::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CONNECTION_H_
