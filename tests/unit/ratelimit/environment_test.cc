#include "server/ratelimit/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice::ratelimit {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

TEST(EnvironmentTest, EmptyEnvironmentHasTheDefaultsOfEnvoyproxyRatelimit) {
  const Translation translation = Translate({});
  EXPECT_THAT(
      translation.flags,
      ElementsAre("--listen=0.0.0.0:8081", "--ratelimit_http_listen=0.0.0.0:8080",
                  "--ratelimit_debug_listen=0.0.0.0:6070", "--admin_listen=none",
                  "--http_listen=none", "--ratelimit_config=/srv/runtime_data/current/config",
                  "--statsd=localhost:8125", "--log_level=warning"));
  EXPECT_EQ(translation.store, "");
  EXPECT_THAT(translation.ignored, IsEmpty());
  EXPECT_THAT(translation.errors, IsEmpty());
}

// ---- Each variable ----

struct FlagsCase {
  Environment environment;
  std::vector<std::string> flags;  // among others
};

class EnvironmentFlagsTest : public ::testing::TestWithParam<FlagsCase> {};

TEST_P(EnvironmentFlagsTest, Sets) {
  const Translation translation = Translate(GetParam().environment);
  EXPECT_THAT(translation.flags, IsSupersetOf(GetParam().flags));
  EXPECT_THAT(translation.errors, IsEmpty());
  EXPECT_THAT(translation.ignored, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, EnvironmentFlagsTest,
    ::testing::Values(
        FlagsCase{{{"GRPC_PORT", "18081"}, {"GRPC_HOST", "::1"}}, {"--listen=[::1]:18081"}},
        FlagsCase{{{"GRPC_UDS", "/run/rl.sock"}}, {"--listen=unix:/run/rl.sock"}},
        FlagsCase{{{"PORT", "80"}, {"HOST", "127.0.0.1"}},
                  {"--ratelimit_http_listen=127.0.0.1:80"}},
        FlagsCase{{{"DEBUG_PORT", "1"}, {"DEBUG_HOST", "127.0.0.1"}},
                  {"--ratelimit_debug_listen=127.0.0.1:1"}},
        FlagsCase{{{"RUNTIME_ROOT", "/data"}, {"RUNTIME_SUBDIRECTORY", "ratelimit"}},
                  {"--ratelimit_config=/data/ratelimit/config"}},
        FlagsCase{{{"RUNTIME_ROOT", "/data/"}, {"RUNTIME_APPDIRECTORY", "limits"}},
                  {"--ratelimit_config=/data/limits"}},
        FlagsCase{{{"RUNTIME_IGNOREDOTFILES", "false"}, {"RUNTIME_WATCH_ROOT", "false"}},
                  {"--ratelimit_ignore_dot_files=off"}},
        FlagsCase{{{"MERGE_DOMAIN_CONFIG", "T"}}, {"--ratelimit_merge_domains"}},
        FlagsCase{{{"FORCE_START_WITHOUT_INITIAL_CONFIG", "1"}},
                  {"--ratelimit_start_without_config"}},
        FlagsCase{{{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "TRUE"}},
                  {"--ratelimit_healthy_with_config"}},
        FlagsCase{{{"CONFIG_TYPE", "GRPC_XDS_SOTW"}},
                  {"--ratelimit_xds=localhost:18000", "--ratelimit_xds_node=default"}},
        // Envoy Gateway's.
        FlagsCase{
            {{"CONFIG_TYPE", "GRPC_XDS_SOTW"},
             {"CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"},
             {"CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"},
             {"CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"},
             {"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"},
             {"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"},
             {"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"},
             {"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"},
             {"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000000"}},
            {"--ratelimit_xds=envoy-gateway:18001", "--ratelimit_xds_node=envoy-ratelimit",
             "--ratelimit_xds_tls", "--ratelimit_xds_tls_cert=/certs/tls.crt",
             "--ratelimit_xds_tls_key=/certs/tls.key", "--ratelimit_xds_tls_ca=/certs/ca.crt",
             "--ratelimit_xds_server_name=envoy-gateway", "--ratelimit_xds_max_bytes=1000000"}},
        FlagsCase{{{"GRPC_SERVER_USE_TLS", "true"},
                   {"GRPC_SERVER_TLS_CERT", "/certs/tls.crt"},
                   {"GRPC_SERVER_TLS_KEY", "/certs/tls.key"},
                   {"GRPC_CLIENT_TLS_CACERT", "/certs/ca.crt"}},
                  {"--tls_cert=/certs/tls.crt", "--tls_key=/certs/tls.key",
                   "--tls_client_ca=/certs/ca.crt"}},
        FlagsCase{{{"SHADOW_MODE", "true"}}, {"--ratelimit_shadow=on"}},
        FlagsCase{{{"QUOTA_MODE", "true"}}, {"--ratelimit_quota=on"}},
        FlagsCase{{{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"}},
                  {"--ratelimit_stop_when_over=on"}},
        FlagsCase{{{"RESPONSE_DYNAMIC_METADATA", "true"}}, {"--ratelimit_metadata=on"}},
        FlagsCase{{{"LIMIT_RESPONSE_HEADERS_ENABLED", "true"},
                   {"LIMIT_LIMIT_HEADER", "x-limit"},
                   {"LIMIT_REMAINING_HEADER", "x-remaining"},
                   {"LIMIT_RESET_HEADER", "x-reset"}},
                  {"--ratelimit_headers=on", "--ratelimit_limit_header=x-limit",
                   "--ratelimit_remaining_header=x-remaining", "--ratelimit_reset_header=x-reset"}},
        FlagsCase{{{"NEAR_LIMIT_RATIO", "0.9"}}, {"--ratelimit_near_ratio=0.9"}},
        FlagsCase{{{"USE_PROMETHEUS", "true"}}, {"--metrics_listen=0.0.0.0:9090"}},
        FlagsCase{{{"USE_PROMETHEUS", "true"}, {"PROMETHEUS_ADDR", "127.0.0.1:19001"}},
                  {"--metrics_listen=127.0.0.1:19001"}},
        FlagsCase{{{"STATSD_HOST", "statsd.local"}, {"STATSD_PORT", "9125"}},
                  {"--statsd=statsd.local:9125"}},
        FlagsCase{{{"STATSD_HOST", "::1"}, {"STATS_FLUSH_INTERVAL", "5s"}},
                  {"--statsd=[::1]:8125", "--statsd_interval=5s"}},
        FlagsCase{{{"LOG_LEVEL", "DEBUG"}, {"LOG_FORMAT", "text"}}, {"--log_level=info"}},
        FlagsCase{{{"LOG_LEVEL", "Info"}}, {"--log_level=info"}},
        FlagsCase{{{"LOG_LEVEL", "panic"}}, {"--log_level=error"}},
        FlagsCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_SOCKET_TYPE", "tcp"}},
                  {"--redis_allow_eviction", "--redis_allow_unguarded"}},
        FlagsCase{{{"REDIS_URL", "redis:6379"}, {"CACHE_KEY_PREFIX", "team"}},
                  {"--redis_namespace=team"}},
        FlagsCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_TIMEOUT", "1.5s"}},
                  {"--redis_budget=1.5s"}}));

TEST(EnvironmentTest, SwitchesThatAreOffSetNothing) {
  EXPECT_EQ(Translate({{"SHADOW_MODE", "false"},
                       {"USE_PROMETHEUS", "0"},
                       {"GRPC_SERVER_USE_TLS", "f"},
                       {"GRPC_SERVER_TLS_CERT", "/unused"},
                       {"CONFIG_GRPC_XDS_SERVER_USE_TLS", "False"},
                       {"MERGE_DOMAIN_CONFIG", ""}})
                .flags,
            Translate({}).flags);
}

TEST(EnvironmentTest, StatisticsThatAreOffSendNothing) {
  for (const char* name : {"USE_STATSD", "DISABLE_STATS"}) {
    const std::string value = name == std::string("USE_STATSD") ? "false" : "true";
    EXPECT_THAT(Translate({{name, value}}).flags, Not(Contains(StartsWith("--statsd"))));
  }
}

// ---- Redis ----

struct StoreCase {
  Environment environment;
  std::string store;
  std::string password = {};
  std::string sentinel_password = {};
};

class EnvironmentStoreTest : public ::testing::TestWithParam<StoreCase> {};

TEST_P(EnvironmentStoreTest, NamesTheRedis) {
  const Translation translation = Translate(GetParam().environment);
  EXPECT_EQ(translation.store, GetParam().store);
  EXPECT_EQ(translation.password, GetParam().password);
  EXPECT_EQ(translation.sentinel_password, GetParam().sentinel_password);
  EXPECT_THAT(translation.errors, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, EnvironmentStoreTest,
    ::testing::Values(
        StoreCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_SOCKET_TYPE", "tcp"}},
                  "redis://redis:6379"},
        StoreCase{{{"REDIS_URL", "/run/redis.sock"}}, "unix:///run/redis.sock"},
        StoreCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_TLS", "true"}}, "rediss://redis:6379"},
        StoreCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_SOCKET_TYPE", "tls"}},
                  "rediss://redis:6379"},
        StoreCase{{{"REDIS_URL", "rediss://redis:6379"}}, "rediss://redis:6379"},
        StoreCase{{{"REDIS_URL", "redis:6379"},
                   {"REDIS_TLS", "true"},
                   {"REDIS_TLS_CACERT", "/certs/ca &1.pem"},
                   {"REDIS_TLS_CLIENT_CERT", "/certs/c.pem"},
                   {"REDIS_TLS_CLIENT_KEY", "/certs/k.pem"}},
                  "rediss://redis:6379?ca=/certs/ca%20%261.pem&cert=/certs/c.pem&key=/certs/k.pem"},
        StoreCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_AUTH", "se@cret"}},
                  "redis://redis:6379",
                  "se@cret"},
        StoreCase{{{"REDIS_URL", "redis:6379"}, {"REDIS_AUTH", "a@b:se:cret"}},
                  "redis://a%40b@redis:6379",
                  "se:cret"},
        StoreCase{{{"REDIS_URL", "a:1,b:2"}, {"REDIS_TYPE", "cluster"}}, "redis-cluster://a:1,b:2"},
        StoreCase{{{"REDIS_URL", "a:1"}, {"REDIS_TYPE", "CLUSTER"}, {"REDIS_TLS", "t"}},
                  "rediss-cluster://a:1"},
        StoreCase{{{"REDIS_URL", "mymaster,s1:26379,s2:26379"}, {"REDIS_TYPE", "SENTINEL"}},
                  "redis-sentinel://s1:26379,s2:26379/mymaster"},
        StoreCase{{{"REDIS_URL", "m,s1:1"},
                   {"REDIS_TYPE", "Sentinel"},
                   {"REDIS_AUTH", "pw"},
                   {"REDIS_SENTINEL_AUTH", "watch:pw2"}},
                  "redis-sentinel://s1:1/m?sentinel_user=watch",
                  "pw",
                  "pw2"}));

// ---- Values that are wrong ----

struct ErrorCase {
  Environment environment;
  std::string error;
};

class EnvironmentErrorTest : public ::testing::TestWithParam<ErrorCase> {};

TEST_P(EnvironmentErrorTest, SaysWhatToWrite) {
  EXPECT_THAT(Translate(GetParam().environment).errors, ElementsAre(HasSubstr(GetParam().error)));
}

INSTANTIATE_TEST_SUITE_P(
    All, EnvironmentErrorTest,
    ::testing::Values(
        ErrorCase{{{"BACKEND_TYPE", "memcache"}},
                  "BACKEND_TYPE=memcache: memcached is not supported: write redis"},
        ErrorCase{{{"GRPC_PORT", "grpc"}},
                  "GRPC_PORT=grpc: write a port, a number from 0 to 65535"},
        ErrorCase{{{"PORT", "65536"}}, "PORT=65536: write a port"},
        ErrorCase{{{"DEBUG_PORT", "-1"}}, "DEBUG_PORT=-1: write a port"},
        ErrorCase{{{"STATSD_PORT", "0"}}, "STATSD_PORT=0: write a port, a number from 1"},
        ErrorCase{{{"CONFIG_TYPE", "ZOOKEEPER"}},
                  "CONFIG_TYPE=ZOOKEEPER: write one of FILE, GRPC_XDS_SOTW"},
        ErrorCase{{{"REDIS_TYPE", "one"}},
                  "REDIS_TYPE=one: write one of SINGLE, SENTINEL, CLUSTER"},
        ErrorCase{{{"REDIS_SOCKET_TYPE", "udp"}}, "REDIS_SOCKET_TYPE=udp: write one of unix, tcp"},
        ErrorCase{{{"REDIS_TYPE", "SENTINEL"}, {"REDIS_URL", "s1:26379,s2:26379"}},
                  "write the primary's name and the Sentinels, as mymaster,host1:26379"},
        ErrorCase{{{"REDIS_URL", "h:1"}, {"REDIS_TIMEOUT", "10"}},
                  "REDIS_TIMEOUT=10: write a duration from 1ms to 24h, as 20ms"},
        ErrorCase{{{"REDIS_URL", "h:1"}, {"REDIS_AUTH", "user:"}},
                  "REDIS_AUTH: the password is empty; write PASSWORD or USER:PASSWORD"},
        ErrorCase{{{"SHADOW_MODE", "yes"}}, "SHADOW_MODE=yes: write true or false"},
        ErrorCase{{{"NEAR_LIMIT_RATIO", "80%"}}, "NEAR_LIMIT_RATIO=80%: write a number from 0"},
        ErrorCase{{{"LOG_LEVEL", "loud"}}, "LOG_LEVEL=loud: write one of warn"},
        ErrorCase{{{"GRPC_SERVER_USE_TLS", "true"}, {"GRPC_SERVER_TLS_CERT", "/c.pem"}},
                  "GRPC_SERVER_TLS_KEY=: GRPC_SERVER_USE_TLS=true needs it"}));

TEST(EnvironmentTest, ReportsAllWrongValuesAtOnce) {
  EXPECT_EQ(Translate({{"PORT", "x"}, {"SHADOW_MODE", "x"}}).errors.size(), 2u);
}

TEST(EnvironmentTest, ErrorsDoNotShowPasswords) {
  EXPECT_THAT(Translate({{"REDIS_URL", "h:1"}, {"REDIS_AUTH", "hidden:"}}).errors.at(0),
              Not(HasSubstr("hidden")));
}

// ---- Variables without effect ----

TEST(EnvironmentTest, NamesVariablesWithoutEffect) {
  for (const auto& [name, value] : Environment{{"LOCAL_CACHE_SIZE_IN_BYTES", "1000000"},
                                               {"GRPC_MAX_CONNECTION_AGE", "30m"},
                                               {"LOG_FORMAT", "json"},
                                               {"REDIS_PERSECOND", "true"},
                                               {"REDIS_POOL_SIZE", "10"},
                                               {"EXTRA_TAGS", "a:b"},
                                               {"USE_DOG_STATSD", "true"},
                                               {"TRACING_ENABLED", "true"},
                                               {"PROMETHEUS_PATH", "/m"},
                                               {"CONFIG_GRPC_XDS_NODE_METADATA", "a=b"}}) {
    const Translation translation = Translate({{name, value}});
    ASSERT_EQ(translation.ignored.size(), 1u) << name;
    EXPECT_EQ(translation.ignored[0].name, name);
    EXPECT_NE(translation.ignored[0].why, "");
    EXPECT_THAT(translation.errors, IsEmpty());
  }
}

TEST(EnvironmentTest, DoesNotNameVariablesWhoseValueChangesNothing) {
  EXPECT_THAT(Translate({{"LOCAL_CACHE_SIZE_IN_BYTES", "0"},
                         {"REDIS_PERSECOND", "FALSE"},
                         {"PROMETHEUS_PATH", "/metrics"},
                         {"HOME", "/root"}})
                  .ignored,
              IsEmpty());
}

}  // namespace
}  // namespace sluice::ratelimit
