// The flags of sluiced.
#ifndef SLUICE_SERVER_FLAGS_H_
#define SLUICE_SERVER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/bounds.h"
#include "common/log.h"
#include "common/net/address.h"
#include "server/envoy/configuration.h"
#include "server/envoy/xds/ads_client.h"
#include "server/state/state_keeper.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/redis_store.h"
#include "server/transport/envoy/descriptor_call.h"
#include "server/transport/services/tls_files.h"

namespace sluice {

struct Flags {
  std::string limits;  // empty: no file, limits come from PutLimit only
  net::Address listen{"127.0.0.1", 7200, ""};
  // Absent: there is no such port.
  std::optional<net::Address> admin_listen = net::Address{"127.0.0.1", 7201, ""};
  std::optional<net::Address> http_listen = net::Address{"127.0.0.1", 7202, ""};
  std::optional<net::Address> metrics_listen;  // absent: there is no such port
  std::vector<std::string> http_hosts;         // empty: loopback and http_listen
  std::string takeover;                        // path of a Unix socket; empty: none
  int threads = 0;                             // event loops of the data port; 0: one per core
  bool in_redis = false;                       // where the buckets are; else in memory
  store::RedisStoreOptions redis;
  int store_threads = 0;  // event loops for Redis only; 0: it uses those of the data port
  int max_connections = common::bounds::kDefaultMaxConnections;  // of the data port
  uint64_t max_buckets = common::bounds::kDefaultMaxBuckets;
  std::string state_dir;  // empty: nothing is kept over a restart
  state::AfterCrash after_crash = state::AfterCrash::kEmpty;
  int64_t memory_limit = 0;  // bytes; 0: three quarters of the memory that the process may use
  int64_t stall_timeout_ns = common::bounds::kDefaultStallTimeoutNs;
  store::OverflowPolicy overflow = store::OverflowPolicy::kDeny;
  int64_t drain_notice_ns = int64_t{1} * 1'000'000'000;
  int64_t drain_timeout_ns = int64_t{10} * 1'000'000'000;
  transport::TlsFiles tls;
  transport::TlsFiles admin_tls;
  transport::TlsFiles http_tls;
  std::string admin_token_file;
  std::string clients;    // empty: no file, all callers are served
  std::string audit_log;  // empty: none; "-": stderr
  // Envoy's rate-limit configuration: from files or from a management server.
  envoy::ConfigurationOptions ratelimit;
  envoy::AdsOptions xds;
  bool start_without_config = false;
  bool healthy_with_config = false;
  std::optional<net::Address> ratelimit_http_listen;   // absent: there is no such port
  std::optional<net::Address> ratelimit_debug_listen;  // as above
  std::optional<net::Address> statsd;                  // absent: nothing is sent
  int64_t statsd_interval_ns = int64_t{10} * 1'000'000'000;
  transport::DescriptorOptions descriptors;  // of Envoy's rate-limit service
  common::LogLevel log_level = common::LogLevel::kInfo;
  bool version = false;
  bool help = false;

  bool HasRateLimitConfiguration() const { return !ratelimit.path.empty() || !xds.server.empty(); }
};

// `arguments`: without the program's name. INVALID_ARGUMENT names the flag, its value and the
// values that are allowed; also for flags that contradict each other (an admin port that leaves
// loopback without mTLS or a token).
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments);

// Flags that contradict each other, as ParseFlags. Again after an address was changed.
absl::Status CheckTogether(const Flags& flags);

// A port as the flags give it.
struct PortFlag {
  const char* name;  // as the line on stdout names it
  const char* flag;
  net::Address listen;
};
// All ports that there are.
std::vector<PortFlag> PortsOf(const Flags& flags);
// Changes the address of a port that there is.
void SetListen(const std::string& port, net::Address listen, Flags* flags);

// The text of --help.
std::string FlagsHelp();

}  // namespace sluice

#endif  // SLUICE_SERVER_FLAGS_H_
