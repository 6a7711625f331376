// The contract of store::Store, as a suite that runs on every implementation.
//
// A store's test program links store_contract.cc and instantiates the suite with a factory:
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreContractTest, ::testing::Values(&MakeMemoryStore));
#ifndef SLUICE_TESTS_CONTRACT_STORE_CONTRACT_H_
#define SLUICE_TESTS_CONTRACT_STORE_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/store.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {

struct StoreOptions {
  uint64_t max_buckets = 1'000'000;
  bool allow_on_overflow = false;
};

// A store whose clock moves only when the test advances it.
class StoreUnderTest {
 public:
  virtual ~StoreUnderTest() = default;
  virtual store::Store& store() = 0;
  virtual int64_t NowNs() = 0;
  virtual void Advance(int64_t by_ns) = 0;
  virtual void AdvanceWallOnly(int64_t by_ns) = 0;
  // The wall clock of the store: windows of fixed_window are aligned to it.
  virtual int64_t WallNs() = 0;
  // Whether it is bounded by StoreOptions::max_buckets.
  virtual bool bounded() const = 0;
  // The most bookings of one bucket.
  virtual uint64_t max_bookings() const { return common::bounds::kMaxBookingsPerBucket; }
  // Whether remembered grants end by the test's clock; else by a real one.
  virtual bool forgets_by_test_clock() const { return true; }
  // Of all limits: so that their buckets are in one slot of a Cluster. "": they need not be.
  virtual std::string_view hash_tag() const { return ""; }
  // Whether its Stats count buckets and receipts.
  virtual bool knows_what_it_holds() const { return true; }
};

using StoreFactory = std::unique_ptr<StoreUnderTest> (*)(const StoreOptions& options);

class StoreContractTest : public ::testing::TestWithParam<StoreFactory> {
 protected:
  static constexpr int64_t kSecond = 1'000'000'000;
  static constexpr int64_t kMillisecond = 1'000'000;

  StoreContractTest() { Start({}); }

  void Start(const StoreOptions& options) { under_test_ = GetParam()(options); }

  store::Store& store() { return under_test_->store(); }
  int64_t NowNs() { return under_test_->NowNs(); }
  void Advance(int64_t by_ns) { under_test_->Advance(by_ns); }

  // A registered rule, newer than all before it.
  std::shared_ptr<const store::Rule> Register(uint32_t limit_id,
                                              absl::StatusOr<algorithm::Parameters> parameters,
                                              bool shadow = false,
                                              std::optional<uint64_t> max_owed = {}) {
    auto rule = MakeRule(limit_id, parameters.value(), shadow, max_owed, under_test_->hash_tag());
    store().Register(rule);
    return rule;
  }
  // `permits` a second, holding `burst`.
  std::shared_ptr<const store::Rule> TokenBucket(uint32_t limit_id, uint64_t permits,
                                                 uint64_t burst, uint64_t debt = 0,
                                                 bool shadow = false) {
    return Register(limit_id, algorithm::MakeTokenBucket({permits, kSecond}, burst, debt), shadow);
  }

  void ExpectOpenReceipts(uint64_t count) {
    if (under_test_->knows_what_it_holds()) {
      EXPECT_EQ(store().Stats().open_receipts, count);
    }
  }

  int64_t Remaining(const store::Rule& rule, std::string_view key) {
    return Query(store(), rule, key).level.remaining;
  }

  std::unique_ptr<StoreUnderTest> under_test_;
};

// For stores that support reservations.
class ReservationContractTest : public StoreContractTest {
 protected:
  // A reservation at most that far ahead.
  Acquired Reserve(const store::Rule& rule, std::string_view key, int64_t max_wait_ns,
                   uint64_t permits = 1) {
    return Acquire(store(), rule, key, permits, {.max_wait_ns = max_wait_ns});
  }
  void ExpectBookings(uint64_t count) {
    if (under_test_->knows_what_it_holds()) {
      EXPECT_EQ(store().Stats().bookings, count);
    }
  }
  Refunded Cancel(const Acquired& reservation, const std::vector<store::Charge>& charges) {
    return Refund(store(), reservation.receipt_id, charges, reservation.grant_time_ns());
  }
};

// For stores that remember grants under request ids.
class OnceContractTest : public ReservationContractTest {
 protected:
  static store::Once IdOf(uint64_t number, uint64_t fingerprint = 1) {
    store::Once once;
    once.id = {{number, number * 31}};
    once.fingerprint = fingerprint;
    return once;
  }
  Acquired Ask(const std::vector<store::Charge>& charges, store::Once once,
               AcquireOptions options = {}) {
    options.once = &once;
    return Acquire(store(), charges, options);
  }
};

// For stores that support Rebook.
class RebookContractTest : public ReservationContractTest {
 protected:
  const store::Rule& Add(uint32_t limit_id, const algorithm::Parameters& parameters) {
    rules_.push_back(Register(limit_id, parameters));
    return *rules_.back();
  }
  algorithm::Parameters Random(uint64_t kind) {
    const uint64_t permits = 2 + random_() % 6;
    switch (kind) {
      case 0:
        return algorithm::MakeTokenBucket({permits, kSecond}, 2 + random_() % 3, random_() % 3)
            .value();
      case 1:
        return algorithm::MakeSlidingLog({permits, kSecond}).value();
      case 2:
        return algorithm::MakeSlidingWindow({permits, kSecond}, 4).value();
      default:
        return algorithm::MakeFixedWindow({permits, kSecond}, 0).value();
    }
  }

  std::mt19937_64 random_{1};
  std::vector<std::shared_ptr<const store::Rule>> rules_;
};

class SlotsContractTest : public StoreContractTest {};

// Estimates of one bucket.
class SettleContractTest : public StoreContractTest {
 protected:
  // One of each algorithm of rates, with 10 permits of a day, that owes at most 5.
  std::vector<std::shared_ptr<const store::Rule>> AllRates() {
    const algorithm::Rate rate{10, 24 * 3600 * kSecond};
    return {Register(1, algorithm::MakeTokenBucket(rate, 10, 0), false, 5),
            Register(2, algorithm::MakeSlidingLog(rate), false, 5),
            Register(3, algorithm::MakeSlidingWindow(rate, 4), false, 5),
            Register(4, algorithm::MakeFixedWindow(rate, 0), false, 5)};
  }
  Acquired Estimate(const store::Rule& rule, uint64_t permits, int64_t within_ns = 3600 * kSecond) {
    return Acquire(store(), rule, "k", permits, {.settle_within_ns = within_ns});
  }
  Settled SettleOne(const store::Rule& rule, const Acquired& of, uint64_t permits, uint64_t actual,
                    bool more = false) {
    return Settle(store(), of.receipt_id, {{&rule, "k", permits}}, {actual}, {.more = more});
  }
};

// Acquisitions of several buckets, which a Cluster has in one slot or refuses; and slots.
class SettleSeveralContractTest : public StoreContractTest {};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_CONTRACT_STORE_CONTRACT_H_
