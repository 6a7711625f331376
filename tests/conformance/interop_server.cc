// interop_server --listen=HOST:PORT [--tls_cert=FILE --tls_key=FILE] [--threads=N]
// Serves grpc.testing.TestService until SIGTERM. Prints "ready HOST:PORT" once it listens.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/address.h"
#include "common/net/loop_group.h"
#include "common/net/tls_context.h"
#include "server/transport/rpc/rpc_server.h"
#include "tests/conformance/test_service.h"

namespace {

std::string Flag(int argc, char** argv, std::string_view name, std::string_view otherwise) {
  const std::string prefix = "--" + std::string(name) + "=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.substr(0, prefix.size()) == prefix) return std::string(arg.substr(prefix.size()));
  }
  return std::string(otherwise);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "interop_server: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const sluice::common::SystemClock clock;
  sluice::conformance::TestService service;
  sluice::common::Metrics metrics;
  sluice::transport::MethodTable methods;
  service.Register(&methods);
  sluice::transport::RpcServer server(methods, clock, metrics, {});

  sluice::net::LoopGroup::Options group_options;
  group_options.threads = std::atoi(Flag(argc, argv, "threads", "1").c_str());
  auto group = sluice::net::LoopGroup::Create(clock, group_options);
  if (!group.ok()) return Fail(group.status());
  for (size_t i = 0; i < (*group)->size(); ++i) server.AddLoop((*group)->loop(i));

  sluice::net::ListenerOptions listener;
  if (const std::string cert = Flag(argc, argv, "tls_cert", ""); !cert.empty()) {
    sluice::net::TlsOptions tls;
    tls.certificate_chain_file = cert;
    tls.private_key_file = Flag(argc, argv, "tls_key", "");
    auto context = sluice::net::TlsContext::Create(sluice::net::TlsContext::Role::kServer, tls);
    if (!context.ok()) return Fail(context.status());
    listener.tls = *context;
  }
  auto address = sluice::net::Address::Parse(Flag(argc, argv, "listen", "127.0.0.1:0"));
  if (!address.ok()) return Fail(address.status());
  auto bound = (*group)->Listen(*address, server, listener);
  if (!bound.ok()) return Fail(bound.status());
  (*group)->Start();
  std::printf("ready %s\n", bound->ToString().c_str());
  std::fflush(stdout);

  int signal_number = 0;
  sigwait(&signals, &signal_number);
  (*group)->StopAccepting();
  server.Drain();
  for (int i = 0; i < 500 && server.connections() > 0; ++i) usleep(10'000);
  (*group)->Stop();
  return 0;
}
