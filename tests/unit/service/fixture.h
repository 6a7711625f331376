// ServiceTest: the use cases on a memory store and a fake clock.
#ifndef SLUICE_TESTS_UNIT_SERVICE_FIXTURE_H_
#define SLUICE_TESTS_UNIT_SERVICE_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/caller.h"
#include "server/limits/limit_registry.h"
#include "server/service/acquire_call.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"

namespace sluice::service {

inline constexpr int64_t kSecond = 1'000'000'000;

inline limits::LimitSpec PerSecond(std::string name, uint64_t permits) {
  limits::LimitSpec spec;
  spec.name = std::move(name);
  spec.rate = {permits, kSecond};
  return spec;
}

inline limits::LimitSpec Concurrency(std::string name, uint64_t permits, int64_t hold_for_ns) {
  limits::LimitSpec spec;
  spec.name = std::move(name);
  spec.algorithm = algorithm::Kind::kConcurrency;
  spec.permits = permits;
  spec.hold_for_ns = hold_for_ns;
  return spec;
}

// Every caller is one client, which may use this limit and no other.
inline access::Clients ClientsThatMayUse(std::string limit) {
  access::Client client;
  client.name = "anonymous";  // recognised without a proof
  client.limits = access::NamePatterns({std::move(limit)});
  return access::Clients(
      std::make_shared<const access::ClientTable>(std::vector<access::Client>{client}));
}

class ServiceTest : public ::testing::Test {
 protected:
  void Load(std::vector<limits::LimitSpec> specs) {
    const auto applied = registry_.ApplyFile(std::move(specs), std::to_string(++version_));
    ASSERT_TRUE(applied.ok()) << applied.status();
  }

  // Runs the call, which must complete at once, as on a memory store.
  void Run(AcquireCall* call, int64_t deadline_ns = store::kNoDeadline) {
    int done = 0;
    limiter_.Acquire(
        call, deadline_ns, [](void* context, AcquireCall*) { ++*static_cast<int*>(context); },
        &done);
    ASSERT_EQ(done, 1);
  }

  // One unary acquisition of one charge.
  AcquisitionResult Acquire(std::string_view limit, std::string_view key, uint64_t permits = 1,
                            AcquisitionOptions options = {}) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(options);
    call_.AddCharge(limit, key, permits);
    Run(&call_);
    EXPECT_TRUE(call_.status().ok()) << call_.status();
    return call_.result(0);
  }

  absl::Status Refund(std::string_view receipt, RefundCall* call) {
    call->Reset(receipt);
    limiter_.Refund(call, store::kNoDeadline, [](void*, RefundCall*) {}, nullptr);
    return call->status();
  }

  int64_t Remaining(std::string_view limit, std::string_view key) {
    QueryCall call;
    call.Reset();
    call.AddBucket(limit, key);
    limiter_.Query(&call, store::kNoDeadline, [](void*, QueryCall*) {}, nullptr);
    EXPECT_TRUE(call.status().ok()) << call.status();
    return call.status().ok() ? call.bucket(0).level.remaining : -1;
  }

  common::FakeClock clock_;
  common::Metrics metrics_;
  store::MemoryStore store_{clock_, {.seed = 1}};
  limits::LimitRegistry registry_{&store_};
  KeyUsage usage_;
  ReceiptSigner signer_;
  RateLimiter limiter_{registry_, store_, clock_, metrics_, usage_, signer_};
  AcquireCall call_;
  int version_ = 0;
};

}  // namespace sluice::service

#endif  // SLUICE_TESTS_UNIT_SERVICE_FIXTURE_H_
