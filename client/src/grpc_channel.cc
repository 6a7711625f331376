#include "client/src/grpc_channel.h"

#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "common/errors.h"

namespace sluice::client_internal {
namespace {

Status BadAddress(const std::string& server) {
  return Status(
      StatusCode::kInvalidArgument,
      "\"" + server + "\" is not a server address: write HOST:PORT, [IPV6]:PORT or unix:PATH");
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
  // Ignore the HTTP proxy that the environment may name.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Never share a socket with other channels to the same address.
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
      // Else grpc++ only logs the cause and reports "no address".
      const char* const holds =
          into == &files.pem_private_key ? "PRIVATE KEY-----" : "CERTIFICATE-----";
      if (text->find(holds) == std::string::npos) {
        return Status(StatusCode::kInvalidArgument,
                      "TLS: \"" + *path + "\" contains no PEM " +
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
  // The server closed the connection. grpc++ does not know why.
  const bool hung_up =
      says("Socket closed") || says("Endpoint read failed") || says("Connection reset");
  if (says("Connection refused") || says("No such file or directory")) {
    advice = "start sluiced there, or name the server in ClientOptions::servers (--server)";
  } else if (!tls.in_use()) {
    if (hung_up) advice = "if the server uses TLS, set TlsOptions::ca_file (--tls-ca)";
  } else if (says("wrong version number")) {
    advice = "the port does not use TLS: connect without TLS, or to the port that uses it";
  } else if (says("certificate verify failed")) {
    advice = tls.ca_file.empty()
                 ? "no root certificate of the system has issued the server's certificate: set "
                   "TlsOptions::ca_file (--tls-ca) to the certificate of its issuer"
                 : "the server's certificate has expired, or was not issued by a certificate in "
                   "TlsOptions::ca_file (--tls-ca) " +
                       tls.ca_file;
  } else if (says("is not in peer certificate")) {
    advice =
        "connect to a name that is in the server's certificate, or set "
        "TlsOptions::server_name (--tls-server-name) to one that is";
  } else if (hung_up && tls.cert_file.empty()) {
    advice =
        "the server may require a client certificate: set TlsOptions::cert_file and "
        "key_file (--tls-cert, --tls-key)";
  } else if (hung_up) {
    advice = "the server may have rejected the certificate in TlsOptions::cert_file (--tls-cert) " +
             tls.cert_file +
             ": it must not have expired, and its issuer must be trusted by the server";
  } else if (says("empty address list")) {
    advice =
        "TlsOptions::key_file (--tls-key) may not be the key of the certificate in "
        "cert_file (--tls-cert)";
  }
  return advice.empty() ? message : message + "; " + advice;
}

Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                const TlsOptions& tls) {
  const auto code = static_cast<StatusCode>(status.error_code());
  switch (code) {
    // The server refused the call before it decided anything.
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
  // grpc++ found no connection for the call. It did not send it, or it sent it and the server's
  // GOAWAY says that it was not processed.
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
