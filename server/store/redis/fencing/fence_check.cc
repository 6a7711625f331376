#include "server/store/redis/fencing/fence_check.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {
namespace {

// Replacements at which another node was first, in a row.
constexpr int kMaxTries = 16;
// Slots whose floors are read by one script, so that others do not wait for long.
constexpr size_t kFloorsAtOnce = 1024;
// Less than kLagMarginUs: in that time a promise is published that a new fence lacks.
constexpr int64_t kWatchEveryNs = 1'000'000'000;

}  // namespace

FenceCheck::FenceCheck(const Context& context, EndpointOptions endpoint)
    : loop_(context.loop),
      known_(context.known),
      options_(context.options),
      endpoint_(loop_, context.resolver, std::move(endpoint), context.counters, *this),
      promises_(endpoint_, known_, *this),
      counters_(context.counters) {}

ServerInfo FenceCheck::ServerInfoOf(const std::string& info, const Reply* config) const {
  ServerInfo server = ServerInfo::From(info, config, options_.assumed_lag_us);
  if (HasReplicas()) server.has_replicas = true;
  return server;
}

absl::Status FenceCheck::OnInfo(const std::string& info) {
  info_server_ = absl::StrCat("run_id:", InfoField(info, "run_id"), "\n");
  config_ = {};
  server_ = ServerInfoOf(info, nullptr);
  const absl::Status status = Check();
  // min-replicas-max-lag is not known yet.
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;
}

absl::Status FenceCheck::OnFurtherInfo(const std::string& info) {
  const ServerInfo server = ServerInfoOf(info, nullptr);
  if (server.identity == server_.identity) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(endpoint_.url().ToString(), " leads to another server now"));
}

absl::Status FenceCheck::Check() const {
  if (server_.role != "master") {
    return absl::FailedPreconditionError(
        absl::StrCat(endpoint_.url().ToString(), " became a replica (role ", server_.role, ")"));
  }
  const absl::Status status = server_.Guarded(options_.policy.may_fail_over);
  if (status.ok() || (absl::IsFailedPrecondition(status) && options_.allow_unguarded)) {
    return absl::OkStatus();
  }
  return absl::Status(status.code(),
                      absl::StrCat(endpoint_.url().ToString(), " ", status.message()));
}

void FenceCheck::OnReady() {
  ++connection_;
  reading_ = false;
  reading_floors_ = floors_wanted_ = false;
  reading_clock_ = false;
  promises_.Drop();
  tries_ = 0;
  // Where CONFIG is not allowed (an error), defaults apply.
  const auto note = [this, of = connection_](const Reply* reply) {
    if (of != connection_ || reply == nullptr || reply->is_error()) return;
    config_.elements.insert(config_.elements.end(), reply->elements.begin(), reply->elements.end());
  };
  for (const char* name : kConfigNames) endpoint_.Call({"CONFIG", "GET", name}, note);
  CheckRights();
  ReadFence();
}

void FenceCheck::CheckRights() {
  const std::string key = FenceKey(options_.name_space);
  const auto check = [this](const std::vector<std::string>& words, bool* may) {
    endpoint_.Call(words, [this, may](const Reply* reply) {
      *may = reply == nullptr || !reply->HasCode("NOPERM");
      // Once, not for each loop and connection.
      static std::atomic<bool> logged = false;
      if (*may || logged.exchange(true)) return;
      endpoint_.LogError("redis_missing_rights",
                         "the ACL user lacks +mget or +setrange: scripts read or write buckets in "
                         "a way that costs Redis more; grant both, and connect again");
    });
  };
  check({"MGET", key}, &endpoint_.rights().mget);
  // Writes nothing.
  check({"SETRANGE", key, "0", ""}, &endpoint_.rights().setrange);
}

void FenceCheck::OnFenceMissed() {
  if (reading_) return;
  tries_ = 0;
  ReadFence();
}

bool FenceCheck::OnRefused(const Reply& error) {
  if (error.HasCode(kClockSet)) {
    // Or the script waited for long in a Redis that was stopped.
    ReadClock();
    return true;
  }
  if (!error.HasCode(kFenceReplaced)) return false;
  OnFenceMissed();
  return true;
}

void FenceCheck::OnSlots() {
  if (reading_ || server_.identity.empty()) return;
  // Before, it had no slot for its fence.
  if (token_.word_key.empty()) {
    tries_ = 0;
    return ReadFence();
  }
  ReadFloors({}, 0);
}

int64_t FenceCheck::LagUs(int64_t fence_lag_us) const {
  const int64_t lag_us = std::max(fence_lag_us, OwnLagUs(server_, options_.policy));
  return lag_us == 0 ? 0 : lag_us + kLagMarginUs;
}

void FenceCheck::CheckIdentity() {
  checked_ns_ = loop_.now_ns();
  // Learns what other nodes promised, in case Redis loses it.
  promises_.Read();
  endpoint_.Call({"INFO", "replication"}, [this, of = connection_](const Reply* reply) {
    if (of != connection_) return;
    if (reply == nullptr || reply->is_error()) return Failed(reply, "INFO");
    const std::string before = server_.identity;
    server_ = ServerInfoOf(info_server_ + reply->text, &config_);
    if (absl::Status status = Check(); !status.ok()) return Refuse(std::move(status));
    if (!token_.word_key.empty() && server_.identity != before) {
      // Replies to what was sent since are by other data.
      Refuse(absl::UnavailableError(
          absl::StrCat(endpoint_.url().ToString(), " was demoted and promoted again")));
    } else if (!token_.word_key.empty()) {
      // It may have new replicas.
      token_.lag_us = std::max(token_.lag_us, LagUs(0));
    }
  });
}

void FenceCheck::CallTime(absl::AnyInvocable<void(const ClockReading&)> done) {
  endpoint_.Call({"TIME"}, [this, of = connection_, sent_us = loop_.now_ns() / 1000,
                            done = std::move(done)](const Reply* reply) mutable {
    if (of != connection_) return;
    ClockReading reading = {sent_us, loop_.clock().NowNs() / 1000};
    int64_t us = 0;
    if (reply == nullptr || reply->elements.size() != 2 ||
        !absl::SimpleAtoi(reply->elements[0].text, &reading.redis_us) ||
        !absl::SimpleAtoi(reply->elements[1].text, &us)) {
      return Failed(reply, "TIME");
    }
    reading.redis_us = reading.redis_us * 1'000'000 + us;
    done(reading);
  });
}

void FenceCheck::ReadClock() {
  if (!options_.watch_clock || reading_ || std::exchange(reading_clock_, true)) return;
  CallTime([this](const ClockReading& reading) {
    reading_clock_ = false;
    if (reading_) return;
    if (!clock_.See(reading)) OnFenceMissed();
  });
}

void FenceCheck::OnClockSet(int64_t correction_us) {
  counters_.clock_jumps.Add();
  if (options_.log == nullptr) return;
  options_.log->Warning("redis_clock_set",
                        {{"store", endpoint_.url().ToString()}, {"correction_us", correction_us}});
}

bool FenceCheck::IsElsewhere(const Reply& reply) {
  return (reply.HasCode("MOVED") || reply.HasCode("ASK") || reply.HasCode("TRYAGAIN") ||
          reply.HasCode("CLUSTERDOWN"));
}

void FenceCheck::ReadFence() {
  reading_ = true;
  token_ = {};
  promises_.Drop();
  read_.clear();
  for (std::string& key : FenceKeys()) read_.push_back({std::move(key), "", {}});
  if (read_.empty()) {
    reading_ = false;
    return;
  }
  CheckIdentity();
  for (size_t i = 0; i < read_.size(); ++i) {
    endpoint_.Call({"GET", read_[i].key}, [this, of = connection_, i](const Reply* reply) {
      if (of != connection_) return;
      FencePlace& place = read_[i];
      if (reply != nullptr && IsElsewhere(*reply)) {
        place.here = false;
        OnSlotUnavailable();
      } else if (reply == nullptr || reply->is_error()) {
        return Failed(reply, "the fence");
      } else {
        place.text = reply->text;
        if (auto fence = Fence::Parse(place.text); fence.ok()) place.found = *std::move(fence);
      }
    });
  }
  // Behind the fence: if that is replaced in between, because the clock was set, this reading with
  // the old correction is of no effect.
  CallTime([this](const ClockReading& reading) {
    // A correction by a slow reading would be as uncertain.
    const bool repeat = reading.slow() && options_.watch_clock && !clock_.See(reading);
    if (repeat && ++slow_readings_ < kMaxTries) return ReadFence();
    slow_readings_ = 0;
    clock_read_ = reading;
    OnFences();
  });
}

void FenceCheck::OnFences() {
  // Of this server, in this term; else of the server whose place it took.
  FencePlace* own = nullptr;
  const auto later = [&](const FencePlace& place) {
    return own == nullptr || place.found->number > own->found->number;
  };
  for (FencePlace& place : read_) {
    if (!place.found.has_value() || place.found->identity != server_.identity) continue;
    if (later(place)) own = &place;
  }
  const bool here = own != nullptr;
  for (FencePlace& place : read_) {
    if (here || !place.found.has_value()) continue;
    if (IsAnothers(place.found->identity)) continue;
    if (later(place)) own = &place;
  }
  if (own == nullptr || !own->found.has_value()) return OnFencesAndWord(nullptr, false);
  endpoint_.Call({"OBJECT", "ENCODING", WordKey(own->key, own->found->word)},
                 [this, of = connection_, own](const Reply* reply) {
                   if (of != connection_) return;
                   if (reply != nullptr && IsElsewhere(*reply)) {
                     *own = {own->key, "", std::nullopt, /*here=*/false};
                     OnSlotUnavailable();
                     return OnFences();
                   }
                   if (reply == nullptr || reply->is_error()) return Failed(reply, "the fence");
                   OnFencesAndWord(own, reply->text == "raw");
                 });
}

void FenceCheck::ForgetOthers(const std::string& key) {
  for (const auto& [other, fence] : known_.All()) {
    const bool moved = other != key && fence.identity == server_.identity;
    const bool anothers = other == key && IsAnothers(fence.identity);
    if (moved || anothers) known_.Forget(other);
  }
}

std::optional<Fence> FenceCheck::Known() const {
  std::optional<Fence> last;
  for (const FencePlace& place : read_) {
    std::optional<Fence> one = known_.Get(place.key);
    if (!one.has_value() || IsAnothers(one->identity)) continue;
    if (!last.has_value() || one->number > last->number) last = std::move(one);
  }
  return last;
}

void FenceCheck::OnFencesAndWord(const FencePlace* own, bool word_stands) {
  std::optional<Fence> found;
  if (own != nullptr) found = own->found;
  const std::optional<Fence> known = Known();
  FenceStep step =
      NextFence(server_, found, word_stands, known, options_.policy, common::RandomName());
  if (!step.adopt && (!found.has_value() || found->identity != server_.identity)) {
    // The server may be the same, and only the slot of its fence may have moved.
    for (const auto& [key, fence] : known_.All()) {
      const bool was_read = std::any_of(read_.begin(), read_.end(), [&](const FencePlace& place) {
        return place.here && place.key == key;
      });
      if (fence.identity != server_.identity || was_read) continue;
      step = MovedFence(fence, common::RandomName());
      break;
    }
  }
  const bool clock_set = options_.watch_clock && clock_.Revise(found, clock_read_, options_.policy,
                                                               common::RandomName(), &step);
  if (step.adopt) ForgetOthers(own->key);
  if (step.adopt && found.has_value() && known_.Adopt(own->key, *found)) {
    return Adopt(*own, *found, known);
  }
  if (++tries_ > kMaxTries) {
    return Refuse(absl::UnavailableError(
        absl::StrCat(endpoint_.url().ToString(), ": other nodes replace the fence all the time")));
  }
  if (step.adopt) return ReadFence();
  if (step.floor_after_us.has_value()) {
    // A slot may have come here with bookings that were promised at other servers, or with the
    // floors of a server that lost its data. Both were lost here.
    for (const auto& [key, fence] : known_.All()) step.write.AddFloorsIfLost(fence);
  }
  // A fence that other nodes may go by is replaced under its key, so that they detect it.
  if (found.has_value() && found->identity == server_.identity) return Write(step, *own, clock_set);
  for (const FencePlace& place : read_) {
    if (place.here) return Write(step, place, clock_set);
  }
  Refuse(absl::UnavailableError(
      absl::StrCat(endpoint_.url().ToString(), ": its slots are being moved")));
}

void FenceCheck::Adopt(const FencePlace& own, const Fence& fence,
                       const std::optional<Fence>& known) {
  reading_ = false;
  token_.word_key = WordKey(own.key, fence.word);
  token_.floor_us = fence.floor_us;
  token_.missing_floor_us = fence.missing_floor_us;
  token_.lag_us = LagUs(fence.lag_us);
  if (options_.watch_clock) clock_.Adopt(fence, clock_read_);
  promises_.Adopt(own.key, fence, known);
  OnRaised();
  if (!watch_.armed()) loop_.ArmIn(watch_, kWatchEveryNs);
  ReadFloors({}, 0);
}

void FenceCheck::OnRaised() {
  const LimitTable& limits = promises_.fence().limits;
  const bool closed = std::any_of(limits.begin(), limits.end(), [](const auto& limit) {
    return limit.second.floor_us > 0 || limit.second.lifted_us > 0;
  });
  token_.limits = closed ? std::make_shared<const LimitTable>(limits) : nullptr;
}

void FenceCheck::Watch() {
  if (loop_.stopping()) return;
  loop_.ArmIn(watch_, kWatchEveryNs);
  if (!endpoint_.unavailable() && !reading_) BeforeSend();
}

void FenceCheck::Lift(const std::string& limit, const std::set<std::string>& holds,
                      int64_t until_us, absl::AnyInvocable<void(bool)> done) {
  promises_.Lift(
      limit, holds, until_us, [this, limit, until_us, done = std::move(done)](bool lifted) mutable {
        if (lifted && options_.log != nullptr) {
          options_.log->Warning(
              "redis_floor_lifted",
              {{"limit", limit}, {"store", endpoint_.url().ToString()}, {"floor_us", until_us}});
        }
        done(lifted);
      });
}

void FenceCheck::Write(const FenceStep& step, const FencePlace& at, bool clock_set) {
  endpoint_.Call(ReplaceFenceWords(step, at.key, at.text, FloorKeys(/*unread=*/false)),
                 [this, of = connection_, why = step.why, word = step.write.word,
                  clock_set](const Reply* reply) {
                   if (of != connection_) return;
                   if (reply != nullptr && IsElsewhere(*reply)) {
                     OnSlotUnavailable();
                     return ReadFence();
                   }
                   if (reply == nullptr || reply->is_error()) return Failed(reply, "the fence");
                   const auto written = Fence::Parse(reply->text);
                   if (written.ok() && written->word == word && options_.log != nullptr) {
                     options_.log->Warning("redis_fence", {{"why", why},
                                                           {"store", endpoint_.url().ToString()},
                                                           {"number", written->number},
                                                           {"floor_us", written->floor_us}});
                   }
                   if (written.ok() && written->word == word && clock_set) {
                     OnClockSet(written->correction_us);
                   }
                   // The server may have changed since.
                   ReadFence();
                 });
}

void FenceCheck::ReadFloors(std::vector<std::string> keys, size_t from) {
  if (from == 0) {
    if (std::exchange(reading_floors_, true)) {
      floors_wanted_ = true;
      return;
    }
    keys = FloorKeys(/*unread=*/true);
  }
  if (from >= keys.size()) {
    reading_floors_ = false;
    endpoint_.Serve();
    // Once for all slots that came meanwhile; not for those that turned out not to be here.
    if (std::exchange(floors_wanted_, false)) ReadFloors({}, 0);
    return;
  }
  const size_t count = std::min(keys.size() - from, kFloorsAtOnce);
  std::vector<std::string> words = {"EVALSHA", TextOf(Script::kReadFloors).sha, "0"};
  words.insert(words.end(), keys.begin() + static_cast<ptrdiff_t>(from),
               keys.begin() + static_cast<ptrdiff_t>(from + count));
  endpoint_.Call(words, [this, of = connection_, from, count,
                         keys = std::move(keys)](const Reply* reply) mutable {
    if (of != connection_) return;
    if (reply == nullptr || reply->is_error() || reply->elements.size() != count) {
      reading_floors_ = floors_wanted_ = false;
      return Failed(reply, "floors");
    }
    OnFloors(absl::MakeConstSpan(keys).subspan(from, count), reply->elements);
    ReadFloors(std::move(keys), from + count);
  });
}

void FenceCheck::Failed(const Reply* reply, const char* what) {
  if (reply == nullptr) {
    // The connection broke. The next one reads it again.
    reading_ = false;
    return;
  }
  if (reply->HasCode("NOSCRIPT")) {
    endpoint_.LoadScripts();
    return ReadFence();
  }
  Refuse(absl::UnavailableError(
      absl::StrCat(endpoint_.url().ToString(), ": ", what, ": ", ErrorText(*reply))));
}

void FenceCheck::Refuse(absl::Status why) {
  ++connection_;
  reading_ = false;
  reading_floors_ = floors_wanted_ = false;
  reading_clock_ = false;
  promises_.Drop();
  token_ = {};
  OnFailed(why);
  endpoint_.Restart(std::move(why));
}

}  // namespace sluice::store::redis
