// A client's bounds on calls and on new keys, from the request to the store in memory.
#include <memory>
#include <string>
#include <vector>

#include "common/errors.h"
#include "server/service/registry_rules.h"
#include "server/waiting/held_callers.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

using access::ClientBound;
using ::testing::HasSubstr;

class ClientBoundsTest : public ServiceTest {
 protected:
  void Bound(ClientBound bound, uint64_t most) {
    access::ClientBounds bounds;
    bounds.Set(bound, most);
    use_->SetBounds(bounds);
  }

  access::CallerPtr Caller() const { return clients_.Recognise({}); }

  void Begin(AcquireCall::Form form, size_t counted = 1) {
    call_.Reset(form);
    call_.UseCaller(Caller(), counted);
  }

  // Runs a batch of acquisitions of these keys. Returns how many were granted; the others must have
  // the status of the bound.
  size_t Batch(const std::vector<std::string>& keys, const std::string& bound, size_t counted = 1) {
    Begin(AcquireCall::Form::kBatch, counted);
    for (const std::string& key : keys) call_.AddSingleCharge("api", key, 1);
    Run(&call_);
    EXPECT_TRUE(call_.status().ok()) << call_.status();
    size_t granted = 0;
    for (size_t i = 0; i < call_.size(); ++i) {
      const AcquisitionResult result = call_.result(i);
      if (result.status.ok()) {
        granted += result.granted ? 1 : 0;
        continue;
      }
      EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_TRUE(common::errors::WasNotExecuted(result.status));
      EXPECT_THAT(std::string(result.status.message()),
                  HasSubstr("client \"mesh\" has reached " + bound));
    }
    return granted;
  }

  std::shared_ptr<access::ClientUse> use_ =
      std::make_shared<access::ClientUse>("mesh", nullptr, /*number=*/1);
  access::Clients clients_{[this] {
    access::Client client;
    client.name = "anonymous";  // recognised without a proof
    client.limits = access::NamePatterns({"*"});
    client.calls.Add(access::Call::kAcquire);
    client.use = use_;
    return std::make_shared<const access::ClientTable>(std::vector<access::Client>{client});
  }()};
};

TEST_F(ClientBoundsTest, BatchCountsEachAcquisitionAsACall) {
  Load({PerSecond("api", 100)});
  Bound(ClientBound::kCallsPerSecond, 10);
  clock_.Advance(100 * kSecond);
  ASSERT_EQ(use_->TakeCalls(1, clock_.NowNs()), 1) << "as the transport does";
  const std::vector<std::string> keys(8, "k");
  EXPECT_EQ(Batch(keys, "max_calls_per_second: 10"), 8);
  // 2 are left, and the transport counts the first of them.
  ASSERT_EQ(use_->TakeCalls(1, clock_.NowNs()), 1);
  EXPECT_EQ(Batch(keys, "max_calls_per_second: 10"), 2);
  EXPECT_EQ(use_->refused(ClientBound::kCallsPerSecond), 6);
  EXPECT_EQ(Remaining("api", "k"), 90);
  // A stream's messages are not counted by the transport.
  EXPECT_EQ(Batch(keys, "max_calls_per_second: 10", /*counted=*/0), 0);
  clock_.Advance(kSecond / 2);
  EXPECT_EQ(Batch(keys, "max_calls_per_second: 10", /*counted=*/0), 5);
}

TEST_F(ClientBoundsTest, SliceGoesOnAfterRefusedAcquisitions) {
  Load({PerSecond("api", 100'000)});
  Bound(ClientBound::kCallsPerSecond, 700);
  clock_.Advance(100 * kSecond);
  Begin(AcquireCall::Form::kBatch, /*counted=*/0);
  call_.DecideInSlices();
  for (int i = 0; i < 2000; ++i) call_.AddSingleCharge("api", "k", 1);
  int slices = 0;
  limiter_.Acquire(
      &call_, store::kNoDeadline,
      [](void* context, AcquireCall*) { ++*static_cast<int*>(context); }, &slices);
  size_t granted = 0;
  size_t refused = 0;
  for (bool more = true; more;) {
    for (size_t i = call_.first(); i < call_.end(); ++i) {
      call_.result(i).status.ok() ? ++granted : ++refused;
    }
    more = call_.more();
    if (more) limiter_.Continue(&call_);
  }
  EXPECT_GT(slices, 1);
  EXPECT_EQ(granted, 700);
  EXPECT_EQ(refused, 1300);
  EXPECT_EQ(Remaining("api", "k"), 100'000 - 700);
}

TEST_F(ClientBoundsTest, NewKeysBeyondTheBoundAreRefusedPerAcquisition) {
  Load({PerSecond("api", 5)});
  Bound(ClientBound::kNewKeysPerMinute, 3);
  clock_.Advance(100 * kSecond);
  EXPECT_EQ(Batch({"a", "b", "a", "c", "d", "a", "e"}, "max_new_keys_per_minute: 3"), 5);
  EXPECT_EQ(use_->refused(ClientBound::kNewKeysPerMinute), 2);
  EXPECT_EQ(store_.Stats().created, 3);
  // Keys that have a bucket are served, and so are those of other callers.
  EXPECT_EQ(Batch({"a", "b", "c"}, ""), 3);
  EXPECT_TRUE(Acquire("api", "d").granted);
  EXPECT_EQ(Batch({"d"}, ""), 1);
  clock_.Advance(20 * kSecond);
  EXPECT_EQ(Batch({"x", "y"}, "max_new_keys_per_minute: 3"), 1);
}

TEST_F(ClientBoundsTest, RefusedNewKeyDebitsNoOtherBucketOfTheAcquisition) {
  Load({PerSecond("api", 5), PerSecond("other", 5)});
  Bound(ClientBound::kNewKeysPerMinute, 0);
  EXPECT_TRUE(Acquire("other", "k").granted);
  Begin(AcquireCall::Form::kUnary);
  call_.BeginAcquisition({.want_receipt = true});
  call_.AddCharge("other", "k", 1);
  call_.AddCharge("api", "new", 1);
  Run(&call_);
  EXPECT_EQ(call_.result(0).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Remaining("other", "k"), 4);
  EXPECT_EQ(store_.Stats().buckets, 1);
}

TEST_F(ClientBoundsTest, KeysBeyondTheShareOfTheTableAreRefusedAndLeaveRoomForOthers) {
  store::MemoryStore small(clock_, {.max_buckets = 100, .seed = 1});
  limits::LimitRegistry registry(&small);
  ASSERT_TRUE(registry.ApplyFile({PerSecond("api", 5)}, "1").ok());
  RateLimiter limiter(registry, small, clock_, metrics_, usage_, signer_);
  Bound(ClientBound::kTableShare, 20);
  int made = 0;
  const auto acquire = [&](access::CallerPtr caller) {
    const std::string key = absl::StrCat("k", made++);
    call_.Reset(AcquireCall::Form::kUnary);
    call_.UseCaller(std::move(caller));
    call_.BeginAcquisition({});
    call_.AddCharge("api", key, 1);
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0);
  };
  // Half of the table is reserved for the only limit. Then its share of the rest is used up, too.
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(acquire(Caller()).granted) << i;
  const AcquisitionResult refused = acquire(Caller());
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(common::errors::WasNotExecuted(refused.status));
  EXPECT_THAT(std::string(refused.status.message()),
              HasSubstr("client \"mesh\" has reached max_table_share: 20"));
  EXPECT_EQ(use_->refused(ClientBound::kTableShare), 1);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(acquire(nullptr).granted) << i;
  // Buckets that are full again are dropped, and no longer count.
  clock_.Advance(100 * kSecond);
  while (small.Maintain()) {
  }
  EXPECT_TRUE(acquire(Caller()).granted);
}

TEST_F(ClientBoundsTest, AReloadedShareOfTheTableCountsForBucketsThatExist) {
  store::MemoryStore small(clock_, {.max_buckets = 100, .seed = 1});
  limits::LimitRegistry registry(&small);
  ASSERT_TRUE(registry.ApplyFile({PerSecond("api", 5)}, "1").ok());
  RateLimiter limiter(registry, small, clock_, metrics_, usage_, signer_);
  // A receipt makes a bucket grow.
  const auto acquire = [&](const std::string& key, bool want_receipt) {
    Begin(AcquireCall::Form::kUnary);
    call_.BeginAcquisition({.want_receipt = want_receipt});
    call_.AddCharge("api", key, 1);
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0).granted;
  };
  Bound(ClientBound::kTableShare, 100);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(acquire(absl::StrCat("k", i), false)) << i;
  EXPECT_TRUE(acquire("k0", true));
  Bound(ClientBound::kTableShare, 10);
  EXPECT_FALSE(acquire("k1", true));
  EXPECT_TRUE(acquire("k1", false));
  Bound(ClientBound::kTableShare, 100);
  EXPECT_TRUE(acquire("k1", true));
}

TEST_F(ClientBoundsTest, BucketsOfCallsThatWaitedForSlotsCountForTheirClient) {
  struct NoAlarm final : waiting::Alarm {
    void SetAt(int64_t) override {}
  } alarm;
  store::MemoryStore small(clock_, {.max_buckets = 100, .seed = 1});
  limits::LimitRegistry registry(&small);
  limits::LimitSpec daily = PerSecond("daily", 5);
  daily.rate.period_ns = 24 * 3600 * kSecond;
  ASSERT_TRUE(registry.ApplyFile({daily, Concurrency("slots", 1, 60 * kSecond)}, "1").ok());
  RegistryRules rules(registry);
  waiting::HeldCallers held(small, clock_, rules, alarm);
  RateLimiter limiter(registry, small, clock_, metrics_, usage_, signer_);
  limiter.UseHeldCallers(&held);
  Bound(ClientBound::kTableShare, 2);  // one bucket of the rest
  const auto begin = [&](AcquireCall* call, access::CallerPtr caller, bool hold) {
    call->Reset(AcquireCall::Form::kUnary);
    call->UseCaller(std::move(caller));
    call->BeginAcquisition({.max_wait = {hold ? 3600 : 0, 0}, .hold = hold});
  };
  const auto run = [&](AcquireCall* call) {
    limiter.Acquire(call, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
  };
  const auto acquire = [&](const std::string& limit, const std::string& key,
                           access::CallerPtr caller) {
    begin(&call_, std::move(caller), /*hold=*/false);
    call_.AddCharge(limit, key, 1);
    run(&call_);
    return call_.result(0).status;
  };
  // The reserved part of the limit is used up by others.
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(acquire("daily", absl::StrCat(i), nullptr).ok());
  ASSERT_TRUE(acquire("slots", "k", nullptr).ok());

  AcquireCall waits;
  begin(&waits, Caller(), /*hold=*/true);
  waits.AddCharge("slots", "k", 1);
  waits.AddCharge("daily", "waited", 1);
  run(&waits);
  held.Advance();
  // What the denied acquisition made is full, and is dropped.
  clock_.Advance(kSecond);
  while (small.Maintain()) {
  }
  ASSERT_EQ(small.Stats().buckets, 26);
  clock_.Advance(60 * kSecond);
  while (held.Advance() <= clock_.NowNs()) {
  }
  ASSERT_TRUE(waits.result(0).granted);
  EXPECT_EQ(acquire("daily", "more", Caller()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(acquire("daily", "of another", nullptr).ok());
}

TEST_F(ClientBoundsTest, ACallThatWaitedForSlotsTakesItsNewKeysOnce) {
  struct NoAlarm final : waiting::Alarm {
    void SetAt(int64_t) override {}
  } alarm;
  RegistryRules rules(registry_);
  waiting::HeldCallers held(store_, clock_, rules, alarm);
  limiter_.UseHeldCallers(&held);
  Load({PerSecond("api", 5), Concurrency("slots", 1, 10 * kSecond)});
  ASSERT_TRUE(Acquire("slots", "k").granted);
  Bound(ClientBound::kNewKeysPerMinute, 1);
  AcquireCall waits;
  waits.Reset(AcquireCall::Form::kUnary);
  waits.UseCaller(Caller());
  waits.BeginAcquisition({.max_wait = {60, 0}, .hold = true});
  waits.AddCharge("slots", "k", 1);
  waits.AddCharge("api", "new", 1);
  limiter_.Acquire(&waits, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
  held.Advance();
  // The bucket that the denied acquisition made is full, and is dropped.
  clock_.Advance(kSecond);
  while (store_.Maintain()) {
  }
  ASSERT_EQ(store_.Stats().buckets, 1);
  clock_.Advance(9 * kSecond);
  while (held.Advance() <= clock_.NowNs()) {
  }
  EXPECT_TRUE(waits.result(0).granted) << waits.result(0).status;
}

TEST_F(ClientBoundsTest, TableHasRoomForOthersAfterRefusedKeys) {
  // The place that a refused bucket would have taken is given back.
  store::MemoryStore small(clock_, {.max_buckets = 2, .seed = 1});
  limits::LimitRegistry registry(&small);
  ASSERT_TRUE(registry.ApplyFile({PerSecond("api", 1)}, "1").ok());
  RateLimiter limiter(registry, small, clock_, metrics_, usage_, signer_);
  Bound(ClientBound::kNewKeysPerMinute, 0);
  const auto acquire = [&](const std::string& key, access::CallerPtr caller) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.UseCaller(std::move(caller));
    call_.BeginAcquisition({});
    call_.AddCharge("api", key, 1);
    limiter.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0);
  };
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(acquire(std::to_string(i), Caller()).status.ok());
  EXPECT_TRUE(acquire("a", nullptr).granted);
  EXPECT_TRUE(acquire("b", nullptr).granted);
}

TEST_F(ClientBoundsTest, HasHalfOfTheRememberedGrantsOverAllItsConnections) {
  Load({PerSecond("api", 100), PerSecond("other", 100)});
  RateLimiter small(registry_, store_, clock_, metrics_, usage_, signer_, /*most_remembered=*/64);
  int number = 0;
  const auto ask = [&](std::string_view limit, bool as_client) {
    const auto connection = std::make_shared<ConnectionBookings>();
    const std::string id = absl::StrCat("request id no ", absl::Dec(number++, absl::kZeroPad2));
    call_.Reset(AcquireCall::Form::kUnary);
    if (as_client) call_.UseCaller(Caller(), 1);
    call_.UseConnection(connection.get());
    call_.BeginAcquisition({});
    call_.AddCharge(limit, "k", 1);
    call_.SetRequestId(id);
    small.Acquire(&call_, store::kNoDeadline, [](void*, AcquireCall*) {}, nullptr);
    return call_.result(0).status.code();
  };
  for (int i = 0; i < 32; ++i) EXPECT_EQ(ask("api", true), absl::StatusCode::kOk) << i;
  EXPECT_EQ(ask("other", true), absl::StatusCode::kResourceExhausted);
  // The limit, too, may have as many as are left.
  for (int i = 0; i < 16; ++i) EXPECT_EQ(ask("other", false), absl::StatusCode::kOk) << i;
}

}  // namespace
}  // namespace sluice::service
