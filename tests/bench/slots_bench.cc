// Slots in the memory store, beside the token bucket's receipts.
//
//   slots_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=5
//
// BM_AcquireAndRefund: an acquisition with a receipt and its refund, of a token bucket (arg 0) and
// of slots (arg 1). BM_DecideAmongHolds: a denial by a bucket with so many holds.
// BM_GrantAmongHolds: a grant, which ends last, and its end. BM_RenewAmongHolds: one renewal, of
// the receipts in turn.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"

namespace sluice {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct AcquireOperation final : store::AcquireOperation {
  void Done() override {}
};
struct RefundOperation final : store::RefundOperation {
  void Done() override {}
};
struct RenewOperation final : store::RenewOperation {
  void Done() override {}
};

std::shared_ptr<const store::Rule> MakeRule(const algorithm::Parameters& parameters) {
  auto rule = std::make_shared<store::Rule>();
  rule->id = rule->limit_id = 1;
  rule->limit_name = "bench";
  rule->parameters = parameters;
  return rule;
}

// A store with one limit.
class Bench {
 public:
  explicit Bench(const algorithm::Parameters& parameters) : rule_(MakeRule(parameters)) {
    store_.Register(rule_);
  }

  // 0: denied.
  uint64_t Acquire(uint64_t permits = 1) {
    charge_ = {rule_.get(), "key", permits};
    acquisition_ = {};
    acquisition_.charges = absl::MakeConstSpan(&charge_, 1);
    acquisition_.results = &result_;
    acquisition_.want_receipt = true;
    AcquireOperation operation;
    operation.acquisitions = absl::MakeSpan(&acquisition_, 1);
    store_.Acquire(&operation);
    return acquisition_.receipt_id;
  }
  void Refund(uint64_t receipt_id) {
    RefundOperation operation;
    operation.receipt_id = receipt_id;
    operation.charges = absl::MakeConstSpan(&charge_, 1);
    operation.refunded = &refunded_;
    store_.Refund(&operation);
  }
  bool Renew(uint64_t receipt_id) {
    store::Renewal renewal;
    renewal.receipt_id = receipt_id;
    renewal.charges = absl::MakeConstSpan(&charge_, 1);
    RenewOperation operation;
    operation.items = absl::MakeSpan(&renewal, 1);
    store_.Renew(&operation);
    return renewal.outcome == store::RenewOutcome::kRenewed;
  }

 private:
  const common::SystemClock clock_;
  store::MemoryStore store_{clock_};
  const std::shared_ptr<const store::Rule> rule_;
  store::Charge charge_;
  store::ChargeResult result_;
  store::Acquisition acquisition_;
  uint64_t refunded_ = 0;
};

void BM_AcquireAndRefund(benchmark::State& state) {
  Bench bench(state.range(0) == 0 ? *algorithm::MakeTokenBucket({1'000'000, kSecond}, 1'000'000, 0)
                                  : *algorithm::MakeConcurrency(1'000'000, 30 * kSecond));
  for (auto _ : state) bench.Refund(bench.Acquire());
}
BENCHMARK(BM_AcquireAndRefund)->Arg(0)->Arg(1);

void BM_DecideAmongHolds(benchmark::State& state) {
  const auto holds = static_cast<uint64_t>(state.range(0));
  Bench bench(*algorithm::MakeConcurrency(holds + 1, 3600 * kSecond));
  for (uint64_t i = 0; i < holds; ++i) bench.Acquire();
  // A denial, which computes when so many would be free.
  for (auto _ : state) benchmark::DoNotOptimize(bench.Acquire(holds / 2));
}
BENCHMARK(BM_DecideAmongHolds)->Arg(10)->Arg(10'000)->Arg(100'000);

void BM_GrantAmongHolds(benchmark::State& state) {
  const auto holds = static_cast<uint64_t>(state.range(0));
  Bench bench(*algorithm::MakeConcurrency(holds + 1, 3600 * kSecond));
  for (uint64_t i = 0; i < holds; ++i) bench.Acquire();
  for (auto _ : state) {
    const uint64_t receipt = bench.Acquire();
    if (receipt == 0) state.SkipWithError("denied");
    bench.Refund(receipt);
  }
}
BENCHMARK(BM_GrantAmongHolds)->Arg(10)->Arg(10'000)->Arg(100'000);

void BM_RenewAmongHolds(benchmark::State& state) {
  const auto holds = static_cast<uint64_t>(state.range(0));
  Bench bench(*algorithm::MakeConcurrency(holds, 3600 * kSecond));
  std::vector<uint64_t> receipts;
  for (uint64_t i = 0; i < holds; ++i) receipts.push_back(bench.Acquire());
  size_t next = 0;
  for (auto _ : state) {
    if (!bench.Renew(receipts[next])) state.SkipWithError("gone");
    if (++next == receipts.size()) next = 0;
  }
}
BENCHMARK(BM_RenewAmongHolds)->Arg(10)->Arg(10'000)->Arg(100'000);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
