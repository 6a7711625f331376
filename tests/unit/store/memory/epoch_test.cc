#include "server/store/memory/epoch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/threads.h"

namespace sluice::store::memory {
namespace {

struct Freed {
  std::multiset<uint64_t> objects;
  static void Free(void* self, uint8_t kind, uint64_t object) {
    EXPECT_EQ(kind, 3);
    static_cast<Freed*>(self)->objects.insert(object);
  }
};

TEST(EpochDomainTest, FreesAtOnceWithoutReaders) {
  Freed freed;
  EpochDomain domain(&Freed::Free, &freed);
  domain.Retire(3, 17);
  EXPECT_EQ(domain.pending(), 1u);
  EXPECT_EQ(domain.Reclaim(100), 0u);
  EXPECT_EQ(freed.objects.count(17), 1u);
}

TEST(EpochDomainTest, KeepsObjectsThatAReaderMayHaveFound) {
  Freed freed;
  EpochDomain domain(&Freed::Free, &freed);
  {
    EpochGuard guard(domain);
    domain.Retire(3, 17);
    EXPECT_EQ(domain.Reclaim(100), 1u);
    EXPECT_TRUE(freed.objects.empty());
  }
  EXPECT_EQ(domain.Reclaim(100), 0u);
  EXPECT_EQ(freed.objects.size(), 1u);
}

TEST(EpochDomainTest, LaterReadersDoNotDelayFrees) {
  Freed freed;
  EpochDomain domain(&Freed::Free, &freed);
  domain.Retire(3, 17);
  EpochGuard guard(domain);
  domain.Retire(3, 18);
  EXPECT_EQ(domain.Reclaim(100), 1u);
  EXPECT_EQ(freed.objects, std::multiset<uint64_t>{17});
}

TEST(EpochDomainTest, ReadersOfAnotherDomainDoNotDelayFrees) {
  Freed freed;
  EpochDomain domain(&Freed::Free, &freed);
  EpochDomain other(&Freed::Free, &freed);
  EpochGuard guard(other);
  domain.Retire(3, 17);
  EXPECT_EQ(domain.Reclaim(100), 0u);
}

TEST(EpochDomainTest, ReclaimsAtMostTheGivenNumber) {
  Freed freed;
  EpochDomain domain(&Freed::Free, &freed);
  for (uint64_t i = 0; i < 10; ++i) domain.Retire(3, i);
  EXPECT_EQ(domain.Reclaim(4), 6u);
  EXPECT_EQ(freed.objects.size(), 4u);
}

TEST(EpochDomainTest, DestructorFreesTheRest) {
  Freed freed;
  {
    EpochDomain domain(&Freed::Free, &freed);
    for (uint64_t i = 0; i < 1000; ++i) domain.Retire(3, i);
  }
  EXPECT_EQ(freed.objects.size(), 1000u);
}

TEST(EpochDomainTest, ThreadsMayOutliveDomainsAndDomainsThreads) {
  Freed freed;
  auto one = std::make_unique<EpochDomain>(&Freed::Free, &freed);
  EpochDomain two(&Freed::Free, &freed);
  std::atomic<int> step{0};
  std::thread reader([&] {
    {
      EpochGuard guard(*one);
    }
    step = 1;
    while (step != 2) std::this_thread::yield();
    for (int i = 0; i < 10; ++i) EpochGuard guard(two);
  });
  while (step != 1) std::this_thread::yield();
  one.reset();
  step = 2;
  reader.join();
  two.Retire(3, 1);
  EXPECT_EQ(two.Reclaim(1), 0u);
}

TEST(EpochDomainTest, ReadersNeverSeeAFreedObject) {
  struct Cell {
    std::atomic<bool> alive{true};
  };
  struct Context {
    static void Free(void*, uint8_t, uint64_t object) {
      auto* cell = reinterpret_cast<Cell*>(object);
      cell->alive.store(false, std::memory_order_relaxed);
      delete cell;
    }
  };
  EpochDomain domain(&Context::Free, nullptr);
  std::atomic<Cell*> shared{new Cell};
  test_support::RunThreads(4, [&](int thread) {
    for (int i = 0; i < 20'000; ++i) {
      if (thread == 0) {
        Cell* old = shared.exchange(new Cell, std::memory_order_acq_rel);
        domain.Retire(0, reinterpret_cast<uintptr_t>(old));
      } else {
        EpochGuard guard(domain);
        ASSERT_TRUE(shared.load(std::memory_order_acquire)->alive.load(std::memory_order_relaxed));
      }
    }
  });
  delete shared.load();
}

}  // namespace
}  // namespace sluice::store::memory
