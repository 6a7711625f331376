// Fence: a record in Redis, beside the buckets, by which all nodes detect that data was lost.
//
// After a failover the promoted server lacks the last writes of the old primary; after a restart or
// FLUSHALL all data may be gone. Buckets that were spent would be full again. So each name space
// has a key, the fence, which names the server, and the term of it, in which the data was made. A
// node compares it with the server that it is connected to. If they differ, or there is no fence,
// the node replaces it (compare and set, so that all nodes agree). If data may be lost, the new
// fence has a floor: a moment before which nothing is granted, and at which token buckets count as
// empty and windows as used up.
//
// Each script looks for a second key, whose name contains the fence's random word. If it is gone
// the script decides nothing, and the node reads the fence again. The same if that key was loaded:
// a server that becomes a replica and is promoted again within milliseconds, on the same
// connections, has loaded its data from the other server, which may have lacked the last writes.
// Redis stores a string that was appended to in the encoding `raw`, and never a short string that
// was loaded.
//
//   floor = the later of
//     the promoted server's time now, plus how long the old primary may go on granting (its
//     min-replicas-max-lag, and a margin);
//     the last grant time that may have been promised (bookings lie ahead).
//
// So the fence says up to when grant times may be promised, and a node that is about to promise a
// later one raises that first (scripts/raise_promise.lua), in steps, so that it is rare. If the
// promoted server lacks the raise, the node that promised knows it, and raises the floor before it
// is over.
//
// Grant times in the near future are promised for all limits at once. Later ones are promised for
// the limits of their buckets, so that after a loss only these limits have a floor so late
// (LimitTimes). All of it is one value in Redis: a node that finds the fence finds every raise,
// and a node that lacks a raise learns it by its number.
//
// The ends of holds of slots are promised in the same way, for each limit and each hold_for with
// which it granted. So after a loss a limit is closed until the holds of a longer hold_for have
// ended, also by a node that was started after hold_for was lowered. The holds that were lost began
// before the floor, so no limit is closed for longer than hold_for behind it:
//   slots are closed until the latest, over each hold_for, of min(promised end, floor + hold_for).
//
// A server without a fence that was a replica is treated the same: the first fence may have been
// lost on its way. On any other server, a missing fence that no loop of this process knows means
// the first start: buckets are full.
//
// In a Cluster each primary has a fence, in one of its slots; scripts find its word there although
// their buckets are in other slots. Slots move, with the keys in them: so a floor is also noted in
// each slot that the server has at that time, and moves along (docs/adr/0098).
//
// Example: fence number 4 is of primary A. A fails, B is promoted, and a node finds fence 4 on B.
// It writes number 5 for B, with floor = B's time + lag + margin. Another node that tries the same
// finds that the fence is no longer number 4, and adopts number 5.
//
// Fences form a sequence: each has the number of the one before plus one, and a random word. A node
// that finds a number that is not above the one it knows, with another word, sees data that lacks
// what it has seen: that is a loss, too, whatever the cause.
#ifndef SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_H_
#define SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/fencing/server_info.h"
#include "server/store/redis/wire/rule_entry.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {

// Added to an old primary's min-replicas-max-lag: Redis counts it in whole seconds and checks it
// once a second, and a node may act on a reply of a moment ago.
inline constexpr int64_t kLagMarginUs = 3'000'000;

// What a fence says of one limit. Microseconds, on the server's clock since 1970; 0: none.
struct LimitTimes {
  // Before it nothing is granted from the limit's buckets.
  int64_t floor_us = 0;
  // No grant time (or end of a hold: HoldsEntry) of the limit beyond it was promised, nor beyond
  // Fence::promised_us.
  int64_t promised_us = 0;
  // Floors and promises up to it count no longer: an operator has lifted them.
  int64_t lifted_us = 0;

  int64_t Floor() const { return floor_us > lifted_us ? floor_us : 0; }
  int64_t Promised() const { return promised_us > lifted_us ? promised_us : 0; }
  // The floor if the data is lost.
  int64_t IfLost() const { return std::max(Floor(), Promised()); }
  bool operator==(const LimitTimes&) const = default;
};
using LimitTable = std::map<std::string, LimitTimes, std::less<>>;
// The name under which a LimitTable has the ends of holds: of slots of the limit (empty: of any
// limit) that were held for hold_for_us. No limit's name has a '#'.
std::string HoldsEntry(std::string_view limit, int64_t hold_for_us);
// The one for any limit, with a hold_for that is rounded up, so that there are few of them.
std::string HoldsEntryOfAny(int64_t hold_for_us);
// The hold_for_us of such a name; 0: it is the name of a limit.
int64_t HoldForOf(std::string_view name);
// The limit's times, or none.
const LimitTimes& TimesOf(const LimitTable& limits, std::string_view limit);

// Times in microseconds since 1970, on the server's clock as it is corrected. Copyable.
struct Fence {
  std::string identity;
  uint64_t number = 0;
  std::string word;
  // 0: none, no data was lost.
  int64_t floor_us = 0;
  // How long this server may go on granting after it was replaced; 0: none can replace it.
  int64_t lag_us = 0;
  // No grant time beyond it was promised; 0: none was promised.
  int64_t promised_us = 0;
  bool durable = false;
  // How far the server's clock is ahead of the time that counts (clock_watch.h).
  int64_t correction_us = 0;
  // Floor of buckets that are missing, since the server may have dropped them too early, and of all
  // logs and windows; 0: none.
  int64_t missing_floor_us = 0;
  // How often promises were raised, or a floor lifted.
  uint64_t raises = 0;
  LimitTable limits;

  // As words separated by spaces, and back. INVALID_ARGUMENT: not a fence.
  std::string Text() const;
  static absl::StatusOr<Fence> Parse(std::string_view text);

  // Up to when grant times of the limit may be promised.
  int64_t PromisedTo(std::string_view limit) const {
    return std::max(promised_us, TimesOf(limits, limit).Promised());
  }
  // Adds promises and lifted floors of `other`, which still hold, and its floors of single limits.
  void Merge(const Fence& other);
  // The data of `lost` is lost: its floors and promises become floors of this fence.
  void AddLost(const Fence& lost);
  // Some of the data of `other` may be lost, too: the same, but what is promised there stands.
  void AddFloorsIfLost(const Fence& other);

  // Written by the same replacement; promises and lifted floors may differ.
  bool Same(const Fence& other) const { return number == other.number && word == other.word; }
};

// The floors that a slot of a Cluster brought along (scripts/replace_fence.lua).
struct SlotFloors {
  int64_t floor_us = 0;
  std::map<std::string, int64_t, std::less<>> limits;
  bool operator==(const SlotFloors&) const = default;
};
// Of its note; a note of another form has none.
SlotFloors ParseSlotFloors(std::string_view note);

// Fence word and floor of a server's data, passed to each script.
struct FencingToken {
  // The last key of a script: the fence's word. In a Cluster the script's first key, once more; the
  // word follows as the last argument (AppendWord).
  const std::string& WordFor(const Bucket& first) const {
    return as_argument ? first.keys[0] : word_key;
  }
  void AppendWord(std::vector<std::string>* words) const {
    // No key named ? has the form of a fence's word, so the script refuses.
    if (as_argument) words->push_back(word_key.empty() ? "?" : word_key);
  }
  // Whether two decisions go by the same data.
  bool operator==(const FencingToken& other) const {
    return word_key == other.word_key && floor_us == other.floor_us && limits == other.limits &&
           slot == other.slot && missing_floor_us == other.missing_floor_us;
  }
  // As scripts on its buckets are passed it: negative if only for buckets that are missing.
  int64_t FloorOf(const Rule& rule) const {
    const int64_t later_us =
        LaterFloorUs(rule.parameters, FloorOf(rule.limit_name), missing_floor_us,
                     OwedBeyondDebtUs(rule.parameters, MaxOwed(rule)));
    return algorithm::IsConcurrency(rule.parameters) ? FloorOfSlots(rule, later_us) : later_us;
  }
  // The floor of the limit's buckets, and the part of it that can be lifted; 0: none.
  int64_t FloorOf(std::string_view limit) const {
    return limits == nullptr && slot == nullptr ? floor_us : std::max(floor_us, OwnFloorOf(limit));
  }
  int64_t OwnFloorOf(std::string_view limit) const;
  // The latest of its own floor and the ends of its holds that were lost; 0: there are none.
  int64_t LatestOwnOf(std::string_view limit) const;
  // The ends of holds that were lost, of the limit or (empty) of any.
  void ForEachHoldsFloor(
      std::string_view limit,
      absl::FunctionRef<void(int64_t hold_for_us, int64_t floor_us)> visit) const;

  // Exists as long as the fence stands. Empty: the fence is being read; scripts refuse.
  std::string word_key;
  // Of all limits. Microseconds since 1970 on the server's clock. 0: none, no data was lost.
  int64_t floor_us = 0;
  // Of buckets that are missing, and of all logs and windows.
  int64_t missing_floor_us = 0;
  // The word is in another slot than the buckets.
  bool as_argument = false;
  // How long this server may go on granting when another has taken its place, with a margin, in
  // microseconds; 0: none can take it.
  int64_t lag_us = 0;
  // Of single limits; null: none has a floor of its own.
  std::shared_ptr<const LimitTable> limits;
  // What the buckets' slot brought along; null: nothing.
  std::shared_ptr<const SlotFloors> slot;
  // Its bounds are for the next script only.
  ServerClock clock;

 private:
  // A limit of slots that has the floor floor_us is closed for its hold_for from then on. This is
  // later if holds that were lost had a longer one, so that they all have ended when it opens.
  int64_t FloorOfSlots(const Rule& rule, int64_t floor_us) const;
};

// A grant time that is to be promised for a limit; or the end of a hold of its slots.
struct LimitPromise {
  std::string_view limit;
  int64_t until_us = 0;
  int64_t hold_for_us = 0;  // of the hold; 0: it is a grant time
};

enum class AfterLoss : uint8_t { kEmpty, kFull };

struct FencePolicy {
  // How buckets are after data was lost without a failover.
  AfterLoss after_loss = AfterLoss::kEmpty;
  // The server may be replaced by another (Sentinel, Cluster), whether it has replicas now or not.
  bool may_fail_over = false;
  // Slots move to other servers, with the keys in them (Cluster).
  bool slots_move = false;
};

// What a node does with a fence.
struct FenceStep {
  // True: goes by it as it is.
  bool adopt = false;
  // Else replaces it by `write`, whose floor is raised to the server's time of writing plus
  // floor_after_us; nullopt: not raised.
  Fence write;
  std::optional<int64_t> floor_after_us;
  // For the log.
  const char* why = "";
};

// How long the server may go on granting after it was replaced, by its own settings; 0: none can
// replace it.
int64_t OwnLagUs(const ServerInfo& server, const FencePolicy& policy);

// The fence's key: outside a Cluster; and in one, for a primary that has the slot.
std::string FenceKey(std::string_view name_space);
std::string FenceKeyInSlot(std::string_view name_space, uint16_t slot);
// The key that scripts look for.
std::string WordKey(std::string_view fence_key, std::string_view word);
// Where the floor of a slot is noted.
std::string FloorKey(std::string_view name_space, uint16_t slot);

// EVALSHA of scripts/replace_fence.lua. `found_text`: as it was read; empty: there was none.
// `floor_keys`: where the floor is noted, too.
std::vector<std::string> ReplaceFenceWords(const FenceStep& step, std::string_view fence_key,
                                           std::string_view found_text,
                                           absl::Span<const std::string> floor_keys = {});

// `found`: in Redis now; nullopt: none, or not a fence. `word_stands`: the key of its word exists,
// in the encoding in which it was written. `known`: the last fence that this process adopted;
// nullopt: none yet. `word`: random.
FenceStep NextFence(const ServerInfo& server, const std::optional<Fence>& found, bool word_stands,
                    const std::optional<Fence>& known, const FencePolicy& policy,
                    std::string_view word);

// What is to be raised in a fence: of all limits, and of single ones.
struct PromiseRaise {
  int64_t all_us = 0;
  LimitTable limits = {};  // without floors

  bool empty() const { return all_us == 0 && limits.empty(); }
};
// EVALSHA of scripts/raise_promise.lua. `known`: the fence, with the raises that the caller knows.
// What has passed at `passed_us` is forgotten.
std::vector<std::string> RaisePromiseWords(std::string_view fence_key, const Fence& known,
                                           const PromiseRaise& raise, int64_t passed_us);

// The fence of a server whose fence's slot was moved to another server: the same, in another slot.
FenceStep MovedFence(const Fence& known, std::string_view word);

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_FENCING_FENCE_H_
