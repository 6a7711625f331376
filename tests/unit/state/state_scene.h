// Process: what sluiced is for its state, on a machine whose clocks a test sets.
#ifndef SLUICE_TESTS_UNIT_STATE_STATE_SCENE_H_
#define SLUICE_TESTS_UNIT_STATE_STATE_SCENE_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "server/limits/limit_registry.h"
#include "server/state/state_keeper.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/store_calls.h"

namespace sluice::state {

constexpr int64_t kSecondNs = 1'000'000'000;

struct Machine {
  MachineTime time{"boot-1", 5 * kSecondNs, 1'700'000'000 * kSecondNs};

  void Advance(int64_t by_ns) {
    time.boottime_ns += by_ns;
    time.wall_ns += by_ns;
  }
  // Boots again; the wall clock shows that so much time has passed.
  void Reboot(int64_t by_ns) {
    time.boot_id += "+";
    time.boottime_ns = 3 * kSecondNs;
    time.wall_ns += by_ns;
  }
};

class MachineClock final : public common::Clock {
 public:
  explicit MachineClock(const Machine& machine) : machine_(machine) {}
  int64_t NowNs() const override { return machine_.time.boottime_ns + ahead_ns; }
  int64_t WallNs() const override { return machine_.time.wall_ns; }
  int64_t ahead_ns = 0;

 private:
  const Machine& machine_;
};

struct ProcessOptions {
  AfterCrash after_crash = AfterCrash::kEmpty;
  std::vector<limits::LimitSpec> limits;
  std::string version = "v1";  // of the limits
  bool copies = true;          // with AfterCrash::kTrust
  int64_t copy_every_ns = 3600 * kSecondNs;
  BeforeStep before_step = nullptr;
  uint64_t max_buckets = store::MemoryStoreOptions().max_buckets;
  // Of a process that hands over.
  std::string handed_over = {};
  bool taken_back = false;
  int lock = -1;
};

// Destroyed without Drain, it has crashed.
class Process {
 public:
  Process(const std::string& folder, Machine& machine, ProcessOptions options)
      : clock(machine), log_(clock, common::LogLevel::kInfo, log_fd_) {
    auto opened = StateKeeper::Open({.folder = folder,
                                     .after_crash = options.after_crash,
                                     .copy_every_ns = options.copy_every_ns,
                                     .machine = [&machine] { return machine.time; },
                                     .before_step = std::move(options.before_step),
                                     .handed_over = options.handed_over,
                                     .taken_back = options.taken_back,
                                     .lock = options.lock},
                                    &log_);
    status_ = opened.status();
    if (!opened.ok()) return;
    keeper_ = *std::move(opened);
    clock.ahead_ns = keeper_->clock_ahead_ns();
    store::MemoryStoreOptions store_options;
    store_options.max_buckets = options.max_buckets;
    keeper_->SetOptions(&store_options);
    store_ = std::make_unique<store::MemoryStore>(clock, store_options);
    registry_ = std::make_unique<limits::LimitRegistry>(store_.get());
    keeper_->RestoreIds(registry_.get());
    status_ = registry_->ApplyFile(std::move(options.limits), options.version).status();
    if (status_.ok()) status_ = keeper_->Load(store_.get(), registry_.get());
    if (status_.ok()) {
      status_ = keeper_->Begin({clock, *store_, *registry_, [] { return std::string("key"); }});
    }
    if (status_.ok() && options.copies) keeper_->StartCopies();
  }
  ~Process() {
    keeper_.reset();
    close(log_fd_);
  }

  const absl::Status& status() const { return status_; }
  absl::Status Drain() { return keeper_->Save(); }
  // Another limits file.
  absl::Status Reload(std::vector<limits::LimitSpec> limits, const std::string& version) {
    return registry_->ApplyFile(std::move(limits), version).status();
  }
  // Returns descriptors of the state, and of the lock of its folder. The folder is not used any
  // more.
  std::pair<int, int> HandOver() {
    const auto state =
        WriteHandedState({clock, *store_, *registry_, [] { return std::string("key"); }});
    EXPECT_TRUE(state.ok()) << state.status();
    const int lock = keeper_->ShareLock();
    keeper_.reset();
    return {state.ok() ? *state : -1, lock};
  }

  store::MemoryStore& store() { return *store_; }
  limits::LimitRegistry& registry() { return *registry_; }
  StateKeeper& keeper() { return *keeper_; }

  const store::Rule& Rule(std::string_view limit, std::string_view key = "") {
    table_ = registry_->Current();
    return table_->Find(limit)->RuleFor(key);
  }
  testing::Acquired Take(std::string_view limit, std::string_view key, uint64_t permits = 1,
                         const testing::AcquireOptions& options = {}) {
    return testing::Acquire(*store_, Rule(limit, key), key, permits, options);
  }
  int64_t Remaining(std::string_view limit, std::string_view key) {
    return testing::Query(*store_, Rule(limit, key), key).level.remaining;
  }
  std::string log() const {
    std::array<char, 1 << 16> text;
    const ssize_t size = pread(log_fd_, text.data(), text.size(), 0);
    return std::string(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  }

  MachineClock clock;

 private:
  const int log_fd_ = memfd_create("log", 0);
  common::Log log_;
  absl::Status status_;
  std::unique_ptr<store::MemoryStore> store_;
  std::unique_ptr<limits::LimitRegistry> registry_;
  std::shared_ptr<const limits::LimitTable> table_;
  std::unique_ptr<StateKeeper> keeper_;
};

inline limits::LimitSpec TokenLimit(std::string name, uint64_t permits,
                                    int64_t period_ns = 24 * 3600 * kSecondNs) {
  limits::LimitSpec spec;
  spec.name = std::move(name);
  spec.rate = {permits, period_ns};
  spec.defined_at = "limits.yaml:1";
  return spec;
}

inline limits::LimitSpec LimitOf(algorithm::Kind kind, std::string name, uint64_t permits,
                                 int64_t period_ns = 24 * 3600 * kSecondNs) {
  limits::LimitSpec spec = TokenLimit(std::move(name), permits, period_ns);
  spec.algorithm = kind;
  if (kind == algorithm::Kind::kConcurrency) {
    spec.permits = permits;
    spec.hold_for_ns = period_ns;
    spec.rate = {};
  }
  return spec;
}

}  // namespace sluice::state

#endif  // SLUICE_TESTS_UNIT_STATE_STATE_SCENE_H_
