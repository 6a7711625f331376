#include "server/store/redis/topology/cluster_router.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/fencing/fence.h"

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
// By then the fence was read again, and replaced if necessary.
constexpr int64_t kFenceNs = 2 * kMillisecond;

}  // namespace

struct ClusterRouter::Member final : FencePlaces {
  Member(ClusterRouter& its_router, net::Address where)
      : router(its_router),
        address(std::move(where)),
        endpoint(router.loop_, router.resolver_, router.OptionsFor(address), router.counters_,
                 router),
        fence_check(
            router.loop_, endpoint, router.known_fences_, router.fence_options_,
            [this](const absl::Status& why) { router.OnFailed(endpoint, why); }, this) {}

  // The highest first: tools that move slots begin with the lowest.
  std::vector<std::string> FenceKeys() override {
    const std::string& name_space = router.fence_options_.name_space;
    std::vector<std::string> keys;
    size_t lowest = kSlots;
    for (size_t slot = kSlots; slot-- > 0;) {
      if (!Has(slot)) continue;
      if (keys.empty()) keys.push_back(FenceKeyInSlot(name_space, static_cast<uint16_t>(slot)));
      lowest = slot;
    }
    if (keys.empty()) return keys;
    const auto add = [&](std::string key) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
    };
    add(FenceKeyInSlot(name_space, static_cast<uint16_t>(lowest)));
    for (const auto& [key, fence] : router.known_fences_.All()) {
      if (Has(SlotOf(key))) add(key);
    }
    return keys;
  }
  bool HasReplicas() override {
    for (size_t place = 0; place < router.by_place_.size(); ++place) {
      if (router.by_place_[place] == this) {
        return router.map_.replicated(static_cast<uint16_t>(place));
      }
    }
    return false;
  }
  bool IsAnothers(const std::string& identity) override {
    for (const auto& member : router.members_) {
      if (member.get() != this && member->fence_check.identity() == identity) return true;
    }
    return false;
  }
  std::vector<std::string> FloorKeys(bool unread) override {
    std::vector<std::string> keys;
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (!Has(slot) || (unread && router.floors_us_[slot] != kUnread)) continue;
      keys.push_back(FloorKey(router.fence_options_.name_space, static_cast<uint16_t>(slot)));
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

  bool Has(size_t slot) const {
    const uint16_t place = router.map_.OwnerOf(static_cast<uint16_t>(slot));
    return place != SlotMap::kNoOwner && place < router.by_place_.size() &&
           router.by_place_[place] == this;
  }

  ClusterRouter& router;
  const net::Address address;
  Endpoint endpoint;
  FenceCheck fence_check;
  absl::Status failure;   // of the last attempt to connect
  bool resolved = false;  // it served or failed to
  int64_t down_until_ns = 0;
  int64_t log_down_from_ns = 0;
  int64_t used_ns = 0;  // had a slot, or was sent something
};

class ClusterRouter::Guide final : private Connection::Owner, private Connection::Waiter {
 public:
  Guide(ClusterRouter& router, const net::Address& address)
      : router_(router),
        address_(address),
        connection_(router.loop_, router.resolver_, Options(router, address), *this) {}

  void Start() {
    if (std::exchange(started_, true)) return;
    connection_.Start();
  }
  void Stop() {
    if (std::exchange(started_, false)) connection_.Stop();
  }
  bool started() const { return started_; }
  bool ready() const { return connection_.ready(); }
  // OK: it has not failed yet.
  const absl::Status& failure() const { return failure_; }
  const net::Address& address() const { return address_; }
  void Call(const std::vector<std::string>& words, absl::AnyInvocable<void(const Reply*)> done) {
    done_ = std::move(done);
    connection_.Send(words, this);
  }

 private:
  static ConnectionOptions Options(const ClusterRouter& router, const net::Address& address) {
    ConnectionOptions options = router.OptionsFor(address).connection;
    options.any_role = true;
    return options;
  }

  void OnReady() override { router_.OnGuideReady(); }
  void OnLost(const absl::Status& why) override { OnFailed(why); }
  void OnFailed(const absl::Status& why) override {
    if (!started_) return;
    failure_ = why;
    router_.OnGuideFailed();
  }

  void OnReply(Reply* reply) override {
    if (done_ != nullptr) std::exchange(done_, nullptr)(reply);
  }

  ClusterRouter& router_;
  const net::Address address_;
  Connection connection_;
  absl::AnyInvocable<void(const Reply*)> done_;
  bool started_ = false;
  absl::Status failure_;
};

ClusterRouter::ClusterRouter(const Context& context)
    : loop_(context.loop),
      resolver_(context.resolver),
      options_(context.endpoint),
      counters_(context.counters),
      host_(context.host),
      fence_options_(context.fence_options),
      known_fences_(context.known_fences) {}

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
  return member.down_until_ns > loop_.now_ns() ? nullptr : &member.endpoint;
}

bool ClusterRouter::AllUnavailable() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& member) {
    return member->endpoint.unavailable() && !member->endpoint.starting();
  });
}

ClusterRouter::Member& ClusterRouter::MemberAt(const net::Address& address) {
  for (const auto& member : members_) {
    if (member->address == address) return *member;
  }
  members_.push_back(std::make_unique<Member>(*this, address));
  Member& member = *members_.back();
  member.used_ns = loop_.now_ns();
  member.endpoint.Start();
  return member;
}

ClusterRouter::Member* ClusterRouter::MemberOf(const Endpoint& endpoint) {
  for (const auto& member : members_) {
    if (&member->endpoint == &endpoint) return member.get();
  }
  return nullptr;
}

const FencingToken& ClusterRouter::TokenFor(Endpoint& endpoint, std::string_view key) {
  token_ = {};
  token_.as_argument = true;
  Member* const member = MemberOf(endpoint);
  if (member == nullptr) return token_;
  member->fence_check.BeforeSend();
  token_.word_key = member->fence_check.token().word_key;
  token_.floor_us = member->fence_check.token().floor_us;
  token_.lag_us = member->fence_check.token().lag_us;
  const int64_t noted_us = floors_us_[SlotOf(key)];
  token_.floor_us =
      std::max(token_.floor_us, noted_us == kUnread ? known_fences_.MaxFloorUs() : noted_us);
  return token_;
}

bool ClusterRouter::MayPromise(Endpoint& endpoint, int64_t until_us, int64_t now_us) {
  Member* const member = MemberOf(endpoint);
  return member != nullptr && member->fence_check.MayPromise(until_us, now_us);
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
      to.fence_check.OnSlots();
      Refresh();
    }
    return {What::kSendAgain, &to.endpoint, redirect->ask};
  }
  if (error.HasCode(kFenceReplaced)) {
    if (Member* const member = MemberOf(from)) member->fence_check.OnFenceMissed();
    return {What::kSendLater, nullptr, false, kFenceNs};
  }
  // Some of the script's keys were moved already, or would be made in a slot that is being moved.
  if (error.HasCode("TRYAGAIN")) return later;
  if (error.HasCode("CLUSTERDOWN")) {
    Refresh();
    if (Member* const member = MemberOf(from)) OnDown(*member, error.text);
    return {};
  }
  if (error.HasCode("READONLY") || error.HasCode("MASTERDOWN")) Refresh();
  return Router::OnError(from, key, error);
}

void ClusterRouter::OnDown(Member& member, std::string_view why) {
  member.down_until_ns = loop_.now_ns() + kDownNs;
  if (loop_.now_ns() < member.log_down_from_ns) return;
  member.log_down_from_ns = loop_.now_ns() + kLogDownEveryNs;
  member.endpoint.LogError("redis_cluster_down", why);
}

// ---- The map ----

bool ClusterRouter::Restless() const {
  if (!have_map_ || map_.served() < kSlots) return true;
  return std::any_of(by_place_.begin(), by_place_.end(),
                     [](const Member* member) { return member->endpoint.unavailable(); });
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
    if (!member.endpoint.unavailable()) return member.endpoint.Call(words, Asking(member.address));
  }
  // No primary serves: asks the seeds, each a little after the one before.
  for (const auto& guide : guides_) {
    if (guide->ready()) return guide->Call(words, Asking(guide->address()));
  }
  for (const auto& guide : guides_) {
    if (!guide->started()) return guide->Start();
  }
}

void ClusterRouter::OnAnswer(const net::Address& asked, const Reply* reply) {
  if (reply == nullptr) return Refresh();
  if (reply->is_error()) {
    return Log("redis_cluster_slots", absl::StrCat(asked.ToString(), ": ", reply->text));
  }
  absl::StatusOr<SlotMap> map = SlotMap::FromReply(*reply, asked);
  if (!map.ok()) {
    return Log("redis_cluster_slots", absl::StrCat(asked.ToString(), ": ", map.status().message()));
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
  for (Member* const member : grown) member->fence_check.OnSlots();
  if (map_.served() == kSlots) {
    incomplete_logged_ = false;
  } else if (!std::exchange(incomplete_logged_, true)) {
    Log("redis_cluster_slots", absl::StrCat(kSlots - map_.served(), " of ", kSlots,
                                            " slots have no owner: their keys are unavailable"));
  }
  ReportFirst();
}

void ClusterRouter::DropUnused() {
  const auto unused = [&](const std::unique_ptr<Member>& member) {
    return loop_.now_ns() - member->used_ns > kUnusedNs && member->endpoint.idle() &&
           std::find(by_place_.begin(), by_place_.end(), member.get()) == by_place_.end();
  };
  for (auto& member : members_) {
    if (!unused(member)) continue;
    member->endpoint.Stop();
    dropped_.push_back(std::move(member));
  }
  members_.erase(std::remove(members_.begin(), members_.end(), nullptr), members_.end());
  dropped_.erase(std::remove_if(dropped_.begin(), dropped_.end(),
                                [](const auto& member) { return member->endpoint.stopped(); }),
                 dropped_.end());
}

// ---- The first attempt ----

void ClusterRouter::OnGuideFailed() {
  if (!have_map_) AskForMap();
  ReportFirst();
}

void ClusterRouter::StopGuides() {
  for (const auto& guide : guides_) guide->Stop();
}

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
      any_serves |= !member->endpoint.unavailable();
      add(member->failure);
    }
    if (any_serves && absl::IsUnavailable(worst)) worst = absl::OkStatus();
  }
  first_reported_ = true;
  host_.OnConnected(worst);
}

// ---- Endpoints ----

absl::Status ClusterRouter::OnInfo(Endpoint& endpoint, const std::string& info) {
  Member* const member = MemberOf(endpoint);
  return member == nullptr ? absl::OkStatus() : member->fence_check.OnInfo(info);
}

absl::Status ClusterRouter::OnFurtherInfo(Endpoint& endpoint, const std::string& info) {
  Member* const member = MemberOf(endpoint);
  return member == nullptr ? absl::OkStatus() : member->fence_check.OnFurtherInfo(info);
}

void ClusterRouter::OnReady(Endpoint& endpoint) {
  if (Member* const member = MemberOf(endpoint)) member->fence_check.OnReady();
}

void ClusterRouter::OnAvailable(Endpoint& endpoint) {
  if (Member* const member = MemberOf(endpoint)) {
    member->resolved = true;
    member->failure = absl::OkStatus();
    member->down_until_ns = 0;
  }
  StopGuides();
  ReportFirst();
}

void ClusterRouter::OnUnavailable(Endpoint& endpoint) {
  host_.OnUnavailable(endpoint);
  Refresh();
}

void ClusterRouter::OnFailed(Endpoint& endpoint, const absl::Status& why) {
  if (Member* const member = MemberOf(endpoint)) {
    member->resolved = true;
    member->failure = why;
  }
  ReportFirst();
  Refresh();
}

void ClusterRouter::Log(std::string_view event, std::string_view what) const {
  if (options_.log == nullptr) return;
  options_.log->Warning(
      event, {{"error", common::ToAbsl(what)}, {"store", options_.connection.url.ToString()}});
}

}  // namespace sluice::store::redis
