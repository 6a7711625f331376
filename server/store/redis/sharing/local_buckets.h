// LocalBuckets: buckets that this node decides by itself, with its share of their limits'
// parameters.
//
// All start empty when the share starts, or when their limit becomes split: a token bucket holds
// nothing, with all its debt made; a log or window counts as used up for a period. When the divisor
// changes, a token bucket keeps the permits that it holds, as far as they fit, and counts debt that
// it may make beyond before as made; from then on it refills at the new rate. A window uses the
// greatest divisor of the last period. So the buckets of all nodes together never hold more than
// the limit (docs/adr/0094).
//
// Example: burst 100, two nodes: each bucket holds up to 50. A third node comes: the divisor is 3,
// and a bucket that holds 40 keeps 33.
//
// Full buckets are dropped from time to time: a missing bucket equals one that was not used since
// the share started.
//
// A table is bounded in buckets and in bytes. When it is full it takes no new bucket, and lets none
// grow: what opens a receipt or adds to a log is denied, Reason::kOverflow, as in the memory store.
// Decisions that take no memory go on.
//
// Thread-safe. Blocks for the time of a few hundred decisions at most: a table consists of many
// small maps, of which one at a time is rehashed or swept. Take closes the table, and blocks for
// the time of its buckets.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_BUCKETS_H_
#define SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_BUCKETS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "server/algorithm/bucket_state.h"
#include "server/store/redis/sharing/membership.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// The parameters divided by `divisor` and rounded down, so that `divisor` shares together are at
// most the whole. Divides a token bucket's burst, debt and rate (multiplies the period; where that
// does not fit, divides the permits), or a window's permits. nullopt: nothing is left. Pure;
// thread-safe. REQUIRES: divisor >= 1.
std::optional<algorithm::Parameters> ShareOf(const algorithm::Parameters& whole, uint32_t divisor);

class LocalBuckets {
 public:
  using Kept = algorithm::OpenReceipts::Kept;

  // A charge, its rule as registered, and where its result goes.
  struct Part {
    std::shared_ptr<const RuleEntry> rule;
    std::string_view key;
    uint64_t permits = 1;
    ChargeResult* result = nullptr;
    // Of this node's share of it; not empty.
    const ShareHistory* history = nullptr;
  };

  // Permits granted from a bucket that are not debited in Redis.
  struct Granted {
    std::shared_ptr<const RuleEntry> rule;
    std::string key;
    uint64_t permits = 0;
    // When they no longer matter (on common::Clock::NowNs()): the bucket here would be full, so
    // that the refill of the share has paid for them.
    int64_t until_ns = 0;
  };

  static constexpr size_t kDefaultMaxBytes = size_t{256} << 20;

  // An acquisition that needs more than max_buckets or max_bytes is denied, Reason::kOverflow.
  explicit LocalBuckets(size_t max_buckets, size_t max_bytes = kDefaultMaxBytes)
      : max_buckets_(max_buckets), max_bytes_(max_bytes) {}

  // Buckets that are there stay.
  void SetMaxBytes(size_t max_bytes) { max_bytes_.store(max_bytes, std::memory_order_relaxed); }

  // All or none. kGranted, kDenied, kStaleRule, kUnavailable (see SetOpen). Sets *retry_after_ns if
  // denied; for more permits than the share can hold (Reason::kShareTooSmall), to when the share
  // may have changed. Opens a receipt in each bucket if receipt_id is not 0. `kept`: others do not
  // displace it; the caller bounds such receipts, and ends each by CloseReceipt or
  // KeepReceiptNoLonger. REQUIRES: parts of different buckets.
  Outcome Acquire(absl::Span<const Part> parts, algorithm::Moment at, uint64_t receipt_id,
                  int64_t* retry_after_ns, Kept kept = Kept::kNo) ABSL_NO_THREAD_SAFETY_ANALYSIS;

  // Changes nothing. Returns whether the bucket exists.
  bool Query(const std::shared_ptr<const RuleEntry>& rule, std::string_view key,
             const ShareHistory& history, algorithm::Moment at, BucketLevel* level,
             algorithm::Refundable* refundable);

  // Returns the whole permits given back; nullopt: there is no such open receipt.
  std::optional<uint64_t> Refund(const Rule& rule, std::string_view key, uint64_t receipt_id,
                                 algorithm::Moment at);

  // The acquisition can no longer be refunded.
  void CloseReceipt(const Rule& rule, std::string_view key, uint64_t receipt_id);

  // A kept receipt becomes one like any other.
  void KeepReceiptNoLonger(const Rule& rule, std::string_view key, uint64_t receipt_id);

  // Drops the bucket. Returns whether it existed.
  bool Forget(const Rule& rule, std::string_view key);

  // While it is not open nothing is granted (kUnavailable). Open at first.
  void SetOpen(bool open);

  // Closes, and drops up to `most` buckets. Returns the permits that were granted since the share
  // started, but at most what their buckets lack of full: the rest no longer matters.
  std::vector<Granted> Take(size_t most, algorithm::Moment at);

  // A limit is no longer split; stays open. `rule` is its first that is not: from now on older ones
  // get kStaleRule.
  void EndLimit(const Rule& rule);

  // As Take, of the buckets of ended limits under older rules. Looks at a part of the table, of
  // some thousand buckets: call it with *from = 0 first, then again until *from is kEnd.
  static constexpr size_t kEnd = std::numeric_limits<size_t>::max();
  std::vector<Granted> TakeEnded(algorithm::Moment at, size_t* from);

  // Drops full buckets of a sixteenth of the table. `strict`, `lenient`: the shares (see
  // Membership); buckets of an empty share are kept.
  void Sweep(const ShareHistory& strict, const ShareHistory& lenient, algorithm::Moment at);

  size_t size() const { return size_.load(std::memory_order_relaxed); }
  // Of all buckets, with their keys, receipts and logs.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Bucket {
    std::shared_ptr<const RuleEntry> rule;
    uint32_t divisor = 0;  // of the state; 0: a window that is not open yet
    uint64_t serial = 0;   // of the last change of the share that the state includes
    std::optional<algorithm::Parameters> parameters;  // nullopt: the share is nothing
    algorithm::BucketState state{algorithm::Parameters{}};
    uint64_t granted = 0;  // permits
    size_t bytes = 0;      // as counted in bytes_
  };
  // By limit id and key.
  using Name = std::pair<uint32_t, std::string>;
  using Map = absl::node_hash_map<Name, Bucket>;
  // Of a table of 2^20 buckets a map has 256.
  static constexpr size_t kStripes = 16;
  static constexpr size_t kMapsPerStripe = 256;
  static constexpr size_t kMaps = kStripes * kMapsPerStripe;
  static constexpr size_t kMapsSwept = kMaps / 16;
  struct Stripe {
    common::Mutex mu;
    std::array<Map, kMapsPerStripe> maps ABSL_GUARDED_BY(mu);
    bool open ABSL_GUARDED_BY(mu) = true;
    // By limit id: rules with lesser ids were ended by EndLimit.
    absl::flat_hash_map<uint32_t, uint32_t> least_rule_ids ABSL_GUARDED_BY(mu);
  };

  // A charge while its bucket is decided.
  struct Held {
    Name name;
    Stripe* stripe = nullptr;
    Map* map = nullptr;
    Bucket* bucket = nullptr;  // null: there is no room for one, or for what it would grow
    bool fits = false;
  };

  // The number of a bucket's map. Maps with successive numbers are in different stripes.
  static size_t PlaceOf(const Name& name);
  Stripe& StripeAt(size_t place) { return stripes_[place % kStripes]; }
  static Map& MapAt(Stripe& stripe, size_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mu) {
    return stripe.maps[place / kStripes];
  }
  // Calls use(bucket), with null if there is none.
  template <typename Use>
  auto WithBucket(const Name& name, Use use);
  // Finds the buckets of all parts. Makes those that are missing, or none if there is no room.
  void FindOrMake(absl::Span<const Part> parts, uint64_t receipt_id, absl::Span<Held> held);
  // Whether a grant may take memory.
  static bool MayGrow(const Part& part, const Bucket& bucket, uint64_t receipt_id);
  // Counts the bytes of a bucket: when it is made, decided or swept. Nothing else makes it grow.
  void Recount(const Name& name, Bucket& bucket);
  // To be called before a bucket is erased.
  void CountOut(const Bucket& bucket);
  // The same as Acquire, with all stripes locked.
  Outcome Decide(absl::Span<const Part> parts, absl::Span<Held> held, algorithm::Moment at,
                 uint64_t receipt_id, int64_t* retry_after_ns, Kept kept);
  // A bucket does not hold the permits: returns why, and raises *retry_after_ns.
  static Reason WhyNot(const Part& part, const Bucket& bucket, algorithm::Moment at,
                       int64_t* retry_after_ns);
  static Bucket New(std::shared_ptr<const RuleEntry> rule);
  // Applies changes of the share and of the rule up to `at`. False: the bucket is of a newer rule.
  static bool Advance(Bucket& bucket, const std::shared_ptr<const RuleEntry>& rule,
                      const ShareHistory& history, algorithm::Moment at);
  static void AdvanceToken(Bucket& bucket, const ShareHistory& history);
  static void AdvanceWindow(Bucket& bucket, const ShareHistory& history, algorithm::Moment at);
  static BucketLevel LevelOf(const Bucket& bucket, const ShareHistory& history,
                             algorithm::Moment at);
  // Appends what a bucket that was taken granted.
  static void AppendGranted(const std::string& key, const Bucket& bucket, algorithm::Moment at,
                            std::vector<Granted>* all);

  const size_t max_buckets_;
  std::atomic<size_t> max_bytes_;
  std::array<Stripe, kStripes> stripes_;
  std::atomic<size_t> size_{0};
  std::atomic<size_t> bytes_{0};
  std::atomic<size_t> next_sweep_{0};
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARING_LOCAL_BUCKETS_H_
