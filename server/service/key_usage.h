// KeyUsage: finds the keys that are used and denied most, with two FrequentKeys sketches per thread
// that are added up when read. Recording never waits: while a reader copies a thread's sketches,
// that thread counts weights without their keys, and the reader adds them to the stated error.
#ifndef SLUICE_SERVER_SERVICE_KEY_USAGE_H_
#define SLUICE_SERVER_SERVICE_KEY_USAGE_H_

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
    uint64_t total = 0;     // of all keys
    // Every key with more than total / guaranteed is in the sketch, unless a reader held its lock
    // meanwhile.
    uint32_t guaranteed = 0;
  };

  static constexpr size_t kCounters = 1024;
  static constexpr const char* kSketch =
      "misra-gries, 1024 counters a thread: error at most total / 512";

  // Calls record(recorder), which may call recorder.Used(limit_id, key, permits) and
  // recorder.Denied(limit_id, key) any number of times. Takes one lock and never waits for it.
  template <typename RecordAll>
  void Record(RecordAll record) {
    Sketches& sketches = sketches_.Local();
    if (sketches.mu.TryLock()) {
      record(Known{hash_, sketches.used, sketches.denied});
      sketches.mu.Unlock();
    } else {
      record(Missed{sketches.missed_used, sketches.missed_denied});
    }
  }

  // The top `most` keys of the limit `wanted` (a limit_id, or kAllLimits).
  static constexpr uint32_t kAllLimits = ~uint32_t{0};
  Top MostUsed(KeyOrder order, uint32_t wanted, size_t most) const;

 private:
  struct Sketches {
    common::Mutex mu;
    FrequentKeys used ABSL_GUARDED_BY(mu){kCounters};
    FrequentKeys denied ABSL_GUARDED_BY(mu){kCounters};
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

  // Of all sketches.
  const store::BucketHash hash_{common::RandomWord()};
  mutable common::PerThread<Sketches> sketches_;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_KEY_USAGE_H_
