// RememberedGrants: the grants of the last minute by their request ids. Private to the memory
// store.
//
// A table in shards. A shard has its entries in the order of insertion, which is the order in which
// they end, and an index of their ids. So each call drops the few oldest that have ended, and no
// timer is needed. An entry takes at most 64 bytes with its part of the index. What a forced grant
// counted is kept beside them for a part of the entries (kMostCounted), so that the bytes of an
// entry stay bounded: further grants are repeated as if nothing had been forgiven.
#ifndef SLUICE_SERVER_STORE_MEMORY_REMEMBERED_GRANTS_H_
#define SLUICE_SERVER_STORE_MEMORY_REMEMBERED_GRANTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "common/mutex.h"
#include "server/store/bucket_hash.h"
#include "server/store/memory/number_index.h"
#include "server/store/once.h"

namespace sluice::store::memory {

// Thread-safe. Not bounded by itself: the caller says with each request whether its grant may be
// remembered (Once::may_remember).
class RememberedGrants {
 public:
  using Grant = RememberedGrant;

  // Grants of a shard of which it is known what they counted (RememberedGrant::counted): one of
  // eight, and always as many as this.
  static constexpr size_t kMostCounted = 64;

  // `seed`: of the hash of ids, which callers choose.
  explicit RememberedGrants(uint64_t seed);

  // Returns the grant that is remembered under the id. If there is none, calls `decide`, remembers
  // the grant that it returns, if any, until now_ns + kRememberNs, and returns nullopt.
  //
  // No other call with the same id decides meanwhile, since the id's shard is locked. So `decide`
  // must not block for long, nor use this table. It takes a microsecond, or up to half a
  // millisecond if it searches among bookings; a call with another id meets the same shard in one
  // of 128 cases.
  std::optional<Grant> FindOrDecide(const RequestId& id, int64_t now_ns,
                                    absl::FunctionRef<std::optional<Grant>()> decide);

  // Calls `refund`. If that returns true, the grant of this receipt was refunded, and is not
  // repeated any more; nothing happens if the id has none of it. As in FindOrDecide, no other call
  // with the id decides meanwhile: none repeats the grant after the permits came back.
  void Refund(const RequestId& id, uint64_t receipt_id, absl::FunctionRef<bool()> refund);

  // Drops grants that have ended, a bounded number. Returns true while there are more.
  bool Maintain(int64_t now_ns);

  // Calls visit(id, grant, end_ns) for each, in an order in which Restore takes them. One shard is
  // copied at a time, and no call waits for `visit`.
  using Visit = absl::FunctionRef<void(const RequestId&, const Grant&, int64_t end_ns)>;
  void ForEach(Visit visit) const;
  // Remembers a grant that an earlier process with the same seed remembered.
  void Restore(const RequestId& id, const Grant& grant, int64_t end_ns);

  uint64_t size() const;
  uint64_t memory_bytes() const;

 private:
  struct Entry {
    RequestId id;
    uint64_t fingerprint;
    int64_t grant_time_ns;
    uint64_t receipt_id;
    int64_t end_ns;
  };
  static_assert(sizeof(Entry) == 48);

  // Entries are numbered in the order of insertion.
  struct Entries {
    // `number`: modulo 2^24, as the index has it.
    Entry& operator[](uint32_t number) { return all[(number - first) & NumberIndex::kNumberMask]; }
    uint32_t NumberOf(uint32_t number) const {
      return first + ((number - first) & NumberIndex::kNumberMask);
    }

    std::deque<Entry> all;
    uint32_t first = 0;  // the number of all.front()
  };
  struct alignas(64) Shard {
    mutable common::Mutex mu;
    Entries entries ABSL_GUARDED_BY(mu);
    NumberIndex index ABSL_GUARDED_BY(mu);  // of all entries, by the hash of their id
    // By the number of the entry; those that counted all have none.
    absl::flat_hash_map<uint32_t, std::vector<uint64_t>> counted ABSL_GUARDED_BY(mu);
    size_t counted_numbers ABSL_GUARDED_BY(mu) = 0;  // of all of them
  };
  static constexpr size_t kShards = 128;

  uint64_t HashOf(const RequestId& id) const { return hash_(0, id.bytes()); }
  // The index takes the low bits.
  Shard& ShardOf(uint64_t hash) { return shards_[hash >> 57]; }
  static_assert(kShards == size_t{1} << (64 - 57));

  static Grant GrantOf(const Shard& shard, const Entry& entry, uint32_t number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  void Add(Shard& shard, uint64_t hash, const RequestId& id, const Grant& grant, int64_t end_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // Drops at most `most` entries that have ended. Returns whether more of them are left.
  bool DropEnded(Shard& shard, int64_t now_ns, size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);

  const BucketHash hash_;
  std::array<Shard, kShards> shards_;
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_REMEMBERED_GRANTS_H_
