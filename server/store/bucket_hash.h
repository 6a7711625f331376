// BucketHash: hash of a bucket's identity (limit id and key), keyed with secrets of the store. Keys
// come from outside, and a client that could predict their hashes could put them all in one shard.
//
// Each 16 bytes are folded: two words, each mixed with a secret or with what came before, are
// multiplied to 128 bits and the halves are xored, so that every output bit depends on every input
// bit. Keys of up to 16 bytes take two multiplications (about 3 ns).
#ifndef SLUICE_SERVER_STORE_BUCKET_HASH_H_
#define SLUICE_SERVER_STORE_BUCKET_HASH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/base/attributes.h"

namespace sluice::store {

class BucketHash {
 public:
  // The secrets are derived from `seed`; the same seed gives the same hashes.
  explicit BucketHash(uint64_t seed) {
    for (uint64_t& secret : secret_) {
      // A step of splitmix64: any seed, also 0, gives well-mixed secrets.
      seed += 0x9e3779b97f4a7c15;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      secret = z ^ (z >> 31);
    }
  }

  // Each decision hashes a key, so it is always inlined.
  ABSL_ATTRIBUTE_ALWAYS_INLINE uint64_t operator()(uint32_t limit_id, std::string_view key) const {
    const char* p = key.data();
    size_t left = key.size();
    uint64_t state = secret_[0] ^ (limit_id * 0x9e3779b97f4a7c15);
    while (left > 16) {
      state = Fold(Load64(p) ^ secret_[1], Load64(p + 8) ^ state);
      p += 16;
      left -= 16;
    }
    uint64_t a = 0;
    uint64_t b = 0;
    if (left >= 8) {
      a = Load64(p);
      b = Load64(p + left - 8);
    } else if (left >= 4) {
      a = Load32(p);
      b = Load32(p + left - 4);
    } else if (left > 0) {
      a = static_cast<uint8_t>(p[0]);
      b = static_cast<uint64_t>(static_cast<uint8_t>(p[left / 2])) << 8 |
          static_cast<uint8_t>(p[left - 1]);
    }
    return Fold(Fold(a ^ secret_[2], b ^ state) ^ secret_[3], key.size() ^ secret_[4]);
  }

 private:
  static uint64_t Load64(const char* p) {
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static uint64_t Load32(const char* p) {
    uint32_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static uint64_t Fold(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  uint64_t secret_[5];
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_BUCKET_HASH_H_
