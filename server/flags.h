// The flags of sluiced.
#ifndef SLUICE_SERVER_FLAGS_H_
#define SLUICE_SERVER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bounds.h"
#include "common/log.h"
#include "common/net/address.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/redis_store.h"
#include "server/transport/services/tls_files.h"

namespace sluice {

struct Flags {
  std::string limits;  // empty: no file, limits come from PutLimit only
  net::Address listen{"127.0.0.1", 7200, ""};
  net::Address admin_listen{"127.0.0.1", 7201, ""};
  int threads = 0;  // event loops of the data port; 0: one per core
  // Redis, which holds the buckets. Empty: they are in memory.
  std::optional<store::RedisStoreOptions> redis;
  int store_threads = 0;  // event loops for Redis only; 0: it uses those of the data port
  std::string redis_namespace = "sluice";
  absl::Duration redis_budget = absl::Milliseconds(20);
  absl::Duration redis_node_ttl = absl::Seconds(2);
  bool redis_allow_eviction = false;
  bool redis_allow_unguarded = false;
  absl::Duration redis_max_lag = absl::Seconds(10);
  store::redis::AfterLoss after_data_loss = store::redis::AfterLoss::kEmpty;
  int max_connections = common::bounds::kDefaultMaxConnections;  // of the data port
  uint64_t max_buckets = common::bounds::kDefaultMaxBuckets;
  store::OverflowPolicy overflow = store::OverflowPolicy::kDeny;
  absl::Duration drain_notice = absl::Seconds(1);
  absl::Duration drain_timeout = absl::Seconds(10);
  transport::TlsFiles tls;
  transport::TlsFiles admin_tls;
  std::string admin_token_file;
  common::LogLevel log_level = common::LogLevel::kInfo;
  bool version = false;
  bool help = false;
};

// `arguments`: without the program's name. INVALID_ARGUMENT names the flag, its value and the
// values that are allowed; also for flags that contradict each other (an admin port that leaves
// loopback without mTLS or a token).
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments);

// The text of --help.
std::string FlagsHelp();

}  // namespace sluice

#endif  // SLUICE_SERVER_FLAGS_H_
