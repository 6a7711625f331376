// StoreConnection: a Connection whose server is a store in the test, which executes and answers
// messages of streams when the test says so, and loses them when it says that.
#ifndef SLUICE_TESTS_SUPPORT_STORE_CONNECTION_H_
#define SLUICE_TESTS_SUPPORT_STORE_CONNECTION_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/store/store.h"
#include "sluice/connection.h"
#include "sluice/fake_connection.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {

// Not thread-safe. Time is a FakeConnection's, which stands still until AdvanceDeadlines.
class StoreConnection final : public Connection {
 public:
  // What became of an acquisition at the server.
  struct Record {
    int64_t max_wait_ns = 0;  // as it was asked: tells a test which one it is
    bool granted = false;
    bool answered = false;
    int64_t grant_time_ns = 0;
    std::vector<store::Charge> charges;
    uint64_t receipt_id = 0;
    uint64_t refunded = 0;  // permits, of the last charge
  };

  // `charges`: what a limit charges, permits apart. All outlive it.
  StoreConnection(store::Store& store, std::map<std::string, std::vector<store::Charge>> charges)
      : store_(store), charges_(std::move(charges)) {}
  ~StoreConnection() override { Shutdown(); }

  // Executes the oldest message that was not, or answers the oldest that was. False: there is none.
  bool Step(bool execute) {
    if (execute && executed_ < messages_.size()) {
      Message& message = messages_[executed_++];
      for (const Acquisition& acquisition : message.batch) {
        message.answers.push_back(Execute(acquisition, &message.records));
      }
      return true;
    }
    if (executed_ == 0) return false;
    Message message = std::move(messages_.front());
    messages_.pop_front();
    --executed_;
    for (const size_t record : message.records) records_[record].answered = true;
    const StreamEvents& events = open_->events;
    events.on_answers(std::move(message.answers));
    return true;
  }

  // The connection breaks. What was sent is lost, as far as it was not executed.
  void Break() { CloseOpen(Status::MaybeExecuted(StatusCode::kUnavailable, "connection reset")); }

  void AdvanceDeadlines(std::chrono::nanoseconds by) { time_.Advance(by); }
  const std::deque<Record>& records() const { return records_; }

  void Acquire(const Acquisition& acquisition, const Call&, Callback<Decision> done) override {
    std::vector<size_t> records;
    Result<Decision> decision = Execute(acquisition, &records);
    for (const size_t record : records) records_[record].answered = true;
    done(std::move(decision));
  }
  void AcquireBatch(std::span<const Acquisition>, const Call&,
                    Callback<BatchDecisions> done) override {
    done(Status(StatusCode::kUnimplemented, "not in this test"));
  }
  void Query(std::span<const Bucket>, const Call&,
             Callback<std::vector<BucketStatus>> done) override {
    done(Status(StatusCode::kUnimplemented, "not in this test"));
  }
  void Refund(std::string_view receipt, const Call&, Callback<RefundResult> done) override {
    Record& record = records_[std::stoul(std::string(receipt))];
    const Refunded refunded =
        testing::Refund(store_, record.receipt_id, record.charges, record.grant_time_ns);
    record.refunded += refunded.permits.back();
    RefundResult result;
    result.outcome = refunded.outcome == store::RefundOutcome::kRefunded
                         ? RefundOutcome::kRefunded
                         : RefundOutcome::kAlreadyRefunded;
    done(std::move(result));
  }
  std::unique_ptr<StreamCall> OpenStream(StreamEvents events) override {
    open_ = std::make_shared<Open>();
    open_->events = std::move(events);
    return std::make_unique<Stream>(*this, open_);
  }
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events) override {
    return time_.Watch(buckets, options, std::move(events));
  }
  void RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) override {
    time_.RunAfter(delay, std::move(fn));
  }
  TimePoint Now() const override { return time_.Now(); }
  void Shutdown() override {
    CloseOpen(Status::MaybeExecuted(StatusCode::kCancelled, "the connection was shut down"));
    time_.Shutdown();
  }

 private:
  struct Open {
    StreamEvents events;
  };
  struct Message {
    std::vector<Acquisition> batch;
    BatchDecisions answers;
    std::vector<size_t> records;
  };
  class Stream final : public StreamCall {
   public:
    Stream(StoreConnection& connection, std::shared_ptr<Open> open)
        : connection_(connection), open_(std::move(open)) {}
    ~Stream() override { Cancel(); }
    void Send(std::span<const Acquisition> batch) override {
      if (connection_.open_ != open_) return;
      connection_.messages_.push_back({{batch.begin(), batch.end()}, {}, {}});
    }
    void Cancel() override {
      if (connection_.open_ != open_) return;
      connection_.CloseOpen(
          Status::MaybeExecuted(StatusCode::kCancelled, "the stream was cancelled"));
    }

   private:
    StoreConnection& connection_;
    const std::shared_ptr<Open> open_;
  };

  void CloseOpen(Status status) {
    messages_.clear();
    executed_ = 0;
    if (const auto closed = std::exchange(open_, nullptr); closed != nullptr) {
      closed->events.on_closed(std::move(status));
    }
  }

  Result<Decision> Execute(const Acquisition& acquisition, std::vector<size_t>* records) {
    Record record;
    record.max_wait_ns = acquisition.max_wait.count();
    record.charges = charges_.at(acquisition.charges[0].limit);
    for (store::Charge& charge : record.charges) charge.permits = acquisition.charges[0].permits;
    const Acquired acquired = testing::Acquire(
        store_, record.charges,
        {.want_receipt = acquisition.want_receipt, .max_wait_ns = record.max_wait_ns});
    record.granted = acquired.granted();
    record.grant_time_ns = acquired.grant_time_ns();
    record.receipt_id = acquired.receipt_id;
    Decision decision;
    decision.granted = acquired.granted();
    decision.source = Source::kStore;
    decision.wait = std::chrono::nanoseconds(acquired.wait_ns);
    decision.retry_after = std::chrono::nanoseconds(acquired.retry_after_ns);
    if (acquired.receipt_id != 0) decision.receipt = std::to_string(records_.size());
    records->push_back(records_.size());
    records_.push_back(std::move(record));
    return decision;
  }

  store::Store& store_;
  const std::map<std::string, std::vector<store::Charge>> charges_;
  FakeConnection time_;
  std::shared_ptr<Open> open_;
  std::deque<Message> messages_;  // the first executed_ of them have answers
  size_t executed_ = 0;
  std::deque<Record> records_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_STORE_CONNECTION_H_
