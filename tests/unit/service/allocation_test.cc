// Counts allocations of calls in steady state, by replacing operator new.
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/unit/service/fixture.h"

// gcc 12 at -O1 takes the operators new and delete below for a mismatched pair.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sluice::service {
namespace {

class AllocationTest : public ServiceTest {
 protected:
  void SetUp() override {
    auto child = PerSecond("child", 1000);
    child.charges = {"parent"};
    Load({PerSecond("api", 3), child, PerSecond("parent", 2000)});
    for (int i = 0; i < 2000; ++i)
      keys_.push_back("a key longer than any small string " + std::to_string(i));
  }

  // Grants and denials of unary calls and batches, with repeated keys.
  void Calls() {
    const auto nothing = [](void*, AcquireCall*) {};
    for (const std::string& key : keys_) {
      call_.Reset(AcquireCall::Form::kUnary);
      call_.BeginAcquisition({});
      call_.AddCharge("child", key, 1);
      call_.AddCharge("api", key, 1);
      limiter_.Acquire(&call_, store::kNoDeadline, nothing, nullptr);
      granted_ += call_.result(0).granted ? 1 : 0;
    }
    call_.Reset(AcquireCall::Form::kBatch);
    for (const std::string& key : keys_) {
      call_.BeginAcquisition({.want_receipt = false});
      call_.AddCharge("api", key, 1);
    }
    limiter_.Acquire(&call_, store::kNoDeadline, nothing, nullptr);
  }

  std::vector<std::string> keys_;
  uint64_t granted_ = 0;
};

TEST_F(AllocationTest, CallsInSteadyStateAllocateNothing) {
  // Warm up until calls are denied and all vectors have grown.
  for (int i = 0; i < 5; ++i) Calls();
  const uint64_t before = allocations;
  Calls();
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_GT(granted_, 0u);
}

TEST_F(AllocationTest, CountsAllocations) {
  const uint64_t before = allocations;
  keys_.push_back(std::string(100, 'x'));
  EXPECT_GT(allocations - before, 0u);
}

}  // namespace
}  // namespace sluice::service
