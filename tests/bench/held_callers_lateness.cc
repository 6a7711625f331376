// Measures how late held callers are answered, by the store's clock, and the cost of waiting.
//   held_callers_lateness CALLERS PER_SECOND
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"
#include "server/waiting/alarm_thread.h"
#include "server/waiting/held_callers.h"

namespace sluice::waiting {
namespace {

class NoChange final : public RuleSource {
 public:
  uint64_t Generation() override { return 1; }
  Refreshed Refresh(absl::Span<store::Charge>, std::shared_ptr<const void>*) override {
    return Refreshed::kSame;
  }
};

struct Waiter final : HeldCaller {
  void OnAnswer(HeldOutcome) override {
    late_ns = clock->NowNs() - grant_time_ns();
    left->fetch_sub(1);
  }
  const common::Clock* clock = nullptr;
  std::atomic<int>* left = nullptr;
  store::Charge charge;
  store::ChargeResult result;
  store::Acquisition decided;
  int64_t late_ns = 0;
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

long ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  long all = 0;
  long resident = 0;
  statm >> all >> resident;
  return resident * 4096;
}

struct Operation final : store::AcquireOperation {
  void Done() override {}
};

int Run(int callers, int64_t per_second) {
  const common::SystemClock clock;
  store::MemoryStore store(clock);
  auto rule = std::make_shared<store::Rule>();
  rule->id = rule->limit_id = 1;
  rule->limit_name = "calls";
  rule->parameters =
      algorithm::MakeTokenBucket({static_cast<uint64_t>(per_second), 1'000'000'000}, 1, 0).value();
  store.Register(rule);
  NoChange rules;
  AlarmThread alarm(clock);
  HeldCallers held_callers(store, clock, rules, alarm);
  alarm.Start(held_callers);
  std::atomic<int> left{0};
  std::vector<Waiter> waiters(static_cast<size_t>(callers));
  for (Waiter& waiter : waiters) waiter.late_ns = -1;
  const long resident_before = ResidentBytes();
  const int64_t started_ns = clock.NowNs();
  for (Waiter& waiter : waiters) {
    waiter.clock = &clock;
    waiter.left = &left;
    waiter.charge = {rule.get(), "", 1};
    waiter.decided.charges = absl::MakeConstSpan(&waiter.charge, 1);
    waiter.decided.results = &waiter.result;
    waiter.decided.max_wait_ns = int64_t{3600} * 1'000'000'000;
    waiter.acquisition = &waiter.decided;
    waiter.generation = 1;
    Operation operation;
    operation.acquisitions = absl::MakeSpan(&waiter.decided, 1);
    store.Acquire(&operation);
    if (waiter.decided.outcome != store::Outcome::kGranted || waiter.decided.wait_ns == 0) continue;
    waiter.since_ns = waiter.decided.now_ns;
    waiter.until_ns = waiter.since_ns + waiter.decided.max_wait_ns;
    left.fetch_add(1);
    held_callers.Hold(&waiter);
  }
  const int held = left.load();
  std::printf("%d callers held in %.1f ms; %.0f bytes each, without the caller's own object\n",
              held, static_cast<double>(clock.NowNs() - started_ns) * 1e-6,
              static_cast<double>(ResidentBytes() - resident_before) / std::max(held, 1));
  const double cpu = CpuSeconds();
  const int64_t from_ns = clock.NowNs();
  const int before = left.load();
  const int64_t until_ns = from_ns + 20'000'000'000;
  while (left.load() > 0 && clock.NowNs() < until_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const double seconds = static_cast<double>(clock.NowNs() - from_ns) * 1e-9;
  std::printf("%d answered in %.1f s, CPU %.2f %%\n", before - left.load(), seconds,
              (CpuSeconds() - cpu) / seconds * 100);
  alarm.Stop();
  std::vector<int64_t> late;
  for (const Waiter& waiter : waiters) {
    if (waiter.left != nullptr && waiter.late_ns != -1) late.push_back(waiter.late_ns);
  }
  held_callers.Drain();
  if (late.empty()) return 0;
  std::sort(late.begin(), late.end());
  const auto at = [&](double part) {
    return static_cast<double>(
               late[static_cast<size_t>(part * (static_cast<double>(late.size()) - 1))]) *
           1e-6;
  };
  std::printf("late, ms: least %.3f p50 %.3f p99 %.3f p99.9 %.3f most %.3f\n", at(0), at(0.5),
              at(0.99), at(0.999), at(1));
  return at(0) < 0 ? 1 : 0;
}

}  // namespace
}  // namespace sluice::waiting

int main(int argc, char** argv) {
  const int callers = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int64_t per_second = argc > 2 ? std::atoll(argv[2]) : 1000;
  return sluice::waiting::Run(callers, per_second);
}
