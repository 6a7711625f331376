// Connection: one connection to one Redis server, kept up as long as its loop runs.
//
// On connecting it authenticates, selects the database, checks that the server is one that buckets
// can live on, and loads the scripts; only then is it ready. When it breaks it comes back, after
// a pause that doubles from 10 ms to 1 s and is spread at random. Commands are pipelined and
// answered in order.
//
// Belongs to its loop. Nothing is ever sent twice: a command whose connection
// broke may have been executed, and is told so.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_CONNECTION_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/connector.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "common/net/stream.h"
#include "common/net/tls_context.h"
#include "server/store/redis/connection/redis_url.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/resp.h"

namespace sluice::store::redis {

struct ConnectionOptions {
  RedisUrl url;
  std::shared_ptr<const net::TlsContext> tls;  // null: plaintext
  // For asking a server of a Cluster about the others: replicas will do, and it takes no scripts.
  bool any_role = false;
  // Serve on a server that may evict keys, that is, fill buckets.
  bool allow_eviction = false;
  // For connecting and for each answer while it is checked and the scripts are loaded.
  int64_t connect_timeout_ns = int64_t{2} * 1'000'000'000;
  // Between attempts to connect, of which each waits longer than the one before.
  int64_t most_pause_ns = int64_t{1} * 1'000'000'000;
};

class Connection final : private net::StreamHandler {
 public:
  // A command's answer. `reply` null: the connection broke, and whether the command was executed
  // is not known.
  class Waiter {
   public:
    virtual void OnReply(Reply* reply) = 0;

   protected:
    ~Waiter() = default;
  };

  // Told on the loop.
  class Owner {
   public:
    // The server told about itself, and will do as far as is seen here. Not OK: it will not.
    virtual absl::Status OnInfo(const std::string& info) { return absl::OkStatus(); }
    virtual void OnReady() = 0;
    // It was ready, and is no longer; after all waiters were told.
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
  // Closes it and makes no new one until Start. Waiters are told so, and the owner nothing more.
  void Stop();
  // After Stop: it may be destroyed.
  bool stopped() const { return stopped_ && stream_ == nullptr; }
  bool ready() const { return state_ == State::kReady; }
  // See net::Stream. REQUIRES: ready().
  int64_t round_trip_ns() const { return stream_->round_trip_ns(); }
  // For how long what is still unread may have lain there: what reads showed in this iteration of
  // the loop. 0: nothing was there to be read.
  int64_t UnreadNs() const { return read_at_ns_ == loop_.now_ns() ? unread_ns_ : 0; }

  // As many bytes as may be wait for the server to read them. REQUIRES: ready().
  bool full() const { return stream_->pending_output() >= kMaxOutputBytes; }
  // How many may be pending is for the caller to bound. REQUIRES: ready().
  void Send(absl::Span<const std::string> words, Waiter* waiter);
  // Breaks the connection and makes a new one.
  void Restart(absl::Status why);
  // The same, to another address from now on. The URL's TLS name stays.
  void MoveTo(const net::Address& address, absl::Status why);

 private:
  static constexpr size_t kMaxOutputBytes = size_t{4} << 20;

  enum class State : uint8_t { kAway, kConnecting, kPreparing, kReady };

  void Connect();
  // Answers while preparing. Not OK: this server will not do.
  absl::Status Prepared(const Reply& reply);
  // Only to who answered INFO: Redis hangs up on who sends words above 16 KiB before he is logged
  // in, and what it said of the password can be lost with the connection.
  void SendScripts();
  // Why it did not come about, with what would be right.
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

  State state_ = State::kAway;
  net::Stream* stream_ = nullptr;
  std::unique_ptr<ReplyReader> reader_;
  std::deque<Waiter*> pending_;
  // While preparing: what the next answer is to.
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
  int64_t unread_ns_ = 0;   // the age of what it brought
  net::Timer timer_{net::Timer::To<&Connection::OnTimer>, this};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_CONNECTION_H_
