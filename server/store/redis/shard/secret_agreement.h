// SecretAgreement: makes all nodes of a name space use the same secret: the first one's proposal,
// kept in Redis.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_SECRET_AGREEMENT_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_SECRET_AGREEMENT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/shard/redis_store_options.h"

namespace sluice::store::redis {

// Thread-safe.
class SecretAgreement {
 public:
  // `call` sends words to the server of `key`, in order, and may be called by any thread.
  using Call = absl::AnyInvocable<void(const std::string& key, std::vector<std::string> words,
                                       RawCommand::Done done) const>;

  // All outlive it; `log` may be null. `key`: where the secret is kept.
  SecretAgreement(const SharedSecret& secret, std::string key, const common::Clock& clock,
                  common::Log* log, Call call)
      : secret_(secret), key_(std::move(key)), clock_(clock), log_(log), call_(std::move(call)) {}

  // There is a secret to agree on.
  bool needed() const { return secret_.proposal != nullptr; }
  // Starts an agreement, unless one is in flight; `done` is called when it has ended, however it
  // did.
  void Start(absl::AnyInvocable<void()> done);
  // Redis may have lost the secret: agrees again soon.
  void Renew() { agreed_.store(false); }
  // Agrees again from time to time, in case the secret is lost.
  void Maintain();

 private:
  void OnReply(const Reply* reply);

  const SharedSecret& secret_;
  const std::string key_;
  const common::Clock& clock_;
  common::Log* const log_;
  const Call call_;
  std::atomic<bool> agreed_{false};
  std::atomic<bool> in_flight_{false};
  std::atomic<int64_t> tried_ns_{0};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_SECRET_AGREEMENT_H_
