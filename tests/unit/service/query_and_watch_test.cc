#include <memory>
#include <string>
#include <vector>

#include "server/service/bucket_watch.h"
#include "tests/unit/service/fixture.h"

namespace sluice::service {
namespace {

class QueryTest : public ServiceTest {
 protected:
  void SetUp() override { Load({PerSecond("api", 10), PerSecond("other", 5)}); }
  QueryCall query_;
  void Query() {
    limiter_.Query(&query_, store::kNoDeadline, [](void*, QueryCall*) {}, nullptr);
  }
};

TEST_F(QueryTest, ReportsRemainingPermitsAndCreatesNoBucket) {
  query_.Reset();
  query_.AddBucket("api", "k");
  query_.AddBucket("other", "k");
  Query();
  ASSERT_TRUE(query_.status().ok());
  EXPECT_EQ(query_.bucket(0).level.remaining, 10);
  EXPECT_FALSE(query_.bucket(0).exists);
  EXPECT_EQ(query_.bucket(1).level.capacity, 5u);
  EXPECT_EQ(query_.wall_ns(), clock_.WallNs());
  EXPECT_EQ(store_.Stats().buckets, 0u);
}

TEST_F(QueryTest, RejectsRequestsOutOfBounds) {
  query_.Reset();
  Query();
  EXPECT_EQ(query_.status().message(), "buckets: none given; name at least one");
  query_.Reset();
  for (int i = 0; i < 257; ++i) query_.AddBucket("api", "k");
  Query();
  EXPECT_EQ(query_.status().message(), "buckets: 257; ask for at most 256");
  query_.Reset();
  query_.AddBucket("api", "k");
  query_.AddBucket("apo", "k");
  Query();
  EXPECT_EQ(query_.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(query_.status().message(),
            "buckets[1].limit: no limit is named \"apo\"; did you mean \"api\"?");
}

// A query walks all open receipts of a bucket; a repeated acquisition does not.
TEST_F(QueryTest, CountsOpenReceiptsAsWork) {
  constexpr int kEstimates = 5000;
  limits::LimitSpec spec = PerSecond("big", 1'000'000);
  Load({spec});
  const std::string id = "0123456789abcdef";
  AcquisitionOptions options;
  options.settle_within = WireDuration{60, 0};
  for (int i = 0; i < kEstimates; ++i) {
    call_.Reset(AcquireCall::Form::kUnary);
    call_.BeginAcquisition(options);
    call_.AddCharge("big", "k", 1);
    if (i == 0) call_.SetRequestId(id);
    Run(&call_);
    ASSERT_TRUE(call_.result(0).granted) << call_.result(0).status;
  }
  query_.Reset();
  query_.DecideInSlices();
  for (int i = 0; i < 20; ++i) query_.AddBucket("big", "k");
  int slices = 0;
  limiter_.Query(
      &query_, store::kNoDeadline, [](void* context, QueryCall*) { ++*static_cast<int*>(context); },
      &slices);
  while (query_.more()) {
    EXPECT_GE(query_.slice_cost(), kSliceDecisions);
    limiter_.Continue(&query_);
  }
  EXPECT_GE(slices, 4);
  EXPECT_EQ(query_.bucket(19).refundable.receipts, kEstimates);

  call_.Reset(AcquireCall::Form::kBatch);
  call_.DecideInSlices();
  for (int i = 0; i < 20; ++i) {
    call_.BeginAcquisition(options);
    call_.AddCharge("big", "k", 1);
    call_.SetRequestId(id);
  }
  slices = 0;
  limiter_.Acquire(
      &call_, store::kNoDeadline,
      [](void* context, AcquireCall*) { ++*static_cast<int*>(context); }, &slices);
  EXPECT_EQ(slices, 1);
  EXPECT_FALSE(call_.more());
  EXPECT_TRUE(call_.result(19).repeated);
}

// Records its updates.
class Sink : public WatchSink {
 public:
  bool Ready() override { return ready; }
  void OnUpdate(absl::Span<const BucketStatus> changed, int64_t) override {
    std::string line;
    for (const BucketStatus& bucket : changed) {
      line += std::string(bucket.limit) + "=" +
              (bucket.error.ok() ? std::to_string(bucket.level.remaining) : "error") + " ";
    }
    updates.push_back(line);
  }
  void OnEnd(const absl::Status& status) override { ended = status; }

  bool ready = true;
  std::vector<std::string> updates;
  absl::Status ended;
};

class WatchTest : public QueryTest {
 protected:
  uint64_t Start(int64_t interval_ns = kSecond) {
    WatchOptions options;
    options.buckets = {{"api", "k"}, {"other", ""}};
    options.min_interval =
        WireDuration{interval_ns / kSecond, static_cast<int32_t>(interval_ns % kSecond)};
    const auto id = hub_.Start(std::move(options), sink_);
    EXPECT_TRUE(id.ok()) << id.status();
    hub_.Tick();
    return id.value_or(0);
  }
  void After(int64_t ns) {
    clock_.Advance(ns);
    hub_.Tick();
  }
  std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  WatchHub hub_{limiter_};
};

TEST_F(WatchTest, SendsAllBucketsFirstAndThenChanges) {
  Start();
  EXPECT_EQ(sink_->updates, (std::vector<std::string>{"api=10 other=5 "}));
  After(kSecond);
  EXPECT_EQ(sink_->updates.size(), 1u) << "nothing changed";
  Acquire("other", "", 5);
  After(kSecond - 1);
  EXPECT_EQ(sink_->updates.size(), 1u) << "too soon";
  Acquire("other", "", 4);
  After(1);
  ASSERT_EQ(sink_->updates.size(), 2u);
  EXPECT_EQ(sink_->updates[1], "other=1 ");
}

TEST_F(WatchTest, SendsChangesOfWholePermits) {
  Start(kSecond / 10);
  Acquire("api", "k", 10);
  After(kSecond / 10);
  After(kSecond / 10);
  EXPECT_EQ(sink_->updates, (std::vector<std::string>{"api=10 other=5 ", "api=1 ", "api=2 "}));
}

TEST_F(WatchTest, SkipsASinkThatIsNotReadyAndThenSendsTheLatestState) {
  Start();
  sink_->ready = false;
  Acquire("other", "", 5);
  After(kSecond);
  Load({PerSecond("api", 10)});
  After(kSecond);
  EXPECT_EQ(sink_->updates.size(), 1u);
  sink_->ready = true;
  After(kSecond);
  EXPECT_EQ(sink_->updates.back(), "other=error ") << "its limit was deleted";
}

TEST_F(WatchTest, EndsWhenCancelledOrDrained) {
  const uint64_t id = Start();
  EXPECT_EQ(hub_.watches(), 1u);
  hub_.Cancel(id);
  EXPECT_EQ(hub_.watches(), 0u);
  Acquire("api", "k", 10);
  After(kSecond);
  EXPECT_EQ(sink_->updates.size(), 1u);

  Start();
  hub_.Drain(absl::UnavailableError("drains"));
  hub_.Tick();
  EXPECT_EQ(sink_->ended.message(), "drains");
  EXPECT_EQ(hub_.Start({{{"api", "k"}}, {}}, sink_).status().message(), "drains");
}

TEST_F(WatchTest, CancelForgetsTheSink) {
  const uint64_t id = Start();
  const std::weak_ptr<Sink> sink = sink_;
  sink_.reset();
  EXPECT_FALSE(sink.expired());
  hub_.Cancel(id);
  EXPECT_TRUE(sink.expired());
}

// A peer that opens and cancels watches with long intervals leaves nothing behind.
TEST_F(WatchTest, CancelForgetsWhenItWasDue) {
  const uint64_t id = Start(3600 * kSecond);
  EXPECT_NE(hub_.Tick(), store::kNoDeadline);
  hub_.Cancel(id);
  EXPECT_EQ(hub_.Tick(), store::kNoDeadline);
}

TEST_F(WatchTest, RejectsIntervalsOutOfBoundsAndUnknownLimits) {
  for (const WireDuration interval : {WireDuration{0, 0}, WireDuration{0, 9'999'999},
                                      WireDuration{3600, 1}, WireDuration{-1, 0}}) {
    EXPECT_EQ(hub_.Start({{{"api", "k"}}, interval}, sink_).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(hub_.Start({{{"none", "k"}}, {}}, sink_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(hub_.Start({{}, {}}, sink_).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::service
