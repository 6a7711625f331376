#include "server/store/redis/shard/secret_agreement.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kEveryNs = 10'000'000'000;
constexpr int64_t kRetryNs = 1'000'000'000;

}  // namespace

void SecretAgreement::Start(absl::AnyInvocable<void()> done) {
  if (in_flight_.exchange(true)) return;
  // Two commands: SET takes NX together with GET only from Redis 7 on. What is there once is not
  // changed between them.
  call_(key_, {"SET", key_, secret_.proposal(), "NX"}, [](const Reply*) {});
  call_(key_, {"GET", key_}, [this, done = std::move(done)](const Reply* reply) mutable {
    OnReply(reply);
    tried_ns_.store(clock_.NowNs());
    in_flight_.store(false);
    done();
  });
}

void SecretAgreement::OnReply(const Reply* reply) {
  if (reply == nullptr) return;
  std::string error = reply->text;
  if (reply->type == Reply::Type::kString) {
    const absl::Status status = secret_.agreed(reply->text);
    agreed_.store(true);
    if (status.ok()) return;
    error = std::string(status.message());
  } else if (!reply->is_error()) {
    return;
  }
  if (log_ != nullptr) log_->Error("redis_receipt_key", {{"error", error}, {"key", key_}});
}

void SecretAgreement::Maintain() {
  const int64_t every_ns = agreed_.load() ? kEveryNs : kRetryNs;
  if (clock_.NowNs() - tried_ns_.load() >= every_ns) Start([] {});
}

}  // namespace sluice::store::redis
