#include "server/transport/web/access.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/request_parser.h"

namespace sluice::web {
namespace {

using http1::Exchange;
using http1::Problem;

bool IsLoopbackHost(std::string_view host) {
  return host == "localhost" || host == "::1" ||
         (host.substr(0, 4) == "127." &&
          host.find_first_not_of("0123456789.") == std::string_view::npos);
}

bool IsIpLiteral(std::string_view host) {
  return host.find(':') != host.npos || host.find_first_not_of("0123456789.") == host.npos;
}

// A problem of an admin call, which is recorded.
Problem Recorded(const AccessOptions& options, const Exchange& exchange, Problem problem) {
  if (options.refusals == nullptr) return problem;
  access::AuditRecord record;
  const access::CallerPtr& caller = exchange.caller();
  if (caller != nullptr && caller->client() != nullptr) record.client = caller->client()->name;
  record.actor = access::ActorOf(exchange.peer_identity());
  record.peer = exchange.peer_address();
  record.call = exchange.route().path;
  record.outcome = absl::Status(problem.code, problem.detail);
  options.refusals->Add(std::move(record));
  return problem;
}

// The header Authorization, against the token. REQUIRES: there is a token.
std::optional<Problem> CheckToken(const AccessOptions& options, const Exchange& exchange) {
  const auto sent = exchange.request().header("authorization");
  if (sent.has_value() && options.token->Check(*sent).ok()) return std::nullopt;
  Problem problem = Problem::Http(
      401, sent.has_value()
               ? "Authorization: not the token of --admin_token_file"
               : "send the token of --admin_token_file, as `Authorization: Bearer TOKEN`");
  problem.headers.emplace_back("www-authenticate", "Bearer");
  problem.wrong_token = sent.has_value();
  return Recorded(options, exchange, std::move(problem));
}

}  // namespace

bool IsLoopback(const net::Address& address) {
  return address.is_unix() || IsLoopbackHost(address.host);
}

// Lets the clients pass that may make a call, and counts it.
class Access::ClientGate final : public http1::Gate {
 public:
  ClientGate(const AccessOptions& options, access::Call call) : options_(options), call_(call) {}
  std::optional<Problem> Check(const Exchange& exchange) const override {
    const access::Caller& caller = *exchange.caller();
    if (!caller.May(call_)) return Refusal(caller, exchange);
    const absl::Status counted = caller.CountCall(exchange.loop().now_ns());
    return counted.ok() ? std::nullopt : std::optional(Problem::Of(counted));
  }
  std::optional<Problem> CheckAgain(const Exchange& exchange) const override {
    const access::Caller& caller = *exchange.caller();
    return caller.May(call_) ? std::nullopt : std::optional(Refusal(caller, exchange));
  }

 private:
  // REQUIRES: the caller may not make the call.
  Problem Refusal(const access::Caller& caller, const Exchange& exchange) const {
    const absl::Status checked = caller.Check(call_);
    Problem problem = Problem::Of(checked);
    if (absl::IsUnauthenticated(checked)) {
      problem.headers.emplace_back("www-authenticate", "Bearer");
    }
    problem.wrong_token = caller.has_wrong_token();
    return access::IsAdmin(call_) ? Recorded(options_, exchange, std::move(problem)) : problem;
  }

  const AccessOptions& options_;
  const access::Call call_;
};

class Access::DataGate final : public http1::Gate {
 public:
  DataGate(const AccessOptions& options, access::Call call)
      : options_(options), clients_(options, call) {}
  std::optional<Problem> Check(const Exchange& exchange) const override {
    if (!options_.data_client_certificates || options_.client_certificates) {
      return options_.clients ? clients_.Check(exchange) : std::nullopt;
    }
    return Problem::Http(403,
                         "the data port asks for client certificates (--tls_client_ca), and this "
                         "port does not; use the data port, or --http_listen with "
                         "--http_tls_client_ca");
  }
  std::optional<Problem> CheckAgain(const Exchange& exchange) const override {
    return options_.clients ? clients_.CheckAgain(exchange) : std::nullopt;
  }

 private:
  const AccessOptions& options_;
  const ClientGate clients_;
};

class Access::ReadGate final : public http1::Gate {
 public:
  explicit ReadGate(const AccessOptions& options)
      : options_(options), open_(IsLoopback(options.listen) || options.client_certificates) {}
  std::optional<Problem> Check(const Exchange& exchange) const override {
    if (open_) return std::nullopt;
    if (options_.token != nullptr) return CheckToken(options_, exchange);
    return Recorded(
        options_, exchange,
        Problem::Http(403,
                      "limits, keys and counters are shown on loopback only, unless the server "
                      "has --admin_token_file or --http_tls_client_ca"));
  }

 private:
  const AccessOptions& options_;
  const bool open_;
};

class Access::ChangeGate final : public http1::Gate {
 public:
  explicit ChangeGate(const AccessOptions& options) : options_(options) {}
  std::optional<Problem> Check(const Exchange& exchange) const override {
    if (options_.token != nullptr) return CheckToken(options_, exchange);
    return Recorded(
        options_, exchange,
        Problem::Http(403,
                      "changes over HTTP need a token; start the server with --admin_token_file"));
  }

 private:
  const AccessOptions& options_;
};

// Sent by a browser for a page of another site.
class Access::PageGate : public http1::Gate {
 public:
  std::optional<Problem> Check(const Exchange& exchange) const override {
    const http1::Request& request = exchange.request();
    const auto origin = request.header("origin");
    if (origin.has_value() && !SameSite(*origin, request.authority())) {
      return Problem::Http(403, absl::StrCat("Origin: \"", common::errors::Shown(*origin),
                                             "\" is another site than Host; this port serves only "
                                             "its own pages"));
    }
    // Sent by browsers, also where they send no Origin: with an image or a script. Files without
    // secrets may be linked to.
    const auto from = request.header("sec-fetch-site");
    if (from.has_value() && exchange.route().options.gate != nullptr && *from != "same-origin" &&
        *from != "none") {
      return Problem::Http(403, "Sec-Fetch-Site: another site's page sent this request");
    }
    return std::nullopt;
  }

 private:
  static bool SameSite(std::string_view origin, std::string_view authority) {
    absl::string_view rest = common::ToAbsl(origin);
    std::string_view default_port = "80";
    if (absl::ConsumePrefix(&rest, "https://")) {
      default_port = "443";
    } else if (!absl::ConsumePrefix(&rest, "http://")) {
      return false;
    }
    const auto from = http1::ParseAuthority(common::ToStd(rest));
    const auto host = http1::ParseAuthority(authority);
    if (!from.has_value() || !host.has_value()) return false;
    const auto port = [&](const http1::Authority& of) {
      return of.port.empty() ? default_port : of.port;
    };
    return absl::EqualsIgnoreCase(common::ToAbsl(from->host), common::ToAbsl(host->host)) &&
           port(*from) == port(*host);
  }
};

class Access::SiteGate final : public PageGate {
 public:
  explicit SiteGate(const AccessOptions& options) : hosts_(options.hosts) {
    for (std::string& host : hosts_) absl::AsciiStrToLower(&host);
    if (!hosts_.empty()) return;
    loopback_ = true;
    hosts_.push_back(absl::AsciiStrToLower(options.listen.host));
    // A page can make a browser send any name as Host, once its own name leads here, but no
    // address.
    any_address_ = options.listen.host == "0.0.0.0" || options.listen.host == "::";
  }

  std::optional<Problem> Check(const Exchange& exchange) const override {
    const http1::Request& request = exchange.request();
    // Only HTTP/1.0 may leave it out, which no browser speaks.
    if (request.authority().empty() && !request.is_1_1()) return std::nullopt;
    const auto host = http1::ParseAuthority(request.authority());
    if (!host.has_value() || !Serves(host->host)) {
      return Problem::Http(403, absl::StrCat("Host: \"", common::errors::Shown(request.authority()),
                                             "\" is not served here; --http_hosts lists the names "
                                             "that are"));
    }
    return PageGate::Check(exchange);
  }

 private:
  bool Serves(std::string_view sent) const {
    const std::string host = absl::AsciiStrToLower(absl::StripSuffix(common::ToAbsl(sent), "."));
    if (loopback_ && IsLoopbackHost(host)) return true;
    if (any_address_ && !host.empty() && IsIpLiteral(host)) return true;
    return std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end() && !host.empty();
  }

  std::vector<std::string> hosts_;  // in lower case
  bool loopback_ = false;
  bool any_address_ = false;
};

Access::Access(AccessOptions options)
    : options_(std::move(options)),
      pages_(std::make_unique<PageGate>()),
      site_(std::make_unique<SiteGate>(options_)) {
  for (size_t i = 0; i < access::kCalls; ++i) {
    data_[i] = std::make_unique<DataGate>(options_, static_cast<access::Call>(i));
  }
  if (options_.clients) {
    reading_ = std::make_unique<ClientGate>(options_, access::Call::kAdminView);
    changing_ = std::make_unique<ClientGate>(options_, access::Call::kAdminChange);
  } else {
    reading_ = std::make_unique<ReadGate>(options_);
    changing_ = std::make_unique<ChangeGate>(options_);
  }
}

Access::~Access() = default;

}  // namespace sluice::web
