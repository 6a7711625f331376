// A small RateLimiter over grpc++, for servers.py, which says what it does.
// Arguments: [CERT_FILE KEY_FILE].
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"

namespace {

using grpc::Status;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
namespace v1 = sluice::v1;

constexpr char kSpecial[] = "100% of \"gr\u00f6\u00dfe\":\n\tnone \u2192 %41";

class Limiter final : public v1::RateLimiter::Service {
 public:
  Status Acquire(grpc::ServerContext* context, const v1::AcquireRequest* request,
                 v1::AcquireResponse* answer) override {
    const std::string& limit = request->charges(0).limit();
    milliseconds wait{0};
    if (limit == "hang") wait = std::chrono::hours(1);
    if (limit == "load") wait = milliseconds(20);
    if (request->hold()) wait = milliseconds(request->max_wait().nanos() / 1'000'000);
    for (const auto end = steady_clock::now() + wait; steady_clock::now() < end;) {
      if (!Pause(context, limit)) return Status::CANCELLED;
    }
    return Decide(*request, answer);
  }

  Status AcquireBatch(grpc::ServerContext*, const v1::AcquireBatchRequest* batch,
                      v1::AcquireBatchResponse* answer) override {
    for (const v1::AcquireRequest& one : batch->acquisitions()) {
      v1::AcquireResult* const result = answer->add_results();
      const Status status = Decide(one, result->mutable_response());
      if (status.ok()) continue;
      result->mutable_error()->set_code(status.error_code());
      result->mutable_error()->set_message(status.error_message());
    }
    return Status::OK;
  }

  Status AcquireStream(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::AcquireBatchResponse, v1::AcquireBatchRequest>*
                           stream) override {
    for (v1::AcquireBatchRequest batch; stream->Read(&batch);) {
      v1::AcquireBatchResponse answer;
      AcquireBatch(context, &batch, &answer);
      stream->Write(answer);
    }
    return Status::OK;
  }

  Status Query(grpc::ServerContext*, const v1::QueryRequest* request,
               v1::QueryResponse* answer) override {
    const std::lock_guard lock(mu_);
    for (const auto& bucket : request->buckets()) {
      v1::BucketStatus* const status = answer->add_buckets();
      status->set_limit(bucket.limit());
      status->set_key(bucket.key());
      status->set_remaining(Left(bucket.limit(), bucket.key()));
      status->set_capacity(10);
    }
    return Status::OK;
  }

  Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
               grpc::ServerWriter<v1::QueryResponse>* writer) override {
    v1::QueryRequest query;
    *query.mutable_buckets() = request->buckets();
    int64_t last = -1;
    do {
      v1::QueryResponse answer;
      Query(context, &query, &answer);
      const int64_t now = answer.buckets(0).remaining();
      if (std::exchange(last, now) != now) writer->Write(answer);
      if (request->buckets(0).limit() == "breaks") return {grpc::StatusCode::ABORTED, kSpecial};
    } while (Pause(context, request->buckets(0).limit()));
    return Status::CANCELLED;
  }

  Status Refund(grpc::ServerContext*, const v1::RefundRequest* request,
                v1::RefundResponse* answer) override {
    const std::lock_guard lock(mu_);
    const auto found = receipts_.find(request->receipt());
    if (found == receipts_.end()) return {grpc::StatusCode::INVALID_ARGUMENT, kSpecial};
    answer->set_outcome(found->second == nullptr ? v1::REFUND_OUTCOME_ALREADY_REFUNDED
                                                 : v1::REFUND_OUTCOME_REFUNDED);
    if (const auto charge = std::move(found->second); charge != nullptr) {
      ++Left(charge->limit(), charge->key());
      v1::RefundedCharge* const refunded = answer->add_charges();
      refunded->set_limit(charge->limit());
      refunded->set_key(charge->key());
      refunded->set_permits(1);
    }
    return Status::OK;
  }

  int executed() {
    const std::lock_guard lock(mu_);
    return executed_;
  }

 private:
  // Returns false if the caller is gone.
  bool Pause(grpc::ServerContext* context, const std::string& limit) {
    if (!context->IsCancelled()) {
      std::this_thread::sleep_for(milliseconds(5));
      return true;
    }
    const std::lock_guard lock(mu_);
    ++Left("cancelled", limit);
    return false;
  }

  int64_t& Left(const std::string& limit, const std::string& key) {
    return left_.try_emplace({limit, key}, 10).first->second;
  }

  Status Decide(const v1::AcquireRequest& request, v1::AcquireResponse* answer) {
    const std::lock_guard lock(mu_);
    const v1::Charge& charge = request.charges(0);
    if (charge.limit() == "missing") return {grpc::StatusCode::NOT_FOUND, kSpecial};
    const int64_t permits = charge.has_permits() ? static_cast<int64_t>(charge.permits()) : 1;
    int64_t& left = Left(charge.limit(), charge.key());
    answer->set_granted(left >= permits || charge.limit() == "load");
    answer->set_source(v1::SOURCE_STORE);
    if (charge.limit() == "load") {
      ++executed_;
    } else if (answer->granted()) {
      left -= permits;
    } else {
      answer->mutable_retry_after()->set_nanos(250'000'000);
    }
    if (request.want_receipt()) {
      std::string receipt = std::to_string(receipts_.size());
      for (int i = 0; i < 500; ++i) receipt.append("\x00\xff", 2);
      receipts_[receipt] = std::make_unique<v1::Charge>(charge);
      answer->set_receipt(std::move(receipt));
    }
    v1::ChargeStatus* const status = answer->add_charges();
    status->set_remaining(left);
    status->set_capacity(10);
    return Status::OK;
  }

  std::mutex mu_;
  std::map<std::pair<std::string, std::string>, int64_t> left_;
  std::map<std::string, std::unique_ptr<v1::Charge>> receipts_;  // null: refunded
  int executed_ = 0;
};

std::string Contents(const char* path) {
  std::stringstream contents;
  contents << std::ifstream(path).rdbuf();
  return contents.str();
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (argc > 2) {
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back({Contents(argv[2]), Contents(argv[1])});
    credentials = grpc::SslServerCredentials(tls);
  }
  Limiter limiter;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", credentials, &port);
  builder.RegisterService(&limiter);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("ready data=127.0.0.1:%d\n", port);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&stop, &signal);
  server->Shutdown();  // gracefully: calls that are open end first
  server->Wait();
  std::printf("executed=%d\n", limiter.executed());
}
