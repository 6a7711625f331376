// Refunds of buckets whose limit has changed since.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/scripts/scripts.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNowUs = 2'000'000'000'000'000;
constexpr int64_t kNowNs = kNowUs * 1000;
constexpr uint64_t kReceipt = 77;

struct Call final : RefundOperation {
  Call() {
    receipt_id = kReceipt;
    refunded = &permits;
  }
  void Done() override { done = true; }

  uint64_t permits = 0;
  bool done = false;
};

class RefundTest : public CommandScene {
 protected:
  // Asks by the old rule. Redis holds the bucket as the new one wrote it.
  void Refund(bool remembered) {
    const auto old_rule =
        testing::MakeRule(1, algorithm::MakeTokenBucket({10, kSecond}, 10, 0).value());
    const auto rule =
        testing::MakeRule(1, algorithm::MakeTokenBucket({1, 3600 * kSecond}, 10, 0).value());
    newer_rule = EntryOf(*rule);
    OpenBucket bucket = OpenBucket::Read(rule->parameters, "", "", {}, kNowNs).value();
    bucket.Take(4, kNowNs, kReceipt, /*set=*/0);
    const std::vector<std::string> words = bucket.Format("node.2", "v1", kNowNs);

    StartRefund(*this, &call_, {BucketOf(*old_rule, "k")}, remembered);
    ASSERT_TRUE(AskedFor(Script::kRefund));
    servers[0].Answer("*2\r\n:-1\r\n:0\r\n");
    ASSERT_TRUE(AskedFor(Script::kExchange));
    read_ = absl::StrCat("*5\r\n:", kNowUs, "\r\n:0\r\n", Bulk(words.at(1)), Bulk(words.at(2)),
                         "*0\r\n");
    servers[0].Answer(read_);
  }
  bool AskedFor(Script script) { return Asked(1) && servers[0].asked[0][1] == TextOf(script).sha; }
  static std::string Bulk(std::string_view text) {
    return absl::StrCat("$", text.size(), "\r\n", std::string(text), "\r\n");
  }

  Call call_;
  std::string read_;
};

TEST_F(RefundTest, OfACallerSaysThatItsRuleIsOld) {
  ASSERT_NO_FATAL_FAILURE(Refund(/*remembered=*/true));
  ASSERT_TRUE(Until([&] { return call_.done; }));
  EXPECT_EQ(call_.outcome, RefundOutcome::kStaleRule);
}

TEST_F(RefundTest, OfADenialIsMadeByTheNewRule) {
  ASSERT_NO_FATAL_FAILURE(Refund(/*remembered=*/false));
  // Reads again, as it now has another rule, and replaces.
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(read_);
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Until([&] { return call_.done; }));
  EXPECT_EQ(call_.outcome, RefundOutcome::kRefunded);
  EXPECT_EQ(call_.permits, 4u);
}

}  // namespace
}  // namespace sluice::store::redis
