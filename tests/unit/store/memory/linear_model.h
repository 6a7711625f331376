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
#include <string>
#include <tuple>
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
  // What was answered.
  bool granted = false;
  std::array<int64_t, kBuckets> remaining{};
  std::array<uint64_t, kBuckets> forgiven{};
  bool done = false;                       // refunded or renewed
  std::array<uint64_t, kBuckets> given{};  // back
  std::array<uint64_t, kBuckets> charged{};
  SettleOutcome settled = SettleOutcome::kPending;
  uint64_t receipt_id = 0;
};

// How much a receipt is worth is another test's affair: here it is that each is refunded or settled
// once, and that what was given is there from then on.
struct Model {
  // How an acquisition ended.
  struct End {
    bool settled = false;
    std::array<uint64_t, kBuckets> actual{};
    auto operator<=>(const End&) const = default;
  };
  std::array<int64_t, kBuckets> remaining{};
  std::map<uint64_t, End> ended;  // by receipt
  bool forgave = false;           // so receipts may be worth nothing

  friend bool operator<(const Model& a, const Model& b) {
    return std::tie(a.remaining, a.ended, a.forgave) < std::tie(b.remaining, b.ended, b.forgave);
  }

  bool Apply(const Operation& operation) {
    switch (operation.kind) {
      case Operation::kQuery:
        return operation.remaining[static_cast<size_t>(operation.bucket)] ==
               remaining[static_cast<size_t>(operation.bucket)];
      case Operation::kAcquire:
        return Acquire(operation);
      case Operation::kForce:
        return Force(operation);
      case Operation::kRenew:
        return operation.done == !ended.contains(operation.receipt_id);
      case Operation::kRefund:
        return Refund(operation);
      case Operation::kSettle:
        return Settle(operation);
    }
    return false;
  }

 private:
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
    for (size_t b = 0; b < kBuckets; ++b) {
      if (operation.given[b] > operation.permits[b]) return false;
      remaining[b] += static_cast<int64_t>(operation.given[b]);
    }
    return true;
  }

  bool Settle(const Operation& operation) {
    const End end = {.settled = true, .actual = operation.actual};
    const auto [before, first] = ended.try_emplace(operation.receipt_id, end);
    if (!first) {
      if (operation.given != Operation().given || operation.charged != Operation().charged) {
        return false;
      }
      if (!before->second.settled) return operation.settled == SettleOutcome::kRefunded;
      // Without actuals.
      if (!operation.estimate) return operation.settled == SettleOutcome::kSettled;
      return operation.settled ==
             (before->second == end ? SettleOutcome::kSettled : SettleOutcome::kAlreadySettled);
    }
    if (operation.settled != SettleOutcome::kSettled) return false;
    for (size_t b = 0; b < kBuckets; ++b) {
      if (operation.permits[b] == 0) continue;
      const auto permits = static_cast<int64_t>(operation.permits[b]);
      const auto more = static_cast<int64_t>(operation.actual[b]) - permits;
      if (b == kSlots) {
        remaining[b] += permits;
      } else if (more > 0) {
        if (operation.charged[b] != Count(b, static_cast<uint64_t>(more))) return false;
      } else {
        if (static_cast<int64_t>(operation.given[b]) > -more) return false;
        remaining[b] += static_cast<int64_t>(operation.given[b]);
      }
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
            (operation.estimate ? " of an estimate" : "") + (operation.granted ? " granted" : "") +
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
