// bench: measures a server as fast as it answers (closed loop) or at a given rate (open loop).
//
// In an open loop a latency counts from the time at which the call was due, not from the time at
// which it was sent, so a client that falls behind does not hide slow answers.
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "client/cli/latency_recorder.h"
#include "client/cli/session.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

enum class Mode { kUnary, kBlocking, kBatch, kStream };

struct Plan {
  std::string mode_name;
  Mode mode = Mode::kStream;
  std::string limit;
  uint64_t permits = 1;
  std::chrono::nanoseconds duration{0};
  uint64_t connections = 1;
  uint64_t concurrency = 0;  // acquisitions outstanding on each connection
  uint64_t batch = 64;
  uint64_t keys = 1000;
  double rate = 0;  // acquisitions per second on all connections; 0: closed loop
};

struct Tally {
  uint64_t granted = 0;
  uint64_t denied = 0;
  uint64_t unavailable = 0;
  uint64_t errors = 0;
  uint64_t overrun = 0;  // due in the open loop, but too many were outstanding
  std::string first_error;
  LatencyRecorder latency;

  void Count(const Result<Decision>& result) {
    if (!result.ok()) {
      if (errors++ == 0) first_error = result.status().ToString();
    } else if (result->source == Source::kUnavailable) {
      if (unavailable++ == 0 && first_error.empty()) first_error = result->status.ToString();
    } else {
      ++(result->granted ? granted : denied);
    }
  }

  void Add(const Tally& other) {
    granted += other.granted;
    denied += other.denied;
    unavailable += other.unavailable;
    errors += other.errors;
    overrun += other.overrun;
    latency.Add(other.latency);
    if (first_error.empty()) first_error = other.first_error;
  }
};

// One connection and its calls.
class Lane {
 public:
  Lane(const Plan& plan, Client client, uint32_t seed)
      : plan_(plan), client_(std::move(client)), random_(seed) {
    if (plan.mode == Mode::kStream) {
      stream_.emplace(client_.OpenStream(
          {.max_batch = std::min<size_t>(plan.batch, 4096), .max_queue = 1 << 20}));
    }
  }

  void Run(Clock::time_point start, Clock::time_point end) {
    end_ = end;
    if (plan_.mode == Mode::kBlocking) return RunBlocking();
    if (plan_.rate > 0) return RunOpen(start);
    const uint64_t step = plan_.mode == Mode::kBatch ? plan_.batch : 1;
    const uint64_t calls = std::max<uint64_t>(1, plan_.concurrency / step);
    // Counted first: a call may end before the next one starts.
    outstanding_ += calls;
    for (uint64_t i = 0; i < calls; ++i) Ask(Clock::now(), true);
    AwaitAll();
  }

  const Tally& tally() const { return tally_; }
  uint64_t messages() const { return stream_.has_value() ? stream_->counts().messages : 0; }

 private:
  Acquisition Make() {
    uint64_t key = 0;
    {
      std::lock_guard<std::mutex> lock(random_mu_);
      key = random_() % plan_.keys;
    }
    return Acquisition(plan_.limit, "bench:" + std::to_string(key), plan_.permits);
  }

  void RunBlocking() {
    std::vector<std::thread> threads;
    threads.reserve(plan_.concurrency);
    for (uint64_t t = 0; t < plan_.concurrency; ++t) {
      threads.emplace_back([this] {
        Tally own;
        for (Clock::time_point now = Clock::now(); now < end_;) {
          const Result<Decision> result = client_.Acquire(Make());
          const Clock::time_point after = Clock::now();
          own.Count(result);
          own.latency.Record(after - now);
          now = after;
        }
        std::lock_guard<std::mutex> lock(mu_);
        tally_.Add(own);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void RunOpen(Clock::time_point start) {
    const uint64_t step = plan_.mode == Mode::kBatch ? plan_.batch : 1;
    const double per_second = plan_.rate / static_cast<double>(plan_.connections * step);
    for (uint64_t i = 0;; ++i) {
      const auto due = start + std::chrono::nanoseconds(
                                   static_cast<int64_t>(static_cast<double>(i) * 1e9 / per_second));
      if (due >= end_) break;
      std::this_thread::sleep_until(due);
      if (outstanding_ >= plan_.concurrency) {
        std::lock_guard<std::mutex> lock(mu_);
        tally_.overrun += step;
        continue;
      }
      ++outstanding_;
      Ask(due, false);
    }
    AwaitAll();
  }

  // Starts a call, whose latency counts from `due`. With `again` (closed loop) its end starts the
  // next one.
  void Ask(Clock::time_point due, bool again) {
    const auto done = [this, due, again](const Result<Decision>& result) {
      {
        std::lock_guard<std::mutex> lock(mu_);
        tally_.Count(result);
        tally_.latency.Record(Clock::now() - due);
      }
      Next(again);
    };
    switch (plan_.mode) {
      case Mode::kStream:
        if (stream_.has_value()) stream_->Submit(Make(), done);
        break;
      case Mode::kBatch: {
        std::vector<Acquisition> batch;
        batch.reserve(plan_.batch);
        for (uint64_t i = 0; i < plan_.batch; ++i) batch.push_back(Make());
        client_.AcquireBatchAsync(std::move(batch),
                                  [this, due, again](Result<BatchDecisions> results) {
                                    {
                                      std::lock_guard<std::mutex> lock(mu_);
                                      if (results.ok()) {
                                        const auto latency = Clock::now() - due;
                                        for (const Result<Decision>& one : *results) {
                                          tally_.Count(one);
                                          tally_.latency.Record(latency);
                                        }
                                      } else {
                                        for (uint64_t i = 0; i < plan_.batch; ++i)
                                          tally_.Count(results.status());
                                      }
                                    }
                                    Next(again);
                                  });
        break;
      }
      default:
        client_.AcquireAsync(Make(), done);
    }
  }

  void Next(bool again) {
    const Clock::time_point now = Clock::now();
    if (again && now < end_) return Ask(now, true);
    if (outstanding_.fetch_sub(1) == 1) {
      std::lock_guard<std::mutex> lock(mu_);
      all_back_.notify_all();
    }
  }

  void AwaitAll() {
    std::unique_lock<std::mutex> lock(mu_);
    all_back_.wait(lock, [this] { return outstanding_ == 0; });
  }

  const Plan& plan_;
  Client client_;
  std::optional<AcquireStream> stream_;
  Clock::time_point end_;
  std::mutex random_mu_;
  std::minstd_rand random_;
  std::mutex mu_;
  std::condition_variable all_back_;
  Tally tally_;
  std::atomic<uint64_t> outstanding_{0};
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<Plan> PlanOf(const Session& session) {
  const auto bad = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  Plan plan;
  plan.limit = session.Argument(0);
  plan.mode_name = session.arguments().Get("mode").value_or("stream");
  uint64_t concurrency = 1024;
  if (plan.mode_name == "stream") {
    plan.mode = Mode::kStream;
    plan.batch = 1024;
  } else if (plan.mode_name == "batch") {
    plan.mode = Mode::kBatch;
  } else if (plan.mode_name == "unary") {
    plan.mode = Mode::kUnary;
    concurrency = 32;
  } else if (plan.mode_name == "blocking") {
    plan.mode = Mode::kBlocking;
    concurrency = 1;
  } else {
    return bad("--mode=" + plan.mode_name + " is unknown; write stream, batch, unary or blocking");
  }
  struct {
    const char* flag;
    uint64_t* into;
    uint64_t most;
  } const numbers[] = {{"permits", &plan.permits, UINT64_MAX},
                       {"connections", &plan.connections, 1000},
                       {"concurrency", &concurrency, 1'000'000},
                       {"batch", &plan.batch, 4096},
                       {"keys", &plan.keys, 1'000'000'000}};
  const std::optional<std::string> rate_text = session.arguments().Get("rate");
  const bool open = rate_text.has_value();
  if (open) concurrency = 100'000;
  for (const auto& one : numbers) {
    const auto number = session.Number(one.flag, *one.into);
    if (!number.ok()) return number.status();
    if (*number < 1 || *number > one.most) {
      return bad("--" + std::string(one.flag) + "=" + std::to_string(*number) + ": write 1 to " +
                 std::to_string(one.most));
    }
    *one.into = *number;
  }
  plan.concurrency = concurrency;
  if (plan.mode == Mode::kBlocking && plan.concurrency > 1000) {
    return bad("--concurrency: at most 1000 threads block on a connection");
  }
  if (open) {
    const Result<LimitRate> rate = ParseRate(*rate_text);
    if (!rate.ok()) return bad("--rate: " + rate.status().message());
    plan.rate = static_cast<double>(rate->permits) * 1e9 /
                static_cast<double>(std::max<int64_t>(rate->period.count(), 1));
    if (plan.rate <= 0) return bad("--rate must be above zero");
    if (plan.mode == Mode::kBlocking) return bad("--rate does not go with --mode=blocking");
  }
  const auto duration = session.Duration("duration", std::chrono::seconds(5));
  if (!duration.ok()) return duration.status();
  if (duration->count() <= 0 || *duration > std::chrono::hours(24)) {
    return bad("--duration: write more than 0s and at most 24h");
  }
  plan.duration = *duration;
  return plan;
}

struct Report {
  Tally sum;
  uint64_t decisions = 0;
  uint64_t messages = 0;  // of streams
  double seconds = 0;
  double cpu_ns = 0;  // of this process, per decision
};

void WriteReport(const Plan& plan, const Report& report, Json* json) {
  const Tally& sum = report.sum;
  const uint64_t decisions = report.decisions;
  json->Open('{').Field("mode", plan.mode_name).Field("connections", plan.connections);
  json->Field("concurrency", plan.concurrency).Field("keys", plan.keys);
  json->Field("offered_per_second", plan.rate).Field("seconds", report.seconds);
  json->Field("decisions", decisions);
  json->Field("decisions_per_second", static_cast<double>(decisions) / report.seconds);
  json->Field("granted", sum.granted).Field("denied", sum.denied);
  json->Field("unavailable", sum.unavailable).Field("errors", sum.errors);
  json->Field("overrun", sum.overrun).Field("first_error", sum.first_error);
  json->Name("latency").Open('{').Field("p50_ns", sum.latency.Quantile(0.5));
  json->Field("p90_ns", sum.latency.Quantile(0.9)).Field("p99_ns", sum.latency.Quantile(0.99));
  json->Field("p999_ns", sum.latency.Quantile(0.999)).Field("max_ns", sum.latency.max()).Close();
  json->Field("client_cpu_ns_per_decision", report.cpu_ns)
      .Field("messages", report.messages)
      .Close();
}

void PrintReport(const Plan& plan, const Report& report) {
  const Tally& sum = report.sum;
  const uint64_t decisions = report.decisions;
  std::printf("%s, %lu connection%s, %lu outstanding on each, %lu keys, %s\n",
              plan.mode_name.c_str(), plan.connections, plan.connections == 1 ? "" : "s",
              plan.concurrency, plan.keys,
              plan.rate > 0
                  ? ("open loop at " + FormatCount(static_cast<uint64_t>(plan.rate)) + "/s").c_str()
                  : "closed loop");
  const auto percent = [&](uint64_t count) {
    return decisions > 0 ? 100.0 * static_cast<double>(count) / static_cast<double>(decisions)
                         : 0.0;
  };
  std::printf(
      "decisions   %s/s  (%s in %.1fs)\n",
      FormatCount(static_cast<uint64_t>(static_cast<double>(decisions) / report.seconds)).c_str(),
      FormatCount(decisions).c_str(), report.seconds);
  std::printf("granted     %.1f %%   denied %.1f %%   undecided %lu   errors %lu\n",
              percent(sum.granted), percent(sum.denied), sum.unavailable, sum.errors);
  if (!sum.first_error.empty()) std::printf("first error %s\n", sum.first_error.c_str());
  if (sum.overrun > 0) {
    std::printf("not sent    %s: %lu were outstanding already\n", FormatCount(sum.overrun).c_str(),
                plan.concurrency);
  }
  std::printf("latency     p50 %s   p90 %s   p99 %s   p99.9 %s   max %s\n",
              FormatDuration(sum.latency.Quantile(0.5)).c_str(),
              FormatDuration(sum.latency.Quantile(0.9)).c_str(),
              FormatDuration(sum.latency.Quantile(0.99)).c_str(),
              FormatDuration(sum.latency.Quantile(0.999)).c_str(),
              FormatDuration(sum.latency.max()).c_str());
  std::printf(
      "client CPU  %s a decision\n",
      FormatDuration(std::chrono::nanoseconds(static_cast<int64_t>(report.cpu_ns))).c_str());
  if (report.messages > 0) {
    std::printf("messages    %s of %.1f acquisitions\n", FormatCount(report.messages).c_str(),
                static_cast<double>(decisions) / static_cast<double>(report.messages));
  }
}

}  // namespace

int RunBench(const Session& session) {
  const Result<Plan> made = PlanOf(session);
  if (!made.ok()) return session.Fail(made.status());
  const Plan& plan = *made;

  std::vector<std::unique_ptr<Lane>> lanes;
  for (uint64_t i = 0; i < plan.connections; ++i) {
    Result<Client> client = session.MakeClient();
    if (!client.ok()) return session.Fail(client.status());
    // Connects, and reports an unknown limit before the run.
    const Result<Decision> first = client->Acquire(plan.limit, "bench:0", plan.permits);
    if (!first.ok()) return session.Fail(first.status());
    if (first->source == Source::kUnavailable) return session.Fail(first->status);
    lanes.push_back(std::make_unique<Lane>(plan, *std::move(client), 17 + i));
  }

  const double cpu_before = CpuSeconds();
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  threads.reserve(lanes.size());
  for (const auto& lane : lanes) {
    threads.emplace_back([&] { lane->Run(start, start + plan.duration); });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double cpu = CpuSeconds() - cpu_before;

  Report report;
  for (const auto& lane : lanes) {
    report.sum.Add(lane->tally());
    report.messages += lane->messages();
  }
  report.seconds = seconds;
  report.decisions = report.sum.granted + report.sum.denied;
  if (report.decisions > 0) report.cpu_ns = cpu * 1e9 / static_cast<double>(report.decisions);
  if (session.json()) {
    Json json;
    WriteReport(plan, report, &json);
    session.Print(json);
  } else {
    PrintReport(plan, report);
  }
  if (report.sum.unavailable > 0) return kExitUnavailable;
  return report.sum.errors > 0 ? kExitUsage : kExitDone;
}

}  // namespace sluice::cli
