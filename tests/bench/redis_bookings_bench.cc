// What a reservation over Redis costs behind others, in CPU time of the node and of Redis. Starts a
// redis-server of its own.
//
//   redis_bookings_bench [STEPS]
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kDay = 24 * 3600 * kSecond;

double OwnCpuUs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

double RedisCpuUs(RedisCalls& calls) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(calls.Call({"INFO", "cpu"}).text, "\r\n")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ':');
    double value;
    if (parts.size() == 2 && (parts[0] == "used_cpu_user" || parts[0] == "used_cpu_sys") &&
        absl::SimpleAtod(parts[1], &value)) {
      sum += value * 1e6;
    }
  }
  return sum;
}

void Measure(const char* name, const algorithm::Parameters& parameters, size_t behind, int steps,
             size_t together, bool one_by_one, int nodes) {
  RedisServer server;
  RedisCalls calls(server);
  const auto rule = MakeRule(1, parameters);
  std::vector<std::unique_ptr<RedisNode>> all;
  for (int n = 0; n < nodes; ++n) {
    all.push_back(std::make_unique<RedisNode>(server.url()));
    all.back()->store().Register(rule);
  }
  const AcquireOptions wait{.max_wait_ns = kDay};
  for (size_t booked = 0; booked < behind;) {
    const size_t count = one_by_one ? 1 : std::min<size_t>(behind - booked, 256);
    AcquireBatch(all[0]->store(),
                 std::vector<std::vector<store::Charge>>(count, {{rule.get(), "k", 1}}), wait);
    booked += count;
  }
  const double own_us = OwnCpuUs();
  const double redis_us = RedisCpuUs(calls);
  size_t granted = 0;
  for (int s = 0; s < steps; ++s) {
    for (const Acquired& acquired : AcquireBatch(
             all[s % all.size()]->store(),
             std::vector<std::vector<store::Charge>>(together, {{rule.get(), "k", 1}}), wait)) {
      granted += acquired.granted() ? 1 : 0;
    }
  }
  const double own = (OwnCpuUs() - own_us) / steps;
  const double redis = (RedisCpuUs(calls) - redis_us) / steps;
  size_t bytes = 0;
  for (const RedisValue& key : calls.Call({"KEYS", "*"}).elements) {
    bytes += static_cast<size_t>(calls.Call({"MEMORY", "USAGE", key.text}).integer);
  }
  std::printf(
      "%-14s behind %5zu %s, %4zu together, %d node%s: node %7.0f us, Redis %6.0f us a step;"
      " %zu bytes, %zu granted\n",
      name, behind, one_by_one ? "booked one by one" : "booked 256 at once", together, nodes,
      nodes == 1 ? " " : "s", own, redis, bytes, granted);
}

// A log with as many runs as it can have, and one booking behind them all.
void MeasureLongLog(int steps) {
  RedisServer server;
  RedisCalls calls(server);
  constexpr uint64_t kPermits = 100'000;
  const auto rule = MakeRule(1, *algorithm::MakeSlidingLog({kPermits, 10 * kSecond}));
  RedisNode node(server.url());
  node.store().Register(rule);
  // A run for each quantum, until the first ones expire.
  const int64_t begin_ns = node.clock().NowNs();
  while (node.clock().NowNs() - begin_ns < 9 * kSecond) Acquire(node.store(), *rule, "k");
  const AcquireOptions wait{.max_wait_ns = kDay};
  Acquire(node.store(), *rule, "k", kPermits, wait);
  const double own_us = OwnCpuUs();
  const double redis_us = RedisCpuUs(calls);
  for (int s = 0; s < steps; ++s) Acquire(node.store(), *rule, "k", 1, wait);
  const RedisValue runs =
      calls.Call({"HGETALL", store::redis::KeysOf("sluice", rule->limit_name, "k")[2]});
  size_t bytes = 0;
  for (const RedisValue& one : runs.elements) bytes += one.text.size();
  std::printf("sliding_log    of a long past: node %7.0f us, Redis %6.0f us a step; %zu bytes\n",
              (OwnCpuUs() - own_us) / steps, (RedisCpuUs(calls) - redis_us) / steps, bytes);
}

}  // namespace
}  // namespace sluice::testing

int main(int argc, char** argv) {
  using namespace sluice;
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const algorithm::Parameters token = *algorithm::MakeTokenBucket({1, testing::kSecond}, 1, 0);
  const algorithm::Parameters log = *algorithm::MakeSlidingLog({100, 100 * testing::kSecond});
  for (const size_t behind : {1, 1000, 10'000}) {
    testing::Measure("token_bucket", token, behind, steps, 1, false, 1);
    testing::Measure("token_bucket", token, behind, steps, 1, true, 1);
    testing::Measure("token_bucket", token, behind, steps, 1, true, 2);
    testing::Measure("sliding_log", log, behind, steps, 1, true, 1);
  }
  testing::Measure("token_bucket", token, 1000, steps / 10, 256, false, 1);
  testing::MeasureLongLog(steps);
}
