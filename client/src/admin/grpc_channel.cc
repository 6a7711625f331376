#include "client/src/admin/grpc_channel.h"

#include <utility>

#include "client/src/transport/connect_advice.h"
#include "client/src/transport/not_executed.h"
#include "client/src/transport/server_address.h"
#include "common/execution_mark.h"

namespace sluice::client_internal {

Result<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                   const TlsOptions& tls) {
  const Result<ServerAddress> address = ServerAddress::Parse(server);
  if (!address.ok()) return address.status();
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
    // Else grpc++ only logs the cause and reports "no address".
    if (Status bad = CheckTlsFiles(tls); !bad.ok()) return bad;
    for (auto [path, into] : {std::pair(&tls.ca_file, &files.pem_root_certs),
                              std::pair(&tls.cert_file, &files.pem_cert_chain),
                              std::pair(&tls.key_file, &files.pem_private_key)}) {
      if (path->empty()) continue;
      Result<std::string> text = ReadTlsFile(*path);
      if (!text.ok()) return text.status();
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

Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                const TlsOptions& tls) {
  const auto code = static_cast<StatusCode>(status.error_code());
  if (MeansNotExecuted(code)) return Status(code, status.error_message());
  // grpc++ found no connection for the call. It did not send it, or it sent it and the server's
  // GOAWAY says that it was not processed.
  const auto& trailers = context.GetServerTrailingMetadata();
  if (code == StatusCode::kUnavailable && trailers.empty() &&
      (status.error_message().rfind("failed to connect to all addresses", 0) == 0 ||
       status.error_message().rfind("empty address list", 0) == 0)) {
    return Status(code, WithAdvice(status.error_message(), tls, kAdminServerOption));
  }
  const auto executed = trailers.find(common::kExecutedMetadata);
  if (executed != trailers.end() && executed->second == common::kNotExecuted) {
    return Status(code, status.error_message());
  }
  return Status::MaybeExecuted(code, status.error_message());
}

}  // namespace sluice::client_internal
