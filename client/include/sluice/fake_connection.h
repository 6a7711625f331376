// FakeConnection: a Connection without a server, for tests of programs that use Sluice.
//
//   auto fake = std::make_shared<sluice::FakeConnection>();
//   sluice::Client client(fake);
//   fake->SetPermits("api", "user:42", 2);    // two permits, never refilled
//   fake->DenyNext(std::chrono::seconds(3));  // the next acquisition is denied
//   fake->FailNext({sluice::StatusCode::kUnavailable, "no server"});
//
// How it decides an acquisition: by the next scripted answer, if there is one (GrantNext, DenyNext,
// FailNext and HangNext, in the order of these calls); else by the permits that SetPermits gave to
// its buckets, all or none; else it grants. It answers within the call, except after HangNext. Its
// clock moves only by Advance.
#ifndef SLUICE_FAKE_CONNECTION_H_
#define SLUICE_FAKE_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/connection.h"

namespace sluice {

// Thread-safe.
class FakeConnection final : public Connection {
 public:
  FakeConnection();
  ~FakeConnection() override;

  // These script the next `count` acquisitions that have no scripted answer yet.
  void GrantNext(int count = 1);
  void DenyNext(std::chrono::nanoseconds retry_after, int count = 1);
  void FailNext(const Status& status, int count = 1);
  // Delays the answer until ReleaseHung, until Advance passes the call's deadline
  // (DEADLINE_EXCEEDED), or until Shutdown (CANCELLED). In a stream the whole message waits.
  void HangNext(int count = 1);
  void ReleaseHung();

  // Gives the bucket this number of permits. It never refills. A request_id that was granted before
  // takes none, and is not forgotten.
  void SetPermits(std::string_view limit, std::string_view key, uint64_t permits);

  // Makes it a limit with algorithm concurrency: a grant holds its permits for this time, and gives
  // them back at a refund or at its end.
  void SetHoldFor(std::string_view limit, std::chrono::nanoseconds hold_for);
  // Takes all slots back.
  void EndHolds();
  // The next `count` renewals fail, or hang as after HangNext.
  void FailNextRenew(const Status& status, int count = 1);
  void HangNextRenew(int count = 1);

  // The next `count` calls that settle fail, or hang as after HangNext; settlements that hang are
  // carried out.
  void FailNextSettle(const Status& status, int count = 1);
  void HangNextSettle(int count = 1);

  // The next `count` queries, or refunds, fail.
  void FailNextQuery(const Status& status, int count = 1);
  void FailNextRefund(const Status& status, int count = 1);

  // Closes all streams and watches, as a broken connection does.
  void BreakStreams(const Status& status);
  // The next `count` streams end with `status` as soon as they are opened.
  void FailNextStreams(const Status& status, int count = 1);

  // Moves the clock. Functions of RunAfter that become due run within the call.
  void Advance(std::chrono::nanoseconds by);
  // The program is stopped, or its machine suspended, for this time: no timer runs, no answer is
  // read, and only BootNow goes on.
  void Suspend(std::chrono::nanoseconds time);

  // All acquisitions sent, in order.
  std::vector<Acquisition> acquisitions() const;
  // The number of acquisitions in each message of the streams.
  std::vector<size_t> messages() const;
  int queries() const;
  int refunds() const;
  // The number of receipts that were settled without `more`.
  size_t settled() const;
  // All settlements sent, in order.
  std::vector<Settlement> settlements() const;
  int streams_opened() const;
  // The number of receipts in each Renew.
  std::vector<size_t> renewals() const;
  // The deadline of the last call.
  TimePoint last_deadline() const;

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override;
  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override;
  // Buckets are full, or have the permits left of SetPermits.
  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override;
  // kRefunded the first time for each receipt, then kAlreadyRefunded.
  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override;
  // kSettled for each receipt until one without `more`; the same again, else kAlreadySettled. Of an
  // acquisition with settle_within, gives back to the buckets of SetPermits or takes from them,
  // down to 0.
  void Settle(const Settlement& settlement, const Call& call, Callback<SettleResult> done) override;
  void SettleBatch(std::span<const Settlement> batch, const Call& call,
                   Callback<BatchSettlements> done) override;
  // kRenewed while the slots of SetHoldFor are held, else kGone.
  void Renew(std::span<const std::string> receipts, const Call& call,
             Callback<std::vector<Renewal>> done) override;
  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override;
  // Calls on_change once.
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override;
  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override;
  TimePoint Now() const override;
  TimePoint BootNow() const override;
  void Shutdown() override;

 private:
  struct State;
  class Stream;
  class WatchHandle;
  const std::shared_ptr<State> state_;
};

}  // namespace sluice

#endif  // SLUICE_FAKE_CONNECTION_H_
