// Once: the request id of an acquisition and what the store needs to execute it only once
// (docs/adr/0017).
#ifndef SLUICE_SERVER_STORE_ONCE_H_
#define SLUICE_SERVER_STORE_ONCE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "server/store/bucket_hash.h"

namespace sluice::store {

// 16 bytes that the caller has chosen at random.
struct RequestId {
  static constexpr size_t kBytes = 16;

  // REQUIRES: bytes.size() == kBytes.
  static RequestId From(std::string_view bytes) {
    RequestId id;
    std::memcpy(id.words, bytes.data(), kBytes);
    return id;
  }
  std::string_view bytes() const { return {reinterpret_cast<const char*>(words), kBytes}; }

  friend bool operator==(const RequestId&, const RequestId&) = default;

  uint64_t words[2] = {};
};

// How long the store remembers a grant under its request id.
inline constexpr int64_t kRememberNs = int64_t{60} * 1'000'000'000;

// Tells a repeated request from another one with the same id. The same on all nodes. The hash is
// keyed with the id: a caller that chooses a bucket's key, and not the id, finds no second key with
// the same fingerprint, and 64 bits are enough for mistakes.
class Fingerprint {
 public:
  explicit Fingerprint(const RequestId& id) : hash_(id.words[0] ^ std::rotl(id.words[1], 32)) {}

  void Add(std::string_view text) { Add(hash_(0, text)); }
  void Add(uint64_t number) {
    const uint64_t words[2] = {state_, number};
    state_ = hash_(1, {reinterpret_cast<const char*>(words), sizeof(words)});
  }
  uint64_t value() const { return state_; }

 private:
  const BucketHash hash_;
  uint64_t state_ = 0;
};

// What the store remembers of a grant.
struct RememberedGrant {
  // In place of the receipt: it was refunded, so the grant is not repeated any more.
  static constexpr uint64_t kRefunded = std::numeric_limits<uint64_t>::max();

  uint64_t fingerprint = 0;
  int64_t grant_time_ns = 0;  // of a reservation; 0: it was granted for now
  uint64_t receipt_id = 0;    // 0: none
  // What each charge counted, if it was forced and some permits were forgiven; else empty.
  std::vector<uint64_t> counted = {};
};

// Owned by the caller of the store, alive and unchanged until completion.
struct Once {
  RequestId id;
  uint64_t fingerprint = 0;  // of the request
  // False: a new grant cannot be remembered. Only a grant that is remembered already is answered.
  bool may_remember = true;

  // Written by the store. The acquisition is that grant, as of now, and took nothing. Its receipt
  // is signed with this grant time (0: granted for now).
  bool repeated = false;
  int64_t grant_time_ns = 0;
};

}  // namespace sluice::store

#endif  // SLUICE_SERVER_STORE_ONCE_H_
