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
#include "server/store/memory/memory_store.h"
#include "server/store/redis/redis_store.h"
#include "server/transport/grpc/grpc_server.h"
#include "server/transport/grpc/listen_address.h"

namespace sluice {

// What serves --listen: nghttp2 on our event loops, or grpc++ (for comparison).
enum class DataTransport { kH2, kGrpc };

struct Flags {
  std::string limits;  // empty: no file, limits come from PutLimit alone
  transport::ListenAddress listen;
  transport::ListenAddress admin_listen;
  DataTransport data_transport = DataTransport::kH2;
  int threads = 0;  // event loops of h2; 0: one per core
  // Where buckets live; none: in memory.
  std::optional<store::RedisStoreOptions> redis;
  int store_threads = 0;  // loops of Redis' own; 0: those of h2, or one
  std::string redis_namespace = "sluice";
  absl::Duration redis_budget = absl::Milliseconds(20);
  absl::Duration redis_node_ttl = absl::Seconds(2);
  bool redis_allow_eviction = false;
  bool redis_allow_unguarded = false;
  absl::Duration redis_max_lag = absl::Seconds(10);
  store::redis::AfterLoss after_data_loss = store::redis::AfterLoss::kEmpty;
  int max_connections = common::bounds::kDefaultMaxConnections;  // of the data port, h2
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

// `arguments`: without the program's name. INVALID_ARGUMENT names the flag, the value and what
// would be right; also for flags that do not go together (an admin port that leaves loopback
// without mTLS or a token).
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments);

// What --help prints.
std::string FlagsHelp();

}  // namespace sluice

#endif  // SLUICE_SERVER_FLAGS_H_
