#include "server/store/redis/redis_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice::store::redis {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RedisUrl Good(const char* text) {
  auto url = RedisUrl::Parse(text);
  EXPECT_TRUE(url.ok()) << text << ": " << url.status();
  return url.ok() ? *url : RedisUrl();
}

std::string Bad(const char* text) {
  const auto url = RedisUrl::Parse(text);
  EXPECT_FALSE(url.ok()) << text;
  EXPECT_EQ(url.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(url.status().message());
}

TEST(RedisUrlTest, ReadsAHostAndItsPort) {
  EXPECT_EQ(Good("redis://cache.example").address.ToString(), "cache.example:6379");
  EXPECT_EQ(Good("redis://cache.example:7000/").address.ToString(), "cache.example:7000");
  EXPECT_EQ(Good("redis://[::1]").address.ToString(), "[::1]:6379");
  EXPECT_EQ(Good("redis://[::1]:7000/3").address.ToString(), "[::1]:7000");
  EXPECT_EQ(Good("redis://h/3").database, 3u);
  EXPECT_FALSE(Good("redis://h").tls);
  EXPECT_TRUE(Good("rediss://h").tls);
}

TEST(RedisUrlTest, ReadsAUnixSocket) {
  const RedisUrl url = Good("unix:///run/redis.sock?db=2");
  EXPECT_EQ(url.address.unix_path, "/run/redis.sock");
  EXPECT_EQ(url.database, 2u);
  EXPECT_EQ(url.ToString(), "unix:///run/redis.sock?db=2");
}

TEST(RedisUrlTest, ReadsUserAndPasswordAndKeepsThePasswordToItself) {
  const RedisUrl url = Good("redis://node:p%40ss%3A@h");
  EXPECT_EQ(url.user, "node");
  EXPECT_EQ(url.password, "p@ss:");
  EXPECT_THAT(url.ToString(), Not(HasSubstr("ss")));
  EXPECT_EQ(Good("redis://:secret@h").user, "");
}

TEST(RedisUrlTest, ReadsWhatTlsNeeds) {
  const RedisUrl url = Good("rediss://h?ca=/a.pem&cert=/b.pem&key=/c.pem&server_name=redis");
  EXPECT_EQ(url.tls_options.trusted_ca_file, "/a.pem");
  EXPECT_EQ(url.tls_options.certificate_chain_file, "/b.pem");
  EXPECT_EQ(url.tls_options.private_key_file, "/c.pem");
  EXPECT_EQ(url.server_name, "redis");
}

TEST(RedisUrlTest, SaysWhatIsWrong) {
  EXPECT_THAT(Bad("localhost:6379"), HasSubstr("redis://"));
  EXPECT_THAT(Bad("redis-sentinel://a,b/mymaster"), HasSubstr("Sentinel"));
  EXPECT_THAT(Bad("redis-cluster://:hunter2@a"), Not(HasSubstr("hunter2")));
  EXPECT_THAT(Bad("redis://h/first"), HasSubstr("database"));
  EXPECT_THAT(Bad("redis://h?ca=/a.pem"), HasSubstr("rediss://"));
  EXPECT_THAT(Bad("redis://h?timeout=1"), HasSubstr("timeout"));
  EXPECT_THAT(Bad("redis://node@h"), HasSubstr("password"));
  EXPECT_THAT(Bad("redis://:a%zz@h"), HasSubstr("%25"));
  EXPECT_THAT(Bad("redis://h?password_file=/nowhere"), HasSubstr("/nowhere"));
  EXPECT_THAT(Bad("unix://relative"), HasSubstr("slash"));
  Bad("redis://");
  Bad("redis://h:0");
  Bad("redis://h:99999");
}

}  // namespace
}  // namespace sluice::store::redis
