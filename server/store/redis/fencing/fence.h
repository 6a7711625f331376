// Fence: what all nodes agree on about the data in a Redis, kept there beside the buckets.
//
// After a failover the promoted server lacks the primary's last writes; after a restart or FLUSHALL
// all of them may be gone. Buckets that were spent are then full again. So a key of each name space
// says on which server, in which term of its, the data was made. A node knows which server it
// speaks with and compares. If they are not the same, or there is no fence, it replaces it
// (compare and set, so that all nodes agree), and where something may be lost the new one has a
// floor: a moment up to which nothing is granted, and from which token buckets count as empty,
// windows as used up.
//
// Each script looks for a second key, whose name has the fence's random word: where that is gone
// it decides nothing, and the node looks again. The same when it was loaded: a server that becomes
// a replica and is promoted again within milliseconds, on the same connections, has loaded its data
// from the other one, which may have lacked the last writes. A string that was appended to has the
// encoding `raw`, and a short one that was loaded never has.
//
//   floor = the later of
//     the promoted server's time now, and how long the old primary may go on granting after it (its
//     min-replicas-max-lag, and a margin);
//     the last moment that may have been promised (bookings are moments to come).
//
// So the fence tells up to when promises reach, and who is to promise a later moment has it say so
// before (scripts/raise_promise.lua), a while ahead, so that it is seldom. Should the promoted
// server lack that too, the node that promised knows it, and has the floor raised before it is
// over.
//
// A server without a fence that was a replica is treated the same: the first fence may have been
// on its way. On any other a missing fence that no loop of this process knows is a first start,
// and buckets are full.
//
// In a Cluster each primary has a fence, in one of its slots; scripts find the word there though
// it is in another slot than the buckets. Slots move, with what is in them: so a floor is noted in
// each slot that the server has then, and goes with it where it goes (docs/adr/0101).
//
// Fences form a line: each has the number of the one before plus one, and a random word. A node
// that finds a number not above the one that it knows, and another word, is looking at data that
// has not seen what it has: that is a loss too, however it came about.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/fencing/server_info.h"

namespace sluice::store::redis {

// Added to an old primary's min-replicas-max-lag: it counts in whole seconds, notices once a
// second, and a node may act on what it was told a moment ago.
inline constexpr int64_t kLagMarginUs = 3'000'000;

// Times in microseconds, on the server's clock since 1970. Copyable.
struct Fence {
  std::string identity;
  uint64_t number = 0;
  std::string word;
  // 0: none, buckets are what they are.
  int64_t floor_us = 0;
  // How long this server may go on once it was replaced; 0: there is nobody to replace it.
  int64_t lag_us = 0;
  // No promise reaches beyond; 0: there is none.
  int64_t promised_us = 0;
  bool durable = false;

  // One line of words, and back. INVALID_ARGUMENT: not a fence.
  std::string Text() const;
  static absl::StatusOr<Fence> Parse(std::string_view text);

  // Made by the same replacement; they may differ in what was promised.
  bool Same(const Fence& other) const { return number == other.number && word == other.word; }
};

enum class AfterLoss : uint8_t { kEmpty, kFull };

struct FencePolicy {
  // When data is gone and nobody was promoted in its server's place.
  AfterLoss after_loss = AfterLoss::kEmpty;
  // The server may be replaced by another (Sentinel, Cluster), whether it has replicas now or not.
  bool may_fail_over = false;
};

// What a node does about a fence.
struct FenceStep {
  // Nothing: the fence stands.
  bool adopt = false;
  // Else: to be written instead of what was found, with a floor at least so long after the server's
  // time of the writing; nullopt: with its own.
  Fence write;
  std::optional<int64_t> floor_after_us;
  // For the log.
  const char* why = "";
};

// How long the server may go on once it was replaced, by what it says of itself; 0: there is nobody
// to replace it.
int64_t OwnLagUs(const ServerInfo& server, const FencePolicy& policy);

// The fence's key: outside of a Cluster; and in one, of a primary that has the slot.
std::string FenceKey(std::string_view name_space);
std::string FenceKeyInSlot(std::string_view name_space, uint16_t slot);
// The one that scripts look for.
std::string WordKey(std::string_view fence_key, std::string_view word);
// Where the floor of a slot is noted.
std::string FloorKey(std::string_view name_space, uint16_t slot);

// EVALSHA of scripts/replace_fence.lua. `found_text`: what was found, as it was; empty: nothing.
// `floor_keys`: where a floor is to be noted.
std::vector<std::string> ReplaceFenceWords(const FenceStep& step, std::string_view fence_key,
                                           std::string_view found_text,
                                           absl::Span<const std::string> floor_keys = {});

// `found`: in Redis now; nullopt: none, or not a fence. `word_stands`: its word is there, in the
// form in which it was written. `known`: the last one that this process
// adopted; nullopt: none yet. `word`: random.
FenceStep NextFence(const ServerInfo& server, const std::optional<Fence>& found, bool word_stands,
                    const std::optional<Fence>& known, const FencePolicy& policy,
                    std::string_view word);

// EVALSHA of scripts/raise_promise.lua.
std::vector<std::string> RaisePromiseWords(std::string_view fence_key, std::string_view word,
                                           int64_t until_us);

// The fence of a server that goes on, but whose slot was moved away: the same, elsewhere.
FenceStep MovedFence(const Fence& known, std::string_view word);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_H_
