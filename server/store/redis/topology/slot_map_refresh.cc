#include "server/store/redis/topology/slot_map_refresh.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/connection/connection.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kEveryNs = 5'000 * kMillisecond;
constexpr int64_t kRestlessEveryNs = 100 * kMillisecond;
// The least pause, however many replies say that slots have moved.
constexpr int64_t kLeastPauseNs = 10 * kMillisecond;
constexpr int64_t kAskTimeoutNs = 1'000 * kMillisecond;

}  // namespace

class SlotMapRefresh::Seed final : private Connection::Owner {
 public:
  Seed(SlotMapRefresh& refresh, const net::Address& address)
      : refresh_(refresh),
        connection_(refresh.loop_, refresh.context_.fence.resolver,
                    Options(refresh.context_.endpoint.connection, address), *this),
        address_(address) {}

  void Start() {
    if (!std::exchange(started_, true)) connection_.Start();
  }
  void Stop() {
    if (std::exchange(started_, false)) connection_.Stop();
  }
  bool started() const { return started_; }
  Connection& connection() { return connection_; }
  // OK: it has not failed yet.
  const absl::Status& failure() const { return failure_; }
  const net::Address& address() const { return address_; }

 private:
  static ConnectionOptions Options(ConnectionOptions options, const net::Address& address) {
    options.url.address = address;
    options.url.seeds = {address};
    options.any_role = true;
    return options;
  }

  void OnReady() override { refresh_.Ask(); }
  void OnLost(const absl::Status& why) override { OnFailed(why); }
  void OnFailed(const absl::Status& why) override {
    if (!started_) return;
    failure_ = why;
    if (!refresh_.answered_) refresh_.Ask();
    refresh_.host_.OnSeedFailed();
  }

  SlotMapRefresh& refresh_;
  Connection connection_;
  const net::Address address_;
  bool started_ = false;
  absl::Status failure_;
};

SlotMapRefresh::SlotMapRefresh(const Router::Context& context, Host& host)
    : context_(context), host_(host), loop_(context.fence.loop) {
  for (const net::Address& seed : context.endpoint.connection.url.seeds) {
    seeds_.push_back(std::make_unique<Seed>(*this, seed));
  }
}

SlotMapRefresh::~SlotMapRefresh() = default;

// ---- When

void SlotMapRefresh::Soon() {
  const int64_t at_ns = std::max(loop_.now_ns(), asked_ns_ + kLeastPauseNs);
  if (!timer_.armed() || next_ns_ > at_ns) {
    next_ns_ = at_ns;
    loop_.Arm(timer_, at_ns);
  }
}

void SlotMapRefresh::OnTimer() {
  if (loop_.stopping()) return;
  host_.OnRefresh();
  Ask();
  next_ns_ = loop_.now_ns() + (host_.Restless() ? kRestlessEveryNs : kEveryNs);
  loop_.Arm(timer_, next_ns_);
}

// ---- Whom

void SlotMapRefresh::Ask() {
  if (asking_ && loop_.now_ns() - asked_ns_ < kAskTimeoutNs) return;
  const std::vector<std::string> words = {"CLUSTER", "SLOTS"};
  if (Endpoint* const primary = host_.PrimaryToAsk(); primary != nullptr) {
    return primary->Call(words, Asking(primary->address()));
  }
  // No primary serves: asks the seeds, each a little after the one before.
  for (const auto& seed : seeds_) {
    if (seed->connection().ready()) return seed->connection().Call(words, Asking(seed->address()));
  }
  for (const auto& seed : seeds_) {
    if (!seed->started()) return seed->Start();
  }
}

void SlotMapRefresh::CloseSeeds() {
  for (const auto& seed : seeds_) seed->Stop();
}

std::optional<std::vector<absl::Status>> SlotMapRefresh::SeedFailures() const {
  std::vector<absl::Status> failures;
  for (const auto& seed : seeds_) {
    if (seed->failure().ok()) return std::nullopt;
    failures.push_back(seed->failure());
  }
  return failures;
}

// ---- The answer

absl::AnyInvocable<void(const Reply*)> SlotMapRefresh::Asking(const net::Address& address) {
  asking_ = true;
  asked_ns_ = loop_.now_ns();
  return [this, address, number = ++ask_](const Reply* reply) {
    if (number != ask_) return;
    asking_ = false;
    OnAnswer(address, reply);
  };
}

void SlotMapRefresh::OnAnswer(const net::Address& asked, const Reply* reply) {
  if (reply == nullptr) return Soon();
  if (reply->is_error()) {
    return context_.host.LogError("redis_cluster_slots",
                                  absl::StrCat(asked.ToString(), ": ", reply->text));
  }
  absl::StatusOr<SlotMap> map = SlotMap::FromReply(*reply, asked);
  if (!map.ok()) {
    return context_.host.LogError("redis_cluster_slots",
                                  absl::StrCat(asked.ToString(), ": ", map.status().message()));
  }
  answered_ = true;
  host_.OnMap(*std::move(map));
}

}  // namespace sluice::store::redis
