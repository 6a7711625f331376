// Record: a bucket in the memory store: one word of state, the id of the rule that computed the
// state, who made it, and the key. Immutable but for the word.
//
// The word:
//   bit 63  locked: only the thread that set it may change the word
//   bit 62  plain: the low 62 bits are the TAT of a token bucket, in ticks of the record's rule
//   else    an algorithm::BucketState*, to be used only while the word is locked. No flag is set,
//           so that leak detectors find the object
//   kDead   the record was dropped or replaced and never comes back; look the key up again
//
// A plain word is changed by compare-and-swap. If the word changes from one TAT to another and back
// between a load and the swap, no harm is done: the decision depends on nothing else.
#ifndef SLUICE_SERVER_STORE_MEMORY_RECORD_H_
#define SLUICE_SERVER_STORE_MEMORY_RECORD_H_

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

#include "common/strings.h"
#include "server/algorithm/bucket_state.h"

namespace sluice::store::memory {

class Record {
 public:
  static constexpr uint64_t kLock = uint64_t{1} << 63;
  static constexpr uint64_t kPlain = uint64_t{1} << 62;
  static constexpr uint64_t kDead = ~uint64_t{0};

  // Bytes of a record with a key of that length, rounded up to whole words.
  static constexpr size_t Bytes(size_t key_bytes) {
    return (kKeyOffset + key_bytes + 7) & ~size_t{7};
  }

  // REQUIRES: `memory` holds Bytes(key.size()), aligned to 8; key.size() < 2^16.
  static Record* Make(void* memory, uint64_t word, uint32_t rule_id, uint16_t maker,
                      std::string_view key) {
    Record* record = new (memory) Record(word, rule_id, maker, static_cast<uint16_t>(key.size()));
    if (!key.empty()) {
      std::memcpy(static_cast<char*>(memory) + kKeyOffset, key.data(), key.size());
    }
    return record;
  }

  uint32_t rule_id() const { return rule_id_; }
  // BucketMaker::number.
  uint16_t maker() const { return maker_; }
  std::string_view key() const {
    return {reinterpret_cast<const char*>(this) + kKeyOffset, key_bytes_};
  }
  size_t bytes() const { return Bytes(key_bytes_); }

  bool HasKey(std::string_view key) const { return common::SameBytes(this->key(), key); }

  // Neither locked nor a pointer nor dead: the word is a TAT.
  static bool IsPlain(uint64_t word) { return (word & (kLock | kPlain)) == kPlain; }
  // REQUIRES: IsPlain(word).
  static uint64_t TatOf(uint64_t word) { return word & (kPlain - 1); }
  static uint64_t WordOf(uint64_t tat) { return tat | kPlain; }
  // REQUIRES: neither plain nor dead.
  static algorithm::BucketState* StateOf(uint64_t word) {
    return reinterpret_cast<algorithm::BucketState*>(word & (kPlain - 1));
  }
  static uint64_t WordOf(algorithm::BucketState* state) {
    return reinterpret_cast<uintptr_t>(state);
  }

  // Acquire: pairs with the release that changed the word, so that the state is seen.
  uint64_t word() const { return word_.load(std::memory_order_acquire); }

  bool Swap(uint64_t* expected, uint64_t word) {
    return word_.compare_exchange_weak(*expected, word, std::memory_order_acq_rel,
                                       std::memory_order_acquire);
  }

  // One attempt to lock; `*word` is what it was.
  bool TryLock(uint64_t* word) {
    *word = word_.load(std::memory_order_relaxed);
    return (*word & kLock) == 0 &&
           word_.compare_exchange_strong(*word, *word | kLock, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }

  // Locks. Returns false if the record is dead. Spins a little, then yields the processor, at last
  // sleeps, and counts the yields and sleeps.
  bool Lock(uint64_t* word, std::atomic<uint64_t>* yields) {
    for (int spins = 0;; ++spins) {
      if (TryLock(word)) return true;
      if (*word == kDead) return false;
      Pause(spins, yields);
    }
  }

  // Sets the word, unlocked or dead. REQUIRES: locked by the caller.
  void Unlock(uint64_t word) { word_.store(word, std::memory_order_release); }

  // To be called between attempts.
  static void Pause(int spins, std::atomic<uint64_t>* yields) {
    if (spins % kSpins == kSpins - 1) {
      yields->fetch_add(1, std::memory_order_relaxed);
      if (spins < kSpins * kYields) {
        sched_yield();
      } else {
        usleep(SleepUs(spins / kSpins - kYields));
      }
      return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  // Attempts before the processor is given to another thread. A lock is held for well under a
  // microsecond unless its holder was descheduled, and then spinning only keeps it so.
  static constexpr int kSpins = 64;
  // Yields before it sleeps. A holder may be descheduled for milliseconds. Yielding would take
  // processor time all the while, which the holder may be waiting for.
  static constexpr int kYields = 16;
  // Each sleep is twice as long as the one before, up to a millisecond: a sleep costs processor
  // time too, and the last one adds at most as much as was waited before.
  static constexpr unsigned SleepUs(int sleeps) { return 16u << std::min(sleeps, 6); }
  static constexpr size_t kKeyOffset = 16;

  Record(uint64_t word, uint32_t rule_id, uint16_t maker, uint16_t key_bytes)
      : word_(word), rule_id_(rule_id), maker_(maker), key_bytes_(key_bytes) {}

  std::atomic<uint64_t> word_;
  const uint32_t rule_id_;
  const uint16_t maker_;
  const uint16_t key_bytes_;
  // The key's bytes follow at kKeyOffset.
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_RECORD_H_
