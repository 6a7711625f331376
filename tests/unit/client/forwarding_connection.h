// ForwardingConnection: passes all calls on to another connection. Tests override some.
#ifndef SLUICE_TESTS_UNIT_CLIENT_FORWARDING_CONNECTION_H_
#define SLUICE_TESTS_UNIT_CLIENT_FORWARDING_CONNECTION_H_

#include <memory>
#include <utility>

#include "sluice/connection.h"

namespace sluice::testing {

class ForwardingConnection : public Connection {
 public:
  explicit ForwardingConnection(std::shared_ptr<Connection> next) : next_(std::move(next)) {}

  void Acquire(const Acquisition& asked, const Call& call, Callback<Decision> done) override {
    next_->Acquire(asked, call, std::move(done));
  }
  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override {
    next_->AcquireBatch(batch, call, std::move(done));
  }
  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override {
    next_->Query(buckets, call, std::move(done));
  }
  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override {
    next_->Refund(receipt, call, std::move(done));
  }
  void Renew(std::span<const std::string> receipts, const Call& call,
             Callback<std::vector<Renewal>> done) override {
    next_->Renew(receipts, call, std::move(done));
  }
  void Settle(const Settlement& settlement, const Call& call,
              Callback<SettleResult> done) override {
    next_->Settle(settlement, call, std::move(done));
  }
  void SettleBatch(std::span<const Settlement> batch, const Call& call,
                   Callback<BatchSettlements> done) override {
    next_->SettleBatch(batch, call, std::move(done));
  }
  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override {
    return next_->OpenStream(std::move(events));
  }
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override {
    return next_->Watch(buckets, options, std::move(events));
  }
  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override {
    next_->RunAfter(delay, std::move(fn));
  }
  TimePoint Now() const override { return next_->Now(); }
  TimePoint BootNow() const override { return next_->BootNow(); }
  bool on_system_clock() const override { return next_->on_system_clock(); }
  void Shutdown() override { next_->Shutdown(); }

 private:
  const std::shared_ptr<Connection> next_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_UNIT_CLIENT_FORWARDING_CONNECTION_H_
