// What one client uses, against its bounds: exact over threads, and over reloads of the file.
#include "server/access/client_use.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/log.h"

namespace sluice::access {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kThreads = 4;

void OnThreads(const std::function<void()>& work) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

ClientBounds BoundsOf(ClientBound bound, uint64_t most) {
  ClientBounds bounds;
  bounds.Set(bound, most);
  return bounds;
}

TEST(ClientUseTest, WithoutBoundsEverythingPasses) {
  const auto use = std::make_shared<ClientUse>("mesh", nullptr);
  EXPECT_EQ(use->TakeCalls(UINT64_MAX, kSecond), UINT64_MAX);
  EXPECT_EQ(use->new_keys(), nullptr);
  ClientPlace place;
  EXPECT_TRUE(place.Enter(use, ClientBound::kStreams));
}

TEST(ClientUseTest, CallsAreExactOverThreads) {
  ClientUse use("mesh", nullptr);
  use.SetBounds(BoundsOf(ClientBound::kCallsPerSecond, 10'000));
  std::atomic<uint64_t> taken{0};
  OnThreads([&] {
    for (int i = 0; i < 10'000; ++i) taken += use.TakeCalls(1 + i % 3, kSecond);
  });
  EXPECT_EQ(taken.load(), 10'000);
  // A tenth of a second later there are as many as came in; a second later not more than all.
  EXPECT_EQ(use.TakeCalls(20'000, kSecond + kSecond / 10), 1000);
  EXPECT_EQ(use.TakeCalls(20'000, 10 * kSecond), 10'000);
}

TEST(ClientUseTest, ALargeRateIsKept) {
  for (const uint64_t rate : {uint64_t{7}, uint64_t{999'983}, algorithm::SharedRate::kMost}) {
    algorithm::SharedRate calls(kSecond);
    calls.SetPermits(rate);
    uint64_t taken = 0;
    // It begins with a full second's worth at most.
    for (int64_t ms = 0; ms <= 10'000; ++ms) {
      taken += calls.TakeUpTo(UINT64_MAX, 1000 * kSecond + ms * 1'000'000);
    }
    EXPECT_LE(taken, 11 * rate);
    EXPECT_GE(taken, 10 * rate - rate / 100 - 10) << rate;
  }
}

TEST(ClientUseTest, PlacesAreExactOverThreads) {
  const auto use = std::make_shared<ClientUse>("mesh", nullptr);
  use->SetBounds(BoundsOf(ClientBound::kStreams, 3));
  std::atomic<int> open{0};
  std::atomic<int> most{0};
  OnThreads([&] {
    for (int i = 0; i < 20'000; ++i) {
      ClientPlace first;
      ClientPlace second;
      for (ClientPlace* const place : {&first, &second}) {
        if (!place->Enter(use, ClientBound::kStreams)) continue;
        const int now = ++open;
        int seen = most.load();
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
      }
      open -= (first.taken() ? 1 : 0) + (second.taken() ? 1 : 0);
    }
  });
  EXPECT_LE(most.load(), 3);
  EXPECT_EQ(use->open(ClientBound::kStreams), 0);
  EXPECT_EQ(use->open(ClientBound::kHeldCalls), 0);
}

TEST(ClientUseTest, CountsCarryOverByNameAsLongAsACallLasts) {
  ClientUses uses(nullptr);
  auto before = uses.Of("mesh");
  EXPECT_NE(uses.Of("other"), before);
  before->SetBounds(BoundsOf(ClientBound::kHeldCalls, 2));
  ClientPlace first;
  ClientPlace second;
  ASSERT_TRUE(first.Enter(before, ClientBound::kHeldCalls));
  ASSERT_TRUE(second.Enter(before, ClientBound::kHeldCalls));
  // The client leaves the file and comes back, with a lower bound.
  before = nullptr;
  const auto after = uses.Of("mesh");
  EXPECT_EQ(after->open(ClientBound::kHeldCalls), 2);
  after->SetBounds(BoundsOf(ClientBound::kHeldCalls, 1));
  first.Leave();
  ClientPlace third;
  EXPECT_FALSE(third.Enter(after, ClientBound::kHeldCalls));
  second.Leave();
  EXPECT_TRUE(third.Enter(after, ClientBound::kHeldCalls));
}

// Buckets name their maker by it.
TEST(ClientUseTest, NumberIsTheSameForANameAndNobodyElses) {
  ClientUses uses(nullptr);
  const uint16_t mesh = uses.Of("mesh")->number();
  EXPECT_NE(mesh, 0);
  for (int i = 0; i < 200; ++i) EXPECT_NE(uses.Of(absl::StrCat("c", i))->number(), mesh);
  EXPECT_EQ(uses.Of("mesh")->number(), mesh);
}

TEST(ClientUseTest, RateCarriesOverWhenItChanges) {
  ClientUse use("mesh", nullptr);
  use.SetBounds(BoundsOf(ClientBound::kCallsPerSecond, 100));
  EXPECT_EQ(use.TakeCalls(100, kSecond), 100);
  use.SetBounds(BoundsOf(ClientBound::kCallsPerSecond, 1000));
  EXPECT_EQ(use.TakeCalls(1, kSecond), 0) << "all was taken";
  EXPECT_EQ(use.TakeCalls(1000, kSecond + kSecond / 2), 500);
  use.SetBounds({});
  EXPECT_EQ(use.TakeCalls(1'000'000, kSecond), 1'000'000);
}

// Else a batch of thousands could be sent for each call that comes in, and be decoded for nothing.
TEST(ClientUseTest, RefusedAcquisitionsOfABatchCountAsFewCalls) {
  ClientUse use("mesh", nullptr);
  use.SetBounds(BoundsOf(ClientBound::kCallsPerSecond, 1000));
  EXPECT_EQ(use.TakeCalls(1000 + 16 * 100, kSecond), 1000);
  EXPECT_EQ(use.TakeCalls(10, kSecond + kSecond / 10), 0) << "the first 100 are used up";
  EXPECT_EQ(use.TakeCalls(10, kSecond + kSecond / 10 + 10'000'000), 10);
  // However many are refused, at most a second is lost.
  EXPECT_EQ(use.TakeCalls(1'000'000'000, 10 * kSecond), 1000);
  EXPECT_EQ(use.TakeCalls(1'000'000'000, 10 * kSecond), 0);
  EXPECT_EQ(use.TakeCalls(1, 11 * kSecond), 0);
  EXPECT_EQ(use.TakeCalls(1, 11 * kSecond + 1'000'000), 1);
}

TEST(ClientUseTest, RefusalNamesClientBoundAndValueAndIsLoggedOnceAMinute) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const absl::Cleanup close_ends = [&] {
    close(ends[0]);
    close(ends[1]);
  };
  common::FakeClock clock;
  common::Log log(clock, common::LogLevel::kInfo, ends[1]);
  ClientUse use("mesh", &log);
  use.SetBounds(BoundsOf(ClientBound::kHeldCalls, 7));
  const absl::Status status = use.Refuse(ClientBound::kHeldCalls, 1, kSecond);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "client \"mesh\" has reached max_held_calls: 7; nothing was done; call later, or raise "
            "it in the clients file");
  EXPECT_TRUE(common::errors::WasNotExecuted(status));
  EXPECT_TRUE(common::errors::IsOverClientBound(status));
  for (int i = 0; i < 59; ++i) {
    EXPECT_FALSE(use.Refuse(ClientBound::kHeldCalls, 2, (2 + i) * kSecond).ok());
  }
  EXPECT_EQ(use.refused(ClientBound::kHeldCalls), 119);
  EXPECT_FALSE(use.Refuse(ClientBound::kHeldCalls, 1, 61 * kSecond).ok());
  std::string text(1 << 16, '\0');
  const ssize_t bytes = read(ends[0], text.data(), text.size());
  ASSERT_GT(bytes, 0);
  text.resize(static_cast<size_t>(bytes));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  const std::string line = "event=client_over_bound client=mesh bound=max_held_calls value=7 ";
  EXPECT_NE(text.find(line + "refused=1\n"), text.npos) << text;
  EXPECT_NE(text.find(line + "refused=119\n"), text.npos) << text;
}

TEST(ClientUsesTest, ForgetsClientsThatAreGone) {
  ClientUses uses(nullptr);
  const auto kept = uses.Of("kept");
  for (int i = 0; i < 100'000; ++i) uses.Of("client" + std::to_string(i));
  EXPECT_LT(uses.size(), 1000);
  EXPECT_EQ(uses.Of("kept"), kept);
}

}  // namespace
}  // namespace sluice::access
