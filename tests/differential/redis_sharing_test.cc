// heartbeat.lua and debit.lua against models in C++, on random histories.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/commands/heartbeat.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/key_names.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "tests/differential/script_calls.h"
#include "tests/support/heartbeat_model.h"

namespace sluice::testing {
namespace {

using store::redis::Script;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStartUs = 1'800'000'000'000'000;

store::redis::Reply ToReply(const RedisValue& value) {
  store::redis::Reply reply;
  switch (value.type) {
    case RedisValue::Type::kInteger:
      reply.type = store::redis::Reply::Type::kInteger;
      break;
    case RedisValue::Type::kString:
      reply.type = store::redis::Reply::Type::kString;
      break;
    case RedisValue::Type::kArray:
      reply.type = store::redis::Reply::Type::kArray;
      break;
    default:
      ADD_FAILURE() << value.text;
  }
  reply.integer = value.integer;
  reply.text = value.text;
  for (const RedisValue& element : value.elements) reply.elements.push_back(ToReply(element));
  return reply;
}

TEST(RedisSharingDifferentialTest, AnswersHeartbeatsAsTheModelDoes) {
  std::minstd_rand random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() / 7) % n; };
  constexpr int64_t kTtlNs = 2 * kSecond;
  for (int history = 0; history < 20; ++history) {
    const std::string name_space = absl::StrCat("h", history);
    HeartbeatModel model;
    int64_t now_us = kStartUs;
    const auto take_over = [&](int number) {
      model.data.word = absl::StrCat(name_space, ":word", number);
      model.data.lag_us = below(3) == 0 ? 0 : below(20'000'000);
      model.data.floor_us = below(3) == 0 ? 0 : now_us + below(30'000'000);
      Scripts::Get().Call({"SET", model.data.word, "m"});
      Scripts::Get().Call({"APPEND", model.data.word, "m"});
    };
    take_over(0);
    for (int step = 0; step < 200; ++step) {
      now_us += below(20) == 0 ? below(25'000'000) : below(800'000);
      const std::string id = absl::StrCat("node", below(5));
      const uint32_t divisor = below(5);
      const bool clear = below(2) == 0;
      const int64_t not_after_us = below(4) == 0 ? now_us - 500 + below(1000) : 0;
      if (below(40) == 0) {
        Scripts::Get().Call({"HDEL", name_space + ":nodes", id});
        model.Leave(id);
      }
      if (below(30) == 0) take_over(step + 1);
      store::redis::FencingToken term;
      term.word_key = model.data.word;
      term.floor_us = model.data.floor_us;
      term.lag_us = model.data.lag_us;
      const auto got =
          store::redis::ParseHeartbeat(ToReply(Scripts::Get().Call(store::redis::HeartbeatWords(
              {store::redis::NodesKey(name_space), id, divisor, clear, kTtlNs, not_after_us}, term,
              store::redis::TestTime(now_us * 1000)))));
      const auto wanted = model.Beat(id, now_us, divisor, clear, kTtlNs / 1000, not_after_us);
      ASSERT_EQ(got.has_value(), wanted.has_value());
      if (!wanted.has_value()) continue;
      EXPECT_EQ(got->now_us, wanted->now_us);
      EXPECT_EQ(got->is_new, wanted->is_new);
      EXPECT_EQ(got->hash_age_us, wanted->hash_age_us);
      EXPECT_EQ(got->lag_us, wanted->lag_us);
      EXPECT_EQ(got->held_us, wanted->held_us);
      ASSERT_EQ(got->others.size(), wanted->others.size());
      for (const auto& other : wanted->others) {
        bool found = false;
        for (const auto& one : got->others) {
          if (one.id != other.id) continue;
          found = true;
          EXPECT_EQ(one.age_us, other.age_us);
          EXPECT_EQ(one.divisor, other.divisor);
          EXPECT_EQ(one.clear, other.clear);
        }
        EXPECT_TRUE(found) << other.id;
      }
    }
  }
}

TEST(RedisSharingDifferentialTest, IgnoresHeartbeatsFromBeforeDataLoss) {
  const store::redis::Heartbeat heartbeat = {
      store::redis::NodesKey("other"), "a", 0, true, 2 * kSecond, 0};
  for (const bool as_argument : {false, true}) {
    store::redis::FencingToken term;
    term.word_key = "other:word";
    term.as_argument = as_argument;
    const RedisValue answer = Scripts::Get().Call(store::redis::HeartbeatWords(heartbeat, term));
    EXPECT_EQ(answer.type, RedisValue::Type::kError);
    EXPECT_EQ(answer.text.find("FENCE"), 0u) << answer.text;
  }
  EXPECT_EQ(Scripts::Get().Call({"EXISTS", heartbeat.key}).integer, 0);
}

// Compares the permits that the bucket lacks, or has counted, after each debit. Permits beyond the
// capacity are debited too.
TEST(RedisSharingDifferentialTest, ReportsDebitAllGrantedPermits) {
  const std::vector<algorithm::Parameters> kinds = {
      algorithm::MakeTokenBucket({1000, kSecond}, 20, 5).value(),
      algorithm::MakeTokenBucket({5'000'000, kSecond}, 100, 0).value(),
      algorithm::MakeSlidingLog({20, kSecond}).value(),
      algorithm::MakeSlidingWindow({20, kSecond}, 10).value(),
      algorithm::MakeFixedWindow({20, kSecond}, 0).value()};
  std::minstd_rand random(11);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() / 7) % n; };
  int serial = 0;
  bool any_over = false;
  for (const algorithm::Parameters& parameters : kinds) {
    for (int history = 0; history < 10; ++history) {
      const auto key_array = store::redis::KeysOf("report", "limit", absl::StrCat(++serial));
      const std::vector<std::string> keys(key_array.begin(), key_array.end());
      int64_t now_ns = kStartUs * 1000;
      // The model: the algorithm, with parameters that admit all these debits.
      const bool token = parameters.kind == algorithm::Kind::kTokenBucket;
      const int64_t origin_ns = now_ns - 1000 * kSecond;
      uint64_t tat = 0;
      algorithm::SlidingLogState log;
      for (int step = 0; step < 30; ++step) {
        now_ns += static_cast<int64_t>(below(30)) * 1'000'000 / (token ? 3 : 1);
        const uint64_t permits = 1 + below(12);
        std::vector<std::string> arguments = {store::redis::TestTime(now_ns), "1"};
        store::redis::AppendBucket(parameters, store::redis::EncodeParameters(parameters), "w.1",
                                   false, 0, &arguments);
        store::redis::AppendCost(parameters, permits, &arguments);
        const RedisValue answer = Scripts::Get().Run(Script::kDebit, keys, arguments);
        ASSERT_EQ(answer.type, RedisValue::Type::kArray) << answer.text;
        ASSERT_EQ(answer.elements.size(), 9u);
        const int64_t counted = answer.elements[2].integer;
        if (token) {
          const algorithm::TokenBucket& bucket = parameters.token_bucket;
          const uint64_t now = algorithm::ToTicks(bucket, now_ns - origin_ns);
          tat = std::max(tat, now) + permits * bucket.unit_ticks;
          EXPECT_EQ(store::redis::TicksOf(bucket, counted, answer.elements[3].integer), tat - now);
          any_over |= tat - now > bucket.burst_ticks + bucket.debt_ticks;
        } else if (parameters.kind == algorithm::Kind::kSlidingLog) {
          log.Add(parameters.sliding_log, permits, now_ns);
          EXPECT_EQ(static_cast<uint64_t>(counted), log.Counted(parameters.sliding_log, now_ns));
          any_over |= counted > 20;
        } else {
          EXPECT_GE(counted, static_cast<int64_t>(permits));
          any_over |= counted > 20;
        }
      }
    }
  }
  EXPECT_TRUE(any_over);
}

}  // namespace
}  // namespace sluice::testing
