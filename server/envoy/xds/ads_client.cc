#include "server/envoy/xds/ads_client.h"

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/random.h"
#include "common/thread_priority.h"
#include "common/utf8.h"
#include "envoy/service/discovery/v3/ads.grpc.pb.h"
#include "server/config/load.h"
#include "server/envoy/xds/rate_limit_resources.h"

namespace sluice::envoy {
namespace {

using std::chrono::milliseconds;
namespace discovery = ::envoy::service::discovery::v3;

// A path without an answer is noticed only by pings. Go's servers close connections that ping more
// often than every 5 minutes.
constexpr int kKeepaliveMs = 310'000;
constexpr int kKeepaliveTimeoutMs = 20'000;

// Bytes of a refusal's reason.
constexpr size_t kMaxReasonBytes = 4096;

// `flag`: without the dashes. Empty path: empty text.
absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || !text) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", path, ": the file cannot be read; name a PEM file"));
  }
  if (text.str().find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", path, ": the file has no PEM in it; name a PEM file"));
  }
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const AdsOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  if (options.cert.empty() != options.key.empty()) {
    return absl::InvalidArgumentError(
        "--ratelimit_xds_tls_cert and --ratelimit_xds_tls_key belong together; set both or none");
  }
  grpc::SslCredentialsOptions pem;
  for (const auto& [flag, path, into] :
       {std::tuple("ratelimit_xds_tls_ca", &options.ca, &pem.pem_root_certs),
        std::tuple("ratelimit_xds_tls_cert", &options.cert, &pem.pem_cert_chain),
        std::tuple("ratelimit_xds_tls_key", &options.key, &pem.pem_private_key)}) {
    auto text = ReadPem(flag, *path);
    if (!text.ok()) return text.status();
    *into = *std::move(text);
  }
  return grpc::SslCredentials(pem);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const AdsOptions& options) {
  auto credentials = MakeCredentials(options);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments;
  // Ignore the HTTP proxy that the environment may name.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A new channel is a new connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  if (!options.server_name.empty()) arguments.SetSslTargetNameOverride(options.server_name);
  const std::string target =
      options.server.rfind("unix:", 0) == 0 ? options.server : "dns:///" + options.server;
  return grpc::CreateCustomChannel(target, *credentials, arguments);
}

std::string Reason(const absl::Status& status) {
  std::string text(status.message());
  if (text.size() <= kMaxReasonBytes) return text;
  text.resize(kMaxReasonBytes);
  // No part of a character: a message with it could not be read.
  while (!text.empty() && !common::IsUtf8(text)) text.pop_back();
  return text + "...";
}

// Of all resources, in any order: management servers send them in another one each time.
std::string Sha256(const discovery::DiscoveryResponse& response) {
  std::vector<std::string> hashes;
  for (const google::protobuf::Any& resource : response.resources()) {
    hashes.push_back(config::Sha256Hex(resource.value()));
  }
  std::sort(hashes.begin(), hashes.end());
  return config::Sha256Hex(absl::StrJoin(hashes, ""));
}

// With what to do, where grpc++'s text does not say it.
std::string Advice(const grpc::Status& status, const AdsOptions& options) {
  std::string text = status.error_message();
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
      text.find("larger than max") != std::string::npos) {
    absl::StrAppend(&text, "; raise --ratelimit_xds_max_bytes (now ", options.max_message_bytes,
                    ")");
  }
  return text;
}

}  // namespace

AdsClient::AdsClient(AdsOptions options, Apply apply, common::Log& log)
    : options_(std::move(options)),
      apply_(std::move(apply)),
      log_(log),
      random_(static_cast<uint32_t>(common::RandomWord())) {}

absl::Status AdsClient::CheckFiles(const AdsOptions& options) {
  return MakeCredentials(options).status();
}

void AdsClient::Start() {
  // gRPC writes lines of its own to stderr. What they say is in the status of the stream, too.
  gpr_set_log_function([](gpr_log_func_args*) {});
  thread_ = std::thread([this] { Run(); });
}

void AdsClient::Stop() {
  {
    const common::MutexLock lock(&mu_);
    stop_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool AdsClient::AwaitConfiguration(milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  const common::MutexLock lock(&mu_);
  while (!configured_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    changed_.WaitFor(&mu_, left);
  }
  return true;
}

void AdsClient::Run() {
  common::LowerPriority();
  for (int failures = 0;;) {
    answered_ = false;
    const absl::Status why = RunStream();
    {
      const common::MutexLock lock(&mu_);
      if (stop_) return;
    }
    failures = answered_ ? 1 : failures + 1;
    const milliseconds pause = NextPause(failures);
    log_.Warning("xds_disconnected", {{"server", options_.server},
                                      {"error", why.message()},
                                      {"active_version", accepted_},
                                      {"next_attempt_ms", pause.count()}});
    Pause(pause);
  }
}

absl::Status AdsClient::RunStream() {
  grpc::ClientContext context;
  {
    const common::MutexLock lock(&mu_);
    if (stop_) return absl::CancelledError("stopped");
    call_ = &context;
  }
  const auto forget_call = absl::MakeCleanup([this] {
    const common::MutexLock lock(&mu_);
    call_ = nullptr;
  });
  return Converse(context);
}

absl::Status AdsClient::Converse(grpc::ClientContext& context) {
  const auto channel = MakeChannel(options_);
  if (!channel.ok()) return channel.status();
  const auto stub = discovery::AggregatedDiscoveryService::NewStub(*channel);
  const auto stream = stub->StreamAggregatedResources(&context);
  // Without a version: another management server may have numbered another configuration so.
  Request request;
  request.mutable_node()->set_id(options_.node);
  request.mutable_node()->set_user_agent_name("sluice");
  request.set_type_url(kRateLimitConfigType);
  bool open = stream->Write(request);
  while (open) {
    Response response;
    if (!stream->Read(&response)) break;
    answered_ = true;
    const Request answer = Answer(response);
    // Management servers send what was refused again at once.
    if (refusals_ > 1) Pause(NextPause(refusals_));
    open = stream->Write(answer);
  }
  // Else Finish would wait for responses that nothing reads.
  if (!open) context.TryCancel();
  const grpc::Status end = stream->Finish();
  if (end.ok()) return absl::UnavailableError("the server ended the stream");
  return {static_cast<absl::StatusCode>(end.error_code()), Advice(end, options_)};
}

AdsClient::Request AdsClient::Answer(Response& response) {
  const std::string version = response.version_info();
  Request answer;
  answer.set_type_url(kRateLimitConfigType);
  answer.set_response_nonce(response.nonce());
  const int resources = response.resources_size();
  if (const absl::Status taken = Take(response); taken.ok()) {
    accepted_ = version;
    refusals_ = 0;
    log_.Info("xds_configuration", {{"version", version}, {"resources", resources}});
    const common::MutexLock lock(&mu_);
    configured_ = true;
    changed_.SignalAll();
  } else {
    refusals_ = version == refused_ ? refusals_ + 1 : 1;
    refused_ = version;
    answer.mutable_error_detail()->set_code(static_cast<int>(taken.code()));
    answer.mutable_error_detail()->set_message(Reason(taken));
    log_.Error("xds_configuration_refused",
               {{"version", version}, {"error", taken.message()}, {"active_version", accepted_}});
  }
  answer.set_version_info(accepted_);
  return answer;
}

absl::Status AdsClient::Take(Response& response) {
  if (response.type_url() != kRateLimitConfigType) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the response's type_url is \"", response.type_url(), "\"; send ", kRateLimitConfigType));
  }
  std::string sha256 = Sha256(response);
  absl::StatusOr<DescriptorTree> tree = ReadResources(&response);
  if (!tree.ok()) return tree.status();
  return apply_({*std::move(tree), response.version_info(), std::move(sha256)});
}

void AdsClient::Pause(milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  const common::MutexLock lock(&mu_);
  while (!stop_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    changed_.WaitFor(&mu_, left);
  }
}

milliseconds AdsClient::NextPause(int failures) {
  const milliseconds most = std::min(
      options_.most_pause, options_.first_pause * (int64_t{1} << std::min(failures - 1, 20)));
  return milliseconds(
      std::uniform_int_distribution<int64_t>(most.count() / 2, most.count())(random_));
}

}  // namespace sluice::envoy
