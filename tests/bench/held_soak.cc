// Held callers on a real server: keeps CALLERS calls waiting for SECONDS and says whether each was
// answered, once, and how many came a second.
//   held_soak SERVER LIMIT CALLERS SECONDS
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "sluice/client.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  auto client = sluice::Client::Create({.servers = {argv[1]}});
  if (!client.ok()) return 2;
  const std::string limit = argv[2];
  const int callers = std::atoi(argv[3]);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[4]));
  std::atomic<long> asked{0};
  std::atomic<long> granted{0};
  std::atomic<long> denied{0};
  std::atomic<long> failed{0};
  std::function<void()> ask = [&] {
    asked.fetch_add(1);
    sluice::Acquisition acquisition(limit);
    acquisition.max_wait = std::chrono::seconds(60);
    acquisition.hold = true;
    client->AcquireAsync(std::move(acquisition), [&](sluice::Result<sluice::Decision> result) {
      const bool ok = result.ok() && result->source == sluice::Source::kStore;
      if (!ok && failed.load() == 0) {
        std::fprintf(stderr, "first failure: %s\n",
                     (result.ok() ? result->status : result.status()).ToString().c_str());
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
  return lost == 0 && failed.load() == 0 ? 0 : 1;
}
