// Keeps CALLERS held calls waiting at a server on this machine for SECONDS. Reports whether each
// was answered once, how many were answered per second, and how late: from the grant time in the
// receipt until the answer arrived.
//   held_soak SERVER LIMIT CALLERS SECONDS [MOST_LATE_MS]
// Exit code: 0 if none was lost, failed or early, and the p99 was at most MOST_LATE_MS.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"

namespace {

// The clock of the server's memory store.
int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// See server/service/receipt.h: after the version, the instance and the id. 0: granted at once.
int64_t GrantTimeNs(const std::string& receipt) {
  constexpr size_t kAt = 1 + 8 + 8;
  if (receipt.size() < kAt + 8) return 0;
  uint64_t grant_time_ns = 0;
  for (size_t i = 0; i < 8; ++i) {
    grant_time_ns |= uint64_t{static_cast<uint8_t>(receipt[kAt + i])} << (8 * i);
  }
  return static_cast<int64_t>(grant_time_ns);
}

struct Seen {
  std::mutex mu;
  std::vector<int64_t> late_ns;
  std::map<std::string, long> failures;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  auto client = sluice::Client::Create({.servers = {argv[1]}});
  if (!client.ok()) return 2;
  const std::string limit = argv[2];
  const int callers = std::atoi(argv[3]);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[4]));
  const double most_late_ms =
      argc > 5 ? std::atof(argv[5]) : std::numeric_limits<double>::infinity();
  std::atomic<long> asked{0};
  std::atomic<long> granted{0};
  std::atomic<long> denied{0};
  std::atomic<long> failed{0};
  Seen seen;
  std::function<void()> ask = [&] {
    asked.fetch_add(1);
    sluice::Acquisition acquisition(limit);
    acquisition.max_wait = std::chrono::seconds(60);
    acquisition.hold = true;
    client->AcquireAsync(std::move(acquisition), [&](sluice::Result<sluice::Decision> result) {
      const int64_t now_ns = NowNs();
      const bool ok = result.ok() && result->source == sluice::Source::kStore;
      {
        const std::lock_guard<std::mutex> lock(seen.mu);
        if (!ok) {
          ++seen.failures[(result.ok() ? result->status : result.status()).ToString()];
        } else if (result->granted) {
          const int64_t grant_time_ns = GrantTimeNs(result->receipt);
          if (grant_time_ns != 0) seen.late_ns.push_back(now_ns - grant_time_ns);
        }
      }
      (!ok ? failed : result->granted ? granted : denied).fetch_add(1);
      if (std::chrono::steady_clock::now() < end) ask();
    });
  };
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < callers; ++i) ask();
  while (std::chrono::steady_clock::now() < end ||
         granted.load() + denied.load() + failed.load() < asked.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (std::chrono::steady_clock::now() > end + std::chrono::seconds(60)) break;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const long lost = asked.load() - granted.load() - denied.load() - failed.load();
  std::printf("asked %ld granted %ld (%.0f/s) denied %ld failed %ld lost %ld in %.1f s\n",
              asked.load(), granted.load(), static_cast<double>(granted.load()) / seconds,
              denied.load(), failed.load(), lost, seconds);
  const std::lock_guard<std::mutex> lock(seen.mu);
  for (const auto& [text, times] : seen.failures) std::printf("%8ld  %s\n", times, text.c_str());
  long early = 0;
  double p99_ms = 0;
  if (!seen.late_ns.empty()) {
    std::sort(seen.late_ns.begin(), seen.late_ns.end());
    const auto at = [&](double part) {
      return static_cast<double>(seen.late_ns[static_cast<size_t>(
                 part * (static_cast<double>(seen.late_ns.size()) - 1))]) *
             1e-6;
    };
    early = std::lower_bound(seen.late_ns.begin(), seen.late_ns.end(), 0) - seen.late_ns.begin();
    p99_ms = at(0.99);
    std::printf("late, ms, of %zu: least %.3f p50 %.3f p99 %.3f p99.9 %.3f most %.3f; %ld early\n",
                seen.late_ns.size(), at(0), at(0.5), p99_ms, at(0.999), at(1), early);
  }
  std::fflush(stdout);
  const bool fine = lost == 0 && failed.load() == 0 && early == 0 && p99_ms <= most_late_ms &&
                    !seen.late_ns.empty();
  std::_Exit(fine ? 0 : 1);
}
