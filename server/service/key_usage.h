// KeyUsage: finds the keys that were used and denied most in the last minutes, with FrequentKeys
// sketches per thread that are added up when read. Recording never waits: while a reader copies a
// thread's sketches, that thread counts weights without their keys, and the reader adds them to the
// stated error.
//
// Time is divided into periods of kPeriodNs. A thread has sketches of the running period and of the
// one before; what is read is of both. So it covers one to two periods, and no key stays longer.
// Advance begins a period; a thread clears its older sketches when it records for the first time
// after that.
#ifndef SLUICE_SERVER_SERVICE_KEY_USAGE_H_
#define SLUICE_SERVER_SERVICE_KEY_USAGE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/histogram.h"
#include "common/mutex.h"
#include "common/per_thread.h"
#include "common/random.h"
#include "server/service/frequent_keys.h"
#include "server/store/bucket_hash.h"

namespace sluice::service {

enum class KeyOrder : uint8_t { kUse, kDenials };

// Thread-safe.
class KeyUsage {
 public:
  struct Key {
    uint32_t limit_id = 0;
    std::string key;
    // The true weight lies within [estimate - error, estimate].
    uint64_t estimate = 0;
    uint64_t error = 0;
  };
  struct Top {
    std::vector<Key> keys;  // most first
    // Since when weight is counted; 0: since Advance was called first.
    int64_t since_wall_ns = 0;
    uint64_t total = 0;  // of all keys
    // Every key with more than total / guaranteed is in the sketch, unless a reader held its lock
    // meanwhile.
    uint32_t guaranteed = 0;
  };

  static constexpr size_t kCounters = 1024;
  static constexpr int64_t kPeriodNs = 120'000'000'000;
  static constexpr const char* kSketch =
      "misra-gries, 1024 counters a thread: error at most total / 512";

  // Begins a new period if the running one is over. To be called every few seconds, by one thread.
  void Advance(int64_t now_ns, int64_t wall_ns);

  // Calls record(recorder), which may call recorder.Used(limit_id, key, permits) and
  // recorder.Denied(limit_id, key) any number of times. Takes one lock and never waits for it.
  template <typename RecordAll>
  void Record(RecordAll record) {
    Sketches& sketches = sketches_.Local();
    if (sketches.mu.TryLock()) {
      const uint32_t period = period_.load(std::memory_order_relaxed);
      if (sketches.period != period) [[unlikely]]
        Turn(sketches, period);
      record(Known{hash_, sketches.running.used, sketches.running.denied});
      sketches.mu.Unlock();
    } else {
      record(Missed{sketches.missed_used, sketches.missed_denied});
    }
  }

  // The top `most` keys of the limit `wanted` (a limit_id, or kAllLimits).
  static constexpr uint32_t kAllLimits = ~uint32_t{0};
  Top MostUsed(KeyOrder order, uint32_t wanted, size_t most) const;

 private:
  struct Period {
    FrequentKeys used{kCounters};
    FrequentKeys denied{kCounters};
    // The missed weight before it began.
    uint64_t missed_used = 0;
    uint64_t missed_denied = 0;
  };
  struct Sketches {
    common::Mutex mu;
    uint32_t period ABSL_GUARDED_BY(mu) = 0;
    Period running ABSL_GUARDED_BY(mu);
    Period before ABSL_GUARDED_BY(mu);
    // Weight that was recorded while a reader held mu.
    common::OwnedCounter missed_used;
    common::OwnedCounter missed_denied;
  };
  struct Known {
    const store::BucketHash& hash;
    FrequentKeys& used;
    FrequentKeys& denied;
    void Used(uint32_t limit_id, std::string_view key, uint64_t permits) {
      used.Add(hash(limit_id, key), limit_id, key, permits);
    }
    void Denied(uint32_t limit_id, std::string_view key) {
      denied.Add(hash(limit_id, key), limit_id, key, 1);
    }
  };
  struct Missed {
    common::OwnedCounter& used;
    common::OwnedCounter& denied;
    void Used(uint32_t, std::string_view, uint64_t permits) { used.Add(permits); }
    void Denied(uint32_t, std::string_view) { denied.Add(1); }
  };

  // On the thread of the sketches.
  static void Turn(Sketches& sketches, uint32_t period) ABSL_EXCLUSIVE_LOCKS_REQUIRED(sketches.mu);

  // Number of the running period. Relaxed: a thread that reads the older number for a moment counts
  // its weight there.
  std::atomic<uint32_t> period_{0};
  std::atomic<int64_t> since_wall_ns_{0};
  // When the running period began. Used by Advance.
  int64_t begun_ns_ = 0;
  int64_t begun_wall_ns_ = 0;
  // Of all sketches.
  const store::BucketHash hash_{common::RandomWord()};
  mutable common::PerThread<Sketches> sketches_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_KEY_USAGE_H_
