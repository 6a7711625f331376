// LocalBuckets: buckets that this node decides by itself, with its share of their limits'
// parameters.
//
// All begin empty when the share does: a token bucket holds nothing (and all its debt is made), a
// log or window counts as used up for a period. When the divisor changes, a token bucket keeps the
// permits that it holds, as far as they fit, and what it may owe beyond them; from then on it
// refills at the new rate. A window takes its parameters by the greatest divisor of the last
// period. So what all nodes hold together is never more than the limit (docs/adr/0094).
//
// A bucket that is full is dropped now and then: one that does not exist is as one that was never
// used since the share began.
//
// Thread-safe; never blocks for longer than some decisions take.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_BUCKETS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_BUCKETS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "server/algorithm/bucket_state.h"
#include "server/store/redis/sharing/membership.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

class LocalBuckets {
 public:
  // A charge, its rule as registered, and where its result goes.
  struct Part {
    std::shared_ptr<const RuleEntry> rule;
    std::string_view key;
    uint64_t permits = 1;
    ChargeResult* result = nullptr;
    // Of this node's share of it; not empty.
    const ShareHistory* history = nullptr;
  };

  // What was granted of a bucket and Redis does not know.
  struct Granted {
    std::shared_ptr<const RuleEntry> rule;
    std::string key;
    uint64_t permits = 0;
    // From then on it matters no more (on common::Clock::NowNs()): its bucket here would be full,
    // so that the share's own refill has paid for it.
    int64_t until_ns = 0;
  };

  // At most so many buckets; who would need one more is denied, Reason::kOverflow.
  explicit LocalBuckets(size_t max_buckets) : max_buckets_(max_buckets) {}

  // All or none. kGranted, kDenied, kStaleRule, kUnavailable (see Open). `*retry_after_ns` is set
  // if it is denied; for more permits than a share can hold (Reason::kShareTooSmall), to when the
  // share may be another. A receipt is opened in each bucket if receipt_id is not 0. REQUIRES:
  // parts of different buckets.
  Outcome Acquire(absl::Span<const Part> parts, algorithm::Moment at, uint64_t receipt_id,
                  int64_t* retry_after_ns) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // Takes nothing, makes no bucket. Returns whether there is one.
  bool Query(const std::shared_ptr<const RuleEntry>& rule, std::string_view key,
             const ShareHistory& history, algorithm::Moment at, BucketLevel* level);

  // Whole permits given back; nullopt: there is no such open receipt.
  std::optional<uint64_t> Refund(const Rule& rule, std::string_view key, uint64_t receipt_id,
                                 algorithm::Moment at);

  // Forgets the bucket. True: there was one.
  bool Forget(const Rule& rule, std::string_view key);

  // Between Close and Open nothing is granted (kUnavailable). It is open at first.
  void Open();
  void Close();

  // Closes, and forgets all; returns what was granted and still matters: permits that were granted
  // since the share began, but no more than their buckets lack of full.
  std::vector<Granted> TakeAll(algorithm::Moment at);

  // Drops full buckets; a part of them each time. A limit's history is the one or the other (see
  // Membership); where it is empty nothing is dropped.
  void Sweep(const ShareHistory& strict, const ShareHistory& lenient, algorithm::Moment at);

  size_t size() const { return size_.load(std::memory_order_relaxed); }

 private:
  struct Bucket {
    std::shared_ptr<const RuleEntry> rule;
    uint32_t divisor = 0;  // by which the state is made; 0: of a window that is not open
    uint64_t serial = 0;   // of the last change of the share that is in the state
    std::optional<algorithm::Parameters> parameters;  // nullopt: the share is nothing
    algorithm::BucketState state{algorithm::Parameters{}};
    uint64_t granted = 0;  // permits
  };
  using Map = absl::flat_hash_map<std::string, Bucket>;
  struct Stripe {
    common::Mutex mu;
    Map buckets ABSL_GUARDED_BY(mu);
    bool open ABSL_GUARDED_BY(mu) = true;
  };
  static constexpr size_t kStripes = 16;

  static std::string NameOf(uint32_t limit_id, std::string_view key);
  Stripe& StripeOf(std::string_view name);
  static Bucket New(std::shared_ptr<const RuleEntry> rule);
  // Brings it up to the share and the parameters that hold at `at`. False: it is of a newer rule.
  static bool Advance(Bucket& bucket, const std::shared_ptr<const RuleEntry>& rule,
                      const ShareHistory& history, algorithm::Moment at);
  static void AdvanceToken(Bucket& bucket, const ShareHistory& history);
  static void AdvanceWindow(Bucket& bucket, const ShareHistory& history, algorithm::Moment at);
  static BucketLevel LevelOf(const Bucket& bucket, const ShareHistory& history,
                             algorithm::Moment at);

  const size_t max_buckets_;
  std::array<Stripe, kStripes> stripes_;
  std::atomic<size_t> size_{0};
  std::atomic<size_t> next_sweep_{0};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_BUCKETS_H_
