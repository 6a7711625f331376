// RoundRobin: several servers as one Connection. Calls go round those that are not known to be
// away.
//
// A server is left out after a call ended UNAVAILABLE there, or three in a row without an answer
// in time: for 100 ms, doubled with each failure up to 5 s; then the next call tries it again.
// When all are left out they are tried in turn all the same.
#ifndef SLUICE_CLIENT_SRC_ROUND_ROBIN_H_
#define SLUICE_CLIENT_SRC_ROUND_ROBIN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/connection.h"

namespace sluice::client_internal {

// What is known of one server. Thread-safe.
class ServerHealth {
 public:
  void Note(const Status& status, TimePoint now);
  bool away(TimePoint now) const {
    return now.time_since_epoch().count() < away_until_.load(std::memory_order_relaxed);
  }

 private:
  // Hints, each meaningful by itself: relaxed.
  std::atomic<int64_t> away_until_{INT64_MIN};
  std::atomic<int> failures_{0};
  std::atomic<int> timeouts_{0};
};

class RoundRobin final : public Connection {
 public:
  // REQUIRES: at least one.
  explicit RoundRobin(std::vector<std::shared_ptr<Connection>> connections);

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override;
  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override;
  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override;
  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override;
  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override;
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override;
  Result<Decision> AcquireBlocking(const Acquisition& acquisition, const Call& call) override;
  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override;
  TimePoint Now() const override;
  void Shutdown() override;
  uint32_t servers() const override;

 private:
  struct Server {
    std::shared_ptr<Connection> connection;
    ServerHealth health;
  };

  Server& Pick(const Call* call);
  uint32_t IndexOf(const Server& server) const;

  // Callbacks hold the servers, since they may run after this object is gone.
  using Servers = std::vector<Server>;
  std::shared_ptr<Servers> servers_;
  std::atomic<uint32_t> next_{0};  // relaxed: any order will do
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_ROUND_ROBIN_H_
