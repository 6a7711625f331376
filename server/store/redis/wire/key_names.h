// The names of a bucket's keys in Redis.
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_KEY_NAMES_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_KEY_NAMES_H_

#include <array>
#include <string>
#include <string_view>

namespace sluice::store::redis {

// State, runs, receipts. All three have the same hash tag, so that a Cluster keeps them in one
// slot. It is the key's own tag (hash_slot.h) if there is one: all buckets of keys with "{42}" in
// them are in the slot of 42, whatever their limits. Two buckets never share a name: the limit's
// length stands before it, and the last character says which form it is.
// REQUIRES: no braces in the name space or in the limit's name.
std::array<std::string, 3> KeysOf(std::string_view name_space, std::string_view limit,
                                  std::string_view key, std::string_view limit_tag = {});

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_KEY_NAMES_H_
