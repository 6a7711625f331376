#include "server/transport/web/metrics/server_families.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "common/bounds.h"
#include "server/transport/web/metrics/family_list.h"

namespace sluice::metrics {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

double Number(uint64_t count) { return static_cast<double>(count); }

double ProcessCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + Seconds(time.tv_nsec);
}

double VirtualBytes() {
  uint64_t pages = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
  std::fclose(file);
  return Number(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double MaxOpenFiles() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  return Number(files.rlim_cur);
}

// Names and meanings as in Prometheus' own client libraries.
void AddProcess(const service::ServerStats& stats, const Gathered& gathered, FamilyList* list) {
  list->Gauge("sluice_build_info", "Always 1; the label has the version.")
      .Value(1, {{"version", stats.version}});
  list->Counter("process_cpu_seconds_total", "CPU time of the process, user and system.")
      .Value(ProcessCpuSeconds());
  list->Gauge("process_resident_memory_bytes", "Resident memory.")
      .Value(Number(stats.resident_bytes));
  list->Gauge("process_virtual_memory_bytes", "Virtual memory.").Value(VirtualBytes());
  list->Gauge("process_open_fds", "Open file descriptors.").Value(Number(gathered.open_files));
  list->Gauge("process_max_fds", "Most file descriptors that may be open.").Value(MaxOpenFiles());
  list->Gauge("process_start_time_seconds", "Start of the server, in seconds since 1970.")
      .Value(Seconds(stats.started_at_wall_ns));
}

void AddDecisions(const service::ServerStats& stats, FamilyList* list) {
  list->Counter("sluice_acquisitions_total", "Acquisitions that were decided, by outcome.")
      .Value(Number(stats.totals.granted), {{"outcome", "granted"}})
      .Value(Number(stats.totals.denied), {{"outcome", "denied"}});
}

void AddWaiting(const Sources& sources, const service::ServerStats& stats, FamilyList* list) {
  list->Gauge("sluice_held_callers", "Callers that wait for their grant time, or for slots.")
      .Value(Number(sources.held_callers.size()));
  list->Gauge("sluice_watches", "Open watches of buckets.")
      .Value(Number(sources.watches.watches()));
  list->Gauge("sluice_peer_memory_bytes",
              "Memory that callers make the server hold: connections, calls and answers.")
      .Value(static_cast<double>(sources.memory.held()));
  list->Gauge("sluice_peer_memory_limit_bytes",
              "Bound of sluice_peer_memory_bytes: half of --memory_limit.")
      .Value(static_cast<double>(sources.memory.limit()));
  list->Counter("sluice_log_lines_suppressed_total",
                "Log lines that were not written: too many in a second, or stderr was full.")
      .Value(Number(stats.log_lines_suppressed));
}

void AddConfig(const service::ConfigStatus& config, FamilyList* list) {
  list->Gauge("sluice_limits", "Limits in force.").Value(config.limits);
  list->Gauge("sluice_limits_shown",
              "Most limits with series of their own; the others are summed as limit=other.")
      .Value(common::bounds::kMaxMetricLimits);
  list->Gauge("sluice_config_admin_changes", "Changes by PutLimit and DeleteLimit in force.")
      .Value(config.admin_changes);
  const limits::FileStatus& file = config.file;
  if (file.path.empty()) return;
  list->Gauge("sluice_config_info", "Always 1; the label has the SHA-256 of the limits file.")
      .Value(1, {{"version", file.version}});
  list->Gauge("sluice_config_last_reload_successful",
              "1 if the limits file as it is now is in force, else 0.")
      .Value(file.last_error.empty() ? 1 : 0);
  list->Gauge("sluice_config_last_reload_success_timestamp_seconds",
              "When the limits in force were loaded, in seconds since 1970.")
      .Value(Seconds(file.active_since_wall_ns));
  list->Gauge("sluice_config_last_reload_failure_timestamp_seconds",
              "When a limits file was last refused, in seconds since 1970; 0: never.")
      .Value(Seconds(file.last_error_at_wall_ns));
  list->Counter("sluice_config_reloads_total", "Limits files that took effect.")
      .Value(Number(file.reloads));
  list->Counter("sluice_config_failed_reloads_total", "Limits files that were refused.")
      .Value(Number(file.failed_reloads));
}

void AddBuckets(const store::StoreStats& store, FamilyList* list) {
  list->Gauge("sluice_store_buckets", "Buckets in memory.").Value(Number(store.buckets));
  list->Gauge("sluice_store_max_buckets", "Most buckets in memory.")
      .Value(Number(store.max_buckets));
  list->Gauge("sluice_store_memory_bytes", "Memory of the buckets.")
      .Value(Number(store.memory_bytes));
  list->Counter("sluice_store_buckets_created_total", "Buckets created.")
      .Value(Number(store.created));
  list->Counter("sluice_store_buckets_dropped_total", "Full buckets dropped.")
      .Value(Number(store.dropped));
  list->Counter("sluice_store_overflow_decisions_total",
                "Decisions by --overflow, for keys that found no room.")
      .Value(Number(store.overflow_allowed), {{"outcome", "allowed"}})
      .Value(Number(store.overflow_denied), {{"outcome", "denied"}});
  list->Gauge("sluice_store_open_receipts", "Receipts that can still be refunded.")
      .Value(Number(store.open_receipts));
  list->Counter("sluice_store_receipts_evicted_total",
                "Receipts closed to make room for newer ones of their bucket.")
      .Value(Number(store.receipts_evicted));
  list->Gauge("sluice_store_bookings",
              "Reservations whose grant time is to come, once for each bucket.")
      .Value(Number(store.bookings));
  list->Counter("sluice_store_lock_yields_total",
                "How often a thread yielded because another held a bucket's lock.")
      .Value(Number(store.lock_yields));
}

void AddCommands(const store::StoreStats& store, const store::StoreHealth& health,
                 FamilyList* list) {
  list->Gauge("sluice_store_state_timestamp_seconds",
              "Since when the store is up or down, in seconds since 1970; 0: unknown.")
      .Value(Seconds(health.since_wall_ns));
  list->Counter("sluice_store_commands_total", "Commands sent to Redis.")
      .Value(Number(store.commands));
  list->Counter("sluice_store_decisions_total", "Acquisitions decided by Redis.")
      .Value(Number(store.decisions));
  list->Counter("sluice_store_commands_unanswered_total",
                "Commands not answered in time; they count as spent.")
      .Value(Number(store.unanswered));
  list->Counter("sluice_store_command_errors_total", "Commands answered with an error.")
      .Value(Number(store.errors));
  list->Counter("sluice_store_clock_jumps_total",
                "How often this node was the first to detect that Redis' clock was set.")
      .Value(Number(store.clock_jumps));
  list->Gauge("sluice_store_nodes",
              "Live nodes on the same Redis, this one included; 0: no limit needs to know.")
      .Value(Number(store.nodes));
  list->Gauge("sluice_store_limits_differing",
              "Limits for which another node on the same Redis has different parameters.")
      .Value(Number(health.differing.size()));
}

void AddStore(const service::ServerStats& stats, const service::StoreStatus& status,
              const Gathered& gathered, FamilyList* list) {
  const store::StoreHealth& health = status.health;
  list->Gauge("sluice_store_up",
              "1 if the store answers; 0 if the circuit breaker is open, and each limit's "
              "on_store_failure decides.")
      .Value(health.unavailable ? 0 : 1, {{"kind", status.kind}});
  list->Counter("sluice_store_outages_total", "How often the store became unavailable.")
      .Value(Number(health.times_unavailable));
  list->Counter("sluice_store_unavailable_charges_total",
                "Charges decided by on_store_failure while the store was unavailable.")
      .Value(Number(gathered.allowed_while_unavailable), {{"outcome", "allowed"}})
      .Value(Number(gathered.denied_while_unavailable), {{"outcome", "denied"}});
  list->Counter("sluice_store_conversions_total",
                "Buckets converted to different parameters of their limit.")
      .Value(Number(stats.store.conversions));
  if (health.shared) {
    AddCommands(stats.store, health, list);
  } else {
    AddBuckets(stats.store, list);
  }
}

// Of the methods that were called.
void AddMethods(const std::vector<common::MethodTotals>& methods, FamilyList* list) {
  std::vector<const common::MethodTotals*> called;
  for (const common::MethodTotals& one : methods) {
    if (one.latency.count + one.messages_received + one.messages_sent > 0) called.push_back(&one);
  }
  list->Counter("sluice_calls_total", "Calls that ended, by method and gRPC status code.");
  for (const common::MethodTotals* one : called) {
    for (size_t code = 0; code < one->codes.size(); ++code) {
      // OK always: a rate needs a first value to start from.
      if (one->codes[code] == 0 && code != 0) continue;
      list->Value(Number(one->codes[code]),
                  {{"method", one->method},
                   {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
    }
  }
  list->Histogram("sluice_call_duration_seconds",
                  "From a call's headers to its end, the wait of held callers included.");
  for (const common::MethodTotals* one : called)
    list->Samples(one->latency, {{"method", one->method}});
  const auto add = [&](const char* name, const char* help, uint64_t common::MethodTotals::* count) {
    list->Counter(name, help);
    for (const common::MethodTotals* one : called) {
      list->Value(Number(one->*count), {{"method", one->method}});
    }
  };
  using Totals = common::MethodTotals;
  add("sluice_call_received_bytes_total", "Bytes of request messages.", &Totals::bytes_received);
  add("sluice_call_sent_bytes_total", "Bytes of response messages.", &Totals::bytes_sent);
  add("sluice_call_received_messages_total", "Request messages.", &Totals::messages_received);
  add("sluice_call_sent_messages_total", "Response messages.", &Totals::messages_sent);
}

// Of the clients that have bounds.
void AddClients(const access::ClientTable& table, FamilyList* list) {
  using access::ClientBound;
  std::vector<const access::Client*> shown;
  std::array<uint64_t, access::kClientBounds> others = {};
  const auto refused = [](const access::Client& client, size_t i) {
    return client.use->refused(static_cast<ClientBound>(i));
  };
  for (const access::Client& client : table.clients()) {
    if (client.use == nullptr || !client.bounds.any()) continue;
    if (shown.size() < common::bounds::kMaxMetricClients) {
      shown.push_back(&client);
      continue;
    }
    for (size_t i = 0; i < access::kClientBounds; ++i) others[i] += refused(client, i);
  }
  if (shown.empty()) return;
  const auto name_of = [](size_t i) {
    return std::string(access::BoundName(static_cast<ClientBound>(i)));
  };
  list->Counter("sluice_client_refusals_total",
                "Calls and acquisitions refused since a client had reached a bound.");
  for (const access::Client* client : shown) {
    for (size_t i = 0; i < access::kClientBounds; ++i) {
      if (!client->bounds.Has(static_cast<ClientBound>(i))) continue;
      list->Value(Number(refused(*client, i)), {{"client", client->name}, {"bound", name_of(i)}});
    }
  }
  for (size_t i = 0; i < access::kClientBounds; ++i) {
    if (others[i] == 0) continue;
    list->Value(Number(others[i]), {{"client", "other"}, {"bound", name_of(i)}});
  }
  list->Gauge("sluice_client_held_calls", "Calls of a client that ask to be held and are open.");
  for (const access::Client* client : shown) {
    list->Value(Number(client->use->open(ClientBound::kHeldCalls)), {{"client", client->name}});
  }
  list->Gauge("sluice_client_streams", "Open AcquireStreams and watches of a client.");
  for (const access::Client* client : shown) {
    list->Value(Number(client->use->open(ClientBound::kStreams)), {{"client", client->name}});
  }
}

void AddPorts(const std::vector<common::TransportTotals>& ports, FamilyList* list) {
  using Totals = common::TransportTotals;
  const auto add_open = [&](const char* name, const char* help, uint64_t Totals::* opened,
                            uint64_t Totals::* closed) {
    list->Gauge(name, help);
    for (const Totals& port : ports) {
      // Signed: another thread may count a close while its opening was not read yet.
      const auto open = static_cast<int64_t>(port.*opened - port.*closed);
      list->Value(static_cast<double>(std::max<int64_t>(open, 0)), {{"port", port.transport}});
    }
  };
  const auto add = [&](const char* name, const char* help, uint64_t Totals::* count) {
    list->Counter(name, help);
    for (const Totals& port : ports) {
      list->Value(Number(port.*count), {{"port", port.transport}});
    }
  };
  add_open("sluice_connections", "Open connections.", &Totals::connections_accepted,
           &Totals::connections_closed);
  add("sluice_connections_accepted_total", "Connections accepted.", &Totals::connections_accepted);
  add("sluice_connections_refused_total", "Connections closed at once: too many were open.",
      &Totals::connections_refused);
  add("sluice_connections_displaced_total", "Connections closed to make room for others.",
      &Totals::connections_displaced);
  add("sluice_handshakes_displaced_total", "TLS handshakes closed to make room for others.",
      &Totals::handshakes_displaced);
  add_open("sluice_streams", "Open calls.", &Totals::streams_accepted, &Totals::streams_closed);
  add("sluice_streams_accepted_total", "Calls begun.", &Totals::streams_accepted);
  add("sluice_calls_shed_total", "Calls refused because they had waited too long.", &Totals::sheds);
  add("sluice_calls_refused_over_memory_total", "Calls refused for want of memory.",
      &Totals::calls_refused_over_memory);
  add("sluice_connections_closed_over_memory_total", "Connections closed for want of memory.",
      &Totals::connections_closed_over_memory);
  add("sluice_stalls_total", "Calls and connections ended because the peer took no answer.",
      &Totals::stalls);
}

}  // namespace

std::vector<prometheus::MetricFamily> ServerFamilies(const Sources& sources,
                                                     const Gathered& gathered) {
  const service::ServerStats stats = sources.admin.GetStatsWithoutLimits();
  const service::ConfigStatus config = sources.admin.GetConfigStatusWithoutDecisions();
  FamilyList list;
  AddProcess(stats, gathered, &list);
  AddConfig(config, &list);
  AddDecisions(stats, &list);
  AddStore(stats, config.store, gathered, &list);
  AddWaiting(sources, stats, &list);
  if (sources.clients != nullptr) AddClients(*sources.clients->table(), &list);
  AddPorts(stats.totals.transports, &list);
  AddMethods(stats.totals.methods, &list);
  list.Histogram("sluice_loop_step_cpu_seconds",
                 "CPU time of the steps of the data port's event loops, by kind.");
  for (size_t i = 0; i < common::kStepNames.size(); ++i) {
    list.Samples(stats.totals.steps[i], {{"kind", common::kStepNames[i]}});
  }
  return list.Take();
}

}  // namespace sluice::metrics
