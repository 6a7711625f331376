// AdsClient: receives Envoy's rate-limit configuration from a management server, over ADS (xDS's
// aggregated discovery service), state of the world: each response is a whole configuration.
//
// It accepts or refuses (NACK) each response. An accepted configuration stays in force while the
// connection is down. Reconnects after a random pause, whose bound doubles with each failure.
#ifndef SLUICE_SERVER_ENVOY_XDS_ADS_CLIENT_H_
#define SLUICE_SERVER_ENVOY_XDS_ADS_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/bounds.h"
#include "common/log.h"
#include "common/mutex.h"
#include "envoy/service/discovery/v3/ads.pb.h"
#include "server/envoy/configuration.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace sluice::envoy {

struct AdsOptions {
  std::string server;  // --ratelimit_xds: HOST:PORT or unix:/path; empty: there is none
  std::string node = "default";
  // TLS. The files are PEM, and are read again for each connection.
  bool tls = false;
  std::string ca;    // empty: the system's authorities
  std::string cert;  // with `key`: mTLS
  std::string key;
  std::string server_name;  // that the server's certificate must have; empty: the host
  int64_t max_message_bytes = common::bounds::kDefaultXdsMessageBytes;
  // Bounds of the pause before the next connection. It doubles, and is random from its half up.
  std::chrono::milliseconds first_pause{500};
  std::chrono::milliseconds most_pause{30'000};
};

// Thread-safe. Signals must be blocked before Start: gRPC starts threads.
class AdsClient {
 public:
  // Puts a configuration in force, or returns why not. Called on the client's thread, of low
  // priority; may block.
  using Apply = std::function<absl::Status(ReceivedTree received)>;

  // `log` outlives it.
  AdsClient(AdsOptions options, Apply apply, common::Log& log);
  ~AdsClient() { Stop(); }
  AdsClient(const AdsClient&) = delete;
  AdsClient& operator=(const AdsClient&) = delete;

  // INVALID_ARGUMENT: a file cannot be read, or has no PEM; or only one of `cert` and `key` is
  // there. Names the flag. Before Start.
  static absl::Status CheckFiles(const AdsOptions& options);

  void Start();
  // Ends the stream and waits for a running `apply`. Idempotent.
  void Stop();

  // Returns whether a configuration was accepted; waits at most `time` for it.
  bool AwaitConfiguration(std::chrono::milliseconds time);

 private:
  using Request = ::envoy::service::discovery::v3::DiscoveryRequest;
  using Response = ::envoy::service::discovery::v3::DiscoveryResponse;

  void Run();
  // One stream, from its first request to its end. Returns why it ended.
  absl::Status RunStream();
  absl::Status Converse(grpc::ClientContext& context);
  // Applies the response, and returns the request that accepts or refuses it.
  Request Answer(Response& response);
  absl::Status Take(Response& response);
  // Returns at once after Stop.
  void Pause(std::chrono::milliseconds time);
  // The pause before attempt `failures` + 1.
  std::chrono::milliseconds NextPause(int failures);

  const AdsOptions options_;
  const Apply apply_;
  common::Log& log_;

  // Used only by the thread.
  std::minstd_rand random_;
  std::string accepted_;   // version in force
  std::string refused_;    // version of the last response, if it was refused
  int refusals_ = 0;       // how often in a row
  bool answered_ = false;  // the stream had a response

  common::Mutex mu_;
  common::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the open stream
  std::thread thread_;
};

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_XDS_ADS_CLIENT_H_
