// The operations of a random history on one bucket of each algorithm, and the sequential model that
// explains them (linearizability.h). Time stands still, so buckets are counters.
#ifndef SLUICE_TESTS_UNIT_STORE_MEMORY_LINEAR_MODEL_H_
#define SLUICE_TESTS_UNIT_STORE_MEMORY_LINEAR_MODEL_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/store/store.h"
#include "tests/support/linearizability.h"

namespace sluice::store::linear {

inline constexpr int kBuckets = 5;  // one of each algorithm
inline constexpr size_t kSlots = 4;
inline constexpr uint64_t kPermits = 5;
inline constexpr uint64_t kMaxOwed = 3;  // of each rate

struct Operation {
  enum Kind : uint8_t { kAcquire, kForce, kQuery, kRefund, kSettle, kRenew } kind = kAcquire;
  // What was asked for: permits of each bucket; for kQuery, of which one; for kSettle, what the
  // work took of each rate.
  std::array<uint64_t, kBuckets> permits{};
  int bucket = 0;
  std::array<uint64_t, kBuckets> actual{};
  bool estimate = false;
  bool more = false;     // of kSettle
  uint64_t request = 0;  // the request id of the acquisition; 0: none
  // What was answered.
  bool granted = false;
  bool repeated = false;
  bool over = false;  // it was granted before, and that grant is not repeated any more
  std::array<int64_t, kBuckets> remaining{};
  std::array<uint64_t, kBuckets> forgiven{};
  bool done = false;                       // refunded or renewed
  std::array<uint64_t, kBuckets> given{};  // back
  std::array<uint64_t, kBuckets> charged{};
  SettleOutcome settled = SettleOutcome::kPending;
  uint64_t receipt_id = 0;
};

// How much a receipt is worth is another test's affair: here it is that each is refunded or settled
// once, and that what was given is there from then on. The levels in a repeated answer are read one
// after the other, so they are not looked at.
struct Model {
  // How an acquisition ended, or was settled with `more`.
  struct End {
    bool settled = false;
    bool open = false;
    std::array<uint64_t, kBuckets> actual{};
    auto operator<=>(const End&) const = default;
  };
  std::array<int64_t, kBuckets> remaining{};
  std::map<uint64_t, End> ended;  // by receipt
  bool forgave = false;           // so receipts may be worth nothing
  // By request id: the receipt, and what was forgiven.
  std::map<uint64_t, std::pair<uint64_t, std::array<uint64_t, kBuckets>>> remembered;
  std::set<uint64_t> not_repeated;  // receipts

  friend bool operator<(const Model& a, const Model& b) {
    return std::tie(a.remaining, a.ended, a.forgave, a.remembered, a.not_repeated) <
           std::tie(b.remaining, b.ended, b.forgave, b.remembered, b.not_repeated);
  }

  bool Apply(const Operation& operation) {
    switch (operation.kind) {
      case Operation::kQuery:
        return operation.remaining[static_cast<size_t>(operation.bucket)] ==
               remaining[static_cast<size_t>(operation.bucket)];
      case Operation::kAcquire:
      case Operation::kForce:
        return operation.request == 0 ? Decide(operation) : DecideOnce(operation);
      case Operation::kRenew: {
        const auto end = ended.find(operation.receipt_id);
        return operation.done == (end == ended.end() || end->second.open);
      }
      case Operation::kRefund:
        return Refund(operation);
      case Operation::kSettle:
        return Settle(operation);
    }
    return false;
  }

 private:
  bool Decide(const Operation& operation) {
    return operation.kind == Operation::kForce ? Force(operation) : Acquire(operation);
  }

  bool DecideOnce(const Operation& operation) {
    const auto grant = remembered.find(operation.request);
    if (grant == remembered.end()) {
      if (operation.repeated || operation.over || !Decide(operation)) return false;
      if (operation.granted) {
        remembered[operation.request] = {operation.receipt_id, operation.forgiven};
      }
      return true;
    }
    const auto& [receipt_id, forgiven] = grant->second;
    if (not_repeated.contains(receipt_id)) return operation.over;
    return operation.repeated && operation.granted && operation.receipt_id == receipt_id &&
           operation.forgiven == forgiven;
  }

  bool Acquire(const Operation& operation) {
    bool fits = true;
    for (size_t b = 0; b < kBuckets; ++b) {
      fits &=
          remaining[b] >= static_cast<int64_t>(operation.permits[b]) || operation.permits[b] == 0;
    }
    if (fits != operation.granted) return false;
    for (size_t b = 0; b < kBuckets; ++b) {
      if (operation.permits[b] == 0) continue;
      if (fits) remaining[b] -= static_cast<int64_t>(operation.permits[b]);
      if (operation.remaining[b] != remaining[b]) return false;
    }
    return true;
  }

  // Counts what the bucket may owe.
  uint64_t Count(size_t b, uint64_t permits) {
    const uint64_t counted =
        std::min(permits, static_cast<uint64_t>(remaining[b] + int64_t{kMaxOwed}));
    remaining[b] -= static_cast<int64_t>(counted);
    forgave |= counted < permits;
    return counted;
  }

  bool Force(const Operation& operation) {
    if (!operation.granted) return false;
    for (size_t b = 0; b < kBuckets; ++b) {
      if (operation.permits[b] == 0) continue;
      const uint64_t counted = Count(b, operation.permits[b]);
      if (operation.forgiven[b] != operation.permits[b] - counted) return false;
      if (operation.remaining[b] != remaining[b]) return false;
    }
    return true;
  }

  bool Refund(const Operation& operation) {
    const bool first = ended.try_emplace(operation.receipt_id).second;
    if (!operation.done) {
      return operation.given == Operation().given && (!first || (forgave && !operation.estimate));
    }
    if (!first) return false;
    not_repeated.insert(operation.receipt_id);
    for (size_t b = 0; b < kBuckets; ++b) {
      if (operation.given[b] > operation.permits[b]) return false;
      remaining[b] += static_cast<int64_t>(operation.given[b]);
    }
    return true;
  }

  bool Settle(const Operation& operation) {
    const End end = {.settled = true, .open = operation.more, .actual = operation.actual};
    const auto [at, first] = ended.try_emplace(operation.receipt_id, end);
    const End before = first ? End{.actual = operation.permits} : at->second;
    const bool changes =
        operation.given != Operation().given || operation.charged != Operation().charged;
    if (!first && !before.open) {
      if (changes) return false;
      if (!before.settled) return operation.settled == SettleOutcome::kRefunded;
      // Without actuals.
      if (!operation.estimate) return operation.settled == SettleOutcome::kSettled;
      return operation.settled == (before.actual == operation.actual
                                       ? SettleOutcome::kSettled
                                       : SettleOutcome::kAlreadySettled);
    }
    if (!first) {
      for (size_t b = 0; b < kSlots; ++b) {
        if (operation.actual[b] >= before.actual[b]) continue;
        return !changes && operation.settled == SettleOutcome::kActualDecreased;
      }
      at->second = end;
    }
    if (operation.settled != SettleOutcome::kSettled) return false;
    for (size_t b = 0; b < kSlots; ++b) {
      if (operation.permits[b] == 0) continue;
      const uint64_t actual = operation.actual[b];
      const uint64_t so_far = std::max(operation.permits[b], before.actual[b]);
      if (operation.charged[b] != (actual > so_far ? Count(b, actual - so_far) : 0)) return false;
      const bool may_give = !operation.more && actual < operation.permits[b];
      if (operation.given[b] > (may_give ? operation.permits[b] - actual : 0)) return false;
      remaining[b] += static_cast<int64_t>(operation.given[b]);
    }
    if (operation.permits[kSlots] > 0 && !operation.more) {
      remaining[kSlots] += static_cast<int64_t>(operation.permits[kSlots]);
      not_repeated.insert(operation.receipt_id);
    }
    return true;
  }
};

inline std::string Text(const std::vector<test_support::Timed<Operation>>& history) {
  static constexpr const char* kNames[] = {"acquire", "force",  "query",
                                           "refund",  "settle", "renew"};
  std::string text;
  const auto add = [&](const char* name, const auto& numbers) {
    text += std::string(" ") + name;
    for (const auto number : numbers) text += " " + std::to_string(number);
  };
  for (const auto& [called, returned, operation] : history) {
    text += "[" + std::to_string(called) + "," + std::to_string(returned) + "] " +
            kNames[operation.kind] + " receipt " + std::to_string(operation.receipt_id) +
            (operation.estimate ? " of an estimate" : "") +
            (operation.request != 0 ? " request " + std::to_string(operation.request) : "") +
            (operation.more ? " more" : "") + (operation.granted ? " granted" : "") +
            (operation.repeated ? " repeated" : "") + (operation.over ? " over" : "") +
            (operation.done ? " done" : "") + " settled " +
            std::to_string(static_cast<int>(operation.settled));
    add("permits", operation.permits);
    add("actual", operation.actual);
    add("remaining", operation.remaining);
    add("forgiven", operation.forgiven);
    add("given", operation.given);
    add("charged", operation.charged);
    text += "\n";
  }
  return text;
}

}  // namespace sluice::store::linear

#endif  // SLUICE_TESTS_UNIT_STORE_MEMORY_LINEAR_MODEL_H_
