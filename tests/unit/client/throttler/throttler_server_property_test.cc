// Random histories of a throttler with a server that answers late and whose connection breaks. The
// server is a store on the same virtual clock, with a ledger: a limit that counts every permit and
// never runs out.
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

#include "common/clock.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"
#include "sluice/client.h"
#include "sluice/throttler.h"
#include "tests/support/store_connection.h"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::StoreConnection;

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kLedger = 1'000'000;
constexpr size_t kChannels = 3;

// Generates all values with equal probability, also in rapidcheck's small first cases.
template <typename T>
T Any(T from, T until) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(from, until));
}

class VirtualStoreClock final : public common::Clock {
 public:
  explicit VirtualStoreClock(const VirtualClock& clock) : clock_(clock) {}
  int64_t NowNs() const override { return clock_.Now().count(); }
  int64_t WallNs() const override { return clock_.WallNow().count(); }

 private:
  const VirtualClock& clock_;
};

struct Task {
  size_t channel = 0;
  uint64_t permits = 1;
  std::stop_source stop = {};
  bool stopped = false;
  int runs = 0;
  nanoseconds ran_at{0};
  std::future<Status> future = {};
};

RC_GTEST_PROP(ThrottlerServerPropertyTest, AnswersEachOnceInOrderAndThePermitsAddUp, ()) {
  const auto clock = std::make_shared<VirtualClock>();
  const VirtualStoreClock store_clock(*clock);
  store::MemoryStore store(store_clock);
  const auto overall =
      testing::MakeRule(1, algorithm::MakeSlidingLog({Any<uint64_t>(3, 8), kSecond}).value());
  const auto slow = testing::MakeRule(
      2, algorithm::MakeTokenBucket({Any<uint64_t>(1, 6), kSecond}, 3, 0).value());
  const auto ledger = testing::MakeRule(
      3, algorithm::MakeSlidingLog({kLedger, int64_t{24} * 3600 * kSecond}).value());
  for (const auto& rule : {overall, slow, ledger}) store.Register(rule);
  const store::Charge on_overall{overall.get(), "", 1};
  const store::Charge on_ledger{ledger.get(), "", 1};
  const auto connection = std::make_shared<StoreConnection>(
      store, std::map<std::string, std::vector<store::Charge>>{
                 {"overall", {on_overall, on_ledger}},
                 {"a", {{slow.get(), "a", 1}, on_overall, on_ledger}},
                 {"b", {{slow.get(), "b", 1}, on_overall, on_ledger}}});
  Client client(connection);
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<const Task*> ran;
  uint64_t tried = 0;
  {
    Throttler throttler = Throttler::Create(client, {.limit = "overall",
                                                     .executor = std::make_shared<InlineExecutor>(),
                                                     .at_destruction = AtShutdown::kDrop,
                                                     .clock = clock})
                              .value();
    const std::array<ThrottlerChannel, kChannels> channels = {
        throttler, throttler.Channel("a").value(), throttler.Channel("b").value()};
    const int steps = Any(20, 200);
    for (int step = 0; step < steps; ++step) {
      switch (Any(0, 12)) {
        case 0:
          clock->Advance(milliseconds(Any(0, 1500)));
          break;
        case 1:
          if (!tasks.empty()) {
            Task& task = *tasks[Any<size_t>(0, tasks.size())];
            task.stopped = true;
            task.stop.request_stop();
          }
          break;
        case 2:
          if (Any(0, 3) == 0) {
            connection->Break();
            connection->AdvanceDeadlines(seconds(1));  // then the next connection opens
          }
          break;
        case 3: {
          const auto c = Any<size_t>(0, kChannels);
          if (channels[c].TryStart().value() == nanoseconds(0)) ++tried;
          break;
        }
        case 4:
        case 5:
        case 6:
          connection->Step(*rc::gen::arbitrary<bool>());
          break;
        default: {
          auto task = std::make_unique<Task>();
          Task* const one = task.get();
          one->channel = Any<size_t>(0, kChannels);
          one->permits = Any<uint64_t>(1, 4);
          // Its max_wait identifies it in the server's records.
          const nanoseconds max_wait =
              *rc::gen::element<nanoseconds>(milliseconds(1), milliseconds(700), hours(1)) +
              nanoseconds(tasks.size());
          one->future = channels[one->channel].Submit(
              [&, one] {
                ++one->runs;
                one->ran_at = clock->Now();
                ran.push_back(one);
              },
              {.permits = one->permits, .max_wait = max_wait, .cancel = one->stop.get_token()});
          tasks.push_back(std::move(task));
        }
      }
    }
    // Time for another connection after growing pauses, or for the deadlines of the calls.
    for (int i = 0; i < 100; ++i) {
      while (connection->Step(/*execute=*/true)) {
      }
      connection->AdvanceDeadlines(seconds(1));
    }
    clock->Advance(hours(2));
    RC_ASSERT(throttler.stats().waiting == 0u);
  }

  std::vector<const StoreConnection::Record*> of(tasks.size(), nullptr);
  uint64_t debited = tried;
  for (const StoreConnection::Record& record : connection->records()) {
    if (record.max_wait_ns == 0) continue;  // a try
    const auto i = static_cast<size_t>(record.max_wait_ns % 1000);
    RC_ASSERT(of[i] == nullptr);  // no call is executed twice
    of[i] = &record;
    if (record.granted) debited += record.charges.back().permits - record.refunded;
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    Task& task = *tasks[i];
    RC_ASSERT(task.future.wait_for(seconds(0)) == std::future_status::ready);
    const Status status = task.future.get();
    RC_ASSERT(task.runs == (status.ok() ? 1 : 0));
    const StoreConnection::Record* const record = of[i];
    if (status.ok()) {
      RC_ASSERT(record != nullptr && record->granted && record->answered);
      RC_ASSERT(record->refunded == 0u);
      RC_ASSERT(task.ran_at.count() >= record->grant_time_ns);
    } else if (status.code() == StatusCode::kCancelled) {
      RC_ASSERT(task.stopped);
      // Every booking that the server reported and that can be refunded was refunded.
      if (record != nullptr && record->granted && record->answered && record->receipt_id != 0) {
        RC_ASSERT(record->refunded == task.permits);
      }
    } else if (record != nullptr && record->answered) {
      RC_ASSERT(!record->granted);
      RC_ASSERT(status.code() == StatusCode::kDeadlineExceeded);
    } else {
      // Its connection broke, or there was none before its deadline.
      RC_ASSERT(status.code() == StatusCode::kUnavailable ||
                status.code() == StatusCode::kDeadlineExceeded);
    }
  }
  RC_ASSERT(kLedger - static_cast<uint64_t>(testing::Query(store, *ledger, "").level.remaining) ==
            debited);
  std::map<const Task*, size_t> number;
  for (size_t i = 0; i < tasks.size(); ++i) number[tasks[i].get()] = i;
  std::array<size_t, kChannels> next{};
  for (const Task* task : ran) {
    RC_ASSERT(number[task] >= next[task->channel]);
    next[task->channel] = number[task] + 1;
  }
}

}  // namespace
}  // namespace sluice
