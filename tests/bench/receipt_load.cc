// What receipts cost over the wire: CPU time of the server and of this process for each call of
// Acquire, Refund, Settle and Renew, all in turn, so that a slow minute of the machine meets them
// alike. Prints the medians of the rounds.
//
//   receipt_load ADDRESS SERVER_PID [ROUNDS] [CALLS] [KINDS]
//   receipt_load ADDRESS SERVER_PID permits COUNT SECONDS
//
// ADDRESS is HOST:PORT of a server with the limits
//   { name: rate, rate: 100000000/s } and
//   { name: slots, algorithm: concurrency, permits: 1000000, hold_for: 30s }.
// KINDS: only these kinds of calls, as digits in the order of the table: 01 is Acquire without and
// with a request id.
// The second form holds COUNT permits for so many seconds, and prints what renewing them takes.
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client.h"
#include "sluice/permit.h"

namespace sluice {
namespace {

constexpr size_t kConnections = 8;
constexpr size_t kOpenCalls = 32;  // of each connection
constexpr size_t kKeys = 256;

int64_t CpuNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

[[noreturn]] void Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Microseconds of CPU time for each call.
struct Cost {
  double server = 0;
  double client = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A client for each connection.
class Load {
 public:
  using Next = std::function<void()>;
  // Begins call i over a client; `next` is to be called when it has ended.
  using Begin = std::function<void(Client& client, size_t i, const Next& next)>;

  Load(const std::string& address, pid_t server) {
    if (const int error = clock_getcpuclockid(server, &server_clock_); error != 0) {
      std::fprintf(stderr, "process %d: %s\n", static_cast<int>(server), std::strerror(error));
      std::exit(1);
    }
    for (size_t i = 0; i < kConnections; ++i) {
      ClientOptions options;
      options.servers = {address};
      Result<Client> client = Client::Create(std::move(options));
      if (!client.ok()) Fail(client.status());
      clients_.push_back(std::make_unique<Client>(std::move(*client)));
    }
  }

  Cost Run(size_t calls, const Begin& begin) {
    std::atomic<size_t> begun{0};
    std::atomic<size_t> ended{0};
    const auto start = [&](Client& client, const auto& self) -> void {
      const size_t i = begun.fetch_add(1);
      if (i >= calls) return;
      begin(client, i, [&client, &self, &ended] {
        self(client, self);
        ended.fetch_add(1);
      });
    };
    const int64_t server_before = CpuNs(server_clock_);
    const int64_t client_before = CpuNs(CLOCK_PROCESS_CPUTIME_ID);
    for (const auto& client : clients_) {
      for (size_t i = 0; i < kOpenCalls; ++i) start(*client, start);
    }
    while (ended.load() < calls) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double count = 1000.0 * static_cast<double>(calls);
    return {static_cast<double>(CpuNs(server_clock_) - server_before) / count,
            static_cast<double>(CpuNs(CLOCK_PROCESS_CPUTIME_ID) - client_before) / count};
  }

  Client& client() { return *clients_[0]; }
  clockid_t server_clock() const { return server_clock_; }

 private:
  std::vector<std::unique_ptr<Client>> clients_;
  clockid_t server_clock_ = {};
};

std::string Key(size_t i) { return "user:" + std::to_string(i % kKeys); }

// A callback of a call that must succeed.
template <typename T>
Callback<T> Then(std::function<void(T&)> use) {
  return [use = std::move(use)](Result<T> result) {
    if (!result.ok()) Fail(result.status());
    use(*result);
  };
}

// Grants with receipts, made in batches.
std::vector<std::string> Receipts(Client& client, size_t count, const Acquisition& like) {
  std::vector<std::string> receipts;
  while (receipts.size() < count) {
    std::vector<Acquisition> batch(std::min<size_t>(4096, count - receipts.size()), like);
    for (size_t i = 0; i < batch.size(); ++i) batch[i].charges[0].key = Key(i);
    Result<BatchDecisions> decisions = client.AcquireBatch(batch);
    if (!decisions.ok()) Fail(decisions.status());
    for (Result<Decision>& decision : *decisions) {
      if (!decision.ok()) Fail(decision.status());
      receipts.push_back(std::move(decision->receipt));
    }
  }
  return receipts;
}

class Kinds {
 public:
  Kinds(Load& load, size_t calls) : load_(load), calls_(calls) {}

  Cost Acquire() {
    return load_.Run(calls_, [](Client& client, size_t i, const Load::Next& next) {
      client.AcquireAsync(Acquisition("rate", Key(i)), Then<Decision>([next](auto&) { next(); }),
                          {.deadline = std::chrono::seconds(10)});
    });
  }
  Cost AcquireOnce() {
    return load_.Run(calls_, [](Client& client, size_t i, const Load::Next& next) {
      client.AcquireAsync(Acquisition("rate", Key(i)), Then<Decision>([next](auto&) { next(); }),
                          {.deadline = std::chrono::seconds(10), .exactly_once = true});
    });
  }
  // An acquisition and its end, two calls.
  Cost AcquireAndRefund(const char* limit) {
    return load_.Run(calls_, [limit](Client& client, size_t i, const Load::Next& next) {
      Acquisition acquisition(limit, Key(i));
      acquisition.want_receipt = true;
      client.AcquireAsync(std::move(acquisition), Then<Decision>([&client, next](Decision& got) {
                            client.RefundAsync(std::move(got.receipt),
                                               Then<RefundResult>([next](auto&) { next(); }));
                          }));
    });
  }
  Cost Refund() {
    Acquisition like("rate");
    like.want_receipt = true;
    const std::vector<std::string> receipts = Receipts(load_.client(), calls_, like);
    return load_.Run(calls_, [&](Client& client, size_t i, const Load::Next& next) {
      client.RefundAsync(receipts[i], Then<RefundResult>([next](auto&) { next(); }));
    });
  }
  Cost Settle() {
    Acquisition like("rate", "", 10);
    like.settle_within = std::chrono::seconds(60);
    const std::vector<std::string> receipts = Receipts(load_.client(), calls_, like);
    return load_.Run(calls_, [&](Client& client, size_t i, const Load::Next& next) {
      Settlement settlement;
      settlement.receipt = receipts[i];
      settlement.actual.push_back({"rate", Key(i), 7});
      client.SettleAsync(std::move(settlement), Then<SettleResult>([next](auto&) { next(); }));
    });
  }

 private:
  Load& load_;
  const size_t calls_;
};

void MeasureCalls(Load& load, size_t rounds, size_t calls, std::string_view only) {
  Kinds kinds(load, calls);
  std::vector<std::pair<const char*, std::function<Cost()>>> all = {
      {"Acquire", [&] { return kinds.Acquire(); }},
      {"Acquire with a request id", [&] { return kinds.AcquireOnce(); }},
      {"Acquire with a receipt, Refund", [&] { return kinds.AcquireAndRefund("rate"); }},
      {"Acquire of a slot, Refund", [&] { return kinds.AcquireAndRefund("slots"); }},
      {"Refund", [&] { return kinds.Refund(); }},
      {"Settle", [&] { return kinds.Settle(); }},
  };
  for (size_t i = all.size(); i-- > 0;) {
    if (only.find(static_cast<char>('0' + i)) == only.npos)
      all.erase(all.begin() + static_cast<long>(i));
  }
  std::vector<std::vector<double>> server(all.size());
  std::vector<std::vector<double>> client(all.size());
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      const Cost cost = all[i].second();
      server[i].push_back(cost.server);
      client[i].push_back(cost.client);
    }
  }
  std::printf("%-32s %12s %12s\n", "us of CPU for each", "server", "client");
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf("%-32s %12.2f %12.2f\n", all[i].first, Median(server[i]), Median(client[i]));
  }
}

void MeasurePermits(Load& load, size_t count, int seconds) {
  std::vector<Permit> permits(count);
  load.Run(count, [&](Client&, size_t i, const Load::Next& next) {
    load.client().AcquirePermitAsync(Acquisition("slots", Key(i)), {},
                                     Then<Permit>([&permits, i, next](Permit& got) {
                                       permits[i] = std::move(got);
                                       next();
                                     }));
  });
  const int64_t server_before = CpuNs(load.server_clock());
  const int64_t client_before = CpuNs(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  const auto percent = [&](int64_t ns) { return static_cast<double>(ns) / 1e7 / seconds; };
  const double server = percent(CpuNs(load.server_clock()) - server_before);
  const double client = percent(CpuNs(CLOCK_PROCESS_CPUTIME_ID) - client_before);
  const auto held = std::count_if(permits.begin(), permits.end(),
                                  [](const Permit& permit) { return permit.held(); });
  std::printf("%zu permits, %zd held after %d s: server %.2f %%, client %.2f %% of a core\n", count,
              held, seconds, server, client);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const std::span<char*> arguments(argv, static_cast<size_t>(argc));
  const auto number = [&](size_t i, size_t otherwise) {
    return i < arguments.size() ? std::strtoul(arguments[i], nullptr, 10) : otherwise;
  };
  const bool permits = arguments.size() == 6 && std::strcmp(arguments[3], "permits") == 0;
  if (arguments.size() < 3 || (!permits && arguments.size() > 6)) {
    std::fprintf(stderr,
                 "usage: receipt_load ADDRESS SERVER_PID [ROUNDS] [CALLS] [KINDS]\n"
                 "       receipt_load ADDRESS SERVER_PID permits COUNT SECONDS\n");
    return 2;
  }
  sluice::Load load(arguments[1], static_cast<pid_t>(number(2, 0)));
  if (permits) {
    sluice::MeasurePermits(load, number(4, 0), static_cast<int>(number(5, 0)));
  } else {
    sluice::MeasureCalls(load, number(3, 9), number(4, 20'000),
                         arguments.size() > 5 ? arguments[5] : "012345");
  }
}
