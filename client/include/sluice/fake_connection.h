// FakeConnection: a Connection without a server, for tests of programs that use Sluice.
//
//   auto fake = std::make_shared<sluice::FakeConnection>();
//   sluice::Client client(fake);
//   fake->SetPermits("api", "user:42", 2);    // two permits, never refilled
//   fake->DenyNext(std::chrono::seconds(3));  // the next acquisition is denied
//   fake->FailNext({sluice::StatusCode::kUnavailable, "away"});
//
// What happens to an acquisition: if something was scripted for it (GrantNext, DenyNext, FailNext,
// HangNext, in the order in which they were called), that; else if its buckets have permits set,
// it takes them, all or none; else it is granted. Answers come within the call, unless HangNext
// keeps them back. Time stands still until Advance.
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

  // Script the next `count` acquisitions after those scripted before.
  void GrantNext(int count = 1);
  void DenyNext(std::chrono::nanoseconds retry_after, int count = 1);
  void FailNext(const Status& status, int count = 1);
  // The answer is kept back until ReleaseHung, Advance past the call's deadline
  // (DEADLINE_EXCEEDED), or Shutdown (CANCELLED). In a stream the whole message waits.
  void HangNext(int count = 1);
  void ReleaseHung();

  // The bucket has as many permits, and gets no others until set again.
  void SetPermits(std::string_view limit, std::string_view key, uint64_t permits);

  // The next queries and refunds fail.
  void FailNextQuery(const Status& status, int count = 1);
  void FailNextRefund(const Status& status, int count = 1);

  // Closes every open stream and watch, as a broken connection does.
  void BreakStreams(const Status& status);
  // The next `count` streams end with `status` as soon as they are opened.
  void FailNextStreams(const Status& status, int count = 1);

  // Moves the clock; what RunAfter planned until then runs within the call.
  void Advance(std::chrono::nanoseconds by);

  // All acquisitions that were sent, in their order.
  std::vector<Acquisition> acquisitions() const;
  // Sizes of the messages of streams.
  std::vector<size_t> messages() const;
  int queries() const;
  int refunds() const;
  int streams_opened() const;
  // The last call's deadline.
  TimePoint last_deadline() const;

  void Acquire(const Acquisition& acquisition, const Call& call, Callback<Decision> done) override;
  void AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                    Callback<BatchDecisions> done) override;
  // Full buckets, or what SetPermits left.
  void Query(std::span<const Bucket> buckets, const Call& call,
             Callback<std::vector<BucketStatus>> done) override;
  // kRefunded the first time for each receipt, then kAlreadyRefunded.
  void Refund(std::string_view receipt, const Call& call, Callback<RefundResult> done) override;
  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override;
  // One answer, then nothing until it is cancelled or broken.
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override;
  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override;
  TimePoint Now() const override;
  void Shutdown() override;

 private:
  struct State;
  class Stream;
  class WatchHandle;
  const std::shared_ptr<State> state_;
};

}  // namespace sluice

#endif  // SLUICE_FAKE_CONNECTION_H_
