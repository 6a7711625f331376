#include "server/store/redis/connection/redis_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice::store::redis {
namespace {

using ::testing::AllOf;
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

TEST(RedisUrlTest, ReadsTheServersOfACluster) {
  const RedisUrl url = Good("redis-cluster://node:secret@a:7000,b,[::1]:7001/0");
  EXPECT_EQ(url.topology, Topology::kCluster);
  ASSERT_EQ(url.seeds.size(), 3u);
  EXPECT_EQ(url.seeds[1].ToString(), "b:6379");
  EXPECT_EQ(url.user, "node");
  EXPECT_FALSE(url.tls);
  EXPECT_EQ(url.ToString(), "redis-cluster://node@a:7000,b:6379,[::1]:7001");
  const RedisUrl tls = Good("rediss-cluster://a?ca=/a.pem");
  EXPECT_TRUE(tls.tls);
  EXPECT_EQ(tls.ToString(), "rediss-cluster://a:6379");
  EXPECT_EQ(Good("redis://a").topology, Topology::kServer);
}

TEST(RedisUrlTest, ReadsUserAndPasswordAndDoesNotShowThePassword) {
  const RedisUrl url = Good("redis://node:p%40ss%3A@h");
  EXPECT_EQ(url.user, "node");
  EXPECT_EQ(url.password, "p@ss:");
  EXPECT_THAT(url.ToString(), Not(HasSubstr("ss")));
  EXPECT_EQ(Good("redis://:secret@h").user, "");
}

TEST(RedisUrlTest, ReadsTlsOptions) {
  const RedisUrl url = Good("rediss://h?ca=/a.pem&cert=/b.pem&key=/c.pem&server_name=redis");
  EXPECT_EQ(url.tls_options.trusted_ca_file, "/a.pem");
  EXPECT_EQ(url.tls_options.certificate_chain_file, "/b.pem");
  EXPECT_EQ(url.tls_options.private_key_file, "/c.pem");
  EXPECT_EQ(url.server_name, "redis");
}

TEST(RedisUrlTest, ReadsSentinelsAndTheirPrimary) {
  const RedisUrl url = Good(
      "rediss-sentinel://node:secret@s1,[::1]:7001,s3:7002/cache/2"
      "?ca=/a.pem&sentinel_user=look&sentinel_password=hidden%2F");
  EXPECT_EQ(url.topology, Topology::kSentinel);
  ASSERT_EQ(url.seeds.size(), 3u);
  EXPECT_EQ(url.seeds[0].ToString(), "s1:26379");
  EXPECT_EQ(url.seeds[1].ToString(), "[::1]:7001");
  EXPECT_EQ(url.seeds[2].ToString(), "s3:7002");
  EXPECT_EQ(url.primary_name, "cache");
  EXPECT_EQ(url.database, 2u);
  EXPECT_EQ(url.password, "secret");
  EXPECT_EQ(url.sentinel_user, "look");
  EXPECT_EQ(url.sentinel_password, "hidden/");
  EXPECT_TRUE(url.tls);
  EXPECT_TRUE(url.sentinel_tls);
  EXPECT_EQ(url.ToString(), "rediss-sentinel://node@s1:26379,[::1]:7001,s3:7002/cache/2");
  EXPECT_FALSE(Good("rediss-sentinel://s/m?sentinel_tls=no").sentinel_tls);
  EXPECT_FALSE(Good("redis-sentinel://s/m").tls);
  EXPECT_EQ(Good("redis-sentinel://s/m?db=4").database, 4u);
}

TEST(RedisUrlTest, RejectsInvalidUrlsWithAnExplanation) {
  EXPECT_THAT(Bad("localhost:6379"), HasSubstr("redis://"));
  EXPECT_THAT(Bad("redis-sentinel://a,b"), HasSubstr("mymaster"));
  EXPECT_THAT(Bad("redis-sentinel://a,b/"), HasSubstr("mymaster"));
  EXPECT_THAT(Bad("redis-sentinel://a,/m"), HasSubstr("HOST"));
  EXPECT_THAT(Bad("redis-sentinel://a/m/x"), HasSubstr("database"));
  EXPECT_THAT(Bad("redis-sentinel://a/m/1/2"), HasSubstr("database"));
  EXPECT_THAT(Bad("redis-sentinel://a/m?ca=/a.pem"), HasSubstr("rediss-sentinel://"));
  EXPECT_THAT(Bad("redis-sentinel://a/m?sentinel_tls=1"), HasSubstr("yes or no"));
  EXPECT_THAT(Bad("redis-sentinel://a/m?sentinel_tls=yes"), HasSubstr("rediss-sentinel://"));
  EXPECT_THAT(Bad("redis-sentinel://a/m?sentinel_pass=x"), HasSubstr("sentinel_password"));
  EXPECT_THAT(Bad("redis-sentinel://a/m?sentinel_user=x"), HasSubstr("sentinel_password"));
  EXPECT_THAT(Bad("redis://h?sentinel_password=hunter2"), Not(HasSubstr("hunter2")));
  EXPECT_THAT(Bad("redis-cluster://:hunter2@a:b:c"), Not(HasSubstr("hunter2")));
  EXPECT_THAT(Bad("redis-cluster://a,b/3"), HasSubstr("only database 0"));
  EXPECT_THAT(Bad("redis-cluster://a,b?db=1"), HasSubstr("\"1\""));
  EXPECT_THAT(Bad("redis-cluster://a?ca=/a.pem"), HasSubstr("rediss-cluster://"));
  EXPECT_THAT(Bad("redis://a:1,b:2"), HasSubstr("redis-cluster://"));
  for (const char* const text : {"redis://app:hunter2", "redis://app:hunter2,b"}) {
    EXPECT_THAT(Bad(text), AllOf(HasSubstr("\"app:...\""), Not(HasSubstr("hunter2"))));
  }
  Bad("redis-cluster://");
  Bad("redis-cluster://a,,b");
  Bad("redis-cluster://a,b:0");
  Bad("redis-cluster://unix:/run/redis.sock");
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
