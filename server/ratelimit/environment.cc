#include "server/ratelimit/environment.h"

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace sluice::ratelimit {
namespace {

// Variables that have no effect if their value is not `harmless`.
struct WithoutEffect {
  const char* name;
  const char* harmless;  // in any case of letters
  const char* why;
};

constexpr char kNoCache[] = "counters need no cache in front of them";
constexpr char kOnePool[] = "each event loop has one connection to Redis, and pipelines on it";
constexpr char kOneRedis[] = "the counters of all limits are in the Redis of REDIS_URL";
constexpr char kNoTracing[] = "there is no tracing";

constexpr WithoutEffect kWithoutEffect[] = {
    {"GRPC_MAX_CONNECTION_AGE", "", "connections have no greatest age"},
    {"GRPC_MAX_CONNECTION_AGE_GRACE", "", "connections have no greatest age"},
    {"GRPC_CLIENT_TLS_SAN", "", "any client certificate of GRPC_CLIENT_TLS_CACERT is accepted"},
    {"LOG_FORMAT", "text", "the log has one format, name=value"},
    {"LOCAL_CACHE_SIZE_IN_BYTES", "0", kNoCache},
    {"EXPIRATION_JITTER_MAX_SECONDS", "", "counters end with their window"},
    {"REDIS_POOL_SIZE", "", kOnePool},
    {"REDIS_PIPELINE_WINDOW", "", kOnePool},
    {"REDIS_PIPELINE_LIMIT", "", kOnePool},
    {"REDIS_PERSECOND", "false", kOneRedis},
    {"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false",
     "health does not depend on Redis: a restart does not bring it back"},
    {"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false",
     "the name in the server's certificate is always checked"},
    {"CONFIG_GRPC_XDS_NODE_METADATA", "", "the node has an id alone"},
    {"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", "requests have no further headers"},
    {"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "", "the pause grows from 0.5 s to 30 s"},
    {"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "", "the pause grows from 0.5 s to 30 s"},
    {"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "", "the pause grows from 0.5 s to 30 s"},
    {"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "", "the pause is random from its half up"},
    {"XDS_CLIENT_BACKOFF_JITTER", "", "the pause is random from its half up"},
    {"USE_DOG_STATSD", "false", "statsd gets plain lines: set USE_STATSD"},
    {"USE_DOG_STATSD_MOGRIFIERS", "", "statsd gets plain lines"},
    {"EXTRA_TAGS", "", "metrics have no further tags; let the scraper add them"},
    {"PROMETHEUS_PATH", "/metrics", "the path is /metrics"},
    {"PROMETHEUS_MAPPER_YAML", "", "the names of the metrics are fixed"},
    {"TRACING_ENABLED", "false", kNoTracing},
    {"MEMCACHE_HOST_PORT", "", "counters are in Redis or in memory"},
    {"MEMCACHE_SRV", "", "counters are in Redis or in memory"},
};

// %-encodes what has a meaning in a URL.
std::string Encoded(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::StrContains("-._~/", absl::string_view(&c, 1))) {
      encoded.push_back(c);
    } else {
      char byte[4];
      std::snprintf(byte, sizeof(byte), "%%%02X", static_cast<unsigned char>(c));
      encoded += byte;
    }
  }
  return encoded;
}

class Translator {
 public:
  explicit Translator(const Environment& environment) : environment_(environment) {}

  Translation Run() {
    Backend();
    Ports();
    Tls();
    Configuration();
    Answers();
    Redis();
    Statistics();
    Log();
    for (const WithoutEffect& one : kWithoutEffect) {
      const std::string value = Text(one.name);
      if (value.empty() || absl::EqualsIgnoreCase(value, one.harmless)) continue;
      result_.ignored.push_back({one.name, one.why});
    }
    return std::move(result_);
  }

 private:
  // ---- Values

  std::string Text(const char* name, absl::string_view otherwise = "") const {
    const auto found = environment_.find(name);
    return found != environment_.end() && !found->second.empty() ? found->second
                                                                 : std::string(otherwise);
  }

  void Bad(absl::string_view name, absl::string_view value, absl::string_view right) {
    result_.errors.push_back(absl::StrCat(name, "=", value, ": ", right));
  }

  // As Go's ParseBool.
  bool Bool(const char* name, bool otherwise = false) {
    const std::string value = Text(name);
    if (value.empty()) return otherwise;
    for (const char* yes : {"1", "t", "true"}) {
      if (absl::EqualsIgnoreCase(value, yes)) return true;
    }
    for (const char* no : {"0", "f", "false"}) {
      if (absl::EqualsIgnoreCase(value, no)) return false;
    }
    Bad(name, value, "write true or false");
    return otherwise;
  }

  // The upper-case word.
  std::string Choice(const char* name, std::initializer_list<const char*> words) {
    const std::string value = Text(name, *words.begin());
    for (const char* word : words) {
      if (absl::EqualsIgnoreCase(value, word)) return word;
    }
    Bad(name, value, absl::StrCat("write one of ", absl::StrJoin(words, ", ")));
    return *words.begin();
  }

  // "0.0.0.0:8081"
  std::string Address(const char* host_name, const char* port_name, absl::string_view port) {
    const std::string text = Text(port_name, port);
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 0 || number > 65535) {
      Bad(port_name, text, "write a port, a number from 0 to 65535");
    }
    std::string host = Text(host_name, "0.0.0.0");
    if (absl::StrContains(host, ':') && !absl::StartsWith(host, "[")) {
      host = absl::StrCat("[", host, "]");
    }
    return absl::StrCat(host, ":", text);
  }

  void Flag(absl::string_view name) { result_.flags.push_back(absl::StrCat("--", name)); }
  void Flag(absl::string_view name, absl::string_view value) {
    result_.flags.push_back(absl::StrCat("--", name, "=", value));
  }
  void Switch(const char* variable, absl::string_view flag) {
    if (Bool(variable)) Flag(flag);
  }
  void Pass(const char* variable, absl::string_view flag) {
    if (const std::string value = Text(variable); !value.empty()) Flag(flag, value);
  }

  // ---- Groups of variables

  void Backend() {
    const std::string backend = Text("BACKEND_TYPE", "redis");
    if (absl::EqualsIgnoreCase(backend, "redis")) return;
    Bad("BACKEND_TYPE", backend,
        "memcached is not supported: write redis and set REDIS_URL, or leave both out and the "
        "counters are in this process's memory");
  }

  void Ports() {
    if (const std::string path = Text("GRPC_UDS"); !path.empty()) {
      Flag("listen", absl::StrCat("unix:", path));
    } else {
      Flag("listen", Address("GRPC_HOST", "GRPC_PORT", "8081"));
    }
    Flag("ratelimit_http_listen", Address("HOST", "PORT", "8080"));
    Flag("ratelimit_debug_listen", Address("DEBUG_HOST", "DEBUG_PORT", "6070"));
    // In a pod or on a host's network, a port that the environment does not name could be another
    // container's.
    Flag("admin_listen", "none");
    Flag("http_listen", "none");
  }

  void Tls() {
    if (!Bool("GRPC_SERVER_USE_TLS")) return;
    for (const char* name : {"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"}) {
      if (Text(name).empty()) {
        Bad(name, "", "GRPC_SERVER_USE_TLS=true needs it: write the path of a PEM file");
      }
    }
    Pass("GRPC_SERVER_TLS_CERT", "tls_cert");
    Pass("GRPC_SERVER_TLS_KEY", "tls_key");
    Pass("GRPC_CLIENT_TLS_CACERT", "tls_client_ca");
  }

  void Configuration() {
    Switch("FORCE_START_WITHOUT_INITIAL_CONFIG", "ratelimit_start_without_config");
    Switch("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "ratelimit_healthy_with_config");
    if (Choice("CONFIG_TYPE", {"FILE", "GRPC_XDS_SOTW"}) == "GRPC_XDS_SOTW") {
      Xds();
      return;
    }
    std::string path = Text("RUNTIME_ROOT", "/srv/runtime_data/current");
    for (const std::string& part :
         {Text("RUNTIME_SUBDIRECTORY"), Text("RUNTIME_APPDIRECTORY", "config")}) {
      if (!part.empty()) absl::StrAppend(&path, absl::EndsWith(path, "/") ? "" : "/", part);
    }
    Flag("ratelimit_config", path);
    if (!Bool("RUNTIME_IGNOREDOTFILES", true)) Flag("ratelimit_ignore_dot_files", "off");
    Switch("MERGE_DOMAIN_CONFIG", "ratelimit_merge_domains");
    // Either way, a change of any link on the path or of any file loads the folder again.
    Bool("RUNTIME_WATCH_ROOT", true);
  }

  void Xds() {
    Flag("ratelimit_xds", Text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"));
    Flag("ratelimit_xds_node", Text("CONFIG_GRPC_XDS_NODE_ID", "default"));
    Pass("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "ratelimit_xds_max_bytes");
    if (!Bool("CONFIG_GRPC_XDS_SERVER_USE_TLS")) return;
    Flag("ratelimit_xds_tls");
    Pass("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "ratelimit_xds_tls_cert");
    Pass("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "ratelimit_xds_tls_key");
    Pass("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "ratelimit_xds_tls_ca");
    Pass("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "ratelimit_xds_server_name");
  }

  void Answers() {
    Switch("SHADOW_MODE", "ratelimit_shadow=on");
    Switch("QUOTA_MODE", "ratelimit_quota=on");
    Switch("RESPONSE_DYNAMIC_METADATA", "ratelimit_metadata=on");
    Switch("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "ratelimit_stop_when_over=on");
    Switch("LIMIT_RESPONSE_HEADERS_ENABLED", "ratelimit_headers=on");
    Pass("LIMIT_LIMIT_HEADER", "ratelimit_limit_header");
    Pass("LIMIT_REMAINING_HEADER", "ratelimit_remaining_header");
    Pass("LIMIT_RESET_HEADER", "ratelimit_reset_header");
    const std::string ratio = Text("NEAR_LIMIT_RATIO");
    double number = 0;
    if (ratio.empty()) return;
    if (absl::SimpleAtod(ratio, &number) && number >= 0 && number <= 1) {
      Flag("ratelimit_near_ratio", ratio);
    } else {
      Bad("NEAR_LIMIT_RATIO", ratio, "write a number from 0 to 1, as 0.8");
    }
  }

  // ---- Redis

  void Redis() {
    const std::string type = Choice("REDIS_TYPE", {"SINGLE", "SENTINEL", "CLUSTER"});
    const std::string socket = Choice("REDIS_SOCKET_TYPE", {"unix", "tcp", "tls"});
    const std::string url = Text("REDIS_URL");
    if (url.empty()) return;  // the counters are in memory
    absl::string_view place = url;
    absl::ConsumePrefix(&place, "redis://");
    const bool tls =
        absl::ConsumePrefix(&place, "rediss://") || Bool("REDIS_TLS") || socket == "tls";
    SetPassword("REDIS_AUTH", &user_, &result_.password);
    if (!user_.empty()) user_ = absl::StrCat(Encoded(user_), "@");
    const char* const s = tls ? "s" : "";
    if (type == "SENTINEL") {
      Sentinel(place, s);
    } else if (type == "CLUSTER") {
      result_.store = absl::StrCat("redis", s, "-cluster://", user_, place);
    } else if (absl::StartsWith(place, "/")) {
      result_.store = absl::StrCat("unix://", user_, Encoded(place));
    } else {
      result_.store = absl::StrCat("redis", s, "://", user_, place);
    }
    if (tls) RedisTls();
    Timeout();
    Pass("CACHE_KEY_PREFIX", "redis_namespace");
    // As with envoyproxy/ratelimit, any Redis will do: its counters may be evicted, or be lost in a
    // failover.
    Flag("redis_allow_eviction");
    Flag("redis_allow_unguarded");
  }

  // How long Redis may take to answer. Its own default of 10 s is not set: Envoy waits for 20 ms.
  void Timeout() {
    const std::string text = Text("REDIS_TIMEOUT");
    if (text.empty()) return;
    absl::Duration timeout;
    if (absl::ParseDuration(text, &timeout) && timeout >= absl::Milliseconds(1) &&
        timeout <= absl::Hours(24)) {
      Flag("redis_budget", text);
    } else {
      Bad("REDIS_TIMEOUT", text, "write a duration from 1ms to 24h, as 20ms");
    }
  }

  // "PASSWORD" or "USER:PASSWORD"
  void SetPassword(const char* name, std::string* user, std::string* password) {
    const std::string text = Text(name);
    const size_t colon = text.find(':');
    *password = text;
    if (colon == std::string::npos) return;
    *user = text.substr(0, colon);
    *password = text.substr(colon + 1);
    if (password->empty()) {
      result_.errors.push_back(
          absl::StrCat(name, ": the password is empty; write PASSWORD or USER:PASSWORD"));
    }
  }

  // REDIS_URL=NAME,HOST:PORT[,HOST:PORT]...
  void Sentinel(absl::string_view place, const char* s) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(place, absl::MaxSplits(',', 1));
    if (parts.first.empty() || parts.second.empty() || absl::StrContains(parts.first, ':')) {
      Bad("REDIS_URL", place,
          "with REDIS_TYPE=SENTINEL write the primary's name and the Sentinels, as "
          "mymaster,host1:26379,host2:26379");
      return;
    }
    result_.store =
        absl::StrCat("redis", s, "-sentinel://", user_, parts.second, "/", Encoded(parts.first));
    std::string sentinel_user;
    SetPassword("REDIS_SENTINEL_AUTH", &sentinel_user, &result_.sentinel_password);
    if (!sentinel_user.empty()) AddOption("sentinel_user", sentinel_user);
  }

  void RedisTls() {
    for (const auto& [variable, option] :
         {std::pair("REDIS_TLS_CACERT", "ca"), std::pair("REDIS_TLS_CLIENT_CERT", "cert"),
          std::pair("REDIS_TLS_CLIENT_KEY", "key")}) {
      if (const std::string path = Text(variable); !path.empty()) AddOption(option, path);
    }
  }

  void AddOption(absl::string_view name, absl::string_view value) {
    absl::StrAppend(&result_.store, absl::StrContains(result_.store, '?') ? "&" : "?", name, "=",
                    Encoded(value));
  }

  // ---- Statistics and log

  void Statistics() {
    if (Bool("USE_PROMETHEUS")) {
      std::string address = Text("PROMETHEUS_ADDR", ":9090");
      if (absl::StartsWith(address, ":")) address = absl::StrCat("0.0.0.0", address);
      Flag("metrics_listen", address);
    }
    const bool disabled = Bool("DISABLE_STATS");
    if (!Bool("USE_STATSD", true) || disabled) return;
    const std::string host = Text("STATSD_HOST", "localhost");
    const std::string port = Text("STATSD_PORT", "8125");
    int number = 0;
    if (!absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) {
      Bad("STATSD_PORT", port, "write a port, a number from 1 to 65535");
    }
    Flag("statsd", absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                                : absl::StrCat(host, ":", port));
    Pass("STATS_FLUSH_INTERVAL", "statsd_interval");
  }

  void Log() {
    const std::string level = Choice(
        "LOG_LEVEL", {"warn", "warning", "trace", "debug", "info", "error", "fatal", "panic"});
    const char* ours = "warning";
    if (level == "trace" || level == "debug" || level == "info") ours = "info";
    if (level == "error" || level == "fatal" || level == "panic") ours = "error";
    Flag("log_level", ours);
  }

  const Environment& environment_;
  Translation result_;
  std::string user_;  // of Redis: "", "USER@"
};

}  // namespace

Translation Translate(const Environment& environment) { return Translator(environment).Run(); }

}  // namespace sluice::ratelimit
