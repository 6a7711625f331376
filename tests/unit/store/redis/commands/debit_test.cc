// Debits of buckets that the script refuses, which this node decides.
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
// 2033-05-18, as the script reports it.
constexpr int64_t kNowUs = 2'000'000'000'000'000;
constexpr int64_t kNowNs = kNowUs * 1000;

std::string Bulk(std::string_view text) {
  return absl::StrCat("$", text.size(), "\r\n", std::string(text), "\r\n");
}

// What exchange.lua returns of one bucket.
std::string Read(const std::string& state, const std::string& receipts = "",
                 const std::vector<std::string>& list = {}) {
  std::string reply = absl::StrCat("*5\r\n:", kNowUs, "\r\n:0\r\n", Bulk(state), Bulk(receipts),
                                   "*", list.size(), "\r\n");
  for (const std::string& one : list) absl::StrAppend(&reply, Bulk(one));
  return reply;
}

class DebitTest : public CommandScene {
 protected:
  void Debit(const Rule& rule, uint64_t permits) {
    done_ = false;
    result_ = {};
    StartDebit(*this, EntryOf(rule), "k", permits, [this](const DebitResult& result) {
      done_ = true;
      result_ = result;
    });
  }
  // Waits for one command, which is that script.
  bool AskedFor(Script script) { return Asked(1) && servers[0].asked[0][1] == TextOf(script).sha; }
  bool Done() {
    return Until([&] { return done_; });
  }

  bool done_ = false;
  DebitResult result_;
};

TEST_F(DebitTest, TakesMoreThanAVersionedLogHolds) {
  const auto rule = testing::MakeRule(1, algorithm::MakeSlidingLog({10, 3600 * kSecond}).value());
  // A log with an estimate has a version. Eight of its ten permits are taken.
  OpenBucket log = OpenBucket::Read(rule->parameters, "", "", {}, kNowNs).value();
  log.BeginEstimate(/*receipt_id=*/1, /*permits=*/8, kNowNs, /*within_ns=*/60 * kSecond);
  log.Take(8, kNowNs, /*receipt_id=*/1, /*set=*/0);
  const std::vector<std::string> words = log.Format("node.1", "v1", kNowNs);
  ASSERT_TRUE(IsBooked(words.at(1)));
  // Nothing is deleted. Each chunk is set, then the past and the chunks' names.
  ASSERT_EQ(words.at(4), "0");
  std::vector<std::string> list = {words.back()};
  for (size_t at = 7; at + 4 < words.size(); at += 2) list.push_back(words[at]);

  Debit(*rule, 4);
  ASSERT_TRUE(AskedFor(Script::kDebit));
  servers[0].Answer("*2\r\n:-2\r\n:0\r\n");
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(Read(words[1], words.at(words.size() - 3), list));
  ASSERT_TRUE(AskedFor(Script::kExchange));
  const std::string written = servers[0].asked[0].at(12);
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Done());
  EXPECT_TRUE(result_.known);
  EXPECT_EQ(result_.over, 2u);
  EXPECT_EQ(result_.level.remaining, -2);

  // This node knows the bucket.
  Debit(*rule, 3);
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(Read(written));
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Done());
  EXPECT_EQ(result_.over, 3u);
  EXPECT_EQ(result_.level.remaining, -5);
}

TEST_F(DebitTest, ReportsTheSameAsTheScript) {
  const auto rule = testing::MakeRule(1, algorithm::MakeTokenBucket({10, kSecond}, 10, 2).value());
  // Of 10 permits 8 are taken, and 6 more: the bucket owes 4, of which 2 are its debt.
  Debit(*rule, 6);
  ASSERT_TRUE(AskedFor(Script::kDebit));
  servers[0].Answer(absl::StrCat("*9\r\n:", kNowUs, "\r\n:0\r\n:1400000\r\n:0\r\n",
                                 ":0\r\n:0\r\n:0\r\n:0\r\n:0\r\n"));
  ASSERT_TRUE(Done());
  const DebitResult by_script = result_;
  EXPECT_TRUE(by_script.known);
  EXPECT_EQ(by_script.over, 2u);
  EXPECT_EQ(by_script.level.remaining, -4);

  Debit(*rule, 6);
  ASSERT_TRUE(AskedFor(Script::kDebit));
  servers[0].Answer("*2\r\n:-1\r\n:0\r\n");
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(
      Read(absl::StrCat(EncodeParameters(rule->parameters), " node.1 ", kNowUs + 800'000, " 0 0")));
  ASSERT_TRUE(AskedFor(Script::kExchange));
  servers[0].Answer(":1\r\n");
  ASSERT_TRUE(Done());
  EXPECT_TRUE(result_.known);
  EXPECT_EQ(result_.over, by_script.over);
  EXPECT_EQ(result_.level, by_script.level);
}

}  // namespace
}  // namespace sluice::store::redis
