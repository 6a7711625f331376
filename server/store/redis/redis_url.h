// Which Redis, as people write it.
//
//   redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]
//   rediss://...      the same over TLS
//   unix://[USER[:PASSWORD]@]/PATH
// with options behind a question mark, joined by &:
//   db=N              database number (of unix://)
//   password_file=F   the password is the file's first line, and not in the process list
//   ca=F, cert=F, key=F, server_name=N   of rediss://: whom to trust (default: the system's
//                     authorities), the own certificate (mTLS), and what the server's is for
// Users, passwords and paths may be %-encoded.
#ifndef SLUICE_SERVER_STORE_REDIS_REDIS_URL_H_
#define SLUICE_SERVER_STORE_REDIS_REDIS_URL_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/net/address.h"
#include "server/net/tls_context.h"

namespace sluice::store::redis {

struct RedisUrl {
  net::Address address;
  std::string user;
  std::string password;
  uint32_t database = 0;
  bool tls = false;
  net::TlsOptions tls_options;
  std::string server_name;

  // For logs: without the password.
  std::string ToString() const;

  // INVALID_ARGUMENT says what is wrong and what to write; never shows the password. Reads
  // password_file.
  static absl::StatusOr<RedisUrl> Parse(std::string_view text);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_REDIS_URL_H_
