#include "server/store/redis/redis_url.h"

#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/common/strings.h"

namespace sluice::store::redis {
namespace {

using common::ToAbsl;

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

absl::Status SetOption(absl::string_view option, RedisUrl* url) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(option, absl::MaxSplits('=', 1));
  auto value = Decoded(parts.second, parts.first);
  if (!value.ok()) return value.status();
  if (parts.first == "db") return SetDatabase(*value, url);
  if (parts.first == "password_file") {
    std::ifstream file(*value);
    if (!file || !std::getline(file, url->password)) {
      return Bad(absl::StrCat("password_file ", *value), "cannot be read, or has no first line");
    }
    return absl::OkStatus();
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
  if (!url->tls) return Bad(parts.first, "is for TLS; write rediss:// instead of redis://");
  *file = *std::move(value);
  return absl::OkStatus();
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

}  // namespace

absl::StatusOr<RedisUrl> RedisUrl::Parse(std::string_view text) {
  absl::string_view rest = ToAbsl(text);
  RedisUrl url;
  url.tls_options.alpn.clear();
  bool is_unix = false;
  if (absl::ConsumePrefix(&rest, "redis://")) {
  } else if (absl::ConsumePrefix(&rest, "rediss://")) {
    url.tls = true;
  } else if (absl::ConsumePrefix(&rest, "unix://")) {
    is_unix = true;
  } else if (absl::StartsWith(rest, "redis-sentinel://") ||
             absl::StartsWith(rest, "redis-cluster://")) {
    return absl::InvalidArgumentError(
        absl::StrCat(rest.substr(0, rest.find(':')),
                     "://: Sentinel and Cluster are not in this version; name one server, as "
                     "redis://host:6379"));
  } else {
    return absl::InvalidArgumentError(
        "a store's URL begins with redis://, rediss:// or unix://, as redis://127.0.0.1:6379 or "
        "unix:///run/redis.sock");
  }

  std::vector<absl::string_view> options;
  if (const size_t mark = rest.find('?'); mark != absl::string_view::npos) {
    options = absl::StrSplit(rest.substr(mark + 1), '&', absl::SkipEmpty());
    rest = rest.substr(0, mark);
  }
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    if (absl::Status status = SetUser(rest.substr(0, at), &url); !status.ok()) return status;
    rest = rest.substr(at + 1);
  }
  if (is_unix) {
    auto path = Decoded(rest, "path");
    if (!path.ok()) return path.status();
    if (!absl::StartsWith(*path, "/")) {
      return Bad(absl::StrCat("path \"", *path, "\""),
                 "must begin with a slash, as unix:///run/redis.sock");
    }
    url.address.unix_path = *std::move(path);
  } else {
    if (const size_t slash = rest.find('/'); slash != absl::string_view::npos) {
      const absl::string_view database = rest.substr(slash + 1);
      if (!database.empty()) {
        if (absl::Status status = SetDatabase(database, &url); !status.ok()) return status;
      }
      rest = rest.substr(0, slash);
    }
    std::string with_port(rest);
    const size_t bracket = rest.rfind(']');
    const size_t colon = rest.rfind(':');
    if (colon == absl::string_view::npos ||
        (bracket != absl::string_view::npos && colon < bracket)) {
      absl::StrAppend(&with_port, ":6379");
    }
    auto address = net::Address::Parse(with_port);
    if (!address.ok()) return address.status();
    if (address->host.empty() || address->port == 0) {
      return Bad(absl::StrCat("address \"", rest, "\""), "write HOST or HOST:PORT");
    }
    url.address = *std::move(address);
  }
  for (const absl::string_view option : options) {
    if (absl::Status status = SetOption(option, &url); !status.ok()) return status;
  }
  if (!url.user.empty() && url.password.empty()) {
    return Bad(absl::StrCat("user \"", url.user, "\""),
               "has no password; write USER:PASSWORD@, :PASSWORD@ for the default user, or "
               "?password_file=FILE");
  }
  return url;
}

std::string RedisUrl::ToString() const {
  const std::string name = user.empty() ? "" : absl::StrCat(user, "@");
  if (address.is_unix()) {
    return absl::StrCat("unix://", name, address.unix_path,
                        database == 0 ? "" : absl::StrCat("?db=", database));
  }
  return absl::StrCat(tls ? "rediss://" : "redis://", name, address.ToString(), "/", database);
}

}  // namespace sluice::store::redis
