#include "common/net/connection_budget.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/memory_account.h"
#include "common/net/event_loop.h"
#include "tests/support/fake_stream.h"

namespace sluice::net {
namespace {

using ::sluice::testing::FakeStream;

constexpr int64_t kSecond = 1'000'000'000;

class ConnectionBudgetTest : public ::testing::Test {
 protected:
  struct Connection {
    Connection(EventLoop& loop, std::unique_ptr<Admission> admitted)
        : stream(loop), admission(std::move(admitted)) {
      admission->SetStream(stream);
    }
    FakeStream stream;
    std::unique_ptr<Admission> admission;
  };

  // Null: it was refused.
  std::unique_ptr<Connection> Connect(ConnectionBudget& budget, uint64_t peer,
                                      EventLoop* on = nullptr) {
    EventLoop& loop = on != nullptr ? *on : *loop_;
    auto admission = budget.Admit(loop, peer, &displaced_);
    // Each is idle for less long than those before.
    clock_.Advance(kSecond);
    loop_->RunOnce(0);
    if (admission == nullptr) return nullptr;
    return std::make_unique<Connection>(loop, std::move(admission));
  }
  std::vector<std::unique_ptr<Connection>> Connect(ConnectionBudget& budget, uint64_t peer,
                                                   int count) {
    std::vector<std::unique_ptr<Connection>> made;
    for (int i = 0; i < count; ++i) made.push_back(Connect(budget, peer));
    return made;
  }

  common::FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
  bool displaced_ = false;
};

TEST_F(ConnectionBudgetTest, OnePeerMayHaveAll) {
  ConnectionBudget budget(3);
  const auto all = Connect(budget, 1, 3);
  EXPECT_NE(all.back(), nullptr);
  EXPECT_EQ(Connect(budget, 1), nullptr);
  EXPECT_EQ(budget.open(), 3);
}

TEST_F(ConnectionBudgetTest, NewcomerBelowItsShareDisplacesTheLongestIdleOfThePeerThatHasMost) {
  ConnectionBudget budget(4);
  const auto most = Connect(budget, 1, 3);
  const auto other = Connect(budget, 2);
  most[0]->admission->SetBusy();
  const auto newcomer = Connect(budget, 3);
  ASSERT_NE(newcomer, nullptr);
  EXPECT_TRUE(displaced_);
  loop_->RunOnce(0);
  EXPECT_TRUE(most[1]->stream.aborted);
  EXPECT_FALSE(most[0]->stream.aborted || most[2]->stream.aborted || other->stream.aborted);
  EXPECT_EQ(budget.open(), 4);
}

TEST_F(ConnectionBudgetTest, IdleTimeStartsAgainAfterWork) {
  ConnectionBudget budget(2);
  const auto most = Connect(budget, 1, 2);
  most[0]->admission->SetBusy();
  most[0]->admission->SetIdle(loop_->now_ns());
  ASSERT_NE(Connect(budget, 2), nullptr);
  loop_->RunOnce(0);
  EXPECT_FALSE(most[0]->stream.aborted);
  EXPECT_TRUE(most[1]->stream.aborted);
}

TEST_F(ConnectionBudgetTest, OldestMakesRoomIfAllAreBusy) {
  ConnectionBudget budget(2);
  const auto most = Connect(budget, 1, 2);
  for (const auto& one : most) one->admission->SetBusy();
  ASSERT_NE(Connect(budget, 2), nullptr);
  loop_->RunOnce(0);
  EXPECT_TRUE(most[0]->stream.aborted);
  EXPECT_FALSE(most[1]->stream.aborted);
}

TEST_F(ConnectionBudgetTest, RefusesNewcomerWhosePeerHasItsShare) {
  ConnectionBudget budget(4);
  const auto first = Connect(budget, 1, 4);
  const auto second = Connect(budget, 2, 2);
  ASSERT_NE(second.back(), nullptr);
  EXPECT_EQ(Connect(budget, 2), nullptr);
  EXPECT_EQ(Connect(budget, 1), nullptr);
  EXPECT_EQ(budget.open(), 4);
}

TEST_F(ConnectionBudgetTest, RefusesNewcomersWhenThereAreMorePeersThanConnections) {
  ConnectionBudget budget(2);
  const auto first = Connect(budget, 1);
  const auto second = Connect(budget, 2);
  EXPECT_EQ(Connect(budget, 3), nullptr);
}

TEST_F(ConnectionBudgetTest, NewcomerWithoutAShareDisplacesOnlyIdleOnesWhereIdleOnesGo) {
  ConnectionBudget budget(2, {.displaces_idle = true});
  const auto open = Connect(budget, 1, 2);
  open[0]->admission->SetBusy();
  auto newcomer = Connect(budget, 1);
  ASSERT_NE(newcomer, nullptr);
  loop_->RunOnce(0);
  EXPECT_FALSE(open[0]->stream.aborted);
  EXPECT_TRUE(open[1]->stream.aborted);
  newcomer->admission->SetBusy();
  EXPECT_EQ(Connect(budget, 1), nullptr);
}

TEST_F(ConnectionBudgetTest, SharesWhatIsOpenWhileMemoryIsShort) {
  constexpr int kOpen = ConnectionBudget::kFew;
  common::MemoryBudget memory(8 << 20);
  common::MemoryPart held(&memory);
  ConnectionBudget budget(1000, {.memory = &memory});
  const auto most = Connect(budget, 1, kOpen);
  held.Add((7 << 20) + 1);
  EXPECT_EQ(Connect(budget, 1), nullptr);
  const auto others = Connect(budget, 2, kOpen / 2);
  EXPECT_NE(others.back(), nullptr);
  EXPECT_TRUE(displaced_);
  loop_->RunOnce(0);
  EXPECT_TRUE(most[kOpen / 2 - 1]->stream.aborted);
  EXPECT_FALSE(most[kOpen / 2]->stream.aborted);
  EXPECT_EQ(budget.open(), kOpen);
  EXPECT_EQ(Connect(budget, 2), nullptr) << "it has its share";
  held.Add(-(1 << 20));
  EXPECT_NE(Connect(budget, 2), nullptr);
  EXPECT_FALSE(displaced_);
}

TEST_F(ConnectionBudgetTest, FewConnectionsAreAdmittedWhileMemoryIsShort) {
  common::MemoryBudget memory(8 << 20);
  common::MemoryPart held(&memory);
  held.Add((7 << 20) + 1);
  ConnectionBudget budget(1000, {.memory = &memory});
  const auto open = Connect(budget, 1, ConnectionBudget::kFew);
  EXPECT_NE(open.back(), nullptr);
  EXPECT_EQ(Connect(budget, 1), nullptr);
}

TEST_F(ConnectionBudgetTest, ClosedConnectionMakesRoom) {
  ConnectionBudget budget(2);
  auto all = Connect(budget, 1, 2);
  all.pop_back();
  EXPECT_EQ(budget.open(), 1);
  EXPECT_NE(Connect(budget, 1), nullptr);
  EXPECT_FALSE(displaced_);
}

TEST_F(ConnectionBudgetTest, DisplacesOnTheLoopOfTheConnection) {
  ConnectionBudget budget(2);
  const std::unique_ptr<EventLoop> other = *EventLoop::Create(clock_);
  const auto a = Connect(budget, 1, other.get());
  const auto b = Connect(budget, 1);
  const auto newcomer = Connect(budget, 2);
  ASSERT_NE(newcomer, nullptr);
  loop_->RunOnce(0);
  EXPECT_FALSE(a->stream.aborted);
  other->RunOnce(0);
  EXPECT_TRUE(a->stream.aborted);
  EXPECT_FALSE(b->stream.aborted);
}

TEST_F(ConnectionBudgetTest, ConnectionThatEndsBeforeItIsDisplacedIsNotTouched) {
  ConnectionBudget budget(2);
  auto most = Connect(budget, 1, 2);
  const std::unique_ptr<EventLoop> other = *EventLoop::Create(clock_);
  bool displaced = false;
  const auto newcomer = budget.Admit(*other, 2, &displaced);
  EXPECT_TRUE(displaced);
  most.clear();
  loop_->RunOnce(0);
  EXPECT_EQ(budget.open(), 1);
}

TEST_F(ConnectionBudgetTest, RefusesNewcomersWhileTooManyDisplacedOnesAreOpen) {
  constexpr int kMany = 4 * ConnectionBudget::kMostLeaving;
  ConnectionBudget budget(kMany);
  const std::unique_ptr<EventLoop> stuck = *EventLoop::Create(clock_);
  std::vector<std::unique_ptr<Connection>> most;
  for (int i = 0; i < kMany; ++i) most.push_back(Connect(budget, 1, stuck.get()));
  const auto others = Connect(budget, 2, ConnectionBudget::kMostLeaving);
  EXPECT_NE(others.back(), nullptr);
  EXPECT_EQ(Connect(budget, 2), nullptr);
  most.clear();  // the loop closes them
  EXPECT_NE(Connect(budget, 2), nullptr);
}

}  // namespace
}  // namespace sluice::net
