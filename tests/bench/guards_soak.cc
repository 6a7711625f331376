// Holds thousands of slots by the guards of several processes, of which some are killed and some
// are stopped for longer than hold_for.
//   guards_soak SERVER LIMIT PERMITS HOLD_FOR_S GUARDS SECONDS
//
// Each process notes from when to when each of its guards took its slots for held, in memory that
// all share, also of those that were killed. Reports whether at any moment more than PERMITS were
// held, or never nearly all of them, whether a call failed, whether a guard of a process that was
// never stopped lost its slots, and whether all slots came back.
// Exit code: 0 if all is as it should be.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/client.h"

namespace {

using sluice::Acquisition;
using sluice::Client;
using sluice::Permit;
using sluice::Result;
using sluice::Status;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kWorkers = 5;
constexpr size_t kMostIntervals = 4'000'000;
constexpr int kAcquisitionsOfRound = 500;

// The clock of the server's memory store, and of the guards.
int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// In which a guard took its slot for held.
struct Interval {
  int64_t from_ns;
  std::atomic<int64_t> to_ns;
};

// In memory that the processes share.
struct Shared {
  std::atomic<bool> end;
  std::atomic<size_t> intervals;
  std::atomic<uint64_t> denied;
  std::atomic<uint64_t> released;
  std::atomic<uint64_t> failed;
  // Guards that lost their slots: of a process that was stopped; because no renewal came through in
  // time; although the guard took them for held until the server said otherwise.
  std::atomic<uint64_t> lost_stopped;
  std::atomic<uint64_t> lost_late;
  std::atomic<uint64_t> lost_wrongly;
  // Whether the worker was ever stopped.
  std::array<std::atomic<bool>, kWorkers> stopped;
  Interval interval[kMostIntervals];
};

struct Held {
  Permit permit;
  Interval* interval;
  int64_t until_ns;  // released then
};

// One process: keeps as many guards as it can get.
class Worker {
 public:
  Worker(Shared& shared, size_t index, Client client, std::string limit, size_t guards)
      : shared_(shared),
        index_(index),
        client_(std::move(client)),
        limit_(std::move(limit)),
        guards_(guards),
        random_(static_cast<uint64_t>(NowNs())) {}

  void Run(int64_t hold_for_ns) {
    std::uniform_int_distribution<int64_t> life(hold_for_ns / 50, 2 * hold_for_ns);
    while (!shared_.end.load()) {
      for (size_t i = 0; i < held_.size();) {
        if (Keeps(held_[i])) {
          ++i;
          continue;
        }
        if (i + 1 < held_.size()) held_[i] = std::move(held_.back());
        held_.pop_back();
      }
      for (int i = 0; i < kAcquisitionsOfRound && held_.size() < guards_; ++i) {
        if (!Take(NowNs() + life(random_))) break;
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    // Destructors would end the slots in the background, and the process ends.
    for (Held& held : held_) {
      held.interval->to_ns.store(std::min(held.interval->to_ns.load(), NowNs()));
      const Status failed = held.permit.Release();
      if (failed.ok()) continue;
      std::fprintf(stderr, "not released: %s\n", failed.ToString().c_str());
      ++shared_.failed;
    }
  }

 private:
  // Returns false if it is over.
  bool Keeps(Held& held) {
    const int64_t now_ns = NowNs();
    const std::chrono::nanoseconds left = held.permit.left();
    if (left.count() == 0) {
      CountLoss(held.permit.lost());
      return false;
    }
    if (now_ns >= held.until_ns) {
      // Before the server is told.
      held.interval->to_ns.store(now_ns);
      ++shared_.released;
      return false;
    }
    held.interval->to_ns.store(now_ns + left.count());
    return true;
  }

  void CountLoss(const Status& why) {
    if (shared_.stopped[index_].load()) {
      ++shared_.lost_stopped;
    } else if (why.code() == sluice::StatusCode::kDeadlineExceeded) {
      ++shared_.lost_late;
    } else {
      std::fprintf(stderr, "lost: %s\n", why.ToString().c_str());
      ++shared_.lost_wrongly;
    }
  }

  // Returns false if there is none.
  bool Take(int64_t until_ns) {
    Result<Permit> permit = client_.AcquirePermit(Acquisition(limit_));
    const Status failed = permit.ok() ? permit->decision().status : permit.status();
    if (!failed.ok()) {
      std::fprintf(stderr, "failed: %s\n", failed.ToString().c_str());
      ++shared_.failed;
      return false;
    }
    const int64_t from_ns = NowNs();
    const std::chrono::nanoseconds left = permit->left();
    if (left.count() == 0) {
      ++shared_.denied;
      return false;
    }
    const size_t number = shared_.intervals.fetch_add(1);
    if (number >= kMostIntervals) return false;
    Interval& interval = shared_.interval[number];
    interval.from_ns = from_ns;
    interval.to_ns.store(from_ns + left.count());
    held_.push_back({*std::move(permit), &interval, until_ns});
    return true;
  }

  Shared& shared_;
  const size_t index_;
  Client client_;
  const std::string limit_;
  const size_t guards_;
  std::mt19937_64 random_;
  std::vector<Held> held_;
};

// The most intervals that overlap.
int64_t MostHeld(const Shared& shared) {
  std::vector<std::pair<int64_t, int>> changes;
  const size_t intervals = std::min(shared.intervals.load(), kMostIntervals);
  for (size_t i = 0; i < intervals; ++i) {
    const Interval& one = shared.interval[i];
    // Its process was killed before it noted the end.
    if (one.to_ns.load() <= one.from_ns) continue;
    changes.emplace_back(one.from_ns, 1);
    changes.emplace_back(one.to_ns.load(), -1);
  }
  // Half-open: at the same moment an end comes first.
  std::sort(changes.begin(), changes.end());
  int64_t now = 0;
  int64_t most = 0;
  for (const auto& [at, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const std::string server = argv[1];
  const std::string limit = argv[2];
  const int64_t permits = std::atoll(argv[3]);
  const int64_t hold_for_ns = std::atoll(argv[4]) * 1'000'000'000;
  const size_t guards = static_cast<size_t>(std::atoll(argv[5]));
  const int64_t end_ns = NowNs() + std::atoll(argv[6]) * 1'000'000'000;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 2;
  Shared& shared = *static_cast<Shared*>(memory);  // zeros
  const sluice::ClientOptions options = {.servers = {server}, .deadline = seconds(20)};

  std::array<pid_t, kWorkers> pids = {};
  const auto start = [&](size_t index) {
    pids[index] = fork();
    if (pids[index] != 0) return;
    Result<Client> client = Client::Create(options);
    if (!client.ok()) _exit(2);
    Worker(shared, index, *std::move(client), limit, guards / kWorkers).Run(hold_for_ns);
    _exit(0);
  };
  for (size_t i = 0; i < kWorkers; ++i) start(i);

  // The last worker is stopped and goes on; the others are killed and started again, but for the
  // first.
  int64_t next_stop_ns = NowNs() + hold_for_ns / 2;
  int64_t continue_ns = 0;
  int64_t next_kill_ns = NowNs() + hold_for_ns / 3;
  size_t victim = 1;
  int kills = 0;
  int stops = 0;
  while (NowNs() < end_ns) {
    std::this_thread::sleep_for(milliseconds(20));
    const int64_t now_ns = NowNs();
    if (now_ns >= next_kill_ns) {
      kill(pids[victim], SIGKILL);
      waitpid(pids[victim], nullptr, 0);
      start(victim);
      ++kills;
      victim = victim % (kWorkers - 2) + 1;
      next_kill_ns = now_ns + hold_for_ns / 3;
    }
    if (continue_ns == 0 && now_ns >= next_stop_ns) {
      shared.stopped[kWorkers - 1].store(true);
      kill(pids[kWorkers - 1], SIGSTOP);
      ++stops;
      continue_ns = now_ns + hold_for_ns + hold_for_ns / 5;
    } else if (continue_ns != 0 && now_ns >= continue_ns) {
      kill(pids[kWorkers - 1], SIGCONT);
      continue_ns = 0;
      next_stop_ns = now_ns + hold_for_ns;
    }
  }
  shared.end.store(true);
  kill(pids[kWorkers - 1], SIGCONT);
  bool exited = true;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    exited &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  // Slots of processes that were killed come back after hold_for.
  Result<Client> client = Client::Create(options);
  if (!client.ok()) return 2;
  const std::vector<sluice::Bucket> bucket = {{limit, ""}};
  int64_t left = -1;
  for (const int64_t until_ns = NowNs() + 2 * hold_for_ns; left != permits && NowNs() < until_ns;) {
    const auto status = client->Query(bucket);
    if (status.ok()) left = status->front().remaining;
    std::this_thread::sleep_for(milliseconds(50));
  }
  const int64_t most = MostHeld(shared);
  std::printf("granted %zu denied %lu released %lu failed %lu; %d killed, %d stopped\n",
              shared.intervals.load(), shared.denied.load(), shared.released.load(),
              shared.failed.load(), kills, stops);
  std::printf("most held at once %ld of %ld; free in the end %ld\n", most, permits, left);
  std::printf("lost: %lu while stopped, %lu not renewed in time, %lu wrongly\n",
              shared.lost_stopped.load(), shared.lost_late.load(), shared.lost_wrongly.load());
  const bool lost = shared.lost_late.load() != 0 || shared.lost_wrongly.load() != 0;
  const bool fine = exited && most <= permits && most > permits * 9 / 10 && left == permits &&
                    !lost && shared.failed.load() == 0 &&
                    shared.intervals.load() < kMostIntervals && kills > 0 && stops > 0;
  std::printf("%s\n", fine ? "as expected" : "FAILED");
  return fine ? 0 : 1;
}
