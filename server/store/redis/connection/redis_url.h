// RedisUrl: names the Redis of a store, as users write it.
//
//   redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]
//   rediss://...      the same over TLS
//   unix://[USER[:PASSWORD]@]/PATH
//   redis-cluster://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]]...
//                     some servers of a Cluster, which name the others
//   rediss-cluster://...   the same over TLS
//   redis-sentinel://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]].../NAME[/DATABASE]
//                     Sentinels (port 26379), which name the primary of NAME; user and password are
//                     the primary's
//   rediss-sentinel://...  the same, all over TLS
// with options behind a question mark, joined by &:
//   db=N              database number (of unix://)
//   password_file=F   the password is the file's first line, and not in the process list
//   ca=F, cert=F, key=F, server_name=N   over TLS: trusted authorities (default: the
//                     system's), own certificate (mTLS), and name in the server's certificate
//   sentinel_user=U, sentinel_password=P, sentinel_password_file=F   the Sentinels' own
//   sentinel_tls=no   the Sentinels have no TLS though the primary has
// Users, passwords and paths may be %-encoded.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_REDIS_URL_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_REDIS_URL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/address.h"
#include "common/net/tls_context.h"

namespace sluice::store::redis {

enum class Topology : uint8_t { kServer, kCluster, kSentinel };

// How a URL begins: "rediss-cluster://".
std::string SchemeOf(Topology topology, bool tls);

struct RedisUrl {
  Topology topology = Topology::kServer;
  // Of a Cluster: its first seed. Of Sentinels: the primary, once it is known.
  net::Address address;
  // Servers that name the others: some of a Cluster's, or Sentinels.
  std::vector<net::Address> seeds;
  std::string user;
  std::string password;
  uint32_t database = 0;
  bool tls = false;
  net::TlsOptions tls_options;
  std::string server_name;
  // Of Sentinels.
  std::string primary_name;
  std::string sentinel_user;
  std::string sentinel_password;
  bool sentinel_tls = false;

  // For logs: without the password.
  std::string ToString() const;

  // INVALID_ARGUMENT says what is wrong and what to write; never shows the password. Reads
  // password_file.
  static absl::StatusOr<RedisUrl> Parse(std::string_view text);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_REDIS_URL_H_
