// health: asks grpc.health.v1 whether a server serves.
#include <algorithm>
#include <cstdio>

#include "client/cli/session.h"
#include "client/src/admin/grpc_channel.h"
#include "client/src/transport/connect_advice.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace sluice::cli {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// Prints the status of one server and returns its exit code.
int AskHealth(const Session& session, const std::string& server, bool several) {
  const bool admin = session.arguments().Has("admin-port");
  const AdminOptions& options = session.admin_options();
  const auto channel = client_internal::MakeChannel(server, options.tls);
  if (!channel.ok()) return session.Fail(channel.status());
  grpc::ClientContext context;
  // The deadline of the data port also for the admin port: health checks are short.
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(
                           session.client_options().deadline));
  if (admin) client_internal::AddToken(options.token, &context);
  HealthCheckRequest request;
  request.set_service(session.Argument(0));
  HealthCheckResponse response;
  const grpc::Status status = Health::NewStub(*channel)->Check(&context, request, &response);
  if (!status.ok()) {
    const std::string message = client_internal::WithAdvice(
        status.error_message(), options.tls,
        admin ? client_internal::kAdminServerOption : client_internal::kDataServerOption);
    // Not MaybeExecuted: a health check changes nothing.
    return session.Fail(Status(static_cast<StatusCode>(status.error_code()),
                               several ? server + ": " + message : message));
  }
  const std::string& state = HealthCheckResponse::ServingStatus_Name(response.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("server", server).Field("service", request.service());
    json.Field("status", state).Close();
    session.Print(json);
  } else if (several) {
    std::printf("%s  %s\n", server.c_str(), state.c_str());
  } else {
    std::printf("%s\n", state.c_str());
  }
  return response.status() == HealthCheckResponse::SERVING ? kExitDone : kExitDenied;
}

}  // namespace

int RunHealth(const Session& session) {
  std::vector<std::string> servers = session.client_options().servers;
  if (session.arguments().Has("admin-port")) servers = {session.admin_options().server};
  int worst = kExitDone;
  for (const std::string& server : servers) {
    worst = std::max(worst, AskHealth(session, server, servers.size() > 1));
  }
  return worst;
}

}  // namespace sluice::cli
