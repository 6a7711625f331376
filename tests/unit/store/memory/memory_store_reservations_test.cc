// Reservations of the memory store against brute force: every moment is tried in every bucket.
//
// What a bucket that counts may hold is written down here as it is defined: with N(s) the permits
// that count at s, of all that was taken or booked, n more may be booked at t iff N + n stays
// within the limit from t until they no longer count. So parameters may change while much is
// booked. A token bucket is replayed from its beginning by the reference, and keeps its parameters.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/reference.h"
#include "tests/support/store_calls.h"
#include "tests/support/tiny_parameters.h"
#include "tests/support/window_checker.h"

namespace sluice::store {
namespace {

using algorithm::Kind;
using algorithm::Parameters;
using test_support::Grant;
using test_support::ReferenceTokenBucket;
using testing::Acquired;

constexpr size_t kBuckets = 3;  // the first is shared, the others are channels under it
constexpr int64_t kStartNs = 1000;

// All alike, also in the small cases that come first.
template <typename T>
T Any(T from, T until) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(from, until));
}

struct Event {
  int64_t grant_time_ns = 0;
  uint64_t permits = 0;
  uint64_t id = 0;  // of the acquisition
};

// The limit's period.
int64_t PeriodOf(const Parameters& parameters) {
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      return parameters.token_bucket.rate.period_ns;
    case Kind::kSlidingLog:
      return parameters.sliding_log.rate.period_ns;
    case Kind::kSlidingWindow:
      return parameters.sliding_window.rate.period_ns;
    case Kind::kFixedWindow:
    case Kind::kConcurrency:
      break;
  }
  return parameters.fixed_window.rate.period_ns;
}

uint64_t& MostOf(Parameters& parameters) {
  switch (parameters.kind) {
    case Kind::kSlidingLog:
      return parameters.sliding_log.rate.permits;
    case Kind::kSlidingWindow:
      return parameters.sliding_window.rate.permits;
    default:
      return parameters.fixed_window.rate.permits;
  }
}

// Until when, exclusive, permits of t count. The wall clock shows what the other one does.
int64_t UntilNs(const Parameters& parameters, int64_t t) {
  const int64_t period = PeriodOf(parameters);
  if (parameters.kind == Kind::kSlidingLog) {
    const int64_t quantum = parameters.sliding_log.quantum_ns;
    return (t + quantum - 1) / quantum * quantum + period;
  }
  if (parameters.kind == Kind::kSlidingWindow) {
    const int64_t k = parameters.sliding_window.sub_windows;
    return ((t * k / period + k + 1) * period + k - 1) / k;
  }
  return (t / period + 1) * period;
}

struct Bucket {
  Parameters parameters;
  std::shared_ptr<const Rule> rule;
  std::vector<Event> events;  // in the order of moments, then of booking
  // The most that any parameters allowed.
  uint64_t greatest = 0;

  void Add(const Event& event) {
    events.insert(std::upper_bound(events.begin(), events.end(), event,
                                   [](const Event& a, const Event& b) {
                                     return a.grant_time_ns < b.grant_time_ns;
                                   }),
                  event);
  }
  void Remove(uint64_t id) {
    std::erase_if(events, [&](const Event& event) { return event.id == id; });
  }

  uint64_t CountedAt(int64_t s) const {
    uint64_t counted = 0;
    for (const Event& event : events) {
      if (event.grant_time_ns <= s && s < UntilNs(parameters, event.grant_time_ns)) {
        counted += event.permits;
      }
    }
    return counted;
  }

  bool Fits(int64_t t, uint64_t permits) const {
    if (parameters.kind == Kind::kTokenBucket) {
      Bucket with = *this;
      with.Add({t, permits, 0});
      const algorithm::TokenBucket& p = parameters.token_bucket;
      ReferenceTokenBucket reference(p.unit_ticks, uint64_t{1} << p.shift, p.burst, p.debt);
      return std::all_of(with.events.begin(), with.events.end(), [&](const Event& event) {
        return reference.TryTake(event.permits, event.grant_time_ns);
      });
    }
    Parameters random = parameters;
    const uint64_t most = MostOf(random);
    const int64_t until = UntilNs(parameters, t);
    if (CountedAt(t) + permits > most) return false;
    // N rises at events only.
    return std::all_of(events.begin(), events.end(), [&](const Event& event) {
      return event.grant_time_ns <= t || event.grant_time_ns >= until ||
             CountedAt(event.grant_time_ns) + permits <= most;
    });
  }

  // No window of the history, past or to come, is over.
  std::string CheckWindows() const {
    std::vector<Grant> history;
    for (const Event& event : events) history.push_back({event.grant_time_ns, event.permits});
    if (parameters.kind == Kind::kTokenBucket) {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      for (Grant& grant : history) grant.at_ns <<= p.shift;
      return test_support::CheckRateInEveryWindow(history, 1, static_cast<int64_t>(p.unit_ticks),
                                                  p.burst + p.debt);
    }
    if (parameters.kind != Kind::kFixedWindow) {
      return test_support::CheckCountInEveryWindow(history, PeriodOf(parameters), greatest);
    }
    for (const Event& event : events) {
      if (CountedAt(event.grant_time_ns) > greatest) return "a window is over";
    }
    return "";
  }
};

using Charges = std::vector<std::pair<size_t, uint64_t>>;  // bucket, permits

struct Reservation {
  uint64_t id = 0;
  int64_t grant_time_ns = 0;
  int64_t until_ns = 0;
  Charges charges;
  bool answered = false;  // its caller knows the grant time, so it stays
};

class Scene {
 public:
  Scene() {
    clock_.SetNow(kStartNs);
    clock_.SetWall(kStartNs);
    for (uint32_t b = 0; b < kBuckets; ++b) {
      const Kind kind = *rc::gen::element(Kind::kTokenBucket, Kind::kSlidingLog,
                                          Kind::kSlidingWindow, Kind::kFixedWindow);
      buckets_[b].parameters = testing::AnyTiny(kind);
      Register(b);
    }
  }

  void Advance(int64_t by_ns) {
    clock_.Advance(by_ns);
    std::erase_if(waiting_,
                  [&](const Reservation& r) { return r.grant_time_ns <= clock_.NowNs(); });
  }

  void Ask() {
    static const std::array<std::vector<size_t>, 5> kSets = {{{0}, {1, 0}, {0, 2}, {1}, {2, 1, 0}}};
    const uint64_t wanted = *rc::gen::weightedElement<uint64_t>({{4, 1}, {1, 2}, {1, 3}});
    Charges charges;
    for (const size_t b : *rc::gen::elementOf(kSets)) {
      charges.push_back({b, std::min(wanted, algorithm::MaxGrant(buckets_[b].parameters))});
    }
    const int64_t max_wait_ns = *rc::gen::element<int64_t>(0, 10, 60, 150);
    const int64_t now_ns = clock_.NowNs();
    const int64_t earliest_ns = Earliest(charges, FromNs(charges, UINT64_MAX));
    const Acquired acquired =
        testing::Acquire(store_, ChargesOf(charges), {.max_wait_ns = max_wait_ns});
    RC_ASSERT(acquired.now_ns == now_ns);
    RC_ASSERT(acquired.granted() == (earliest_ns <= now_ns + max_wait_ns));
    if (!acquired.granted()) {
      RC_ASSERT(acquired.retry_after_ns == earliest_ns - now_ns - max_wait_ns);
      return;
    }
    RC_ASSERT(now_ns + acquired.wait_ns == earliest_ns);
    RC_ASSERT((acquired.receipt_id != 0) == (acquired.wait_ns > 0));
    Book({acquired.receipt_id, earliest_ns, now_ns + max_wait_ns, charges, Any(0, 3) == 0});
  }

  void CancelOne() {
    if (waiting_.empty()) return;
    const auto i = Any<size_t>(0, waiting_.size());
    const Reservation reservation = waiting_[i];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    const auto cancel = [&] {
      return testing::Refund(store_, reservation.id, ChargesOf(reservation.charges),
                             reservation.grant_time_ns)
          .outcome;
    };
    RC_ASSERT(cancel() == RefundOutcome::kRefunded);
    RC_ASSERT(cancel() == RefundOutcome::kAlreadyRefunded);
    for (Bucket& bucket : buckets_) bucket.Remove(reservation.id);
  }

  // New parameters for a bucket that counts; reservations that were not answered get new grant
  // times.
  void Reload() {
    const auto b = Any<uint32_t>(0, kBuckets);
    if (buckets_[b].parameters.kind == Kind::kTokenBucket) return;
    MostOf(buckets_[b].parameters) = Any<uint64_t>(1, 6);
    Register(b);
    std::vector<Reservation> held;
    std::erase_if(waiting_, [&](const Reservation& r) {
      if (!r.answered) held.push_back(r);
      return !r.answered;
    });
    std::sort(held.begin(), held.end(),
              [](const Reservation& a, const Reservation& c) { return a.id < c.id; });
    std::vector<std::vector<Charge>> charges(held.size());
    std::vector<std::array<ChargeResult, kBuckets>> results(held.size());
    std::vector<Rebooking> items(held.size());
    for (size_t i = 0; i < held.size(); ++i) {
      charges[i] = ChargesOf(held[i].charges);
      items[i].receipt_id = held[i].id;
      items[i].charges = charges[i];
      items[i].results = results[i].data();
      items[i].grant_time_ns = held[i].grant_time_ns;
      items[i].until_ns = held[i].until_ns;
      for (Bucket& bucket : buckets_) bucket.Remove(held[i].id);
    }
    struct Call final : RebookOperation {
      void Done() override {}
    } call;
    call.items = absl::MakeSpan(items);
    store_.Rebook(&call);
    RC_ASSERT(call.status == RebookStatus::kDone);
    for (size_t i = 0; i < held.size(); ++i) {
      Reservation& one = held[i];
      const int64_t earliest_ns = Earliest(one.charges, FromNs(one.charges, one.id));
      RC_ASSERT((items[i].outcome == Rebooking::Outcome::kBooked) == (earliest_ns <= one.until_ns));
      if (items[i].outcome != Rebooking::Outcome::kBooked) continue;
      RC_ASSERT(items[i].grant_time_ns == earliest_ns);
      one.grant_time_ns = earliest_ns;
      Book(one);
    }
  }

  void Check() {
    for (const Bucket& bucket : buckets_) {
      RC_ASSERT(bucket.CheckWindows() == "");
      const auto booked =
          std::count_if(bucket.events.begin(), bucket.events.end(),
                        [&](const Event& event) { return event.grant_time_ns > clock_.NowNs(); });
      RC_ASSERT(testing::Query(store_, *bucket.rule, "").waiting == static_cast<uint64_t>(booked));
    }
  }

  bool waiting() const { return !waiting_.empty(); }

 private:
  void Register(uint32_t b) {
    Bucket& bucket = buckets_[b];
    bucket.rule = testing::MakeRule(b + 1, bucket.parameters);
    if (bucket.parameters.kind != Kind::kTokenBucket) {
      bucket.greatest = std::max(bucket.greatest, MostOf(bucket.parameters));
    }
    rules_.push_back(bucket.rule);
    store_.Register(bucket.rule);
  }

  std::vector<Charge> ChargesOf(const Charges& charges) const {
    std::vector<Charge> of;
    for (const auto& [b, permits] : charges) of.push_back({buckets_[b].rule.get(), "", permits});
    return of;
  }

  static uint64_t SetOf(const Charges& charges) {
    uint64_t set = 0;
    for (const auto& charge : charges) set |= uint64_t{1} << charge.first;
    return set;
  }

  // The order: not before earlier requests of the same set.
  int64_t FromNs(const Charges& charges, uint64_t id) const {
    int64_t from_ns = clock_.NowNs();
    for (const Reservation& r : waiting_) {
      if (r.id < id && SetOf(r.charges) == SetOf(charges)) {
        from_ns = std::max(from_ns, r.grant_time_ns);
      }
    }
    return from_ns;
  }

  int64_t Earliest(const Charges& charges, int64_t from_ns) const {
    // What can never be granted, since a limit was lowered, is granted at no moment.
    for (const auto& [b, permits] : charges) {
      if (permits > algorithm::MaxGrant(buckets_[b].parameters)) return algorithm::kNeverNs;
    }
    for (int64_t t = from_ns;; ++t) {
      if (std::all_of(charges.begin(), charges.end(), [&](const auto& charge) {
            return buckets_[charge.first].Fits(t, charge.second);
          })) {
        return t;
      }
    }
  }

  void Book(const Reservation& reservation) {
    for (const auto& [b, permits] : reservation.charges) {
      buckets_[b].Add({reservation.grant_time_ns, permits, reservation.id});
    }
    if (reservation.grant_time_ns > clock_.NowNs()) waiting_.push_back(reservation);
  }

  common::FakeClock clock_;
  MemoryStore store_{clock_, {.seed = 1}};
  std::array<Bucket, kBuckets> buckets_;
  std::vector<std::shared_ptr<const Rule>> rules_;
  std::vector<Reservation> waiting_;
};

RC_GTEST_PROP(MemoryStoreReservationsTest, EachReservationGetsTheEarliestTimeThatTheOrderAllows,
              ()) {
  Scene scene;
  const int steps = Any(10, 70);
  for (int step = 0; step < steps; ++step) {
    switch (Any(0, 10)) {
      case 0:
      case 1:
        scene.Advance(Any<int64_t>(0, 15));
        break;
      case 2:
        scene.CancelOne();
        break;
      case 3:
        scene.Reload();
        break;
      default:
        scene.Ask();
    }
    scene.Check();
  }
  while (scene.waiting()) scene.Advance(20);
  scene.Check();
}

}  // namespace
}  // namespace sluice::store
