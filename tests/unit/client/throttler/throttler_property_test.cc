// Random histories of a throttler on the virtual clock: functions are submitted on several
// channels, cancelled and tried, and limits change while they wait. The reference checks every
// window of the history.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sluice/embedded.h"
#include "sluice/throttler.h"
#include "tests/support/window_checker.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using test_support::Grant;
using test_support::Wide;

constexpr int64_t kPeriodNs = 1'000'000'000;
constexpr size_t kChannels = 3;  // "overall", and two that also charge it
constexpr const char* kNames[kChannels] = {"overall", "a", "b"};

// Generates all values with equal probability, also in rapidcheck's small first cases.
template <typename T>
T Any(T from, T until) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(from, until));
}

// The parameters of one limit. The period never changes, so that the counts of logs and windows
// carry over exactly; nor do a token bucket's burst and debt.
struct Parameters {
  std::string algorithm;
  uint64_t permits = 1;
  uint64_t burst = 0;
  uint64_t debt = 0;

  bool is_token_bucket() const { return algorithm == "token_bucket"; }
  uint64_t most_at_once() const { return is_token_bucket() ? burst + debt : permits; }
};

Parameters AnyLimit() {
  Parameters parameters;
  parameters.algorithm = *rc::gen::element<std::string>("token_bucket", "sliding_log",
                                                        "sliding_window", "fixed_window");
  parameters.permits = Any<uint64_t>(1, 8);
  if (parameters.is_token_bucket()) {
    parameters.debt = *rc::gen::element<uint64_t>(0, 0, 2);
    parameters.burst = Any<uint64_t>(parameters.debt > 0 ? 0 : 1, 6);
  }
  return parameters;
}

using AllParameters = std::array<Parameters, kChannels>;

std::vector<LimitInfo> ToLimits(const AllParameters& all) {
  std::vector<LimitInfo> limits;
  for (size_t c = 0; c < kChannels; ++c) {
    LimitInfo& info = limits.emplace_back();
    info.name = kNames[c];
    info.algorithm = all[c].algorithm;
    info.rate = {all[c].permits, nanoseconds(kPeriodNs)};
    if (all[c].is_token_bucket()) {
      info.burst = all[c].burst;
      info.debt = all[c].debt;
    }
    if (c > 0) info.charges = {"overall"};
  }
  return limits;
}

// A grant of one limit, and the parameters that decided it.
struct Passed {
  Grant grant;
  size_t parameters = 0;  // index of the change
};

// No window that ends with a grant holds more than the parameters of that grant allow.
std::string Check(const std::vector<Passed>& history, const std::vector<Parameters>& parameters,
                  int64_t wall_offset_ns) {
  if (parameters[0].is_token_bucket()) {
    // Stored permits carry over, so check from each change to the next.
    for (size_t change = 0; change < parameters.size(); ++change) {
      std::vector<Grant> grants;
      for (const Passed& one : history) {
        if (one.parameters == change) grants.push_back(one.grant);
      }
      const std::string over =
          test_support::CheckRateInEveryWindow(grants, parameters[change].permits, kPeriodNs,
                                               parameters[change].burst + parameters[change].debt);
      if (!over.empty()) return over;
    }
    return "";
  }
  const auto window = [&](int64_t at_ns) { return (at_ns + wall_offset_ns) / kPeriodNs; };
  for (size_t last = 0; last < history.size(); ++last) {
    const int64_t end_ns = history[last].grant.at_ns;
    Wide sum = 0;
    for (size_t i = 0; i <= last; ++i) {
      const int64_t at_ns = history[i].grant.at_ns;
      const bool counts = parameters[0].algorithm == "fixed_window"
                              ? window(at_ns) == window(end_ns)
                              : at_ns > end_ns - kPeriodNs;
      if (counts) sum += history[i].grant.permits;
    }
    if (sum > parameters[history[last].parameters].permits) {
      return "the window that ends with grant " + std::to_string(last) + " at " +
             std::to_string(end_ns) + " ns holds " + test_support::WideText(sum);
    }
  }
  return "";
}

struct Task {
  size_t channel = 0;
  uint64_t permits = 1;
  nanoseconds latest{0};
  std::stop_source stop = {};
  bool stopped = false;
  int runs = 0;
  nanoseconds ran_at{0};
  std::future<Status> future = {};
};

RC_GTEST_PROP(ThrottlerPropertyTest, RandomHistoriesKeepWindowsAndOrderAndAnswerEachOnce, ()) {
  const auto clock = std::make_shared<VirtualClock>();
  const int64_t wall_offset_ns = (clock->WallNow() - clock->Now()).count();
  AllParameters now{AnyLimit(), AnyLimit(), AnyLimit()};
  std::array<std::vector<Parameters>, kChannels> parameters;
  for (size_t c = 0; c < kChannels; ++c) parameters[c] = {now[c]};
  const auto embedded = Embedded::Create(ToLimits(now), {.clock = clock}).value();
  std::array<std::vector<Passed>, kChannels> passed;
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<const Task*> ran;
  size_t change = 0;
  const auto pass = [&](size_t channel, uint64_t permits) {
    const Passed one{{clock->Now().count(), permits}, change};
    passed[channel].push_back(one);
    if (channel != 0) passed[0].push_back(one);
  };
  const auto most_on = [&](size_t channel) {
    return std::min(now[channel].most_at_once(), now[0].most_at_once());
  };

  Throttler throttler = Throttler::Create(embedded, {.limit = "overall",
                                                     .executor = std::make_shared<InlineExecutor>(),
                                                     .at_destruction = AtShutdown::kDrop})
                            .value();
  const std::array<ThrottlerChannel, kChannels> channels = {
      throttler, throttler.Channel("a").value(), throttler.Channel("b").value()};
  const int steps = Any(20, 150);
  for (int step = 0; step < steps; ++step) {
    switch (Any(0, 10)) {
      case 0:
      case 1:
        clock->Advance(milliseconds(Any(0, 1500)));
        break;
      case 2:
        if (!tasks.empty()) {
          Task& task = *tasks[Any<size_t>(0, tasks.size())];
          task.stopped = true;
          task.stop.request_stop();
        }
        break;
      case 3: {
        for (Parameters& one : now) {
          if (Any(0, 2) == 0) one.permits = Any<uint64_t>(1, 8);
        }
        ++change;
        for (size_t c = 0; c < kChannels; ++c) parameters[c].push_back(now[c]);
        RC_ASSERT(embedded->SetLimits(ToLimits(now)).ok());
        break;
      }
      case 4: {
        const auto c = Any<size_t>(0, kChannels);
        const uint64_t permits = Any<uint64_t>(1, most_on(c) + 1);
        if (channels[c].TryStart(permits).value() == nanoseconds(0)) pass(c, permits);
        break;
      }
      default: {
        auto task = std::make_unique<Task>();
        Task* const one = task.get();
        one->channel = Any<size_t>(0, kChannels);
        one->permits = Any<uint64_t>(1, most_on(one->channel) + 1);
        const nanoseconds max_wait = *rc::gen::element<nanoseconds>(
            milliseconds(0), milliseconds(700), seconds(3), std::chrono::hours(1));
        one->latest = clock->Now() + max_wait;
        one->future = channels[one->channel].Submit(
            [&, one] {
              ++one->runs;
              one->ran_at = clock->Now();
              ran.push_back(one);
              pass(one->channel, one->permits);
            },
            {.permits = one->permits, .max_wait = max_wait, .cancel = one->stop.get_token()});
        tasks.push_back(std::move(task));
      }
    }
  }
  clock->Advance(std::chrono::hours(2));

  RC_ASSERT(throttler.stats().waiting == 0u);
  for (const auto& task : tasks) {
    RC_ASSERT(task->future.wait_for(seconds(0)) == std::future_status::ready);
    const Status status = task->future.get();
    RC_ASSERT(task->runs == (status.ok() ? 1 : 0));
    if (status.ok()) {
      RC_ASSERT(task->ran_at <= task->latest);
    } else if (status.code() == StatusCode::kCancelled) {
      RC_ASSERT(task->stopped);
    } else {
      // A lowered limit may never grant so many permits.
      RC_ASSERT(status.code() == StatusCode::kDeadlineExceeded ||
                status.code() == StatusCode::kInvalidArgument);
    }
  }
  // Each channel runs in the order of submission.
  std::map<const Task*, size_t> number;
  for (size_t i = 0; i < tasks.size(); ++i) number[tasks[i].get()] = i;
  std::array<size_t, kChannels> next{};
  for (const Task* task : ran) {
    RC_ASSERT(number[task] >= next[task->channel]);
    next[task->channel] = number[task] + 1;
  }
  for (size_t c = 0; c < kChannels; ++c) {
    RC_ASSERT(Check(passed[c], parameters[c], wall_offset_ns) == "");
  }
}

}  // namespace
}  // namespace sluice
