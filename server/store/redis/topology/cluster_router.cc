#include "server/store/redis/topology/cluster_router.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {

ClusterRouter::ClusterRouter(const Context& context)
    : context_(context), refresh_(context, *this) {}

// ---- Commands ----

Endpoint* ClusterRouter::EndpointOf(std::string_view key) {
  const uint16_t place = slots_.map().OwnerOf(SlotOf(key));
  if (place == SlotMap::kNoOwner) return nullptr;
  ClusterPrimary& primary = *by_place_[place];
  primary.Use();
  return primary.down() ? nullptr : &primary.endpoint();
}

bool ClusterRouter::AllUnavailable() const {
  return std::all_of(primaries_.begin(), primaries_.end(), [](const auto& primary) {
    return primary->unavailable() && !primary->endpoint().starting();
  });
}

const FencingToken& ClusterRouter::TokenFor(Endpoint& endpoint, std::string_view key) {
  ClusterPrimary& primary = PrimaryOf(endpoint);
  primary.BeforeSend();
  token_ = primary.token();
  token_.as_argument = true;
  const auto& read = slots_.FloorsOf(SlotOf(key));
  const auto latest = read == nullptr ? context_.fence.known.Latest() : nullptr;
  const auto& noted = read == nullptr ? latest : read;
  token_.floor_us = std::max(token_.floor_us, noted->floor_us);
  if (!noted->limits.empty()) token_.slot = noted;
  return token_;
}

bool ClusterRouter::MayPromise(Endpoint& endpoint, absl::Span<const LimitPromise> promises,
                               int64_t now_us) {
  return PrimaryOf(endpoint).MayPromise(promises, now_us);
}

void ClusterRouter::LiftFloor(const std::string& limit, int64_t now_us, LiftDone done) {
  // At all servers up to the latest floor that any of them or a slot has, since slots move.
  int64_t floor_us = 0;
  std::set<std::string> holds;
  const auto add = [&](const FencingToken& token) {
    floor_us = std::max(floor_us, token.LatestOwnOf(limit));
    token.ForEachHoldsFloor(
        limit, [&](int64_t hold_for_us, int64_t) { holds.insert(HoldsEntry(limit, hold_for_us)); });
  };
  bool known = !by_place_.empty();
  for (const ClusterPrimary* const primary : by_place_) {
    known = known && !primary->token().word_key.empty();
    add(primary->token());
  }
  for (uint16_t slot = 0; slot < kSlots; ++slot) {
    const uint16_t place = slots_.map().OwnerOf(slot);
    const auto& noted = slots_.FloorsOf(slot);
    if (place == SlotMap::kNoOwner || noted == nullptr || noted->limits.empty()) continue;
    FencingToken token = by_place_[place]->token();
    token.slot = noted;
    add(token);
  }
  if (!known || floor_us <= now_us) return done(known ? 0 : -1);
  struct Lifting {
    size_t open;
    int64_t floor_us;
    LiftDone done;
  };
  const auto lifting =
      std::make_shared<Lifting>(Lifting{by_place_.size(), floor_us, std::move(done)});
  for (ClusterPrimary* const primary : by_place_) {
    primary->Lift(limit, holds, floor_us, [lifting](bool lifted) {
      if (!lifted) lifting->floor_us = -1;
      if (--lifting->open == 0) lifting->done(lifting->floor_us);
    });
  }
}

Course ClusterRouter::OnError(Endpoint& from, std::string_view key, const Reply& error) {
  using What = Course::What;
  if (const std::optional<Redirect> redirect = RedirectOf(error, from.address())) {
    return {What::kSendAgain, &Follow(*redirect).endpoint(), redirect->ask};
  }
  if (PrimaryOf(from).OnRefused(error)) {
    return {What::kSendLater, nullptr, false, kFenceRereadNs};
  }
  // Some of the script's keys were moved already, or would be made in a slot that is being moved.
  if (error.HasCode("TRYAGAIN")) return {What::kSendLater, nullptr, false, RetryNs()};
  if (error.HasCode("CLUSTERDOWN")) {
    refresh_.Soon();
    PrimaryOf(from).OnDown(error.text);
    return {};
  }
  if (error.HasCode("READONLY") || error.HasCode("MASTERDOWN")) refresh_.Soon();
  return Router::OnError(from, key, error);
}

ClusterPrimary& ClusterRouter::Follow(const Redirect& redirect) {
  ClusterPrimary& to = PrimaryAt(redirect.to);
  to.Use();
  if (redirect.ask) return to;
  slots_.Move(redirect.slot, redirect.to);
  by_place_.resize(slots_.map().primaries().size());
  by_place_[slots_.map().OwnerOf(redirect.slot)] = &to;
  to.OnSlots();
  refresh_.Soon();
  return to;
}

// ---- Primaries ----

ClusterPrimary& ClusterRouter::PrimaryAt(const net::Address& address) {
  for (const auto& primary : primaries_) {
    if (primary->address() == address) return *primary;
  }
  EndpointOptions options = context_.endpoint;
  options.connection.url.address = address;
  options.connection.url.seeds = {address};
  Cluster& cluster = *this;
  primaries_.push_back(std::make_unique<ClusterPrimary>(context_.fence, options, slots_, cluster));
  ClusterPrimary& primary = *primaries_.back();
  primary.endpoint().Start();
  return primary;
}

ClusterPrimary& ClusterRouter::PrimaryOf(Endpoint& endpoint) {
  return static_cast<ClusterPrimary&>(endpoint.owner());
}

void ClusterRouter::OnPrimaryAvailable() {
  refresh_.CloseSeeds();
  ReportFirst();
}

void ClusterRouter::OnPrimaryUnavailable(ClusterPrimary& primary) {
  context_.host.OnUnavailable(primary.endpoint());
  refresh_.Soon();
}

void ClusterRouter::OnPrimaryFailed() {
  ReportFirst();
  refresh_.Soon();
}

bool ClusterRouter::IsOfAnother(const ClusterPrimary& primary, const std::string& identity) const {
  return std::any_of(primaries_.begin(), primaries_.end(), [&](const auto& other) {
    return other.get() != &primary && other->identity() == identity;
  });
}

// ---- The map ----

Endpoint* ClusterRouter::PrimaryToAsk() {
  for (size_t i = 0; i < primaries_.size(); ++i) {
    ClusterPrimary& primary = *primaries_[next_to_ask_++ % primaries_.size()];
    if (!primary.unavailable()) return &primary.endpoint();
  }
  return nullptr;
}

bool ClusterRouter::Restless() const {
  if (slots_.map().served() < kSlots) return true;
  return std::any_of(by_place_.begin(), by_place_.end(),
                     [](const ClusterPrimary* primary) { return primary->unavailable(); });
}

void ClusterRouter::OnRefresh() {
  for (auto& primary : primaries_) {
    const bool in_map =
        std::find(by_place_.begin(), by_place_.end(), primary.get()) != by_place_.end();
    if (in_map || !primary->unused()) continue;
    primary->endpoint().Stop();
    dropped_.push_back(std::move(primary));
  }
  std::erase(primaries_, nullptr);
  std::erase_if(dropped_, [](const auto& primary) { return primary->endpoint().stopped(); });
}

void ClusterRouter::OnMap(SlotMap map) {
  std::vector<ClusterPrimary*> by_place;
  for (const net::Address& address : map.primaries()) {
    by_place.push_back(&PrimaryAt(address));
    by_place.back()->Use();
  }
  const std::vector<uint16_t> grown = slots_.Adopt(std::move(map));
  by_place_ = std::move(by_place);
  for (const uint16_t place : grown) by_place_[place]->OnSlots();
  const size_t served = slots_.map().served();
  if (served == kSlots) {
    incomplete_logged_ = false;
  } else if (!std::exchange(incomplete_logged_, true)) {
    context_.host.LogError("redis_cluster_slots",
                           absl::StrCat(kSlots - served, " of ", kSlots,
                                        " slots have no owner: their keys are unavailable"));
  }
  ReportFirst();
}

// ---- The first attempt ----

void ClusterRouter::ReportFirst() {
  if (first_reported_) return;
  // That a server cannot be used says more than that it cannot be reached.
  absl::Status worst;
  const auto add = [&](const absl::Status& failure) {
    if (worst.ok() || (absl::IsUnavailable(worst) && !failure.ok())) worst = failure;
  };
  if (!refresh_.answered()) {
    const auto failures = refresh_.SeedFailures();
    if (!failures.has_value()) return;
    for (const absl::Status& failure : *failures) add(failure);
  } else if (primaries_.empty()) {
    worst = absl::UnavailableError(absl::StrCat(context_.endpoint.connection.url.ToString(),
                                                ": no server of this Cluster has slots yet"));
  } else {
    bool any_serves = false;
    for (const auto& primary : primaries_) {
      if (!primary->resolved()) return;
      any_serves |= !primary->unavailable();
      add(primary->failure());
    }
    if (any_serves && absl::IsUnavailable(worst)) worst = absl::OkStatus();
  }
  first_reported_ = true;
  context_.host.OnConnected(worst);
}

}  // namespace sluice::store::redis
