#include "client/src/grpc_channel.h"

#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "common/executed.h"

namespace sluice::client_internal {
namespace {

Status BadAddress(const std::string& server) {
  return Status(
      StatusCode::kInvalidArgument,
      "\"" + server + "\" is no server address: write HOST:PORT, [IPV6]:PORT or unix:PATH");
}

Status CheckAddress(const std::string& server) {
  if (server.rfind("unix:", 0) == 0) {
    return server.size() > 5 ? Status() : BadAddress(server);
  }
  const size_t colon = server.rfind(':');
  if (colon == std::string::npos || colon == 0) return BadAddress(server);
  if (server.find('/') != std::string::npos) return BadAddress(server);
  const std::string_view host(server.data(), colon);
  if (host.find(':') != std::string_view::npos && (host.front() != '[' || host.back() != ']')) {
    return BadAddress(server);
  }
  int port = 0;
  const char* end = server.data() + server.size();
  const auto parsed = std::from_chars(server.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 1 || port > 65535) {
    return BadAddress(server);
  }
  return Status();
}

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in.is_open() || in.bad() || text.str().empty()) {
    return Status(StatusCode::kInvalidArgument, "cannot read \"" + path + "\", or it is empty");
  }
  return text.str();
}

}  // namespace

Result<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                   const TlsOptions& tls) {
  if (Status bad = CheckAddress(server); !bad.ok()) return bad;
  grpc::ChannelArguments arguments;
  // A limiter is asked directly, not through the web proxy that the environment may name.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Each connection has a socket of its own, whatever other channels lead to the same address.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetUserAgentPrefix(common::kMarkKnowingAgent);
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (tls.in_use()) {
    grpc::SslCredentialsOptions files;
    if (tls.cert_file.empty() != tls.key_file.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    "TLS: cert_file and key_file go together; only one is set");
    }
    for (auto [path, into] : {std::pair(&tls.ca_file, &files.pem_root_certs),
                              std::pair(&tls.cert_file, &files.pem_cert_chain),
                              std::pair(&tls.key_file, &files.pem_private_key)}) {
      if (path->empty()) continue;
      Result<std::string> text = ReadFile(*path);
      if (!text.ok()) {
        return Status(StatusCode::kInvalidArgument, "TLS: " + text.status().message());
      }
      // Otherwise grpc++ logs something, and finds "no address".
      const char* const holds =
          into == &files.pem_private_key ? "PRIVATE KEY-----" : "CERTIFICATE-----";
      if (text->find(holds) == std::string::npos) {
        return Status(StatusCode::kInvalidArgument,
                      "TLS: \"" + *path + "\" holds no PEM " +
                          (into == &files.pem_private_key ? "private key" : "certificate"));
      }
      *into = *std::move(text);
    }
    credentials = grpc::SslCredentials(files);
    if (!tls.server_name.empty()) arguments.SetSslTargetNameOverride(tls.server_name);
  } else {
    credentials = grpc::InsecureChannelCredentials();
  }
  const std::string target = server.rfind("unix:", 0) == 0 ? server : "dns:///" + server;
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

void AddToken(const std::string& token, grpc::ClientContext* context) {
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
}

std::string Explained(const std::string& message, const TlsOptions& tls) {
  const auto says = [&](const char* text) { return message.find(text) != std::string::npos; };
  std::string advice;
  // How it looks when the server ends the connection: it gives no reason that grpc++ would pass on.
  const bool hung_up =
      says("Socket closed") || says("Endpoint read failed") || says("Connection reset");
  if (says("Connection refused") || says("No such file or directory")) {
    advice = "start sluiced there, or name the server in ClientOptions::servers (--server)";
  } else if (!tls.in_use()) {
    if (hung_up) advice = "if the server speaks TLS there, use it: TlsOptions::ca_file (--tls-ca)";
  } else if (says("wrong version number")) {
    advice = "the server speaks no TLS there: leave it out, or connect to the port that has it";
  } else if (says("certificate verify failed")) {
    advice = tls.ca_file.empty()
                 ? "the system's roots do not vouch for the server's certificate: name the file of "
                   "its authority in TlsOptions::ca_file (--tls-ca)"
                 : "the server's certificate is not of an authority in TlsOptions::ca_file "
                   "(--tls-ca) " +
                       tls.ca_file + ", or out of date";
  } else if (says("is not in peer certificate")) {
    advice =
        "connect to a name that is in the server's certificate, or set "
        "TlsOptions::server_name (--tls-server-name) to one that is";
  } else if (hung_up && tls.cert_file.empty()) {
    advice =
        "perhaps the server asks for a client's certificate: set TlsOptions::cert_file and "
        "key_file (--tls-cert, --tls-key)";
  } else if (hung_up) {
    advice =
        "perhaps the server does not take the certificate in TlsOptions::cert_file "
        "(--tls-cert) " +
        tls.cert_file +
        ": it must be of an authority that the server trusts, and not out of "
        "date";
  } else if (says("empty address list")) {
    advice =
        "perhaps TlsOptions::key_file (--tls-key) is not the key of the certificate in "
        "cert_file (--tls-cert)";
  }
  return advice.empty() ? message : message + "; " + advice;
}

Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                const TlsOptions& tls) {
  const auto code = static_cast<StatusCode>(status.error_code());
  switch (code) {
    // The server's word, before it decides anything.
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
    case StatusCode::kResourceExhausted:
      return Status(code, status.error_message());
    default:
      break;
  }
  // So grpc++ ends a call for which it found no connection. It had not sent it; or it had, and
  // repeats it by itself since the server's GOAWAY says that it did not look at it.
  const auto& trailers = context.GetServerTrailingMetadata();
  if (code == StatusCode::kUnavailable && trailers.empty() &&
      (status.error_message().rfind("failed to connect to all addresses", 0) == 0 ||
       status.error_message().rfind("empty address list", 0) == 0)) {
    return Status(code, Explained(status.error_message(), tls));
  }
  const auto executed = trailers.find(common::kExecutedMetadata);
  if (executed != trailers.end() && executed->second == common::kNotExecuted) {
    return Status(code, status.error_message());
  }
  return Status::MaybeExecuted(code, status.error_message());
}

}  // namespace sluice::client_internal
