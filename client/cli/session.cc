#include "client/cli/session.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "client/cli/text.h"

namespace sluice::cli {
namespace {

std::string FlagOrEnvironment(const Arguments& arguments, std::string_view flag,
                              const char* variable, std::string fallback) {
  if (const auto given = arguments.Get(flag); given.has_value()) return *given;
  if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') return value;
  return fallback;
}

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream in(path);
  std::string token;
  if (!in.is_open() || !std::getline(in, token) || token.empty()) {
    return BadUsage("cannot read a token from \"" + path + "\": it must be the first line");
  }
  while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  return token;
}

std::vector<std::string> SplitServers(const std::string& text) {
  std::vector<std::string> servers;
  size_t begin = 0;
  for (;;) {
    const size_t comma = text.find(',', begin);
    servers.push_back(text.substr(begin, comma - begin));
    if (comma == std::string::npos) return servers;
    begin = comma + 1;
  }
}

}  // namespace

std::vector<Flag> GlobalFlags() {
  return {
      {"server", "HOST:PORT", "data port; several separated by commas (127.0.0.1:7200)"},
      {"admin", "HOST:PORT", "admin port (127.0.0.1:7201)"},
      {"output", "text|json", "json: one object per line, with stable names (text)"},
      {"deadline", "TIME", "time limit of a call (1s)"},
      {"on-unavailable", "deny|allow", "the decision if no server decides (deny)"},
      {"token-file", "FILE", "file whose first line is the bearer token"},
      {"admin-token-file", "FILE", "the same for the admin port (that of --token-file)"},
      {"tls", "", "use TLS with the system's root certificates"},
      {"tls-ca", "FILE", "use TLS with these root certificates (PEM)"},
      {"tls-cert", "FILE", "client certificate (PEM)"},
      {"tls-key", "FILE", "key of the client certificate (PEM)"},
      {"tls-server-name", "NAME", "expected name in the server's certificate"},
      {"help", "", "show this help"},
  };
}

Result<Session> Session::Create(Arguments arguments) {
  Session session;
  session.arguments_ = std::move(arguments);
  const Arguments& flags = session.arguments_;
  const std::string output = flags.Get("output").value_or("text");
  if (output != "text" && output != "json") {
    return BadUsage("--output=" + output + " is unknown; write text or json");
  }
  session.json_ = output == "json";

  ClientOptions& client = session.client_options_;
  client.servers =
      SplitServers(FlagOrEnvironment(flags, "server", "SLUICE_SERVER", "127.0.0.1:7200"));
  const std::string wish = flags.Get("on-unavailable").value_or("deny");
  if (wish != "deny" && wish != "allow") {
    return BadUsage("--on-unavailable=" + wish + " is unknown; write deny or allow");
  }
  client.on_unavailable = wish == "allow" ? OnUnavailable::kAllow : OnUnavailable::kDeny;
  const auto deadline = session.Duration("deadline", client.deadline);
  if (!deadline.ok()) return deadline.status();
  if (deadline->count() <= 0) {
    return BadUsage("--deadline=" + flags.Get("deadline").value_or("") +
                    ": write a time above zero, as 500ms");
  }
  client.deadline = *deadline;
  client.tls = {.enabled = flags.Has("tls"),
                .ca_file = flags.Get("tls-ca").value_or(""),
                .cert_file = flags.Get("tls-cert").value_or(""),
                .key_file = flags.Get("tls-key").value_or(""),
                .server_name = flags.Get("tls-server-name").value_or("")};
  const std::string token_file = FlagOrEnvironment(flags, "token-file", "SLUICE_TOKEN_FILE", "");
  const std::string admin_token_file =
      FlagOrEnvironment(flags, "admin-token-file", "SLUICE_ADMIN_TOKEN_FILE", token_file);
  session.admin_options_ = {
      .server = FlagOrEnvironment(flags, "admin", "SLUICE_ADMIN", "127.0.0.1:7201"),
      .tls = client.tls};
  for (const auto& [file, token] : {std::pair(token_file, &client.token),
                                    std::pair(admin_token_file, &session.admin_options_.token)}) {
    if (file.empty()) continue;
    Result<std::string> read = ReadToken(file);
    if (!read.ok()) return read.status();
    *token = *std::move(read);
  }
  if (flags.Has("deadline")) session.admin_options_.deadline = *deadline;
  return session;
}

int Session::Fail(const Status& status) const {
  if (json_) {
    Json json;
    json.Open('{').Name("error").Open('{');
    json.Field("code", StatusCodeName(status.code())).Field("message", status.message());
    json.Field("may_have_executed", status.may_have_executed());
    json.Close().Close();
    Print(json);
  } else {
    std::fflush(stdout);
    std::fprintf(stderr, "sluice: %s\n", status.ToString().c_str());
  }
  switch (status.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kResourceExhausted:
    case StatusCode::kCancelled:
      return kExitUnavailable;
    default:
      return kExitUsage;
  }
}

int Session::FailCheck(const absl::Status& status) const {
  const std::string message(status.message().data(), status.message().size());
  if (json_) {
    Json json;
    json.Open('{').Field("ok", false).Field("error", message).Close();
    Print(json);
  } else {
    std::fprintf(stderr, "%s\n", message.c_str());
  }
  return kExitUsage;
}

void Session::Print(const Json& json) const {
  std::fwrite(json.text().data(), 1, json.text().size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

Result<uint64_t> Session::Number(std::string_view flag, uint64_t fallback) const {
  const auto given = arguments_.Get(flag);
  if (!given.has_value()) return fallback;
  Result<uint64_t> number = ParseNumber(*given);
  if (!number.ok()) {
    return BadUsage("--" + std::string(flag) + ": " + number.status().message());
  }
  return number;
}

Result<std::chrono::nanoseconds> Session::Duration(std::string_view flag,
                                                   std::chrono::nanoseconds fallback) const {
  const auto given = arguments_.Get(flag);
  if (!given.has_value()) return fallback;
  Result<std::chrono::nanoseconds> time = ParseDuration(*given);
  if (!time.ok()) {
    return BadUsage("--" + std::string(flag) + ": " + time.status().message());
  }
  return time;
}

Result<std::vector<Bucket>> Session::Buckets(const std::string& command) const {
  std::vector<Bucket> buckets;
  if (!Argument(0).empty()) buckets.push_back({Argument(0), Argument(1)});
  for (const std::string& text : arguments_.All("bucket")) {
    Result<Acquisition> parsed = ParseAcquisition(text);
    if (!parsed.ok()) return BadUsage("--bucket: " + parsed.status().message());
    for (Charge& one : parsed->charges) {
      buckets.push_back({std::move(one.limit), std::move(one.key)});
    }
  }
  if (buckets.empty()) return BadUsage(command + " needs LIMIT [KEY], or --bucket");
  return buckets;
}

}  // namespace sluice::cli
