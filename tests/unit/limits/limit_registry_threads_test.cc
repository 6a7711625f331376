// Readers during reloads and admin changes; also for ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "server/limits/limit_registry.h"
#include "tests/unit/limits/recording_store.h"

namespace sluice::limits {
namespace {

constexpr int kReaders = 4;
constexpr uint64_t kReloads = 300;

std::vector<LimitSpec> File(uint64_t version) {
  std::vector<LimitSpec> specs;
  for (const char* name : {"left", "right"}) {
    LimitSpec spec;
    spec.name = name;
    spec.rate = {version, 1'000'000'000};
    spec.keys.push_back({"vip", algorithm::Rate{version, 1'000'000'000}, {}, {}});
    specs.push_back(std::move(spec));
  }
  specs[0].charges = {"right"};
  return specs;
}

uint64_t Permits(const store::Rule& rule) { return rule.parameters.token_bucket.rate.permits; }

TEST(LimitRegistryThreadsTest, ReadersNeverSeeHalfAReload) {
  RecordingStore store;
  LimitRegistry registry(&store);
  ASSERT_TRUE(registry.ApplyFile(File(1), "1").ok());

  std::atomic<bool> stop{false};
  std::atomic<int> started{0};
  std::atomic<uint64_t> mixed{0}, backwards{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      uint64_t last = 0;
      std::shared_ptr<const LimitTable> held;
      for (uint64_t n = 0;; ++n) {
        const std::shared_ptr<const LimitTable>& table = registry.Local();
        const Limit* left = table->Find("left");
        const Limit* right = table->Find("right");
        const uint64_t version = Permits(left->rule());
        if (version != Permits(right->rule()) || version != Permits(left->RuleFor("vip")) ||
            left->parents()[0] != right || std::to_string(version) != table->file_version()) {
          mixed.fetch_add(1);
        }
        if (version < last) backwards.fetch_add(1);
        last = version;
        // As a call does that lives longer than this iteration.
        if (n % 7 == 0) held = table;
        if (held->Find("left") == nullptr) mixed.fetch_add(1);
        if (n == 0) started.fetch_add(1);
        if (stop.load()) return;
      }
    });
  }
  while (started.load() < kReaders) std::this_thread::yield();

  std::thread admin([&] {
    for (int i = 0; i < 100; ++i) {
      LimitSpec spec;
      spec.name = "mine";
      spec.rate = {static_cast<uint64_t>(i + 1), 1'000'000'000};
      EXPECT_TRUE(registry.Put(spec).ok());
      EXPECT_TRUE(registry.Delete("mine").ok());
      registry.ReleaseRetired();
    }
  });
  for (uint64_t version = 2; version <= kReloads; ++version) {
    ASSERT_TRUE(registry.ApplyFile(File(version), std::to_string(version)).ok());
  }
  admin.join();
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(mixed.load(), 0u);
  EXPECT_EQ(backwards.load(), 0u);
  EXPECT_EQ(Permits(registry.Local()->Find("right")->rule()), kReloads);
}

}  // namespace
}  // namespace sluice::limits
