// stats: the server's counters.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

void WriteStore(const ServerStats& stats, Json* json) {
  json->Name("store").Open('{').Field("kind", stats.store).Field("buckets", stats.buckets);
  json->Field("max_buckets", stats.max_buckets).Field("memory_bytes", stats.memory_bytes);
  json->Field("buckets_created", stats.buckets_created);
  json->Field("buckets_dropped", stats.buckets_dropped);
  json->Field("overflow_allowed", stats.overflow_allowed);
  json->Field("overflow_denied", stats.overflow_denied);
  json->Field("open_receipts", stats.open_receipts);
  json->Field("receipts_evicted", stats.receipts_evicted);
  json->Field("bookings", stats.bookings);
  json->Field("lock_yields", stats.lock_yields);
  json->Field("commands", stats.store_commands).Field("decisions", stats.store_decisions);
  json->Field("unanswered", stats.store_unanswered).Field("errors", stats.store_errors);
  json->Field("conversions", stats.store_conversions);
  json->Field("nodes", stats.store_nodes).Field("clock_jumps", stats.store_clock_jumps).Close();
}

void WriteLimits(const std::vector<LimitUse>& limits, Json* json) {
  json->Name("limits").Open('[');
  for (const LimitUse& limit : limits) {
    json->Open('{').Field("limit", limit.limit).Field("granted", limit.granted);
    json->Field("denied", limit.denied).Field("shadow_denied", limit.shadow_denied);
    json->Field("permits_granted", limit.permits_granted);
    json->Field("refunded_permits", limit.refunded_permits);
    json->Field("overflow_allowed", limit.overflow_allowed);
    json->Field("overflow_denied", limit.overflow_denied);
    json->Field("allowed_while_unavailable", limit.allowed_while_unavailable);
    json->Field("denied_while_unavailable", limit.denied_while_unavailable);
    json->Field("overshoot_permits", limit.overshoot_permits);
    json->Field("bookings_denied", limit.bookings_denied).Close();
  }
  json->Close();
}

void WriteMethods(const std::vector<MethodStats>& methods, Json* json) {
  json->Name("methods").Open('[');
  for (const MethodStats& method : methods) {
    json->Open('{').Field("method", method.method).Name("codes").Open('{');
    for (const auto& [code, count] : method.codes) {
      json->Field(StatusCodeName(static_cast<StatusCode>(code)), count);
    }
    json->Close();
    json->Name("latency").Open('{').Field("count", method.latency.count);
    json->Field("p50_ns", method.latency.Quantile(0.5));
    json->Field("p99_ns", method.latency.Quantile(0.99));
    json->Field("p999_ns", method.latency.Quantile(0.999));
    json->Field("sum_ns", method.latency.sum_ns).Close();
    json->Field("bytes_received", method.bytes_received);
    json->Field("bytes_sent", method.bytes_sent);
    json->Field("messages_received", method.messages_received);
    json->Field("messages_sent", method.messages_sent).Close();
  }
  json->Close();
}

void WriteTransports(const std::vector<TransportStats>& transports, Json* json) {
  json->Name("transports").Open('[');
  for (const TransportStats& transport : transports) {
    json->Open('{').Field("transport", transport.transport);
    json->Field("connections", transport.connections);
    json->Field("connections_accepted", transport.connections_accepted);
    json->Field("streams", transport.streams);
    json->Field("streams_accepted", transport.streams_accepted);
    json->Field("sheds", transport.sheds);
    json->Field("connections_refused", transport.connections_refused);
    json->Field("connections_displaced", transport.connections_displaced);
    json->Field("handshakes_displaced", transport.handshakes_displaced);
    json->Field("calls_refused_over_memory", transport.calls_refused_over_memory);
    json->Field("connections_closed_over_memory", transport.connections_closed_over_memory);
    json->Field("stalls", transport.stalls).Close();
  }
  json->Close();
}

void WriteSteps(const std::vector<StepStats>& steps, Json* json) {
  json->Name("steps").Open('[');
  for (const StepStats& step : steps) {
    json->Open('{').Field("kind", step.kind).Field("count", step.time.count);
    json->Field("p50_ns", step.time.Quantile(0.5)).Field("p999_ns", step.time.Quantile(0.999));
    json->Field("longest_ns", step.time.Quantile(1)).Field("sum_ns", step.time.sum_ns).Close();
  }
  json->Close();
}

void WriteStats(const ServerStats& stats, Json* json) {
  json->Open('{').Field("version", stats.version);
  json->Field("started_at_s", UnixSeconds(stats.started_at));
  json->Field("decisions", stats.decisions).Field("granted", stats.granted);
  json->Field("denied", stats.denied).Field("resident_bytes", stats.resident_bytes);
  json->Field("log_lines_suppressed", stats.log_lines_suppressed);
  WriteStore(stats, json);
  WriteLimits(stats.limits, json);
  WriteMethods(stats.methods, json);
  WriteTransports(stats.transports, json);
  WriteSteps(stats.steps, json);
  json->Close();
}

// `unavailable`: the store's status if it is unavailable now, else null.
void PrintOverview(const ServerStats& stats, const StoreStatus* unavailable) {
  Rows rows;
  rows.push_back({"version", stats.version});
  rows.push_back({"started", FormatTime(stats.started_at)});
  rows.push_back({"decisions", FormatCount(stats.decisions) + ": " + FormatCount(stats.granted) +
                                   " granted, " + FormatCount(stats.denied) + " denied"});
  if (stats.store == "memory") {
    rows.push_back({"store", stats.store + ": " + FormatCount(stats.buckets) + " of " +
                                 FormatCount(stats.max_buckets) + " buckets, " +
                                 FormatBytes(stats.memory_bytes)});
    rows.push_back({"buckets", FormatCount(stats.buckets_created) + " created, " +
                                   FormatCount(stats.buckets_dropped) + " dropped"});
    rows.push_back({"overflow", FormatCount(stats.overflow_allowed) + " allowed, " +
                                    FormatCount(stats.overflow_denied) + " denied"});
    rows.push_back({"receipts", FormatCount(stats.open_receipts) + " open, " +
                                    FormatCount(stats.receipts_evicted) + " evicted"});
    rows.push_back({"bookings", FormatCount(stats.bookings)});
    rows.push_back({"lock yields", FormatCount(stats.lock_yields)});
  } else {
    rows.push_back({"store", stats.store + ": " + FormatCount(stats.store_decisions) +
                                 " decided by " + FormatCount(stats.store_commands) + " commands"});
    if (unavailable != nullptr) {
      rows.push_back({"", "UNAVAILABLE since " + FormatTime(unavailable->since) + ": " +
                              unavailable->last_error});
    }
    rows.push_back({"commands", FormatCount(stats.store_unanswered) + " unanswered, " +
                                    FormatCount(stats.store_errors) + " refused"});
    rows.push_back({"buckets", FormatCount(stats.store_conversions) + " of other parameters"});
    if (stats.store_nodes > 0) rows.push_back({"nodes", FormatCount(stats.store_nodes)});
    if (stats.store_clock_jumps > 0) {
      rows.push_back({"clock", "set " + FormatCount(stats.store_clock_jumps) + " times"});
    }
  }
  rows.push_back({"memory", FormatBytes(stats.resident_bytes)});
  if (stats.log_lines_suppressed > 0) {
    rows.push_back({"log", FormatCount(stats.log_lines_suppressed) + " lines suppressed"});
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
}

void PrintLimits(const std::vector<LimitUse>& limits) {
  if (limits.empty()) return;
  Rows rows = {{"LIMIT", ">GRANTED", ">DENIED", ">SHADOW", ">PERMITS", ">REFUNDED"}};
  const bool any_unavailable = std::any_of(limits.begin(), limits.end(), [](const LimitUse& limit) {
    return limit.allowed_while_unavailable > 0 || limit.denied_while_unavailable > 0;
  });
  if (any_unavailable) rows[0].insert(rows[0].end(), {">UNAVAILABLE: ALLOWED", ">DENIED"});
  const bool any_over = std::any_of(limits.begin(), limits.end(), [](const LimitUse& limit) {
    return limit.overshoot_permits > 0;
  });
  if (any_over) rows[0].push_back(">OVERSHOOT");
  const bool any_booking = std::any_of(limits.begin(), limits.end(), [](const LimitUse& limit) {
    return limit.bookings_denied > 0;
  });
  if (any_booking) rows[0].push_back(">BOOKINGS DENIED");
  for (const LimitUse& limit : limits) {
    rows.push_back({limit.limit, FormatCount(limit.granted), FormatCount(limit.denied),
                    FormatCount(limit.shadow_denied), FormatCount(limit.permits_granted),
                    FormatCount(limit.refunded_permits)});
    if (any_unavailable) {
      rows.back().push_back(FormatCount(limit.allowed_while_unavailable));
      rows.back().push_back(FormatCount(limit.denied_while_unavailable));
    }
    if (any_over) rows.back().push_back(FormatCount(limit.overshoot_permits));
    if (any_booking) rows.back().push_back(FormatCount(limit.bookings_denied));
  }
  std::printf("\n%s", FormatTable(std::move(rows)).c_str());
}

void PrintMethods(const std::vector<MethodStats>& methods) {
  if (methods.empty()) return;
  Rows rows = {{"METHOD", ">CALLS", ">ERRORS", ">P50", ">P99", ">P99.9"}};
  for (const MethodStats& method : methods) {
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

void PrintTransports(const std::vector<TransportStats>& transports) {
  if (transports.empty()) return;
  Rows rows = {
      {"TRANSPORT", ">CONNECTIONS", ">ACCEPTED", ">STREAMS", ">ACCEPTED", ">SHED", ">REFUSED"}};
  for (const TransportStats& transport : transports) {
    rows.push_back({transport.transport, FormatCount(transport.connections),
                    FormatCount(transport.connections_accepted), FormatCount(transport.streams),
                    FormatCount(transport.streams_accepted), FormatCount(transport.sheds),
                    FormatCount(transport.connections_refused)});
  }
  std::printf("\n%s", FormatTable(std::move(rows)).c_str());
}

void PrintSteps(const std::vector<StepStats>& steps) {
  Rows rows = {{"LOOP STEP", ">COUNT", ">P50", ">P99.9", ">LONGEST"}};
  for (const StepStats& step : steps) {
    if (step.time.count == 0) continue;
    rows.push_back(
        {step.kind, FormatCount(step.time.count), FormatDuration(step.time.Quantile(0.5)),
         FormatDuration(step.time.Quantile(0.999)), FormatDuration(step.time.Quantile(1))});
  }
  if (rows.size() > 1) std::printf("\n%s", FormatTable(std::move(rows)).c_str());
}

}  // namespace

int RunStats(const Session& session) {
  const auto stats = session.AskAdmin([](AdminClient& admin) { return admin.GetStats(); });
  if (!stats.ok()) return session.Fail(stats.status());
  if (session.json()) {
    Json json;
    WriteStats(*stats, &json);
    session.Print(json);
    return kExitDone;
  }
  // A second call: the store may have changed its state since the first.
  const auto config = session.AskAdmin([](AdminClient& admin) { return admin.GetConfigStatus(); });
  PrintOverview(*stats, config.ok() && config->store.unavailable ? &config->store : nullptr);
  PrintLimits(stats->limits);
  PrintMethods(stats->methods);
  PrintTransports(stats->transports);
  PrintSteps(stats->steps);
  return kExitDone;
}

}  // namespace sluice::cli
