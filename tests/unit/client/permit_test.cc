// Permits: when slots are held, renewed, lost and ended.
#include "sluice/permit.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/renewal_timer.h"
#include "client/src/round_robin.h"
#include "gtest/gtest.h"
#include "sluice/client.h"
#include "sluice/fake_connection.h"
#include "tests/unit/client/forwarding_connection.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const Status kUnreachable = Status::MaybeExecuted(StatusCode::kUnavailable, "no route");

class PermitTest : public ::testing::Test {
 protected:
  PermitTest() {
    fake_->SetPermits("jobs", "", 2);
    fake_->SetHoldFor("jobs", seconds(30));
  }

  Permit Take() {
    Result<Permit> permit = client_.AcquirePermit(
        Acquisition("jobs"), {.on_lost = [this](const Status& why) { lost_.push_back(why); }});
    EXPECT_TRUE(permit.ok()) << permit.status();
    return *std::move(permit);
  }

  const std::shared_ptr<FakeConnection> fake_ = std::make_shared<FakeConnection>();
  // One attempt for each renewal, so that the tests count them.
  Client client_{fake_, {.servers = {}, .retry = {.max_attempts = 1}}};
  std::vector<Status> lost_;
};

TEST_F(PermitTest, HoldsSlotsUntilItIsDestroyed) {
  {
    const Permit one = Take();
    const Permit two = Take();
    EXPECT_TRUE(one.held() && two.held());
    const Permit denied = Take();
    EXPECT_FALSE(denied.held());
    EXPECT_FALSE(denied.decision().granted);
    EXPECT_EQ(denied.left(), nanoseconds(0));
    EXPECT_TRUE(denied.lost().ok());
  }
  EXPECT_EQ(fake_->settled(), 2u);
  EXPECT_TRUE(Take().held());
  EXPECT_TRUE(lost_.empty());
}

TEST_F(PermitTest, IsRenewedForAsLongAsItLives) {
  Permit permit = Take();
  for (int i = 0; i < 600; ++i) {
    fake_->Advance(seconds(1));
    ASSERT_TRUE(permit.held());
    ASSERT_GT(permit.left(), seconds(18));
  }
  EXPECT_EQ(fake_->renewals().size(), 60u);
  EXPECT_TRUE(permit.Release().ok());
  EXPECT_FALSE(permit.held());
  EXPECT_EQ(fake_->settled(), 1u);
  fake_->Advance(seconds(600));
  EXPECT_EQ(fake_->renewals().size(), 60u);
  EXPECT_TRUE(permit.Release().ok());
  EXPECT_EQ(fake_->settled(), 1u) << "released before";
  EXPECT_TRUE(permit.lost().ok());
}

TEST_F(PermitTest, ReleaseThatFailedIsRepeated) {
  Permit permit = Take();
  fake_->FailNextSettle(kUnreachable, 2);
  EXPECT_EQ(permit.Release(), kUnreachable);
  EXPECT_FALSE(permit.held());
  EXPECT_EQ(permit.Release(), kUnreachable);
  EXPECT_TRUE(permit.Release().ok());
  EXPECT_EQ(fake_->settled(), 1u);
  EXPECT_EQ(fake_->settlements().size(), 3u);
  {
    Permit other = Take();
    fake_->FailNextSettle(kUnreachable);
    EXPECT_EQ(other.Release(), kUnreachable);
    EXPECT_EQ(fake_->settled(), 1u);
  }
  EXPECT_EQ(fake_->settled(), 2u) << "by the destructor";
  EXPECT_TRUE(fake_->renewals().empty());
}

TEST_F(PermitTest, RenewsTogetherWhatIsDueTogether) {
  fake_->SetPermits("jobs", "", 10'000);
  std::vector<Permit> permits;
  for (int i = 0; i < 5'000; ++i) {
    permits.push_back(Take());
    if (i % 50 == 0) fake_->Advance(milliseconds(1));
  }
  fake_->Advance(seconds(10));
  // All are due within 100 ms of the first.
  EXPECT_THAT(fake_->renewals(), ::testing::ElementsAre(4096, 904));
  fake_->Advance(seconds(10));
  EXPECT_EQ(fake_->renewals().size(), 4u);
  for (const Permit& permit : permits) EXPECT_TRUE(permit.held());
}

// Servers refuse larger messages.
TEST_F(PermitTest, RenewsLongReceiptsByCallsOfAtMostTwoMegabytes) {
  class LongReceipts final : public testing::ForwardingConnection {
   public:
    using ForwardingConnection::ForwardingConnection;
    void Acquire(const Acquisition& asked, const Call& call, Callback<Decision> done) override {
      ForwardingConnection::Acquire(asked, call, [done = std::move(done)](Result<Decision> result) {
        result->receipt.resize(1100, '.');
        done(std::move(result));
      });
    }
    void Renew(std::span<const std::string> receipts, const Call& call,
               Callback<std::vector<Renewal>> done) override {
      size_t bytes = 0;
      std::vector<std::string> shortened;
      for (const std::string& receipt : receipts) {
        bytes += receipt.size();
        shortened.push_back(receipt.substr(0, receipt.find('.')));
      }
      EXPECT_LE(bytes, size_t{2} << 20);
      ForwardingConnection::Renew(shortened, call, std::move(done));
    }
  };
  fake_->SetPermits("jobs", "", 5'000);
  Client client(std::make_shared<LongReceipts>(fake_), {.servers = {}});
  std::vector<Permit> permits;
  for (int i = 0; i < 5'000; ++i) permits.push_back(*client.AcquirePermit(Acquisition("jobs")));
  fake_->Advance(seconds(30));
  for (const Permit& permit : permits) ASSERT_TRUE(permit.held());
  EXPECT_LE(fake_->renewals().size(), 3u * 6u) << "few calls";
}

TEST_F(PermitTest, APermitThatIsReleasedMeanwhileShortensNoRenewal) {
  constexpr size_t kInOneCall = 4096;
  class Releasing final : public testing::ForwardingConnection {
   public:
    using ForwardingConnection::ForwardingConnection;
    void Renew(std::span<const std::string> receipts, const Call& call,
               Callback<std::vector<Renewal>> done) override {
      left.push_back(call.deadline - Now());
      if (left.size() == 1) permits.pop_back();  // one of the next call
      ForwardingConnection::Renew(receipts, call, std::move(done));
    }
    std::vector<Permit> permits;
    std::vector<nanoseconds> left;
  };
  fake_->SetPermits("jobs", "", kInOneCall + 2);
  const auto releasing = std::make_shared<Releasing>(fake_);
  Client client(releasing, {.servers = {}});
  for (size_t i = 0; i < kInOneCall + 2; ++i) {
    releasing->permits.push_back(*client.AcquirePermit(Acquisition("jobs")));
  }
  fake_->Advance(seconds(10));
  EXPECT_THAT(releasing->left, ::testing::ElementsAre(seconds(1), seconds(1)));
  releasing->permits.clear();
}

TEST_F(PermitTest, IsLostWhenTheServerHasTakenTheSlotsBack) {
  const Permit permit = Take();
  fake_->EndHolds();
  EXPECT_TRUE(permit.held()) << "it cannot know yet";
  fake_->Advance(seconds(10));
  EXPECT_FALSE(permit.held());
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(permit.lost(), lost_[0]);
  fake_->Advance(seconds(100));
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_EQ(fake_->renewals().size(), 1u);
}

TEST_F(PermitTest, OutlivesAServerThatIsUnavailableForAWhile) {
  const Permit permit = Take();
  fake_->FailNextRenew(kUnreachable, 5);
  fake_->Advance(seconds(29));
  EXPECT_TRUE(permit.held());
  EXPECT_EQ(fake_->renewals().size(), 6u + 1u);
  fake_->Advance(seconds(100));
  EXPECT_TRUE(permit.held());
  EXPECT_TRUE(lost_.empty());
}

TEST_F(PermitTest, IsLostAtItsEndIfNoRenewalSucceeds) {
  const Permit permit = Take();
  fake_->FailNextRenew(kUnreachable, 1'000'000);
  fake_->Advance(milliseconds(29'900));
  EXPECT_TRUE(permit.held());
  EXPECT_TRUE(lost_.empty());
  // Before the server's end, for clocks that differ by 0.1 %.
  fake_->Advance(milliseconds(99));
  EXPECT_FALSE(permit.held());
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(lost_[0].message(), HasSubstr("not renewed in time: UNAVAILABLE: no route"));
}

// Before its timers run and answers are read.
TEST_F(PermitTest, IsLostInAProgramThatWasStoppedPastTheEnd) {
  const Permit permit = Take();
  fake_->Suspend(milliseconds(29'900));
  EXPECT_TRUE(permit.held());
  fake_->Suspend(milliseconds(100));
  EXPECT_FALSE(permit.held());
  EXPECT_EQ(permit.left(), nanoseconds(0));
  EXPECT_EQ(permit.lost().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(lost_.empty());
  fake_->Advance(seconds(10));
  EXPECT_EQ(lost_.size(), 1u);
  EXPECT_TRUE(fake_->renewals().empty());
}

// Its timer stood still meanwhile.
TEST_F(PermitTest, IsRenewedAfterASuspendWithTheNextPermitThatIsTaken) {
  const Permit first = Take();
  fake_->Suspend(seconds(25));
  const Permit next = Take();
  fake_->Advance(milliseconds(1));
  EXPECT_EQ(fake_->renewals().size(), 1u);
  fake_->Advance(seconds(9));
  EXPECT_TRUE(first.held());
  EXPECT_TRUE(lost_.empty());
}

TEST_F(PermitTest, StaysLostThoughALateAnswerSaysRenewed) {
  const Permit seen = Take();
  const Permit unseen = Take();
  fake_->HangNextRenew();
  fake_->Advance(seconds(10));
  EXPECT_EQ(fake_->renewals().size(), 1u);
  fake_->Suspend(seconds(60));
  EXPECT_FALSE(seen.held());
  fake_->ReleaseHung();  // both were renewed
  EXPECT_EQ(lost_.size(), 2u);
  EXPECT_FALSE(seen.held() || unseen.held());
  fake_->Advance(seconds(100));
  EXPECT_FALSE(seen.held() || unseen.held());
}

// The timer's thread is busy meanwhile, so that both wait for it.
TEST_F(PermitTest, AreRenewedThoughAllWereDueWhenTheirAnswersCame) {
  using client_internal::RenewalTimer;
  class OnSystemClock final : public testing::ForwardingConnection {
   public:
    using ForwardingConnection::ForwardingConnection;
    bool on_system_clock() const override { return true; }
  };
  fake_->SetHoldFor("long", milliseconds(300));
  fake_->SetHoldFor("short", milliseconds(150));
  fake_->HangNext(2);
  Client client(std::make_shared<OnSystemClock>(fake_), {.servers = {}});
  std::vector<Permit> permits;
  for (const char* limit : {"long", "short"}) {
    client.AcquirePermitAsync(Acquisition(limit), {},
                              [&](Result<Permit> one) { permits.push_back(*std::move(one)); });
  }
  std::promise<void> may_end;
  const auto other = std::make_shared<RenewalTimer::Alarm>();
  RenewalTimer::OfProgram().RunAfter(other, nanoseconds(0), [&] { may_end.get_future().wait(); });
  fake_->Suspend(milliseconds(120));
  fake_->ReleaseHung();
  may_end.set_value();
  RenewalTimer::OfProgram().Close(other);
  ASSERT_EQ(permits.size(), 2u);
  for (int i = 0; i < 2000 && fake_->renewals().size() < 3; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GE(fake_->renewals().size(), 3u);
}

// It was slow, not stopped.
TEST_F(PermitTest, CountsFromBeforeTheRenewalWasSent) {
  const Permit permit = Take();
  fake_->HangNextRenew();
  fake_->Advance(seconds(10));
  fake_->Suspend(milliseconds(500));
  fake_->ReleaseHung();
  EXPECT_TRUE(permit.held());
  EXPECT_LT(permit.left(), milliseconds(29'500));
  EXPECT_GT(permit.left(), milliseconds(29'400));
}

TEST_F(PermitTest, IsLostWithTheReceiptsOfAServerThatStartedAgain) {
  const Permit permit = Take();
  fake_->FailNextRenew(Status(StatusCode::kInvalidArgument, "issued before a restart"));
  fake_->Advance(seconds(10));
  EXPECT_FALSE(permit.held());
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].message(), "issued before a restart");
}

TEST_F(PermitTest, AsksAnotherServerIfTheOneThatGrantedIsUnavailable) {
  const auto other = std::make_shared<FakeConnection>();
  auto both = std::make_shared<client_internal::RoundRobin>(
      std::vector<std::shared_ptr<Connection>>{fake_, other});
  Client client(both, {.servers = {}, .retry = {.max_attempts = 1}});
  other->FailNext(kUnreachable, 10);
  std::optional<Permit> permit;
  while (!permit.has_value() || !permit->held()) {
    Result<Permit> one = client.AcquirePermit(Acquisition("jobs"), {}, {.server = 0});
    ASSERT_TRUE(one.ok());
    permit = *std::move(one);
  }
  fake_->FailNextRenew(kUnreachable, 3);
  // It has another store, and knows nothing of the receipt: no reason to stop.
  other->FailNextRenew(Status(StatusCode::kInvalidArgument, "issued by another server"), 100);
  fake_->Advance(seconds(29));
  EXPECT_TRUE(permit->held());
  EXPECT_GE(fake_->renewals().size(), 4u);
}

TEST_F(PermitTest, MovesItsSlots) {
  Permit one = Take();
  Permit two = std::move(one);
  EXPECT_FALSE(one.held());  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(two.held());
  Permit other = Take();
  other = std::move(two);
  EXPECT_EQ(fake_->settled(), 1u) << "what it held before";
  EXPECT_TRUE(other.held());
  fake_->Advance(seconds(100));
  EXPECT_TRUE(other.held());
  EXPECT_TRUE(Permit().lost().ok());
  EXPECT_FALSE(Permit().held());
}

TEST_F(PermitTest, GrantsWithoutSlotsCannotBeLost) {
  Result<Permit> rate = client_.AcquirePermit(Acquisition("api"));
  ASSERT_TRUE(rate.ok());
  fake_->FailNext(kUnreachable);
  Result<Permit> open =
      client_.AcquirePermit(Acquisition("jobs"), {}, {.on_unavailable = OnUnavailable::kAllow});
  ASSERT_TRUE(open.ok());
  fake_->Advance(seconds(1000));
  EXPECT_TRUE(rate->held() && open->held());
  EXPECT_EQ(rate->left(), nanoseconds::max());
  EXPECT_TRUE(rate->Release().ok());
  EXPECT_FALSE(rate->held());
  EXPECT_EQ(fake_->settled(), 0u);
  EXPECT_TRUE(fake_->renewals().empty());
}

// When it waited, the answer does not say when the slots were granted.
TEST_F(PermitTest, RenewsBeforeItAnswersACallThatWaited) {
  Acquisition waits("jobs");
  waits.hold = true;
  waits.max_wait = seconds(60);
  fake_->HangNext();
  std::optional<Result<Permit>> answer;
  client_.AcquirePermitAsync(waits, {}, [&](Result<Permit> one) { answer = std::move(one); });
  fake_->Advance(seconds(20));
  fake_->ReleaseHung();
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->ok()) << answer->status();
  EXPECT_TRUE((*answer)->held());
  EXPECT_EQ(fake_->renewals().size(), 1u);
  EXPECT_GT((*answer)->left(), seconds(29));
  // If they cannot be renewed they are given back.
  answer.reset();
  EXPECT_EQ(fake_->settled(), 1u);
  fake_->FailNextRenew(kUnreachable);
  client_.AcquirePermitAsync(waits, {}, [&](Result<Permit> one) { answer = std::move(one); });
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status(), kUnreachable);
  EXPECT_EQ(fake_->settled(), 1u);
  EXPECT_EQ(fake_->refunds(), 1) << "its work does not run";
}

TEST_F(PermitTest, OutlivesItsClient) {
  std::optional<Permit> permit;
  {
    Client client(fake_, {.servers = {}});
    permit = *client.AcquirePermit(Acquisition("jobs"));
  }
  EXPECT_TRUE(permit->held());
  EXPECT_EQ(permit->Release().code(), StatusCode::kCancelled);
  EXPECT_FALSE(permit->held());
}

// on_lost does not run behind the destructor, and may destroy its own permit.
TEST_F(PermitTest, OnLostMayDestroyThePermit) {
  std::optional<Permit> permit;
  int calls = 0;
  Result<Permit> taken = client_.AcquirePermit(Acquisition("jobs"), {.on_lost = [&](const Status&) {
                                                 ++calls;
                                                 permit.reset();
                                               }});
  ASSERT_TRUE(taken.ok());
  permit = *std::move(taken);
  fake_->EndHolds();
  fake_->Advance(seconds(10));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(permit.has_value());
}

TEST_F(PermitTest, ThreadsTakeLoseAndReleaseThem) {
  constexpr int kThreads = 16;
  fake_->SetPermits("jobs", "", 1'000'000);
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Permit> kept;
      for (int i = 0; i < 500; ++i) {
        auto alive = std::make_shared<std::atomic<bool>>(true);
        Result<Permit> permit = client_.AcquirePermit(
            Acquisition("jobs"),
            {.on_lost = [alive](const Status&) { EXPECT_TRUE(alive->load()); }});
        ASSERT_TRUE(permit.ok());
        if (i % 3 == 0) {
          Permit gone = *std::move(permit);
          gone = Permit();
          alive->store(false);
        } else if (i % 3 == 1) {
          kept.push_back(*std::move(permit));
          if (kept.size() > 20) kept.erase(kept.begin());
        } else {
          EXPECT_TRUE(permit->Release().ok());
          alive->store(false);
        }
        for (const Permit& one : kept) one.held();
        if (t == 0 && i % 50 == 0) fake_->EndHolds();
      }
    });
  }
  std::thread clock([&] {
    while (!done.load()) fake_->Advance(milliseconds(500));
  });
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  clock.join();
  const Permit last = Take();
  fake_->EndHolds();
  fake_->Advance(seconds(10));
  EXPECT_FALSE(last.held());
  EXPECT_EQ(lost_.size(), 1u);
}

}  // namespace
}  // namespace sluice
