#include "server/access/token_guesses.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"

namespace sluice::access {
namespace {

constexpr int64_t kNow = 1'000'000'000'000;
constexpr int64_t kMs = 1'000'000;
constexpr int kLate = static_cast<int>(common::bounds::kMaxLateRefusals);

// Spends what an address has. Returns how many of its guesses are refused now or later.
int Spend(TokenGuesses& guesses, const std::string& peer, int64_t now_ns = kNow) {
  int refused = 0;
  while (guesses.RefuseAt(peer, now_ns).has_value()) ++refused;
  return refused;
}

TEST(TokenGuessesTest, RefusesAFewAtOnceAndThenTenInASecond) {
  TokenGuesses guesses;
  for (int i = 0; i < TokenGuesses::kAtOnce; ++i) {
    EXPECT_EQ(guesses.RefuseAt("10.0.0.1:1", kNow), kNow);
  }
  for (int i = 1; i <= kLate; ++i) {
    EXPECT_EQ(guesses.RefuseAt("10.0.0.1:1", kNow), kNow + i * 100 * kMs);
  }
  EXPECT_EQ(guesses.RefuseAt("10.0.0.1:1", kNow), std::nullopt);
  EXPECT_EQ(guesses.RefuseAt("10.0.0.1:1", kNow + 100 * kMs), kNow + (kLate + 1) * 100 * kMs)
      << "one of those that waited was sent";
  EXPECT_EQ(guesses.RefuseAt("10.0.0.1:1", kNow + 100 * kMs), std::nullopt);
}

TEST(TokenGuessesTest, ForgivesWithTime) {
  TokenGuesses guesses;
  Spend(guesses, "10.0.0.1:1");
  const int64_t later = kNow + (kLate + TokenGuesses::kAtOnce) * 100 * kMs;
  EXPECT_EQ(guesses.RefuseAt("10.0.0.1:1", later), later);
  EXPECT_EQ(Spend(guesses, "10.0.0.1:1", later), kLate + TokenGuesses::kAtOnce - 1);
}

TEST(TokenGuessesTest, CountsByNetwork) {
  TokenGuesses guesses;
  EXPECT_EQ(Spend(guesses, "10.0.0.1:1"), kLate + TokenGuesses::kAtOnce);
  EXPECT_EQ(guesses.RefuseAt("10.0.0.1:2", kNow), std::nullopt) << "another port";
  EXPECT_EQ(guesses.RefuseAt("[::ffff:10.0.0.1]:2", kNow), std::nullopt);
  EXPECT_EQ(guesses.RefuseAt("10.0.0.2:1", kNow), kNow);
  Spend(guesses, "[2001:db8:1:2::3]:1");
  EXPECT_EQ(guesses.RefuseAt("[2001:db8:1:2:4::5]:1", kNow), std::nullopt) << "the same /64";
  EXPECT_EQ(guesses.RefuseAt("[2001:db8:1:3::3]:1", kNow), kNow);
  Spend(guesses, "unix:");
  EXPECT_EQ(guesses.RefuseAt("unix:/run/other", kNow), std::nullopt);
}

TEST(TokenGuessesTest, AddressesBeyondTheBoundShareAnAccount) {
  TokenGuesses guesses;
  const auto address = [](size_t i) { return absl::StrCat("10.1.", i / 256, ".", i % 256, ":1"); };
  for (size_t i = 0; i < common::bounds::kMaxGuessingNetworks; ++i) {
    EXPECT_EQ(guesses.RefuseAt(address(i), kNow), kNow);
  }
  EXPECT_EQ(Spend(guesses, "10.2.0.1:1"), kLate + TokenGuesses::kAtOnce);
  EXPECT_EQ(guesses.RefuseAt("10.2.0.2:1", kNow), std::nullopt);
  EXPECT_EQ(guesses.RefuseAt(address(0), kNow), kNow) << "it has an account of its own";
  // Accounts that are as good as new make room.
  const int64_t later = kNow + 200 * kMs;
  EXPECT_EQ(guesses.RefuseAt("10.2.0.3:1", later), later);
}

}  // namespace
}  // namespace sluice::access
