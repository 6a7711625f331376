// ServerTest: a test with stubs to a real server.
#ifndef SLUICE_TESTS_INTEGRATION_SERVER_SERVER_TEST_H_
#define SLUICE_TESTS_INTEGRATION_SERVER_SERVER_TEST_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"
#include "tests/support/server_process.h"

namespace sluice::testing {

class ServerTest : public ::testing::Test {
 protected:
  // Starts the server and connects to both ports.
  void Start(ServerProcess::Options options) {
    server_ = std::make_unique<ServerProcess>(std::move(options));
    if (!server_->ready()) return;
    data_ = v1::RateLimiter::NewStub(server_->DataChannel());
    admin_ = v1::LimitAdmin::NewStub(server_->AdminChannel());
  }

  static v1::AcquireRequest Request(const std::string& limit, const std::string& key,
                                    uint64_t permits = 1) {
    v1::AcquireRequest request;
    v1::Charge* const charge = request.add_charges();
    charge->set_limit(limit);
    charge->set_key(key);
    charge->set_permits(permits);
    return request;
  }

  grpc::Status Acquire(const v1::AcquireRequest& request, v1::AcquireResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    return data_->Acquire(&context, request, response);
  }
  grpc::Status Acquire(const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    return Acquire(request, &response);
  }
  // Whether the acquisition was granted; fails the test on an error. Tries again for a while if the
  // store was unavailable and nothing was taken: on a busy machine Redis may exceed its budget.
  bool Granted(const std::string& limit, const std::string& key, uint64_t permits = 1) {
    return GrantedBy(*data_, Request(limit, key, permits));
  }

  // The same on any server.
  static bool GrantedBy(v1::RateLimiter::Stub& server, const v1::AcquireRequest& request) {
    v1::AcquireResponse response;
    return GrantedBy(server, request, &response);
  }
  static bool GrantedBy(v1::RateLimiter::Stub& server, const v1::AcquireRequest& request,
                        v1::AcquireResponse* response) {
    grpc::Status status;
    for (int tries = 0; tries < 100; ++tries) {
      grpc::ClientContext context;
      context.set_deadline(Soon());
      status = server.Acquire(&context, request, response);
      const auto executed = context.GetServerTrailingMetadata().find(common::kExecutedMetadata);
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE ||
          executed == context.GetServerTrailingMetadata().end() ||
          executed->second != common::kNotExecuted) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response->granted();
  }

  int64_t Remaining(const std::string& limit, const std::string& key) {
    grpc::ClientContext context;
    context.set_deadline(Soon());
    v1::QueryRequest request;
    request.add_buckets()->set_limit(limit);
    request.mutable_buckets(0)->set_key(key);
    v1::QueryResponse response;
    const grpc::Status status = data_->Query(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.buckets_size() == 1 ? response.buckets(0).remaining() : -1'000'000;
  }

  static std::chrono::system_clock::time_point Soon() {
    return std::chrono::system_clock::now() + std::chrono::seconds(20);
  }

  // Waits for an event in another process. Returns false after 20 s.
  static bool Eventually(const std::function<bool()>& condition) {
    const auto until = Soon();
    while (!condition()) {
      if (std::chrono::system_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<v1::RateLimiter::Stub> data_;
  std::unique_ptr<v1::LimitAdmin::Stub> admin_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_INTEGRATION_SERVER_SERVER_TEST_H_
