// limits, keys, reset, stats, config, check.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"
#include "server/config/load.h"

namespace sluice::cli {
namespace {

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

void WriteRate(const LimitRate& rate, Json* json) {
  json->Open('{').Field("permits", rate.permits).Field("period_ns", rate.period).Close();
}

void WriteLimit(const LimitInfo& limit, Json* json) {
  json->Open('{').Field("name", limit.name).Field("algorithm", limit.algorithm);
  json->Name("rate");
  WriteRate(limit.rate, json);
  if (limit.burst.has_value()) json->Field("burst", *limit.burst);
  if (limit.debt.has_value()) json->Field("debt", *limit.debt);
  if (limit.sub_windows.has_value()) json->Field("sub_windows", *limit.sub_windows);
  if (limit.utc_offset.has_value()) json->Field("utc_offset_ns", *limit.utc_offset);
  if (limit.hash_tag.has_value()) json->Field("hash_tag", *limit.hash_tag);
  json->Field("mode", limit.mode).Field("on_store_failure", limit.on_store_failure);
  json->Field("sharing", limit.sharing);
  json->Name("charges").Open('[');
  for (const std::string& parent : limit.charges) json->Value(parent);
  json->Close().Name("keys").Open('[');
  for (const LimitKeyOverride& key : limit.keys) {
    json->Open('{').Field("key", key.key);
    if (key.rate.has_value()) {
      json->Name("rate");
      WriteRate(*key.rate, json);
    }
    if (key.burst.has_value()) json->Field("burst", *key.burst);
    if (key.debt.has_value()) json->Field("debt", *key.debt);
    json->Close();
  }
  json->Close().Field("origin", limit.origin).Field("defined_at", limit.defined_at).Close();
}

std::string OriginText(const LimitInfo& limit) {
  if (limit.origin == "file") return limit.defined_at.empty() ? "file" : limit.defined_at;
  if (limit.origin == "admin_over_file") {
    return "put, over " + (limit.defined_at.empty() ? "the file" : limit.defined_at);
  }
  return limit.origin == "admin" ? "put" : limit.origin;
}

std::string Optional(const std::optional<uint64_t>& number) {
  return number.has_value() ? std::to_string(*number) : "-";
}

void PrintLimit(const LimitInfo& limit) {
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"name", limit.name});
  rows.push_back({"algorithm", limit.algorithm});
  rows.push_back({"rate", FormatRate(limit.rate)});
  if (limit.burst.has_value()) rows.push_back({"burst", std::to_string(*limit.burst)});
  if (limit.debt.has_value()) rows.push_back({"debt", std::to_string(*limit.debt)});
  if (limit.sub_windows.has_value()) {
    rows.push_back({"sub_windows", std::to_string(*limit.sub_windows)});
  }
  if (limit.utc_offset.has_value()) {
    rows.push_back({"utc_offset", FormatDuration(*limit.utc_offset)});
  }
  if (limit.hash_tag.has_value()) rows.push_back({"hash_tag", *limit.hash_tag});
  rows.push_back({"mode", limit.mode});
  if (limit.on_store_failure != "deny") {
    rows.push_back({"on_store_failure", limit.on_store_failure});
  }
  if (limit.sharing != "exact") rows.push_back({"sharing", limit.sharing});
  for (const std::string& parent : limit.charges) rows.push_back({"charges", parent});
  for (const LimitKeyOverride& key : limit.keys) {
    std::string text = ShowKey(key.key) + ":";
    if (key.rate.has_value()) text += " rate " + FormatRate(*key.rate);
    if (key.burst.has_value()) text += " burst " + std::to_string(*key.burst);
    if (key.debt.has_value()) text += " debt " + std::to_string(*key.debt);
    rows.push_back({"key", text});
  }
  rows.push_back({"from", OriginText(limit)});
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
}

// RATE[,BURST[,DEBT]]; what is empty stays as it is in the limit.
Status ReadKeyParameters(const std::string& text, LimitKeyOverride* key) {
  std::vector<std::string> parameters;
  size_t begin = 0;
  for (size_t comma = 0; comma != std::string::npos; begin = comma + 1) {
    comma = text.find(',', begin);
    parameters.push_back(text.substr(begin, comma - begin));
  }
  if (parameters.size() > 3) return Bad("write RATE[,BURST[,DEBT]], as 1000/s,2000,50");
  parameters.resize(3);
  if (parameters[0].empty() && parameters[1].empty() && parameters[2].empty()) {
    return Bad("no figure; write RATE[,BURST[,DEBT]], as 1000/s or ,,50");
  }
  if (!parameters[0].empty()) {
    const auto rate = ParseRate(parameters[0]);
    if (!rate.ok()) return rate.status();
    key->rate = *rate;
  }
  const std::pair<const std::string*, std::optional<uint64_t>*> numbers[] = {
      {&parameters[1], &key->burst}, {&parameters[2], &key->debt}};
  for (const auto& [figure, into] : numbers) {
    if (figure->empty()) continue;
    const auto number = ParseNumber(*figure);
    if (!number.ok()) return number.status();
    *into = *number;
  }
  return Status();
}

}  // namespace

int RunLimitsList(const Session& session) {
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto limits = admin->ListLimits();
  if (!limits.ok()) return session.Fail(limits.status());
  if (session.json()) {
    Json json;
    json.Open('{').Name("limits").Open('[');
    for (const LimitInfo& limit : *limits) WriteLimit(limit, &json);
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "ALGORITHM", ">RATE", ">BURST", ">DEBT", "MODE", "CHARGES", ">KEYS", "FROM"}};
  for (const LimitInfo& limit : *limits) {
    std::string parents;
    for (const std::string& parent : limit.charges) {
      parents += (parents.empty() ? "" : ",") + parent;
    }
    rows.push_back({limit.name, limit.algorithm, FormatRate(limit.rate), Optional(limit.burst),
                    Optional(limit.debt), limit.mode, parents,
                    limit.keys.empty() ? "" : std::to_string(limit.keys.size()),
                    OriginText(limit)});
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  return kExitDone;
}

int RunLimitsGet(const Session& session) {
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto limit = admin->GetLimit(session.Argument(0));
  if (!limit.ok()) return session.Fail(limit.status());
  if (session.json()) {
    Json json;
    WriteLimit(*limit, &json);
    session.Print(json);
  } else {
    PrintLimit(*limit);
  }
  return kExitDone;
}

int RunLimitsPut(const Session& session) {
  const Arguments& flags = session.arguments();
  LimitInfo limit;
  limit.name = session.Argument(0);
  const std::optional<std::string> rate_text = flags.Get("rate");
  if (!rate_text.has_value()) {
    return session.Fail(Bad("limits put needs --rate=PERMITS/PERIOD"));
  }
  const auto rate = ParseRate(*rate_text);
  if (!rate.ok()) return session.Fail(Bad("--rate: " + rate.status().message()));
  limit.rate = *rate;
  limit.algorithm = flags.Get("algorithm").value_or("");
  limit.mode = flags.Get("mode").value_or("");
  limit.on_store_failure = flags.Get("on-store-failure").value_or("");
  limit.sharing = flags.Get("sharing").value_or("");
  limit.charges = flags.All("charges");
  if (auto tag = flags.Get("hash-tag"); tag.has_value()) limit.hash_tag = *tag;
  for (const char* name : {"burst", "debt", "sub-windows"}) {
    if (!flags.Has(name)) continue;
    const auto number = session.Number(name, 0);
    if (!number.ok()) return session.Fail(number.status());
    if (name[0] == 'b') limit.burst = *number;
    if (name[0] == 'd') limit.debt = *number;
    if (name[0] == 's') {
      if (*number > UINT32_MAX) return session.Fail(Bad("--sub-windows is at most 100"));
      limit.sub_windows = static_cast<uint32_t>(*number);
    }
  }
  if (const auto given = flags.Get("utc-offset"); given.has_value()) {
    const std::string& text = *given;
    const bool negative = !text.empty() && text[0] == '-';
    const auto offset = ParseDuration(negative ? text.substr(1) : text);
    if (!offset.ok()) return session.Fail(Bad("--utc-offset: " + offset.status().message()));
    limit.utc_offset = negative ? -*offset : *offset;
  }
  // KEY=RATE,BURST,DEBT, each of which may be absent.
  for (const std::string& text : flags.All("key")) {
    const size_t equals = text.rfind('=');
    if (equals == std::string::npos) {
      return session.Fail(Bad("--key: \"" + text + "\": write KEY=RATE[,BURST[,DEBT]]"));
    }
    LimitKeyOverride key;
    key.key = text.substr(0, equals);
    if (const Status bad = ReadKeyParameters(text.substr(equals + 1), &key); !bad.ok()) {
      return session.Fail(Bad("--key: \"" + text + "\": " + bad.message()));
    }
    limit.keys.push_back(std::move(key));
  }
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto put = admin->PutLimit(limit);
  if (!put.ok()) return session.Fail(put.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("replaced", put->replaced).Name("limit");
    WriteLimit(put->limit, &json);
    json.Close();
    session.Print(json);
  } else {
    std::printf("%s\n", put->replaced ? "replaced" : "added");
    PrintLimit(put->limit);
  }
  return kExitDone;
}

int RunLimitsDelete(const Session& session) {
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const Status status = admin->DeleteLimit(session.Argument(0));
  if (!status.ok()) return session.Fail(status);
  if (session.json()) {
    Json json;
    json.Open('{').Field("deleted", session.Argument(0)).Close();
    session.Print(json);
  } else {
    std::printf("deleted %s\n", session.Argument(0).c_str());
  }
  return kExitDone;
}

int RunKeys(const Session& session) {
  const std::string by = session.arguments().Get("by").value_or("use");
  if (by != "use" && by != "denials") {
    return session.Fail(Bad("--by=" + by + " is unknown; write use or denials"));
  }
  const auto most = session.Number("max", 20);
  if (!most.ok()) return session.Fail(most.status());
  if (*most < 1 || *most > 1000) {
    return session.Fail(Bad("--max=" + std::to_string(*most) + ": write 1 to 1000"));
  }
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto list =
      admin->ListKeys(session.Argument(0), by == "use" ? KeyOrder::kUse : KeyOrder::kDenials,
                      static_cast<uint32_t>(*most));
  if (!list.ok()) return session.Fail(list.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("by", by).Field("sketch", list->sketch).Field("total", list->total);
    json.Field("counters", list->counters).Name("keys").Open('[');
    for (const KeyUse& key : list->keys) {
      json.Open('{').Field("limit", key.limit).Field("key", key.key);
      json.Field("estimate", key.estimate).Field("error", key.error);
      json.Field("capacity", key.capacity);
      if (!key.bucket_error.empty()) {
        json.Field("bucket_error", key.bucket_error).Close();
        continue;
      }
      json.Field("remaining", key.remaining);
      json.Field("reset_after_ns", key.reset_after).Field("waiting", key.waiting);
      json.Field("next_grant_after_ns", key.next_grant_after).Close();
    }
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows = {
      {"LIMIT", "KEY", by == "use" ? ">PERMITS" : ">DENIALS", ">ERROR", ">LEFT", ">OF"}};
  const bool any_wait = std::any_of(list->keys.begin(), list->keys.end(),
                                    [](const KeyUse& key) { return key.waiting > 0; });
  if (any_wait) rows[0].insert(rows[0].end(), {">WAITING", ">FIRST IN"});
  std::string not_known;
  for (const KeyUse& key : list->keys) {
    rows.push_back({key.limit, ShowKey(key.key), FormatCount(key.estimate),
                    key.error == 0 ? "exact" : "-" + FormatCount(key.error),
                    key.bucket_error.empty() ? std::to_string(key.remaining) : "?",
                    std::to_string(key.capacity)});
    if (!key.bucket_error.empty()) not_known = key.bucket_error;
    if (!any_wait) continue;
    rows.back().push_back(FormatCount(key.waiting));
    rows.back().push_back(key.waiting > 0 ? FormatDuration(key.next_grant_after) : "-");
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  if (!not_known.empty()) std::printf("? : %s\n", not_known.c_str());
  return kExitDone;
}

int RunReset(const Session& session) {
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto existed = admin->ResetKey(session.Argument(0), session.Argument(1));
  if (!existed.ok()) return session.Fail(existed.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("existed", *existed).Close();
    session.Print(json);
  } else {
    std::printf("%s\n", *existed ? "reset: the bucket is full" : "the bucket was not in use");
  }
  return kExitDone;
}

int RunStats(const Session& session) {
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto stats = admin->GetStats();
  if (!stats.ok()) return session.Fail(stats.status());
  const auto seconds = [](std::chrono::system_clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
  };
  if (session.json()) {
    Json json;
    json.Open('{').Field("version", stats->version);
    json.Field("started_at_s", seconds(stats->started_at));
    json.Field("decisions", stats->decisions).Field("granted", stats->granted);
    json.Field("denied", stats->denied).Field("resident_bytes", stats->resident_bytes);
    json.Field("log_lines_suppressed", stats->log_lines_suppressed);
    json.Name("store").Open('{').Field("kind", stats->store).Field("buckets", stats->buckets);
    json.Field("max_buckets", stats->max_buckets).Field("memory_bytes", stats->memory_bytes);
    json.Field("buckets_created", stats->buckets_created);
    json.Field("buckets_dropped", stats->buckets_dropped);
    json.Field("overflow_allowed", stats->overflow_allowed);
    json.Field("overflow_denied", stats->overflow_denied);
    json.Field("open_receipts", stats->open_receipts);
    json.Field("receipts_evicted", stats->receipts_evicted);
    json.Field("lock_yields", stats->lock_yields);
    json.Field("commands", stats->store_commands).Field("decisions", stats->store_decisions);
    json.Field("unanswered", stats->store_unanswered).Field("errors", stats->store_errors);
    json.Field("conversions", stats->store_conversions);
    json.Field("nodes", stats->store_nodes).Close();
    json.Name("limits").Open('[');
    for (const LimitUse& limit : stats->limits) {
      json.Open('{').Field("limit", limit.limit).Field("granted", limit.granted);
      json.Field("denied", limit.denied).Field("shadow_denied", limit.shadow_denied);
      json.Field("permits_granted", limit.permits_granted);
      json.Field("refunded_permits", limit.refunded_permits);
      json.Field("overflow_allowed", limit.overflow_allowed);
      json.Field("overflow_denied", limit.overflow_denied);
      json.Field("allowed_while_unavailable", limit.allowed_while_unavailable);
      json.Field("denied_while_unavailable", limit.denied_while_unavailable);
      json.Field("overshoot_permits", limit.overshoot_permits).Close();
    }
    json.Close().Name("methods").Open('[');
    for (const MethodStats& method : stats->methods) {
      json.Open('{').Field("method", method.method).Name("codes").Open('{');
      for (const auto& [code, count] : method.codes) {
        json.Field(StatusCodeName(static_cast<StatusCode>(code)), count);
      }
      json.Close();
      json.Name("latency").Open('{').Field("count", method.latency.count);
      json.Field("p50_ns", method.latency.Quantile(0.5));
      json.Field("p99_ns", method.latency.Quantile(0.99));
      json.Field("p999_ns", method.latency.Quantile(0.999));
      json.Field("sum_ns", method.latency.sum_ns).Close();
      json.Field("bytes_received", method.bytes_received);
      json.Field("bytes_sent", method.bytes_sent);
      json.Field("messages_received", method.messages_received);
      json.Field("messages_sent", method.messages_sent).Close();
    }
    json.Close().Name("transports").Open('[');
    for (const TransportStats& transport : stats->transports) {
      json.Open('{').Field("transport", transport.transport);
      json.Field("connections", transport.connections);
      json.Field("connections_accepted", transport.connections_accepted);
      json.Field("streams", transport.streams);
      json.Field("streams_accepted", transport.streams_accepted);
      json.Field("sheds", transport.sheds);
      json.Field("connections_refused", transport.connections_refused).Close();
    }
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"version", stats->version});
  rows.push_back({"started", FormatTime(stats->started_at)});
  rows.push_back({"decisions", FormatCount(stats->decisions) + ": " + FormatCount(stats->granted) +
                                   " granted, " + FormatCount(stats->denied) + " denied"});
  if (stats->store == "memory") {
    rows.push_back({"store", stats->store + ": " + FormatCount(stats->buckets) + " of " +
                                 FormatCount(stats->max_buckets) + " buckets, " +
                                 FormatBytes(stats->memory_bytes)});
    rows.push_back({"buckets", FormatCount(stats->buckets_created) + " created, " +
                                   FormatCount(stats->buckets_dropped) + " dropped"});
    rows.push_back({"overflow", FormatCount(stats->overflow_allowed) + " allowed, " +
                                    FormatCount(stats->overflow_denied) + " denied"});
    rows.push_back({"receipts", FormatCount(stats->open_receipts) + " open, " +
                                    FormatCount(stats->receipts_evicted) + " evicted"});
    rows.push_back({"lock yields", FormatCount(stats->lock_yields)});
  } else {
    rows.push_back({"store", stats->store + ": " + FormatCount(stats->store_decisions) +
                                 " decided by " + FormatCount(stats->store_commands) +
                                 " commands"});
    // Of two calls: it may have come back between them.
    if (const auto config = admin->GetConfigStatus(); config.ok() && config->store.unavailable) {
      rows.push_back(
          {"", "AWAY since " + FormatTime(config->store.since) + ": " + config->store.last_error});
    }
    rows.push_back({"commands", FormatCount(stats->store_unanswered) + " unanswered, " +
                                    FormatCount(stats->store_errors) + " refused"});
    rows.push_back({"buckets", FormatCount(stats->store_conversions) + " of other parameters"});
    if (stats->store_nodes > 0) rows.push_back({"nodes", FormatCount(stats->store_nodes)});
  }
  rows.push_back({"memory", FormatBytes(stats->resident_bytes)});
  if (stats->log_lines_suppressed > 0) {
    rows.push_back({"log", FormatCount(stats->log_lines_suppressed) + " lines suppressed"});
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  if (!stats->limits.empty()) {
    rows = {{"LIMIT", ">GRANTED", ">DENIED", ">SHADOW", ">PERMITS", ">REFUNDED"}};
    const bool any_away =
        std::any_of(stats->limits.begin(), stats->limits.end(), [](const LimitUse& limit) {
          return limit.allowed_while_unavailable > 0 || limit.denied_while_unavailable > 0;
        });
    if (any_away) rows[0].insert(rows[0].end(), {">AWAY: ALLOWED", ">DENIED"});
    const bool any_over =
        std::any_of(stats->limits.begin(), stats->limits.end(),
                    [](const LimitUse& limit) { return limit.overshoot_permits > 0; });
    if (any_over) rows[0].push_back(">OVERSHOOT");
    for (const LimitUse& limit : stats->limits) {
      rows.push_back({limit.limit, FormatCount(limit.granted), FormatCount(limit.denied),
                      FormatCount(limit.shadow_denied), FormatCount(limit.permits_granted),
                      FormatCount(limit.refunded_permits)});
      if (any_away) {
        rows.back().push_back(FormatCount(limit.allowed_while_unavailable));
        rows.back().push_back(FormatCount(limit.denied_while_unavailable));
      }
      if (any_over) rows.back().push_back(FormatCount(limit.overshoot_permits));
    }
    std::printf("\n%s", FormatTable(std::move(rows)).c_str());
  }
  if (!stats->methods.empty()) {
    rows = {{"METHOD", ">CALLS", ">ERRORS", ">P50", ">P99", ">P99.9"}};
    for (const MethodStats& method : stats->methods) {
      uint64_t calls = 0;
      uint64_t errors = 0;
      for (const auto& [code, count] : method.codes) {
        calls += count;
        if (code != 0) errors += count;
      }
      rows.push_back({method.method, FormatCount(calls), FormatCount(errors),
                      FormatDuration(method.latency.Quantile(0.5)),
                      FormatDuration(method.latency.Quantile(0.99)),
                      FormatDuration(method.latency.Quantile(0.999))});
    }
    std::printf("\n%s", FormatTable(std::move(rows)).c_str());
  }
  if (!stats->transports.empty()) {
    rows = {
        {"TRANSPORT", ">CONNECTIONS", ">ACCEPTED", ">STREAMS", ">ACCEPTED", ">SHED", ">REFUSED"}};
    for (const TransportStats& transport : stats->transports) {
      rows.push_back({transport.transport, FormatCount(transport.connections),
                      FormatCount(transport.connections_accepted), FormatCount(transport.streams),
                      FormatCount(transport.streams_accepted), FormatCount(transport.sheds),
                      FormatCount(transport.connections_refused)});
    }
    std::printf("\n%s", FormatTable(std::move(rows)).c_str());
  }
  return kExitDone;
}

int RunConfig(const Session& session) {
  Result<AdminClient> admin = session.MakeAdminClient();
  if (!admin.ok()) return session.Fail(admin.status());
  const auto status = admin->GetConfigStatus();
  if (!status.ok()) return session.Fail(status.status());
  const auto seconds = [](std::chrono::system_clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
  };
  if (session.json()) {
    Json json;
    json.Open('{').Field("version", status->version).Field("path", status->path);
    json.Field("active_since_s", seconds(status->active_since));
    json.Field("limits", status->limits).Field("admin_changes", status->admin_changes);
    json.Field("reloads", status->reloads).Field("failed_reloads", status->failed_reloads);
    json.Field("last_error", status->last_error);
    json.Field("last_error_at_s", seconds(status->last_error_at));
    json.Name("store").Open('{').Field("kind", status->store.kind);
    json.Field("state", status->store.unavailable ? "away" : "serving");
    json.Field("since_s", seconds(status->store.since));
    json.Field("times_unavailable", status->store.times_unavailable);
    json.Field("last_error", status->store.last_error).Name("decided_while_unavailable").Open('[');
    for (const UnavailableDecisions& one : status->store.decided_while_unavailable) {
      json.Open('{').Field("limit", one.limit).Field("allowed", one.allowed);
      json.Field("denied", one.denied).Close();
    }
    json.Close().Name("differing").Open('[');
    for (const DifferingLimit& one : status->store.differing) {
      json.Open('{').Field("limit", one.limit).Field("ours", one.ours);
      json.Field("theirs", one.theirs).Field("times", one.times);
      json.Field("last_at_s", seconds(one.last_at)).Close();
    }
    json.Close().Name("nodes").Open('[');
    for (const StoreNode& one : status->store.nodes) {
      json.Open('{').Field("id", one.id).Field("self", one.self).Field("lapsed", one.lapsed);
      json.Field("divisor", one.divisor).Close();
    }
    json.Close().Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"file", status->path.empty() ? "(none)" : status->path});
  if (!status->version.empty()) rows.push_back({"version", status->version.substr(0, 16)});
  rows.push_back({"active since", FormatTime(status->active_since)});
  rows.push_back({"limits", FormatCount(status->limits)});
  rows.push_back({"put or deleted", FormatCount(status->admin_changes)});
  rows.push_back({"reloads", FormatCount(status->reloads) + ", and " +
                                 FormatCount(status->failed_reloads) + " refused"});
  if (!status->last_error.empty()) {
    rows.push_back({"last refused", FormatTime(status->last_error_at)});
    rows.push_back({"because", status->last_error});
  }
  const StoreStatus& store = status->store;
  if (store.since.time_since_epoch().count() == 0) {
    rows.push_back({"store", store.kind});
  } else {
    rows.push_back(
        {"store", store.kind + (store.unavailable ? ", away since " : ", serving since ") +
                      FormatTime(store.since) + ", away " + FormatCount(store.times_unavailable) +
                      (store.times_unavailable == 1 ? " time" : " times")});
  }
  if (!store.last_error.empty()) rows.push_back({"last away", store.last_error});
  for (const UnavailableDecisions& one : store.decided_while_unavailable) {
    rows.push_back({"meanwhile", one.limit + ": " + FormatCount(one.allowed) + " allowed, " +
                                     FormatCount(one.denied) + " denied"});
  }
  for (const DifferingLimit& one : store.differing) {
    rows.push_back({"differs", one.limit + ": " + one.ours + " here, " + one.theirs +
                                   " at another node; " + FormatCount(one.times) + " times, last " +
                                   FormatTime(one.last_at)});
  }
  if (!store.nodes.empty()) {
    std::string nodes;
    size_t present = 0;
    for (const StoreNode& one : store.nodes) {
      if (!one.lapsed) ++present;
      nodes += (nodes.empty() ? ": " : ", ") + one.id + (one.self ? " (this one)" : "") +
               (one.lapsed         ? " (gone)"
                : one.divisor == 0 ? " (no share yet)"
                                   : "");
    }
    rows.push_back({"nodes", FormatCount(present) + nodes});
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  return kExitDone;
}

int RunCheck(const Session& session) {
  const auto file = config::LoadFile(session.Argument(0));
  if (!file.ok()) {
    const std::string message(file.status().message().data(), file.status().message().size());
    if (session.json()) {
      Json json;
      json.Open('{').Field("ok", false).Field("error", message).Close();
      session.Print(json);
    } else {
      std::fprintf(stderr, "%s\n", message.c_str());
    }
    return kExitUsage;
  }
  if (session.json()) {
    Json json;
    json.Open('{').Field("ok", true).Field("limits", file->specs.size());
    json.Field("version", file->version).Close();
    session.Print(json);
  } else {
    std::printf("%s: good, %zu limit%s\n", session.Argument(0).c_str(), file->specs.size(),
                file->specs.size() == 1 ? "" : "s");
  }
  return kExitDone;
}

}  // namespace sluice::cli
