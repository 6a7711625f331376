// RoundRobin: several servers as one Connection. Calls go round robin to the servers that seem
// available.
//
// A server is skipped after a call to it ended with UNAVAILABLE, or three calls in a row with
// DEADLINE_EXCEEDED: for 100 ms, doubled with each failure up to 5 s. Then the next call tries it
// again. If all servers are skipped, calls go to all of them.
#ifndef SLUICE_CLIENT_SRC_ROUND_ROBIN_H_
#define SLUICE_CLIENT_SRC_ROUND_ROBIN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/connection.h"

namespace sluice::client_internal {

// Whether calls skip a server. Thread-safe.
class ServerHealth {
 public:
  void Note(const Status& status, TimePoint now);
  bool skipped(TimePoint now) const {
    return now.time_since_epoch().count() < skip_until_.load(std::memory_order_relaxed);
  }

 private:
  // Independent hints: relaxed.
  std::atomic<int64_t> skip_until_{INT64_MIN};
  std::atomic<int> failures_{0};
  std::atomic<int> timeouts_{0};
};

class RoundRobin final : public Connection {
 public:
  // REQUIRES: at least one connection.
  explicit RoundRobin(std::vector<std::shared_ptr<Connection>> connections);

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override;
  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override;
  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override;
  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override;
  void Renew(std::span<const std::string> receipts, const Call& call,
             Callback<std::vector<Renewal>> done) override;
  void Settle(const Settlement& settlement, const Call& call, Callback<SettleResult> done) override;
  void SettleBatch(std::span<const Settlement> batch, const Call& call,
                   Callback<BatchSettlements> done) override;
  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override;
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override;
  Result<Decision> AcquireBlocking(const Acquisition& acquisition, const Call& call) override;
  Result<BatchDecisions> AcquireBatchBlocking(std::span<const Acquisition> batch,
                                              const Call& call) override;
  Result<std::vector<BucketStatus>> QueryBlocking(std::span<const Bucket> buckets,
                                                  const Call& call) override;
  Result<RefundResult> RefundBlocking(std::string_view receipt, const Call& call) override;
  Result<std::vector<Renewal>> RenewBlocking(std::span<const std::string> receipts,
                                             const Call& call) override;
  Result<SettleResult> SettleBlocking(const Settlement& settlement, const Call& call) override;
  Result<BatchSettlements> SettleBatchBlocking(std::span<const Settlement> batch,
                                               const Call& call) override;
  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override;
  void Sleep(std::chrono::nanoseconds time) override;
  TimePoint Now() const override;
  TimePoint BootNow() const override;
  bool on_system_clock() const override;
  void Shutdown() override;
  uint32_t servers() const override;

 private:
  struct Server {
    std::shared_ptr<Connection> connection;
    ServerHealth health;
  };

  Server& Pick(const Call* call);
  uint32_t IndexOf(const Server& server) const;

  // Shared with callbacks, which may run after this object is destroyed.
  using Servers = std::vector<Server>;
  std::shared_ptr<Servers> servers_;
  std::atomic<uint32_t> next_{0};  // relaxed: only a hint
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_ROUND_ROBIN_H_
