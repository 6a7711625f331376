#include "server/store/redis/connection/redis_url.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/strings.h"

namespace sluice::store::redis {
namespace {

using common::ToAbsl;

struct Scheme {
  absl::string_view begin;
  Topology topology;
  bool tls;
  bool is_unix = false;
};

constexpr Scheme kSchemes[] = {
    {"redis://", Topology::kServer, false},
    {"rediss://", Topology::kServer, true},
    {"redis-cluster://", Topology::kCluster, false},
    {"rediss-cluster://", Topology::kCluster, true},
    {"redis-sentinel://", Topology::kSentinel, false},
    {"rediss-sentinel://", Topology::kSentinel, true},
    {"unix://", Topology::kServer, false, /*is_unix=*/true},
};

absl::Status Bad(absl::string_view what, absl::string_view right) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", right));
}

absl::StatusOr<std::string> Decoded(absl::string_view text, absl::string_view what) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    int value = 0;
    for (size_t j = i + 1; j <= i + 2; ++j) {
      if (j >= text.size() || !absl::ascii_isxdigit(static_cast<unsigned char>(text[j]))) {
        return Bad(what, "a % must be followed by two hex digits; write %25 for the sign itself");
      }
      const char c = absl::ascii_tolower(static_cast<unsigned char>(text[j]));
      value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    decoded.push_back(static_cast<char>(value));
    i += 2;
  }
  return decoded;
}

absl::Status SetDatabase(absl::string_view text, RedisUrl* url) {
  if (!absl::SimpleAtoi(text, &url->database)) {
    return Bad(absl::StrCat("database \"", text, "\""), "write its number, as redis://host/0");
  }
  return absl::OkStatus();
}

absl::Status ReadFirstLine(const std::string& path, absl::string_view what, std::string* line) {
  std::ifstream file(path);
  if (!file || !std::getline(file, *line)) {
    return Bad(absl::StrCat(what, " ", path), "cannot be read, or has no first line");
  }
  return absl::OkStatus();
}

// REQUIRES: `name` begins with sentinel_.
absl::Status SetSentinelOption(absl::string_view name, const std::string& value, RedisUrl* url) {
  if (url->topology != Topology::kSentinel) return Bad(name, "is for redis-sentinel:// alone");
  if (name == "sentinel_user") {
    url->sentinel_user = value;
  } else if (name == "sentinel_password") {
    url->sentinel_password = value;
  } else if (name == "sentinel_password_file") {
    return ReadFirstLine(value, name, &url->sentinel_password);
  } else if (name == "sentinel_tls") {
    if (value != "yes" && value != "no") {
      return Bad(absl::StrCat(name, " \"", value, "\""), "write yes or no");
    }
    if (value == "yes" && !url->tls) return Bad(name, "write rediss-sentinel:// instead");
    url->sentinel_tls = value == "yes";
  } else {
    return Bad(absl::StrCat("option \"", name, "\""),
               "not known; there are sentinel_user, sentinel_password, sentinel_password_file and "
               "sentinel_tls");
  }
  return absl::OkStatus();
}

absl::Status SetOption(absl::string_view option, RedisUrl* url) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(option, absl::MaxSplits('=', 1));
  auto value = Decoded(parts.second, parts.first);
  if (!value.ok()) return value.status();
  if (parts.first == "db") return SetDatabase(*value, url);
  if (parts.first == "password_file") return ReadFirstLine(*value, parts.first, &url->password);
  if (absl::StartsWith(parts.first, "sentinel_")) {
    return SetSentinelOption(parts.first, *value, url);
  }
  std::string* file = parts.first == "ca"            ? &url->tls_options.trusted_ca_file
                      : parts.first == "cert"        ? &url->tls_options.certificate_chain_file
                      : parts.first == "key"         ? &url->tls_options.private_key_file
                      : parts.first == "server_name" ? &url->server_name
                                                     : nullptr;
  if (file == nullptr) {
    return Bad(absl::StrCat("option \"", parts.first, "\""),
               "not known; there are db, password_file, ca, cert, key and server_name");
  }
  if (!url->tls)
    return Bad(parts.first,
               "is for TLS; write rediss:// instead of redis://, rediss-cluster:// instead of "
               "redis-cluster://, or rediss-sentinel:// instead of redis-sentinel://");
  *file = *std::move(value);
  return absl::OkStatus();
}

// An address that is wrong, for a message. What follows the host is not shown unless it looks like
// a port: it may be a password that lacks its @.
std::string Shown(absl::string_view address) {
  constexpr size_t kPortDigits = 5;
  absl::string_view host = address.substr(0, address.find(':'));
  const absl::string_view port = address.substr(std::min(address.size(), host.size() + 1));
  if (port.size() <= kPortDigits && std::all_of(port.begin(), port.end(), absl::ascii_isdigit)) {
    host = address;
  }
  return absl::StrCat("address \"", host, host.size() < address.size() ? ":..." : "", "\"");
}

// HOST, HOST:PORT or [IPV6]:PORT.
absl::StatusOr<net::Address> ServerAddress(absl::string_view text, int default_port) {
  std::string with_port(text);
  const size_t bracket = text.rfind(']');
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || (bracket != absl::string_view::npos && colon < bracket)) {
    absl::StrAppend(&with_port, ":", default_port);
  }
  auto address = net::Address::Parse(with_port);
  if (!address.ok() || address->is_unix() || address->host.empty() || address->port == 0) {
    return Bad(Shown(text),
               "write HOST, HOST:PORT or [IPV6]:PORT, behind USER:PASSWORD@ if there is a user");
  }
  return *std::move(address);
}

absl::Status SetUser(absl::string_view text, RedisUrl* url) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  auto user = Decoded(parts.first, "user");
  if (!user.ok()) return user.status();
  auto password = Decoded(parts.second, "password");
  if (!password.ok()) return password.status();
  url->user = *std::move(user);
  url->password = *std::move(password);
  return absl::OkStatus();
}

absl::Status SetSeeds(absl::string_view hosts, int default_port, RedisUrl* url) {
  for (const absl::string_view one : absl::StrSplit(hosts, ',')) {
    auto address = ServerAddress(one, default_port);
    if (!address.ok()) return address.status();
    url->seeds.push_back(*std::move(address));
  }
  return absl::OkStatus();
}

// What stands between user and options, but for a Unix socket's path.
absl::Status SetPlace(absl::string_view place, RedisUrl* url) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(place, absl::MaxSplits('/', 1));
  absl::string_view database = parts.second;
  if (url->topology == Topology::kSentinel) {
    const std::pair<absl::string_view, absl::string_view> path =
        absl::StrSplit(parts.second, absl::MaxSplits('/', 1));
    auto name = Decoded(path.first, "primary's name");
    if (!name.ok()) return name.status();
    if (name->empty()) {
      return Bad("redis-sentinel://",
                 "has no name of a primary; write the one that the Sentinels monitor behind them, "
                 "as redis-sentinel://s1,s2,s3/mymaster");
    }
    url->primary_name = *std::move(name);
    database = path.second;
  }
  if (!database.empty()) {
    if (absl::Status status = SetDatabase(database, url); !status.ok()) return status;
  }
  switch (url->topology) {
    case Topology::kCluster: {
      if (absl::Status status = SetSeeds(parts.first, 6379, url); !status.ok()) return status;
      url->address = url->seeds.front();
      return absl::OkStatus();
    }
    case Topology::kSentinel:
      return SetSeeds(parts.first, 26379, url);
    case Topology::kServer:
      break;
  }
  if (absl::StrContains(parts.first, ',')) {
    return Bad(Shown(parts.first),
               "names several servers; write redis-cluster:// if they are a Cluster, or "
               "redis-sentinel:// if they are Sentinels");
  }
  auto address = ServerAddress(parts.first, 6379);
  if (!address.ok()) return address.status();
  url->address = *std::move(address);
  return absl::OkStatus();
}

}  // namespace

std::string SchemeOf(Topology topology, bool tls) {
  for (const Scheme& one : kSchemes) {
    if (one.topology == topology && one.tls == tls) return std::string(one.begin);
  }
  return "";
}

absl::StatusOr<RedisUrl> RedisUrl::Parse(std::string_view text) {
  absl::string_view rest = ToAbsl(text);
  RedisUrl url;
  const Scheme* const scheme =
      std::find_if(std::begin(kSchemes), std::end(kSchemes),
                   [&](const Scheme& one) { return absl::ConsumePrefix(&rest, one.begin); });
  if (scheme == std::end(kSchemes)) {
    return absl::InvalidArgumentError(
        "a store's URL begins with redis://, rediss://, unix://, redis-cluster:// or "
        "redis-sentinel://, as redis://127.0.0.1:6379 or unix:///run/redis.sock");
  }
  url.topology = scheme->topology;
  url.tls = scheme->tls;
  url.sentinel_tls = scheme->tls && scheme->topology == Topology::kSentinel;

  std::vector<absl::string_view> options;
  if (const size_t mark = rest.find('?'); mark != absl::string_view::npos) {
    options = absl::StrSplit(rest.substr(mark + 1), '&', absl::SkipEmpty());
    rest = rest.substr(0, mark);
  }
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    if (absl::Status status = SetUser(rest.substr(0, at), &url); !status.ok()) return status;
    rest = rest.substr(at + 1);
  }
  if (scheme->is_unix) {
    auto path = Decoded(rest, "path");
    if (!path.ok()) return path.status();
    if (!absl::StartsWith(*path, "/")) {
      return Bad(absl::StrCat("path \"", *path, "\""),
                 "must begin with a slash, as unix:///run/redis.sock");
    }
    url.address.unix_path = *std::move(path);
  } else {
    if (absl::Status status = SetPlace(rest, &url); !status.ok()) return status;
  }
  for (const absl::string_view option : options) {
    if (absl::Status status = SetOption(option, &url); !status.ok()) return status;
  }
  if (url.topology == Topology::kCluster && url.database != 0) {
    return Bad(absl::StrCat("database \"", url.database, "\""),
               "a Cluster has only database 0; leave it out, and keep deployments apart by "
               "--redis_namespace");
  }
  if (!url.user.empty() && url.password.empty()) {
    return Bad(absl::StrCat("user \"", url.user, "\""),
               "has no password; write USER:PASSWORD@, :PASSWORD@ for the default user, or "
               "?password_file=FILE");
  }
  if (!url.sentinel_user.empty() && url.sentinel_password.empty()) {
    return Bad(absl::StrCat("sentinel_user \"", url.sentinel_user, "\""),
               "has no password; add sentinel_password or sentinel_password_file");
  }
  return url;
}

std::string RedisUrl::ToString() const {
  const std::string name = user.empty() ? "" : absl::StrCat(user, "@");
  if (address.is_unix()) {
    return absl::StrCat("unix://", name, address.unix_path,
                        database == 0 ? "" : absl::StrCat("?db=", database));
  }
  const std::string hosts = absl::StrJoin(
      seeds, ",", [](std::string* out, const net::Address& one) { out->append(one.ToString()); });
  std::string text = absl::StrCat(SchemeOf(topology, tls), name);
  switch (topology) {
    case Topology::kServer:
      absl::StrAppend(&text, address.ToString(), "/", database);
      break;
    case Topology::kCluster:
      text += hosts;
      break;
    case Topology::kSentinel:
      absl::StrAppend(&text, hosts, "/", primary_name, "/", database,
                      address.host.empty() ? "" : absl::StrCat(" at ", address.ToString()));
      break;
  }
  return text;
}

}  // namespace sluice::store::redis
