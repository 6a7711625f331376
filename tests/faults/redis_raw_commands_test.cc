// Raw Redis commands through the store (RedisStore::Call).
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "server/store/redis/wire/resp.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

// nullopt: the store reported that there is no reply.
std::optional<store::redis::Reply> CallAndWait(RedisNode& node, std::vector<std::string> words) {
  std::promise<std::optional<store::redis::Reply>> answer;
  node.store().Call(words.size() > 1 ? words[1] : "", words, [&](const store::redis::Reply* reply) {
    answer.set_value(reply == nullptr ? std::nullopt : std::optional(*reply));
  });
  return answer.get_future().get();
}

TEST(RedisRawCommandsTest, ReturnsReplyThatLooksLikeScriptReply) {
  RedisServer server;
  RedisNode node(server.url());
  EXPECT_EQ(CallAndWait(node, {"SET", "a", "7"})->text, "OK");
  EXPECT_EQ(CallAndWait(node, {"GET", "a"})->text, "7");
  // Our scripts use this form of reply if they cannot decide.
  const auto listed = CallAndWait(node, {"EVAL", "return {-1, 2}", "0"});
  ASSERT_TRUE(listed.has_value());
  EXPECT_EQ(listed->elements.size(), 2u);
}

TEST(RedisRawCommandsTest, ReturnsErrorAsReply) {
  RedisServer server;
  RedisNode node(server.url());
  const auto answer = CallAndWait(node, {"INCR"});
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->is_error());
}

TEST(RedisRawCommandsTest, ReportsMissingReply) {
  RedisServer server;
  RedisNode node(server.url());
  server.Kill();
  EXPECT_FALSE(CallAndWait(node, {"GET", "a"}).has_value());
}

}  // namespace
}  // namespace sluice::testing
