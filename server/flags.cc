#include "server/flags.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/strings.h"
#include "server/limits/nearest_name.h"
#include "server/transport/http1/request_parser.h"
#include "server/transport/web/access.h"

namespace sluice {
namespace {

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view right) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", right));
}

// ---- The kinds of flags ----

struct Flag {
  const char* name;
  const char* value;  // placeholder after the =; null: the flag takes no value
  std::string help;
  std::function<absl::Status(const std::string& value, Flags* flags)> set;
};

// The field of a flag: a member of Flags, or with more pointers a member of that member.
template <typename... Path>
auto& FieldAt(Flags& flags, Path... path) {
  return (flags.*....*path);
}

template <typename... Path>
auto DefaultOf(Path... path) {
  Flags none;
  return FieldAt(none, path...);
}

std::string WithDefault(const char* help, const absl::AlphaNum& value) {
  return absl::StrCat(help, " (default ", value, ")");
}

template <typename... Path>
Flag Switch(const char* name, const char* help, Path... path) {
  return {name, nullptr, help, [=](const std::string&, Flags* flags) {
            FieldAt(*flags, path...) = true;
            return absl::OkStatus();
          }};
}

template <typename... Path>
Flag String(const char* name, const char* value, const char* help, Path... path) {
  return {name, value, help, [=](const std::string& text, Flags* flags) {
            FieldAt(*flags, path...) = text;
            return absl::OkStatus();
          }};
}

// `Field`: net::Address, or an optional one.
template <typename Field>
Flag Address(const char* name, const char* help, Field Flags::* field) {
  return {name, "ADDRESS", help, [name, field](const std::string& text, Flags* flags) {
            if constexpr (!std::is_same_v<Field, net::Address>) {
              if (text == "none") {
                (flags->*field).reset();
                return absl::OkStatus();
              }
            }
            auto address = net::Address::Parse(text);
            if (!address.ok()) {
              return absl::InvalidArgumentError(
                  absl::StrCat("--", name, ": ", address.status().message()));
            }
            if (address->is_unix() && address->unix_path[0] != '/') {
              return Bad(name, text, "the path of a Unix socket starts with /");
            }
            flags->*field = *std::move(address);
            return absl::OkStatus();
          }};
}

template <typename T>
Flag Number(const char* name, const char* help, T Flags::* field, T min,
            T max = std::numeric_limits<T>::max()) {
  // What 0 stands for is in `help`.
  const T value = DefaultOf(field);
  return {name, "N", value == 0 ? help : WithDefault(help, value),
          [=](const std::string& text, Flags* flags) {
            T number;
            if (absl::SimpleAtoi(text, &number) && number >= min && number <= max) {
              flags->*field = number;
              return absl::OkStatus();
            }
            const bool bounded = max != std::numeric_limits<T>::max();
            return Bad(name, text,
                       bounded ? absl::StrCat("write a number from ", min, " to ", max)
                               : absl::StrCat("write a number from ", min, " up"));
          }};
}

constexpr int64_t kMostBytes = int64_t{1} << 60;

template <typename... Path>
Flag Bytes(const char* name, const char* help, int64_t min, int64_t max, Path... path) {
  return {
      name, "BYTES", help, [=](const std::string& text, Flags* flags) {
        static constexpr std::pair<absl::string_view, int> kUnits[] = {
            {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"", 0}};
        absl::string_view digits = text;
        int shift = 0;
        for (const auto& [unit, bits] : kUnits) {
          if (!absl::ConsumeSuffix(&digits, unit)) continue;
          shift = bits;
          break;
        }
        int64_t number = 0;
        if (!absl::SimpleAtoi(digits, &number) || number > max >> shift || number << shift < min) {
          const bool bounded = max != kMostBytes;
          return Bad(name, text,
                     absl::StrCat("write a number of bytes from ", min,
                                  bounded ? absl::StrCat(" to ", max, ", as 16MiB")
                                          : " up, as 1536MiB or 2GiB"));
        }
        FieldAt(*flags, path...) = number << shift;
        return absl::OkStatus();
      }};
}

// `value` is "FIRST|SECOND".
template <typename T, typename... Path>
Flag Choice(const char* name, const char* value, const char* help, std::pair<const char*, T> first,
            std::pair<const char*, T> second, Path... path) {
  const char* const by_default = DefaultOf(path...) == first.second ? first.first : second.first;
  return {name, value, WithDefault(help, by_default), [=](const std::string& text, Flags* flags) {
            for (const auto& [word, meaning] : {first, second}) {
              if (text != word) continue;
              FieldAt(*flags, path...) = meaning;
              return absl::OkStatus();
            }
            return Bad(name, text, absl::StrCat("write ", first.first, " or ", second.first));
          }};
}

// The field holds nanoseconds.
template <typename... Path>
Flag Duration(const char* name, const char* help, absl::Duration min, absl::Duration max,
              Path... path) {
  const absl::Duration value = absl::Nanoseconds(DefaultOf(path...));
  return {name, "DURATION", WithDefault(help, absl::FormatDuration(value)),
          [=](const std::string& text, Flags* flags) {
            absl::Duration duration;
            if (!absl::ParseDuration(text, &duration) || duration < min || duration > max) {
              return Bad(name, text,
                         absl::StrCat("write a duration from ", absl::FormatDuration(min), " to ",
                                      absl::FormatDuration(max), ", as 500ms or 30s"));
            }
            FieldAt(*flags, path...) = absl::ToInt64Nanoseconds(duration);
            return absl::OkStatus();
          }};
}

// ---- The flags, in the order of --help ----

absl::Status SetStore(const std::string& text, Flags* flags) {
  if (text == "memory") {
    flags->in_redis = false;
    return absl::OkStatus();
  }
  // The error does not show the value, which may contain a password.
  auto url = store::redis::RedisUrl::Parse(text);
  if (!url.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--store: ", url.status().message(),
                                                   "; or write memory for a store of its own"));
  }
  flags->in_redis = true;
  flags->redis.url = *std::move(url);
  return absl::OkStatus();
}

absl::Status SetNamespace(const std::string& text, Flags* flags) {
  if (text.size() > 64 || text.find_first_of("{} \t\r\n") != text.npos) {
    return Bad("redis_namespace", text, "write at most 64 characters, without spaces and braces");
  }
  flags->redis.name_space = text;
  return absl::OkStatus();
}

absl::Status SetHttpHosts(const std::string& text, Flags* flags) {
  flags->http_hosts.clear();
  for (const absl::string_view host : absl::StrSplit(text, ',')) {
    const auto parsed = http1::ParseAuthority(common::ToStd(host));
    if (!parsed.has_value() || parsed->host.empty() || !parsed->port.empty()) {
      return Bad("http_hosts", text,
                 "write names or addresses without ports, with commas between them, as "
                 "sluice.example,10.0.0.1,[::1]");
    }
    flags->http_hosts.emplace_back(parsed->host);
  }
  return absl::OkStatus();
}

absl::Status SetTakeover(const std::string& text, Flags* flags) {
  if (text[0] != '/' || text.size() > 107) {
    return Bad("takeover", text,
               "write the path of a Unix socket, which starts with / and has at most 107 bytes");
  }
  flags->takeover = text;
  return absl::OkStatus();
}

absl::Status SetLogLevel(const std::string& text, Flags* flags) {
  if (common::ParseLogLevel(text, &flags->log_level)) return absl::OkStatus();
  return Bad("log_level", text, "write info, warning or error");
}

std::vector<Flag> PortFlags() {
  return {
      String("limits", "FILE", "limits to load; reloaded when the file changes (default: none)",
             &Flags::limits),
      Address("listen", "data port, where programs ask for permits (default 127.0.0.1:7200)",
              &Flags::listen),
      Address("admin_listen", "admin port, or none (default 127.0.0.1:7201)", &Flags::admin_listen),
      Address("http_listen",
              "HTTP port: JSON, /v1/check for gateways; or none (default 127.0.0.1:7202)",
              &Flags::http_listen),
      {"http_hosts", "NAME,...",
       "hosts under which the HTTP port is reached; requests for others are refused (default: "
       "loopback and the host of --http_listen; 0.0.0.0 and [::] stand for any IP address)",
       SetHttpHosts},
      Address("metrics_listen",
              "metrics port: /metrics for Prometheus, /healthz and /readyz, for anyone who reaches "
              "it (default: none)",
              &Flags::metrics_listen),
      {"takeover", "SOCKET",
       "path of a Unix socket, for upgrades without a gap: a new server with the same flag takes "
       "the ports and the state over from the one that runs (default: none)",
       SetTakeover},
      Number("threads", "event loops of the data port (default: one per core)", &Flags::threads, 1,
             1024),
  };
}

std::vector<Flag> StoreFlags() {
  using Redis = store::RedisStoreOptions;
  using store::redis::AfterLoss;
  return {
      {"store", "memory|URL",
       "where buckets are kept: in this process, or in a Redis that nodes share, as "
       "redis://HOST:6379, rediss://... (TLS), unix:///PATH, "
       "redis-cluster://HOST:6379,... or redis-sentinel://HOST:26379,.../NAME "
       "(default memory)",
       SetStore},
      Number("store_threads",
             "event loops for Redis only (default 0: Redis uses those of the data port, and a "
             "request stays on one thread)",
             &Flags::store_threads, 0, 64),
      String("state_dir", "DIR",
             "folder in which the server keeps its in-memory state over restarts: buckets, "
             "receipts, request ids, limits of admins (default: all buckets are full after a "
             "restart)",
             &Flags::state_dir),
      Choice("after_crash", "empty|trust",
             "buckets after the server ended without a drain: empty, or as in a copy that is then "
             "written every minute; needs --state_dir",
             std::pair("empty", state::AfterCrash::kEmpty),
             std::pair("trust", state::AfterCrash::kTrust), &Flags::after_crash),
      {"redis_namespace", "NAME",
       "prefix of every key; one for each deployment that uses the same Redis (default sluice)",
       SetNamespace},
      Duration("redis_budget",
               "how long Redis may take to answer; if it takes longer, the limits' "
               "on_store_failure decides until Redis answers again",
               absl::Milliseconds(1), absl::Hours(24), &Flags::redis, &Redis::budget_ns),
      Duration("redis_node_ttl",
               "how long a node without heartbeats still counts, and how long a new node waits for "
               "its share of limits with sharing: split; the same on all nodes",
               absl::Milliseconds(200), absl::Hours(1), &Flags::redis, &Redis::node_ttl_ns),
      Switch("redis_allow_eviction",
             "accept a Redis that may evict buckets; an evicted bucket is full again",
             &Flags::redis, &Redis::allow_eviction),
      Switch("redis_allow_unguarded",
             "accept a Redis with replicas and min-replicas-to-write 0; after a failover the old "
             "primary may still grant",
             &Flags::redis, &Redis::allow_unguarded),
      Duration(
          "redis_max_lag",
          "Redis' min-replicas-max-lag, if CONFIG GET is not permitted; nothing is granted for "
          "this long after a failover",
          absl::Seconds(1), absl::Hours(1), &Flags::redis, &Redis::assumed_lag_ns),
      Choice("after_data_loss", "empty|full",
             "state of buckets that Redis lost, by a restart without its data or FLUSHALL",
             std::pair("empty", AfterLoss::kEmpty), std::pair("full", AfterLoss::kFull),
             &Flags::redis, &Redis::after_data_loss),
  };
}

std::vector<Flag> BoundFlags() {
  using store::OverflowPolicy;
  return {
      Number("max_connections", "most connections of the data port", &Flags::max_connections, 1),
      Bytes("memory_limit",
            "memory that the server may use, half of it for buckets, half for connections and "
            "calls; over it, calls are refused (default: three quarters of the memory of its "
            "cgroup or machine)",
            common::bounds::kMinMemoryLimit, kMostBytes, &Flags::memory_limit),
      Duration("stall_timeout", "how long a peer may take none of its answers before it is closed",
               absl::Seconds(1), absl::Hours(24), &Flags::stall_timeout_ns),
      Number("max_buckets", "most buckets in memory", &Flags::max_buckets, uint64_t{1}),
      Choice("overflow", "deny|allow", "decision for a new key when all buckets are in use",
             std::pair("deny", OverflowPolicy::kDeny), std::pair("allow", OverflowPolicy::kAllow),
             &Flags::overflow),
      Duration("drain_notice",
               "SIGTERM: how long to keep serving with health NOT_SERVING, for load balancers",
               absl::ZeroDuration(), absl::Hours(24), &Flags::drain_notice_ns),
      Duration("drain_timeout", "how long calls may then take to finish", absl::ZeroDuration(),
               absl::Hours(24), &Flags::drain_timeout_ns),
  };
}

std::vector<Flag> SecurityFlags() {
  using transport::TlsFiles;
  return {
      String("tls_cert", "FILE", "PEM certificate of the data port; reloaded when the file changes",
             &Flags::tls, &TlsFiles::cert),
      String("tls_key", "FILE", "its private key", &Flags::tls, &TlsFiles::key),
      String("tls_client_ca", "FILE",
             "PEM authorities of client certificates, which are then required", &Flags::tls,
             &TlsFiles::client_ca),
      String("admin_tls_cert", "FILE",
             "PEM certificate of the admin port; reloaded when the file changes", &Flags::admin_tls,
             &TlsFiles::cert),
      String("admin_tls_key", "FILE", "its private key", &Flags::admin_tls, &TlsFiles::key),
      String("admin_tls_client_ca", "FILE",
             "PEM authorities of admins' certificates, which are then required", &Flags::admin_tls,
             &TlsFiles::client_ca),
      String("http_tls_cert", "FILE",
             "PEM certificate of the HTTP port; reloaded when the file changes", &Flags::http_tls,
             &TlsFiles::cert),
      String("http_tls_key", "FILE", "its private key", &Flags::http_tls, &TlsFiles::key),
      String("http_tls_client_ca", "FILE",
             "PEM authorities of HTTP clients' certificates, which are then required",
             &Flags::http_tls, &TlsFiles::client_ca),
      String("admin_token_file", "FILE",
             "token that admin calls, and changes over HTTP, must send as `authorization: Bearer "
             "TOKEN`; reloaded when the file changes",
             &Flags::admin_token_file),
      String("clients", "FILE",
             "callers that are served, and what each may do; reloaded when the file changes "
             "(default: all callers are served)",
             &Flags::clients),
      String("audit_log", "FILE|-",
             "file to which each admin change is written as lines of JSON, before it is made and "
             "before it is confirmed; - for stderr",
             &Flags::audit_log),
  };
}

// ---- Envoy's rate-limit service ----

absl::Status SetXdsServer(const std::string& text, Flags* flags) {
  auto address = net::Address::Parse(text);
  if (!address.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ratelimit_xds: ", address.status().message()));
  }
  flags->xds.server = text;
  return absl::OkStatus();
}

std::vector<Flag> ConfigurationFlags() {
  using envoy::ConfigurationOptions;
  using envoy::Counting;
  using envoy::CountMode;
  return {
      String(
          "ratelimit_config", "PATH",
          "file, or folder of files, in the format of envoyproxy/ratelimit; reloaded when a file "
          "changes",
          &Flags::ratelimit, &ConfigurationOptions::path),
      Choice("ratelimit_mode", "compatible|exact",
             "how to count Envoy's limits: as envoyproxy/ratelimit, or without its double bursts "
             "at a window's edge",
             std::pair("compatible", CountMode::kCompatible), std::pair("exact", CountMode::kExact),
             &Flags::ratelimit, &ConfigurationOptions::counting, &Counting::mode),
      String("ratelimit_overrides", "FILE",
             "domains and limits that are counted in another way than --ratelimit_mode says",
             &Flags::ratelimit, &ConfigurationOptions::overrides),
      Switch("ratelimit_merge_domains",
             "put the descriptors of files with one domain together (MERGE_DOMAIN_CONFIG)",
             &Flags::ratelimit, &ConfigurationOptions::merge_domains),
      Choice("ratelimit_ignore_dot_files", "on|off",
             "skip files whose name begins with a dot (RUNTIME_IGNOREDOTFILES)",
             std::pair("on", true), std::pair("off", false), &Flags::ratelimit,
             &ConfigurationOptions::ignore_dot_files),
      Switch("ratelimit_start_without_config",
             "serve before there is a valid configuration (FORCE_START_WITHOUT_INITIAL_CONFIG)",
             &Flags::start_without_config),
      Switch("ratelimit_healthy_with_config",
             "be healthy only while the configuration has a limit "
             "(HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED)",
             &Flags::healthy_with_config),
      Address("ratelimit_http_listen",
              "port for /healthcheck and /json of envoyproxy/ratelimit (default: none)",
              &Flags::ratelimit_http_listen),
      Address("ratelimit_debug_listen",
              "port for /rlconfig and /stats of envoyproxy/ratelimit, for anyone who reaches it "
              "(default: none)",
              &Flags::ratelimit_debug_listen),
      Address("statsd",
              "send the counters of envoyproxy/ratelimit there, by UDP (default: nowhere)",
              &Flags::statsd),
      Duration("statsd_interval", "how often", absl::Seconds(1), absl::Hours(1),
               &Flags::statsd_interval_ns),
  };
}

std::vector<Flag> XdsFlags() {
  using envoy::AdsOptions;
  return {
      {"ratelimit_xds", "ADDRESS",
       "management server that sends Envoy's rate-limit configuration, over ADS", SetXdsServer},
      String("ratelimit_xds_node", "ID", "id of this server for it (default: default)", &Flags::xds,
             &AdsOptions::node),
      Switch("ratelimit_xds_tls", "connect with TLS; the files are read again for each connection",
             &Flags::xds, &AdsOptions::tls),
      String("ratelimit_xds_tls_ca", "FILE",
             "PEM authorities of its certificate (default: the system's)", &Flags::xds,
             &AdsOptions::ca),
      String("ratelimit_xds_tls_cert", "FILE", "PEM certificate to show it (mTLS)", &Flags::xds,
             &AdsOptions::cert),
      String("ratelimit_xds_tls_key", "FILE", "its private key", &Flags::xds, &AdsOptions::key),
      String("ratelimit_xds_server_name", "NAME",
             "name that its certificate must have (default: the host)", &Flags::xds,
             &AdsOptions::server_name),
      Bytes("ratelimit_xds_max_bytes",
            "most bytes of a configuration that it sends (default 16MiB)", 1 << 10,
            common::bounds::kMaxXdsMessageBytes, &Flags::xds, &AdsOptions::max_message_bytes),
  };
}

absl::Status SetNearRatio(const std::string& text, Flags* flags) {
  float ratio = 0;
  if (absl::SimpleAtof(text, &ratio) && ratio >= 0 && ratio <= 1) {
    flags->descriptors.near_ratio = ratio;
    return absl::OkStatus();
  }
  return Bad("ratelimit_near_ratio", text, "write a number from 0 to 1, as 0.8");
}

absl::Status SetMaxReservation(const std::string& text, Flags* flags) {
  float part = 0;
  if (absl::SimpleAtof(text, &part) && part > 0 && part <= 1) {
    flags->descriptors.max_reservation = part;
    return absl::OkStatus();
  }
  return Bad("ratelimit_max_reservation", text, "write a number above 0, up to 1, as 0.25");
}

std::vector<Flag> DescriptorFlags() {
  using transport::AnswerOptions;
  using Options = transport::DescriptorOptions;
  const auto on_off = [](const char* name, const char* help, auto... path) {
    return Choice(name, "on|off", help, std::pair("on", true), std::pair("off", false), path...);
  };
  const auto answer = &Options::answer;
  return {
      on_off("ratelimit_request_limits",
             "limits that Envoy's requests bring along replace the configured ones",
             &Flags::descriptors, &Options::request_limits),
      on_off("ratelimit_stop_when_over",
             "if a descriptor of a request is over its limit, count only such descriptors "
             "(STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT)",
             &Flags::descriptors, &Options::stop_when_over),
      on_off("ratelimit_shadow", "answer OK over all, whatever the limits say (SHADOW_MODE)",
             &Flags::descriptors, answer, &AnswerOptions::shadow_all),
      on_off("ratelimit_quota",
             "deny a request only if all of its descriptors are over their limits (QUOTA_MODE)",
             &Flags::descriptors, answer, &AnswerOptions::quota_all),
      on_off("ratelimit_headers",
             "answer with headers for Envoy to add (LIMIT_RESPONSE_HEADERS_ENABLED)",
             &Flags::descriptors, answer, &AnswerOptions::headers),
      String("ratelimit_limit_header", "NAME",
             "name of the header with the limit (default RateLimit-Limit)", &Flags::descriptors,
             answer, &AnswerOptions::limit_header),
      String("ratelimit_remaining_header", "NAME",
             "name of the header with what remains (default RateLimit-Remaining)",
             &Flags::descriptors, answer, &AnswerOptions::remaining_header),
      String("ratelimit_reset_header", "NAME",
             "name of the header with the seconds until the window ends (default RateLimit-Reset)",
             &Flags::descriptors, answer, &AnswerOptions::reset_header),
      on_off("ratelimit_metadata",
             "answer with the request and the limits' metadata as dynamic metadata "
             "(RESPONSE_DYNAMIC_METADATA)",
             &Flags::descriptors, answer, &AnswerOptions::metadata),
      {"ratelimit_near_ratio", "RATIO",
       "part of a limit above which hits count as near_limit (NEAR_LIMIT_RATIO; default 0.8)",
       SetNearRatio},
      {"ratelimit_max_reservation", "PART",
       "greatest part of a limit that one Reserve of Kuadrant's service takes (default 1)",
       SetMaxReservation},
  };
}

std::vector<Flag> AllFlags() {
  std::vector<Flag> all;
  for (std::vector<Flag>& group :
       std::vector{PortFlags(), StoreFlags(), BoundFlags(), SecurityFlags(), ConfigurationFlags(),
                   XdsFlags(), DescriptorFlags()}) {
    std::move(group.begin(), group.end(), std::back_inserter(all));
  }
  all.push_back({"log_level", "LEVEL", "info, warning or error (default info)", SetLogLevel});
  all.push_back(Switch("version", "print the version and exit", &Flags::version));
  all.push_back(Switch("help", "print this and exit", &Flags::help));
  return all;
}

// ---- Parsing ----

struct OptionalPort {
  const char* name;
  const char* flag;
  std::optional<net::Address> Flags::* listen;
};
constexpr OptionalPort kOptionalPorts[] = {
    {"admin", "admin_listen", &Flags::admin_listen},
    {"http", "http_listen", &Flags::http_listen},
    {"metrics", "metrics_listen", &Flags::metrics_listen},
    {"ratelimit_http", "ratelimit_http_listen", &Flags::ratelimit_http_listen},
    {"ratelimit_debug", "ratelimit_debug_listen", &Flags::ratelimit_debug_listen},
};

absl::Status UnknownFlag(absl::string_view name, const std::vector<Flag>& all) {
  std::vector<std::string_view> names;
  names.reserve(all.size());
  for (const Flag& one : all) names.push_back(one.name);
  const std::string_view near = limits::NearestName(common::ToStd(name), names);
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": no such flag",
                   near.empty() ? "" : absl::StrCat("; did you mean --", common::ToAbsl(near), "?"),
                   " (see sluiced --help)"));
}

}  // namespace

std::vector<PortFlag> PortsOf(const Flags& flags) {
  std::vector<PortFlag> ports = {{"data", "listen", flags.listen}};
  for (const OptionalPort& port : kOptionalPorts) {
    const std::optional<net::Address>& listen = flags.*port.listen;
    if (listen.has_value()) ports.push_back({port.name, port.flag, *listen});
  }
  return ports;
}

void SetListen(const std::string& port, net::Address listen, Flags* flags) {
  if (port == "data") {
    flags->listen = std::move(listen);
    return;
  }
  for (const OptionalPort& one : kOptionalPorts) {
    if (port == one.name) flags->*one.listen = listen;
  }
}

absl::Status CheckTogether(const Flags& flags) {
  if (flags.admin_listen.has_value() && !web::IsLoopback(*flags.admin_listen) &&
      !flags.admin_tls.mutual() && flags.admin_token_file.empty() && flags.clients.empty()) {
    return Bad(
        "admin_listen", flags.admin_listen->ToString(),
        "leaves this machine, and anyone who reaches it could change limits; add "
        "--admin_tls_client_ca (mTLS), --admin_token_file or --clients, or stay on 127.0.0.1");
  }
  if (!flags.state_dir.empty() && flags.in_redis) {
    return Bad("state_dir", flags.state_dir,
               "the buckets are in Redis (--store), which keeps them over a restart; leave it out");
  }
  if (flags.state_dir.empty() && flags.after_crash == state::AfterCrash::kTrust) {
    return Bad("after_crash", "trust", "needs --state_dir, the folder of the copies");
  }
  if (!flags.ratelimit.path.empty() && !flags.xds.server.empty()) {
    return Bad("ratelimit_xds", flags.xds.server,
               "--ratelimit_config is set too; the configuration comes from one of them");
  }
  for (const auto& [name, address] :
       {std::pair("ratelimit_http_listen", &flags.ratelimit_http_listen),
        std::pair("ratelimit_debug_listen", &flags.ratelimit_debug_listen),
        std::pair("statsd", &flags.statsd)}) {
    if (!address->has_value() || flags.HasRateLimitConfiguration()) continue;
    return Bad(name, (*address)->ToString(), "needs --ratelimit_config or --ratelimit_xds");
  }
  if (flags.statsd.has_value() && flags.statsd->is_unix()) {
    return Bad("statsd", flags.statsd->ToString(), "write HOST:PORT; statsd is reached by UDP");
  }
  const std::vector<PortFlag> ports = PortsOf(flags);
  for (const PortFlag& port : ports) {
    if (port.listen.unix_path == flags.takeover && port.listen.is_unix()) {
      return Bad("takeover", flags.takeover,
                 absl::StrCat("is --", port.flag, "'s too; give it a path of its own"));
    }
    for (const PortFlag& other : ports) {
      if (&other == &port) break;
      if (other.listen != port.listen || (port.listen.port == 0 && !port.listen.is_unix())) {
        continue;
      }
      return Bad(port.flag, port.listen.ToString(),
                 absl::StrCat("is --", other.flag, "'s too; give each port an address of its own"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments) {
  const std::vector<Flag> all = AllFlags();
  Flags flags;
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (!absl::StartsWith(argument, "--") || argument.size() == 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", argument, "\": flags begin with --; see sluiced --help"));
    }
    argument.remove_prefix(2);
    const size_t equals = argument.find('=');
    const absl::string_view name = argument.substr(0, equals);
    const auto flag =
        std::find_if(all.begin(), all.end(), [&](const Flag& one) { return one.name == name; });
    if (flag == all.end()) return UnknownFlag(name, all);
    std::string value;
    if (flag->value == nullptr) {
      if (equals != absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("--", argument, ": takes no value"));
      }
    } else if (equals != absl::string_view::npos) {
      value = std::string(argument.substr(equals + 1));
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    if (flag->value != nullptr && value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": needs a value; write --", name, "=", flag->value));
    }
    if (absl::Status status = flag->set(value, &flags); !status.ok()) return status;
  }
  if (absl::Status status = CheckTogether(flags); !status.ok()) return status;
  return flags;
}

std::string FlagsHelp() {
  std::string help =
      "sluiced: the Sluice rate-limit server\n\n"
      "  sluiced --limits=limits.yaml\n\n"
      "An ADDRESS is HOST:PORT, [IPV6]:PORT or unix:/path; port 0 picks a free one. When all "
      "ports\n"
      "listen, one line on stdout names them: ready data=HOST:PORT admin=HOST:PORT http=HOST:PORT\n"
      "SIGHUP reloads the limits, the clients, the certificates, the token and the descriptor "
      "files\n"
      "of Envoy's rate-limit service. SIGTERM and SIGINT drain (a second one ends the process at\n"
      "once).\n"
      "A DURATION is like 500ms, 30s or 1h30m. BYTES are a number, or like 1536MiB or 2GiB.\n"
      "Exit codes: 0 done, 1 could not start or go on, 2 a bad flag, or a bad file that a flag "
      "names.\n"
      "\n";
  for (const Flag& flag : AllFlags()) {
    std::string left = absl::StrCat("  --", flag.name);
    if (flag.value != nullptr) absl::StrAppend(&left, "=", flag.value);
    left.resize(std::max<size_t>(left.size() + 2, 32), ' ');
    absl::StrAppend(&help, left, flag.help, "\n");
  }
  return help;
}

}  // namespace sluice
