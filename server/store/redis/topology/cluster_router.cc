#include "server/store/redis/topology/cluster_router.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/fencing/fence.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kRefreshEveryNs = 5'000 * kMillisecond;
constexpr int64_t kRestlessEveryNs = 100 * kMillisecond;
// The least pause, however many replies say that slots have moved.
constexpr int64_t kLeastRefreshNs = 10 * kMillisecond;
constexpr int64_t kAskTimeoutNs = 1'000 * kMillisecond;
// A server that answered CLUSTERDOWN gets no commands for so long.
constexpr int64_t kDownNs = 50 * kMillisecond;
constexpr int64_t kLogDownEveryNs = 10'000 * kMillisecond;
// A server without slots that was sent nothing is dropped after so long.
constexpr int64_t kUnusedNs = 30'000 * kMillisecond;

}  // namespace

class ClusterRouter::Guide final : private Connection::Owner {
 public:
  Guide(ClusterRouter& router, const net::Address& address)
      : router_(router),
        connection_(router.loop_, router.context_.fence.resolver, Options(router, address), *this),
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
  static ConnectionOptions Options(const ClusterRouter& router, const net::Address& address) {
    ConnectionOptions options = router.OptionsFor(address).connection;
    options.any_role = true;
    return options;
  }

  void OnReady() override { router_.AskForMap(); }
  void OnLost(const absl::Status& why) override { OnFailed(why); }
  void OnFailed(const absl::Status& why) override {
    if (!started_) return;
    failure_ = why;
    if (!router_.have_map_) router_.AskForMap();
    router_.ReportFirst();
  }

  ClusterRouter& router_;
  Connection connection_;
  const net::Address address_;
  bool started_ = false;
  absl::Status failure_;
};

struct ClusterRouter::Member final : FenceCheck {
  Member(ClusterRouter& its_router, const net::Address& address)
      : FenceCheck(its_router.context_.fence, its_router.OptionsFor(address)), router(its_router) {}

  bool unavailable() const { return endpoint().unavailable(); }
  const net::Address& address() const { return endpoint().address(); }
  // Commands for its slots are of no use now.
  bool down() const { return down_until_ns > router.loop_.now_ns(); }

  // It answered CLUSTERDOWN.
  void OnDown(std::string_view why) {
    const int64_t now_ns = router.loop_.now_ns();
    down_until_ns = now_ns + kDownNs;
    if (now_ns < log_down_from_ns) return;
    log_down_from_ns = now_ns + kLogDownEveryNs;
    endpoint().LogError("redis_cluster_down", why);
  }

  bool Has(size_t slot) const {
    const uint16_t place = router.map_.OwnerOf(static_cast<uint16_t>(slot));
    return place != SlotMap::kNoOwner && place < router.by_place_.size() &&
           router.by_place_[place] == this;
  }

  void OnAvailable() override {
    resolved = true;
    failure = absl::OkStatus();
    down_until_ns = 0;
    for (const auto& guide : router.guides_) guide->Stop();
    router.ReportFirst();
  }
  void OnUnavailable() override {
    router.context_.host.OnUnavailable(endpoint());
    router.Refresh();
  }
  void OnFailed(const absl::Status& why) override {
    resolved = true;
    failure = why;
    router.ReportFirst();
    router.Refresh();
  }

  // The highest first: tools that move slots begin with the lowest.
  std::vector<std::string> FenceKeys() const override {
    std::vector<std::string> keys;
    const auto add = [&](std::string key) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    };
    size_t highest = kSlots;
    size_t lowest = 0;
    while (highest > 0 && !Has(highest - 1)) --highest;
    if (highest == 0) return keys;
    while (!Has(lowest)) ++lowest;
    for (const size_t slot : {highest - 1, lowest}) {
      add(FenceKeyInSlot(router.name_space_, static_cast<uint16_t>(slot)));
    }
    for (const auto& [key, fence] : router.context_.fence.known.All()) {
      if (Has(SlotOf(key))) add(key);
    }
    return keys;
  }
  bool HasReplicas() const override {
    for (size_t place = 0; place < router.by_place_.size(); ++place) {
      if (router.by_place_[place] == this) {
        return router.map_.replicated(static_cast<uint16_t>(place));
      }
    }
    return false;
  }
  bool IsOfAnother(const std::string& identity) const override {
    for (const auto& member : router.members_) {
      if (member.get() != this && member->identity() == identity) return true;
    }
    return false;
  }
  std::vector<std::string> FloorKeys(bool unread) const override {
    std::vector<std::string> keys;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (!Has(slot) || (unread && router.floors_us_[slot] != kUnread)) continue;
      keys.push_back(FloorKey(router.name_space_, static_cast<uint16_t>(slot)));
    }
    return keys;
  }
  void OnFloors(absl::Span<const std::string> keys, absl::Span<const Reply> floors) override {
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint16_t slot = SlotOf(keys[i]);
      // The slot may have left, or not be here yet: then its floor is read where it is.
      if (Has(slot) && floors[i].integer >= 0) router.floors_us_[slot] = floors[i].integer;
    }
  }
  void OnSlotUnavailable() override { router.Refresh(); }

  ClusterRouter& router;
  absl::Status failure;   // of the last attempt to connect
  bool resolved = false;  // it served or failed to
  int64_t used_ns = 0;    // had a slot, or was sent something
  int64_t down_until_ns = 0;
  int64_t log_down_from_ns = 0;
};

ClusterRouter::ClusterRouter(const Context& context)
    : context_(context),
      loop_(context.fence.loop),
      options_(context.endpoint),
      name_space_(context.fence.options.name_space) {}

ClusterRouter::~ClusterRouter() = default;

EndpointOptions ClusterRouter::OptionsFor(const net::Address& address) const {
  EndpointOptions options = options_;
  options.connection.url.address = address;
  options.connection.url.seeds = {address};
  return options;
}

void ClusterRouter::Start() {
  for (const net::Address& seed : options_.connection.url.seeds) {
    guides_.push_back(std::make_unique<Guide>(*this, seed));
  }
  OnTimer();
}

// ---- Which server serves which slot ----

Endpoint* ClusterRouter::EndpointOf(std::string_view key) {
  const uint16_t place = map_.OwnerOf(SlotOf(key));
  if (place == SlotMap::kNoOwner) return nullptr;
  Member& member = *by_place_[place];
  member.used_ns = loop_.now_ns();
  return member.down() ? nullptr : &member.endpoint();
}

bool ClusterRouter::AllUnavailable() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& member) {
    return member->unavailable() && !member->endpoint().starting();
  });
}

ClusterRouter::Member& ClusterRouter::MemberAt(const net::Address& address) {
  for (const auto& member : members_) {
    if (member->address() == address) return *member;
  }
  members_.push_back(std::make_unique<Member>(*this, address));
  Member& member = *members_.back();
  member.used_ns = loop_.now_ns();
  member.endpoint().Start();
  return member;
}

ClusterRouter::Member& ClusterRouter::MemberOf(Endpoint& endpoint) {
  return static_cast<Member&>(endpoint.owner());
}

const FencingToken& ClusterRouter::TokenFor(Endpoint& endpoint, std::string_view key) {
  Member& member = MemberOf(endpoint);
  member.BeforeSend();
  token_ = member.token();
  token_.as_argument = true;
  const int64_t noted_us = floors_us_[SlotOf(key)];
  token_.floor_us =
      std::max(token_.floor_us, noted_us == kUnread ? context_.fence.known.MaxFloorUs() : noted_us);
  return token_;
}

bool ClusterRouter::MayPromise(Endpoint& endpoint, int64_t until_us, int64_t now_us) {
  return MemberOf(endpoint).MayPromise(until_us, now_us);
}

Course ClusterRouter::OnError(Endpoint& from, std::string_view key, const Reply& error) {
  using What = Course::What;
  const Course later{What::kSendLater, nullptr, false, RetryNs()};
  if (const std::optional<Redirect> redirect = RedirectOf(error, from.address())) {
    Member& to = MemberAt(redirect->to);
    to.used_ns = loop_.now_ns();
    if (!redirect->ask) {
      map_.Move(redirect->slot, redirect->to);
      by_place_.resize(map_.primaries().size());
      by_place_[map_.OwnerOf(redirect->slot)] = &to;
      floors_us_[redirect->slot] = kUnread;
      to.OnSlots();
      Refresh();
    }
    return {What::kSendAgain, &to.endpoint(), redirect->ask};
  }
  if (error.HasCode(kFenceReplaced)) {
    MemberOf(from).OnFenceMissed();
    return {What::kSendLater, nullptr, false, kFenceRereadNs};
  }
  // Some of the script's keys were moved already, or would be made in a slot that is being moved.
  if (error.HasCode("TRYAGAIN")) return later;
  if (error.HasCode("CLUSTERDOWN")) {
    Refresh();
    MemberOf(from).OnDown(error.text);
    return {};
  }
  if (error.HasCode("READONLY") || error.HasCode("MASTERDOWN")) Refresh();
  return Router::OnError(from, key, error);
}

// ---- The map ----

bool ClusterRouter::Restless() const {
  if (!have_map_ || map_.served() < kSlots) return true;
  return std::any_of(by_place_.begin(), by_place_.end(),
                     [](const Member* member) { return member->unavailable(); });
}

void ClusterRouter::Refresh() {
  const int64_t at_ns = std::max(loop_.now_ns(), asked_ns_ + kLeastRefreshNs);
  if (!timer_.armed() || next_refresh_ns_ > at_ns) {
    next_refresh_ns_ = at_ns;
    loop_.Arm(timer_, at_ns);
  }
}

void ClusterRouter::OnTimer() {
  if (loop_.stopping()) return;
  DropUnused();
  AskForMap();
  next_refresh_ns_ = loop_.now_ns() + (Restless() ? kRestlessEveryNs : kRefreshEveryNs);
  loop_.Arm(timer_, next_refresh_ns_);
}

absl::AnyInvocable<void(const Reply*)> ClusterRouter::Asking(const net::Address& address) {
  asking_ = true;
  asked_ns_ = loop_.now_ns();
  return [this, address, number = ++ask_](const Reply* reply) {
    if (number != ask_) return;
    asking_ = false;
    OnAnswer(address, reply);
  };
}

void ClusterRouter::AskForMap() {
  if (asking_ && loop_.now_ns() - asked_ns_ < kAskTimeoutNs) return;
  const std::vector<std::string> words = {"CLUSTER", "SLOTS"};
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = *members_[next_member_++ % members_.size()];
    if (!member.unavailable()) return member.endpoint().Call(words, Asking(member.address()));
  }
  // No primary serves: asks the seeds, each a little after the one before.
  for (const auto& guide : guides_) {
    if (guide->connection().ready()) {
      return guide->connection().Call(words, Asking(guide->address()));
    }
  }
  for (const auto& guide : guides_) {
    if (!guide->started()) return guide->Start();
  }
}

void ClusterRouter::OnAnswer(const net::Address& asked, const Reply* reply) {
  if (reply == nullptr) return Refresh();
  if (reply->is_error()) {
    return context_.host.LogError("redis_cluster_slots",
                                  absl::StrCat(asked.ToString(), ": ", reply->text));
  }
  absl::StatusOr<SlotMap> map = SlotMap::FromReply(*reply, asked);
  if (!map.ok()) {
    return context_.host.LogError("redis_cluster_slots",
                                  absl::StrCat(asked.ToString(), ": ", map.status().message()));
  }
  Adopt(*std::move(map));
}

void ClusterRouter::Adopt(SlotMap map) {
  const SlotMap before = std::exchange(map_, std::move(map));
  const std::vector<Member*> were = std::exchange(by_place_, {});
  have_map_ = true;
  for (const net::Address& primary : map_.primaries()) {
    by_place_.push_back(&MemberAt(primary));
    by_place_.back()->used_ns = loop_.now_ns();
  }
  std::vector<Member*> grown;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const uint16_t was = before.OwnerOf(static_cast<uint16_t>(slot));
    const uint16_t is = map_.OwnerOf(static_cast<uint16_t>(slot));
    Member* const member = is == SlotMap::kNoOwner ? nullptr : by_place_[is];
    if (member == (was == SlotMap::kNoOwner ? nullptr : were[was])) continue;
    floors_us_[slot] = kUnread;
    if (member == nullptr) continue;
    if (grown.empty() || grown.back() != member) grown.push_back(member);
  }
  for (Member* const member : grown) member->OnSlots();
  if (map_.served() == kSlots) {
    incomplete_logged_ = false;
  } else if (!std::exchange(incomplete_logged_, true)) {
    context_.host.LogError("redis_cluster_slots",
                           absl::StrCat(kSlots - map_.served(), " of ", kSlots,
                                        " slots have no owner: their keys are unavailable"));
  }
  ReportFirst();
}

void ClusterRouter::DropUnused() {
  const auto unused = [&](const std::unique_ptr<Member>& member) {
    return loop_.now_ns() - member->used_ns > kUnusedNs && member->endpoint().idle() &&
           std::find(by_place_.begin(), by_place_.end(), member.get()) == by_place_.end();
  };
  for (auto& member : members_) {
    if (!unused(member)) continue;
    member->endpoint().Stop();
    dropped_.push_back(std::move(member));
  }
  members_.erase(std::remove(members_.begin(), members_.end(), nullptr), members_.end());
  dropped_.erase(std::remove_if(dropped_.begin(), dropped_.end(),
                                [](const auto& member) { return member->endpoint().stopped(); }),
                 dropped_.end());
}

// ---- The first attempt ----

void ClusterRouter::ReportFirst() {
  if (first_reported_) return;
  // That a server cannot be used says more than that it cannot be reached.
  absl::Status worst;
  const auto add = [&](const absl::Status& failure) {
    if (worst.ok() || (absl::IsUnavailable(worst) && !failure.ok())) worst = failure;
  };
  if (!have_map_) {
    for (const auto& guide : guides_) {
      if (guide->failure().ok()) return;
      add(guide->failure());
    }
  } else if (members_.empty()) {
    worst = absl::UnavailableError(absl::StrCat(options_.connection.url.ToString(),
                                                ": no server of this Cluster has slots yet"));
  } else {
    bool any_serves = false;
    for (const auto& member : members_) {
      if (!member->resolved) return;
      any_serves |= !member->unavailable();
      add(member->failure);
    }
    if (any_serves && absl::IsUnavailable(worst)) worst = absl::OkStatus();
  }
  first_reported_ = true;
  context_.host.OnConnected(worst);
}

}  // namespace sluice::store::redis
