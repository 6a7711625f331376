#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "sluice/client.h"
#include "sluice/fake_connection.h"
#include "sluice/stream.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

const Status kNotSent(StatusCode::kUnavailable, "connection refused");
const Status kBroken = Status::MaybeExecuted(StatusCode::kUnavailable, "connection reset");

class AcquireStreamTest : public ::testing::Test {
 protected:
  // Submits `count` acquisitions. Their answers are appended to answers_.
  void Submit(AcquireStream& stream, int count) {
    for (int i = 0; i < count; ++i) {
      const int id = next_++;
      stream.Submit("api", std::to_string(id), 1, [this, id](Result<Decision> result) {
        order_.push_back(id);
        answers_.push_back(std::move(result));
      });
    }
  }

  std::shared_ptr<FakeConnection> fake_ = std::make_shared<FakeConnection>();
  Client client_{fake_};
  std::vector<int> order_;
  BatchDecisions answers_;
  int next_ = 0;
};

TEST_F(AcquireStreamTest, SendsAtOnceWhenIdle) {
  AcquireStream stream = client_.OpenStream();
  Submit(stream, 1);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]->granted);
  EXPECT_EQ(fake_->streams_opened(), 1);
}

TEST_F(AcquireStreamTest, BatchesWhileAnswersAreOutstanding) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 2});
  fake_->HangNext();
  Submit(stream, 100);
  // The first two are messages of their own; the others wait.
  EXPECT_EQ(fake_->messages(), (std::vector<size_t>{1, 1}));
  EXPECT_TRUE(answers_.empty());
  fake_->ReleaseHung();
  EXPECT_EQ(fake_->messages(), (std::vector<size_t>{1, 1, 98}));
  EXPECT_EQ(answers_.size(), 100u);
}

TEST_F(AcquireStreamTest, CallsBackInTheOrderOfSubmission) {
  AcquireStream stream = client_.OpenStream({.max_batch = 7});
  fake_->HangNext();
  Submit(stream, 50);
  fake_->ReleaseHung();
  ASSERT_EQ(order_.size(), 50u);
  EXPECT_TRUE(std::is_sorted(order_.begin(), order_.end()));
  const auto sent = fake_->acquisitions();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sent[i].charges[0].key, std::to_string(i));
}

TEST_F(AcquireStreamTest, LimitsMessagesToMaxBatch) {
  AcquireStream stream = client_.OpenStream({.max_batch = 10, .max_in_flight = 1});
  fake_->HangNext();
  Submit(stream, 26);
  fake_->ReleaseHung();
  EXPECT_EQ(fake_->messages(), (std::vector<size_t>{1, 10, 10, 5}));
}

TEST_F(AcquireStreamTest, SendsSubmissionsOfCallbacksTogether) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 2});
  fake_->HangNext();
  int second_round = 0;
  for (int i = 0; i < 10; ++i) {
    stream.Submit("api", "", 1, [&](Result<Decision>) {
      stream.Submit("api", "", 1, [&](Result<Decision>) { ++second_round; });
    });
  }
  fake_->ReleaseHung();
  EXPECT_EQ(second_round, 10);
  // 1 and 1, then the 8 that waited, then the 10 of the callbacks in few messages.
  EXPECT_LE(fake_->messages().size(), 6u);
}

TEST_F(AcquireStreamTest, FailsAtOnceWhenTheQueueIsFull) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 1, .max_queue = 5});
  fake_->HangNext();
  Submit(stream, 6);
  EXPECT_TRUE(answers_.empty());
  EXPECT_FALSE(stream.WaitForRoom(nanoseconds(0)));
  Submit(stream, 1);
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(order_[0], 6);
  EXPECT_EQ(answers_[0]->source, Source::kUnavailable);
  EXPECT_EQ(answers_[0]->status.code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(answers_[0]->status.may_have_executed());
  fake_->ReleaseHung();
  EXPECT_TRUE(stream.WaitForRoom(nanoseconds(0)));
  EXPECT_EQ(answers_.size(), 7u);
}

TEST_F(AcquireStreamTest, ReportsAcquisitionsInFlightAsUnknownAndNeverResendsThem) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 2});
  fake_->HangNext();
  Submit(stream, 10);
  ASSERT_EQ(fake_->acquisitions().size(), 2u);
  fake_->BreakStreams(kBroken);
  // The two that were sent are unknown; the other eight use the next stream.
  ASSERT_EQ(answers_.size(), 10u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(answers_[i]->source, Source::kUnavailable);
    EXPECT_TRUE(answers_[i]->status.may_have_executed());
    EXPECT_FALSE(answers_[i]->granted);
  }
  for (int i = 2; i < 10; ++i) EXPECT_EQ(answers_[i]->source, Source::kStore) << i;
  EXPECT_EQ(fake_->acquisitions().size(), 10u);
  EXPECT_EQ(fake_->streams_opened(), 2);
  EXPECT_TRUE(std::is_sorted(order_.begin(), order_.end()));
}

TEST_F(AcquireStreamTest, ResendsAcquisitionsThatNeverReachedAServer) {
  AcquireStream stream = client_.OpenStream();
  fake_->FailNextStreams(kNotSent, 3);
  Submit(stream, 5);
  EXPECT_TRUE(answers_.empty());
  fake_->Advance(milliseconds(500));
  ASSERT_EQ(answers_.size(), 5u);
  for (const auto& answer : answers_) EXPECT_TRUE(answer->granted);
  EXPECT_EQ(fake_->streams_opened(), 4);
}

TEST_F(AcquireStreamTest, FailsAtTheDeadlineWithTheCauseWithoutAServer) {
  AcquireStream stream =
      client_.OpenStream({.deadline = milliseconds(200), .on_unavailable = OnUnavailable::kAllow});
  fake_->FailNextStreams(kNotSent, 1000);
  Submit(stream, 3);
  fake_->Advance(milliseconds(199));
  EXPECT_TRUE(answers_.empty());
  fake_->Advance(milliseconds(1));
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_TRUE(answers_[0]->granted);
  EXPECT_EQ(answers_[0]->source, Source::kUnavailable);
  EXPECT_EQ(answers_[0]->status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(answers_[0]->status.may_have_executed());
  EXPECT_NE(answers_[0]->status.message().find("connection refused"), std::string::npos);
  // It pauses between attempts to connect.
  EXPECT_LT(fake_->streams_opened(), 10);
}

TEST_F(AcquireStreamTest, AnAnswerEndsWhatIsSaidOfEarlierStreams) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 1});
  fake_->FailNextStreams(kNotSent, 1);
  Submit(stream, 1);
  fake_->Advance(milliseconds(100));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]->granted);
  fake_->HangNext();
  Submit(stream, 2);
  fake_->Advance(milliseconds(1000));
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_EQ(answers_[2]->status.message().find("connection refused"), std::string::npos);
}

TEST_F(AcquireStreamTest, ReplacesAConnectionThatHangs) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 1});
  fake_->HangNext();
  Submit(stream, 1);
  fake_->Advance(milliseconds(600));
  Submit(stream, 1);  // queued; its deadline is 400 ms after the first one's
  fake_->Advance(milliseconds(400));
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[0]->status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(answers_[0]->status.may_have_executed());
  EXPECT_TRUE(answers_[1]->granted);
  EXPECT_EQ(fake_->streams_opened(), 2);
  // The late answer of the first stream is ignored.
  fake_->ReleaseHung();
  EXPECT_EQ(answers_.size(), 2u);
}

TEST_F(AcquireStreamTest, PassesOnAnErrorOfTheWholeStream) {
  AcquireStream stream = client_.OpenStream();
  fake_->FailNextStreams({StatusCode::kUnauthenticated, "no token"});
  fake_->HangNext();
  Submit(stream, 1);
  fake_->Advance(milliseconds(1));
  fake_->BreakStreams({StatusCode::kUnauthenticated, "no token"});
  ASSERT_EQ(answers_.size(), 1u);
  ASSERT_FALSE(answers_[0].ok());
  EXPECT_EQ(answers_[0].status().code(), StatusCode::kUnauthenticated);
}

TEST_F(AcquireStreamTest, ReportsAnErrorOnlyForItsOwnAcquisition) {
  AcquireStream stream = client_.OpenStream();
  fake_->FailNext({StatusCode::kNotFound, "no such limit"});
  Submit(stream, 2);
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_EQ(answers_[0].status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(answers_[1]->granted);
}

TEST_F(AcquireStreamTest, CancelsAllAcquisitionsOnDestruction) {
  {
    AcquireStream stream = client_.OpenStream({.max_in_flight = 1});
    fake_->HangNext();
    Submit(stream, 10);
    EXPECT_TRUE(answers_.empty());
  }
  ASSERT_EQ(answers_.size(), 10u);
  for (const auto& answer : answers_) EXPECT_EQ(answer.status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(answers_[0].status().may_have_executed());
  EXPECT_FALSE(answers_[1].status().may_have_executed());
}

TEST_F(AcquireStreamTest, OutlivesItsClient) {
  auto client = std::make_unique<Client>(fake_);
  AcquireStream stream = client->OpenStream();
  fake_->HangNext();
  Submit(stream, 3);
  client.reset();
  EXPECT_EQ(answers_.size(), 3u);
  Submit(stream, 1);
  ASSERT_EQ(answers_.size(), 4u);
  EXPECT_EQ(answers_[3].status().code(), StatusCode::kCancelled);
}

TEST_F(AcquireStreamTest, DrainWaitsForTheLastAnswer) {
  AcquireStream stream = client_.OpenStream();
  EXPECT_TRUE(stream.Drain(nanoseconds(0)));
  fake_->HangNext();
  Submit(stream, 2);
  EXPECT_FALSE(stream.Drain(nanoseconds(0)));
  std::thread release([&] { fake_->ReleaseHung(); });
  EXPECT_TRUE(stream.Drain(seconds(60)));
  release.join();
  EXPECT_EQ(answers_.size(), 2u);
}

TEST_F(AcquireStreamTest, WaitsWithoutATimeout) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 1, .max_queue = 1});
  fake_->HangNext();
  Submit(stream, 2);
  std::thread first([&] { fake_->ReleaseHung(); });
  EXPECT_TRUE(stream.WaitForRoom(nanoseconds::max()));
  first.join();
  fake_->HangNext();
  Submit(stream, 1);
  std::thread second([&] { fake_->ReleaseHung(); });
  EXPECT_TRUE(stream.Drain(nanoseconds::max()));
  second.join();
}

TEST_F(AcquireStreamTest, CountsMessagesAndAcquisitions) {
  AcquireStream stream = client_.OpenStream({.max_in_flight = 1});
  fake_->HangNext();
  Submit(stream, 10);
  fake_->ReleaseHung();
  const StreamCounts counts = stream.counts();
  EXPECT_EQ(counts.acquisitions, 10u);
  EXPECT_EQ(counts.messages, 2u);
  EXPECT_EQ(counts.connections, 1u);
}

// Several threads submit while the connection breaks repeatedly.
TEST_F(AcquireStreamTest, LosesNoAnswerWithManyThreadsAndBrokenConnections) {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  AcquireStream stream = client_.OpenStream({.max_batch = 64});
  std::atomic<int> granted{0};
  std::atomic<int> unknown{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        stream.Submit("api", "", 1, [&](Result<Decision> result) {
          ASSERT_TRUE(result.ok());
          ++(result->granted ? granted : unknown);
        });
      }
    });
  }
  std::atomic<bool> stop{false};
  std::thread breaker([&] {
    while (!stop) {
      fake_->BreakStreams(kBroken);
      fake_->Advance(milliseconds(2));
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  breaker.join();
  while (!stream.Drain(nanoseconds(0))) fake_->Advance(milliseconds(20));
  EXPECT_EQ(granted + unknown, kThreads * kEach);
}

}  // namespace
}  // namespace sluice
