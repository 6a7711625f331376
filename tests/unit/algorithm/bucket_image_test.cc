#include "server/algorithm/bucket_image.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

#include "server/algorithm/bucket_state.h"
#include "tests/unit/algorithm/any_parameters.h"

namespace sluice::algorithm {
namespace {

Moment At(int64_t now_ns) { return {now_ns, now_ns}; }

// One bucket that is laid open and put together again now and then, and one that is not.
class Twins {
 public:
  explicit Twins(const Parameters& parameters) : parameters_(parameters) {}

  void BeginAt(int64_t now_ns) {
    now_ns_ = now_ns;
    for (BucketState* twin : {&kept_, &remade_}) twin->Fold(parameters_, At(now_ns));
  }
  void Remake() { remade_ = BucketState::FromImage(parameters_, remade_.ToImage()); }

  void Take(uint64_t permits, bool wait) {
    const uint64_t id = ++next_id_;
    const int64_t grant_time_ns = kept_.EarliestNs(parameters_, permits, At(now_ns_), kSet);
    RC_ASSERT(remade_.EarliestNs(parameters_, permits, At(now_ns_), kSet) == grant_time_ns);
    if (grant_time_ns == kNeverNs || (grant_time_ns > now_ns_ && !wait)) return;
    for (BucketState* twin : {&kept_, &remade_}) {
      if (grant_time_ns <= now_ns_) {
        RC_ASSERT(twin->TryTake(parameters_, permits, At(now_ns_), id, nullptr, kSet));
      } else {
        twin->Book(parameters_, {grant_time_ns, permits, id, kSet}, At(now_ns_));
      }
    }
    given_.push_back({grant_time_ns, id});
  }

  void GiveBack(size_t which) {
    const auto [grant_time_ns, id] = given_[which];
    if (grant_time_ns > now_ns_) {
      RC_ASSERT(kept_.CancelBooking(parameters_, grant_time_ns, id) ==
                remade_.CancelBooking(parameters_, grant_time_ns, id));
    } else {
      RC_ASSERT(kept_.Refund(parameters_, id, At(now_ns_)) ==
                remade_.Refund(parameters_, id, At(now_ns_)));
    }
  }

  void Compare() {
    RC_ASSERT(kept_.bookings() == remade_.bookings());
    RC_ASSERT(kept_.NextGrantTimeNs() == remade_.NextGrantTimeNs());
    RC_ASSERT(kept_.open_receipts() == remade_.open_receipts());
    RC_ASSERT(kept_.IsFull(parameters_, At(now_ns_)) == remade_.IsFull(parameters_, At(now_ns_)));
    RC_ASSERT(kept_.LevelAt(parameters_, At(now_ns_)) == remade_.LevelAt(parameters_, At(now_ns_)));
  }

  size_t given() const { return given_.size(); }

 private:
  static constexpr uint64_t kSet = 7;
  struct Given {
    int64_t grant_time_ns;
    uint64_t id;
  };

  const Parameters parameters_;
  BucketState kept_{parameters_};
  BucketState remade_{parameters_};
  int64_t now_ns_ = 0;
  uint64_t next_id_ = 0;
  std::vector<Given> given_;
};

RC_GTEST_PROP(BucketImageTest, StateFromAnImageDecidesTheSame, ()) {
  const AnyLimit any = AnyParameters();
  Twins twins(any.parameters);
  int64_t now_ns = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40);
  const int steps = *rc::gen::inRange(1, 60);
  for (int s = 0; s < steps; ++s) {
    const test_support::Step step = *test_support::AnyStep(any.random, MaxGrant(any.parameters));
    now_ns += std::abs(step.advance_ns) / *rc::gen::element<int64_t>(1, 4, 50);
    twins.BeginAt(now_ns);
    switch (*rc::gen::inRange(0, 5)) {
      case 0:
        twins.Remake();
        break;
      case 1:
        if (twins.given() != 0) twins.GiveBack(*rc::gen::inRange<size_t>(0, twins.given()));
        break;
      default:
        twins.Take(1 + step.permits % MaxGrant(any.parameters), *rc::gen::arbitrary<bool>());
    }
    twins.Compare();
  }
}

}  // namespace
}  // namespace sluice::algorithm
