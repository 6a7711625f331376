#include "server/store/redis/fencing/server_info.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/strings.h"

namespace sluice::store::redis {
namespace {

using common::ToAbsl;

// Of "ip=...,port=...,state=online,offset=...,lag=1": whether it is online, and its lag.
bool OnlineWithin(absl::string_view replica, int64_t max_lag_s) {
  bool online = false;
  int64_t lag_s = -1;
  for (absl::string_view part : absl::StrSplit(replica, ',')) {
    if (part == "state=online") online = true;
    if (absl::ConsumePrefix(&part, "lag=") && !absl::SimpleAtoi(part, &lag_s)) lag_s = -1;
  }
  return online && lag_s >= 0 && lag_s <= max_lag_s;
}

}  // namespace

ServerInfo ServerInfo::From(std::string_view info, const Reply* config, int64_t assumed_lag_us) {
  ServerInfo server;
  server.identity = absl::StrCat(InfoField(info, "run_id"), ".", InfoField(info, "master_replid"));
  server.role = InfoField(info, "role");
  if (server.role == "slave") {
    server.primary =
        absl::StrCat(InfoField(info, "master_host"), ":", InfoField(info, "master_port"));
  }
  if (!absl::SimpleAtoi(InfoField(info, "connected_slaves"), &server.replicas)) server.replicas = 0;
  server.has_replicas = server.replicas > 0;
  const std::string before = InfoField(info, "master_replid2");
  server.was_promoted = before.find_first_not_of('0') != std::string::npos;
  if (server.was_promoted) server.replicated = before;
  // The line is there if min-replicas-to-write and its lag are both set.
  server.guarded = !InfoField(info, "min_slaves_good_slaves").empty();

  std::map<std::string, std::string> settings;
  if (config != nullptr) {
    for (size_t i = 0; i + 1 < config->elements.size(); i += 2) {
      settings[config->elements[i].text] = config->elements[i + 1].text;
    }
  }
  int64_t lag_s = 0;
  const bool told = absl::SimpleAtoi(settings["min-replicas-max-lag"], &lag_s) && lag_s > 0;
  server.max_lag_us = told ? lag_s * 1'000'000 : assumed_lag_us;
  server.durable = settings["appendonly"] == "yes" && settings["appendfsync"] == "always";
  for (int i = 0; i < server.replicas; ++i) {
    const std::string replica = InfoField(info, absl::StrCat("slave", i));
    if (OnlineWithin(replica, (server.max_lag_us + 999'999) / 1'000'000)) ++server.good_replicas;
  }
  return server;
}

bool ServerInfo::TookPlaceOf(std::string_view other_identity) const {
  return was_promoted && absl::EndsWith(ToAbsl(other_identity), absl::StrCat(".", replicated));
}

absl::Status ServerInfo::Guarded(bool may_fail_over) const {
  if (!guarded && (has_replicas || may_fail_over)) {
    return absl::FailedPreconditionError(
        "has replicas and min-replicas-to-write 0: when one of them is promoted it would go on "
        "granting; set min-replicas-to-write to 1 or more (or, if over-admission after a failover "
        "is acceptable, --redis_allow_unguarded)");
  }
  if (guarded && good_replicas == 0) {
    return absl::UnavailableError(
        "has no replica within its min-replicas-max-lag: one may have been promoted");
  }
  return absl::OkStatus();
}

}  // namespace sluice::store::redis
