#include "server/flags.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/limits/nearest_name.h"

namespace sluice {
namespace {

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view right) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", right));
}

absl::Status SetAddress(absl::string_view flag, const std::string& value,
                        transport::ListenAddress* out) {
  auto address = transport::ListenAddress::Parse(value);
  if (!address.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", address.status().message()));
  }
  *out = *std::move(address);
  return absl::OkStatus();
}

struct Flag {
  const char* name;
  const char* value;  // what stands behind the =; null: nothing does
  const char* help;
  std::function<absl::Status(const std::string& value, Flags* flags)> set;
};

Flag String(const char* name, const char* value, const char* help, std::string Flags::* field) {
  return {name, value, help, [field](const std::string& text, Flags* flags) {
            flags->*field = text;
            return absl::OkStatus();
          }};
}

Flag File(const char* name, const char* help, transport::TlsFiles Flags::* files,
          std::string transport::TlsFiles::* field) {
  return {name, "FILE", help, [files, field](const std::string& text, Flags* flags) {
            (flags->*files).*field = text;
            return absl::OkStatus();
          }};
}

Flag Duration(const char* name, const char* help, absl::Duration Flags::* field) {
  return {name, "DURATION", help, [name, field](const std::string& text, Flags* flags) {
            absl::Duration duration;
            if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
                duration > absl::Hours(24)) {
              return Bad(name, text, "write a duration of at most 24h, as 500ms or 30s");
            }
            flags->*field = duration;
            return absl::OkStatus();
          }};
}

std::vector<Flag> AllFlags() {
  using transport::TlsFiles;
  std::vector<Flag> all;
  all.push_back(
      String("limits", "FILE", "limits to load, reloaded when the file changes", &Flags::limits));
  all.push_back({"listen", "ADDRESS", "where programs ask for permits (default 127.0.0.1:7200)",
                 [](const std::string& text, Flags* flags) {
                   return SetAddress("listen", text, &flags->listen);
                 }});
  all.push_back({"admin_listen", "ADDRESS", "control plane (default 127.0.0.1:7201)",
                 [](const std::string& text, Flags* flags) {
                   return SetAddress("admin_listen", text, &flags->admin_listen);
                 }});
  all.push_back({"data_transport", "h2|grpc",
                 "what serves --listen: h2 (default), or grpc++ for comparison",
                 [](const std::string& text, Flags* flags) {
                   if (text != "h2" && text != "grpc") {
                     return Bad("data_transport", text, "write h2 or grpc");
                   }
                   flags->data_transport = text == "h2" ? DataTransport::kH2 : DataTransport::kGrpc;
                   return absl::OkStatus();
                 }});
  all.push_back({"threads", "N", "event loops of the data port (default: one per core)",
                 [](const std::string& text, Flags* flags) {
                   if (absl::SimpleAtoi(text, &flags->threads) && flags->threads >= 1 &&
                       flags->threads <= 1024) {
                     return absl::OkStatus();
                   }
                   return Bad("threads", text, "write a number from 1 to 1024");
                 }});
  all.push_back({"store", "memory|URL",
                 "where buckets live: in this process, or in a Redis that nodes share, as "
                 "redis://HOST:6379, rediss://... (TLS), unix:///PATH, "
                 "redis-cluster://HOST:6379,... or redis-sentinel://HOST:26379,.../NAME "
                 "(default memory)",
                 [](const std::string& text, Flags* flags) {
                   if (text == "memory") {
                     flags->redis.reset();
                     return absl::OkStatus();
                   }
                   // The value is not shown: it may have a password.
                   auto url = store::redis::RedisUrl::Parse(text);
                   if (!url.ok()) {
                     return absl::InvalidArgumentError(
                         absl::StrCat("--store: ", url.status().message(),
                                      "; or write memory for a store of its own"));
                   }
                   flags->redis.emplace();
                   flags->redis->url = *std::move(url);
                   return absl::OkStatus();
                 }});
  all.push_back({"store_threads", "N",
                 "event loops of Redis' own (default 0: those of the data port, where a request "
                 "then stays on one thread; with --data_transport=grpc 1)",
                 [](const std::string& text, Flags* flags) {
                   if (absl::SimpleAtoi(text, &flags->store_threads) && flags->store_threads >= 0 &&
                       flags->store_threads <= 64) {
                     return absl::OkStatus();
                   }
                   return Bad("store_threads", text, "write a number from 0 to 64");
                 }});
  all.push_back({"redis_namespace", "NAME",
                 "before every key; of each deployment that shares a Redis (default sluice)",
                 [](const std::string& text, Flags* flags) {
                   if (text.size() > 64 || text.find_first_of("{} \t\r\n") != text.npos) {
                     return Bad("redis_namespace", text,
                                "write at most 64 characters, without spaces and braces");
                   }
                   flags->redis_namespace = text;
                   return absl::OkStatus();
                 }});
  all.push_back(Duration("redis_budget",
                         "how long Redis may take to answer; then callers are answered by their "
                         "limits' on_store_failure until it is back (default 20ms)",
                         &Flags::redis_budget));
  all.push_back(
      Duration("redis_node_ttl",
               "how long a node that is not heard of counts as there, and a new one waits "
               "for its share of limits with sharing: split; the same on all nodes "
               "(default 2s)",
               &Flags::redis_node_ttl));
  all.push_back({"redis_allow_eviction", nullptr,
                 "serve on a Redis that may evict buckets, which fills them",
                 [](const std::string&, Flags* flags) {
                   flags->redis_allow_eviction = true;
                   return absl::OkStatus();
                 }});
  all.push_back({"redis_allow_unguarded", nullptr,
                 "serve on a Redis that has replicas and min-replicas-to-write 0, which may go on "
                 "granting when one of them was promoted",
                 [](const std::string&, Flags* flags) {
                   flags->redis_allow_unguarded = true;
                   return absl::OkStatus();
                 }});
  all.push_back(Duration("redis_max_lag",
                         "Redis' min-replicas-max-lag, where it may not be asked (CONFIG GET); "
                         "after a failover nothing is granted for so long (default 10s)",
                         &Flags::redis_max_lag));
  all.push_back({"after_data_loss", "empty|full",
                 "what buckets are when Redis has lost them: a restart without its data, FLUSHALL "
                 "(default empty)",
                 [](const std::string& text, Flags* flags) {
                   if (text != "empty" && text != "full") {
                     return Bad("after_data_loss", text, "write empty or full");
                   }
                   flags->after_data_loss = text == "full" ? store::redis::AfterLoss::kFull
                                                           : store::redis::AfterLoss::kEmpty;
                   return absl::OkStatus();
                 }});
  all.push_back({"max_connections", "N", "most connections of the data port (default 100000)",
                 [](const std::string& text, Flags* flags) {
                   if (absl::SimpleAtoi(text, &flags->max_connections) &&
                       flags->max_connections >= 1) {
                     return absl::OkStatus();
                   }
                   return Bad("max_connections", text, "write a number from 1 up");
                 }});
  all.push_back({"max_buckets", "N", "most buckets in memory (default 16777216)",
                 [](const std::string& text, Flags* flags) {
                   if (absl::SimpleAtoi(text, &flags->max_buckets) && flags->max_buckets > 0) {
                     return absl::OkStatus();
                   }
                   return Bad("max_buckets", text, "write a number from 1 up");
                 }});
  all.push_back({"overflow", "deny|allow", "a new key when all buckets are in use (default deny)",
                 [](const std::string& text, Flags* flags) {
                   if (text != "deny" && text != "allow") {
                     return Bad("overflow", text, "write deny or allow");
                   }
                   flags->overflow = text == "deny" ? store::OverflowPolicy::kDeny
                                                    : store::OverflowPolicy::kAllow;
                   return absl::OkStatus();
                 }});
  all.push_back(Duration("drain_notice",
                         "SIGTERM: serve on with health NOT_SERVING, for balancers (default 1s)",
                         &Flags::drain_notice));
  all.push_back(Duration("drain_timeout", "how long calls may then take to finish (default 10s)",
                         &Flags::drain_timeout));
  all.push_back(File("tls_cert",
                     "PEM certificate of the data port; taken anew when the file changes, by "
                     "--data_transport=grpc only at the start",
                     &Flags::tls, &TlsFiles::cert));
  all.push_back(File("tls_key", "its private key", &Flags::tls, &TlsFiles::key));
  all.push_back(File("tls_client_ca", "PEM authorities of client certificates, then required",
                     &Flags::tls, &TlsFiles::client_ca));
  all.push_back(File("admin_tls_cert", "PEM certificate of the admin port, read at the start",
                     &Flags::admin_tls, &TlsFiles::cert));
  all.push_back(File("admin_tls_key", "its private key", &Flags::admin_tls, &TlsFiles::key));
  all.push_back(File("admin_tls_client_ca", "PEM authorities of admins' certificates",
                     &Flags::admin_tls, &TlsFiles::client_ca));
  all.push_back(String("admin_token_file", "FILE",
                       "token that admin calls must show as `authorization: Bearer TOKEN`, read "
                       "at the start",
                       &Flags::admin_token_file));
  all.push_back({"log_level", "LEVEL", "debug, info, warning or error (default info)",
                 [](const std::string& text, Flags* flags) {
                   if (common::ParseLogLevel(text, &flags->log_level)) return absl::OkStatus();
                   return Bad("log_level", text, "write debug, info, warning or error");
                 }});
  all.push_back(
      {"version", nullptr, "print the version and exit", [](const std::string&, Flags* flags) {
         flags->version = true;
         return absl::OkStatus();
       }});
  all.push_back({"help", nullptr, "print this and exit", [](const std::string&, Flags* flags) {
                   flags->help = true;
                   return absl::OkStatus();
                 }});
  return all;
}

// What one flag alone cannot know.
absl::Status CheckTogether(const Flags& flags) {
  if (flags.redis_budget < absl::Milliseconds(1)) {
    return Bad("redis_budget", absl::FormatDuration(flags.redis_budget), "write 1ms or more");
  }
  if (flags.redis_node_ttl < absl::Milliseconds(200) || flags.redis_node_ttl > absl::Hours(1)) {
    return Bad("redis_node_ttl", absl::FormatDuration(flags.redis_node_ttl), "write 200ms to 1h");
  }
  if (flags.redis_max_lag < absl::Seconds(1) || flags.redis_max_lag > absl::Hours(1)) {
    return Bad("redis_max_lag", absl::FormatDuration(flags.redis_max_lag), "write 1s to 1h");
  }
  if (!flags.admin_listen.is_loopback() && !flags.admin_tls.mutual() &&
      flags.admin_token_file.empty()) {
    return Bad("admin_listen", flags.admin_listen.ToString(),
               "leaves this machine, and anyone who reaches it could change limits; add "
               "--admin_tls_client_ca (mTLS) or --admin_token_file, or stay on 127.0.0.1");
  }
  if (flags.listen.ToString() == flags.admin_listen.ToString() &&
      (flags.listen.is_unix() || flags.listen.port != 0)) {
    return Bad("admin_listen", flags.admin_listen.ToString(),
               "is --listen's too; give each port an address of its own");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments) {
  const std::vector<Flag> all = AllFlags();
  Flags flags;
  flags.listen = {"127.0.0.1", 7200, ""};
  flags.admin_listen = {"127.0.0.1", 7201, ""};
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
    if (flag == all.end()) {
      std::vector<std::string_view> names;
      for (const Flag& one : all) names.push_back(one.name);
      const std::string_view near = limits::NearestName(common::ToStd(name), names);
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, ": no such flag",
          near.empty() ? "" : absl::StrCat("; did you mean --", common::ToAbsl(near), "?"),
          " (see sluiced --help)"));
    }
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
  if (flags.redis.has_value()) {
    flags.redis->name_space = flags.redis_namespace;
    flags.redis->budget_ns = absl::ToInt64Nanoseconds(flags.redis_budget);
    flags.redis->node_ttl_ns = absl::ToInt64Nanoseconds(flags.redis_node_ttl);
    flags.redis->allow_eviction = flags.redis_allow_eviction;
    flags.redis->allow_unguarded = flags.redis_allow_unguarded;
    flags.redis->assumed_lag_ns = absl::ToInt64Nanoseconds(flags.redis_max_lag);
    flags.redis->after_data_loss = flags.after_data_loss;
  }
  return flags;
}

std::string FlagsHelp() {
  std::string help =
      "sluiced: the Sluice rate-limit server\n\n"
      "  sluiced --limits=limits.yaml\n\n"
      "An ADDRESS is HOST:PORT, [IPV6]:PORT or unix:/path; port 0 picks a free one. Once all "
      "ports\n"
      "listen, one line on stdout says which: ready data=HOST:PORT admin=HOST:PORT\n"
      "SIGHUP reloads the limits, SIGTERM and SIGINT drain (a second one ends at once).\n"
      "Exit codes: 0 done, 1 failed while running, 2 bad flags or bad limits.\n\n";
  for (const Flag& flag : AllFlags()) {
    std::string left = absl::StrCat("  --", flag.name);
    if (flag.value != nullptr) absl::StrAppend(&left, "=", flag.value);
    left.resize(std::max<size_t>(left.size() + 2, 32), ' ');
    absl::StrAppend(&help, left, flag.help, "\n");
  }
  return help;
}

}  // namespace sluice
