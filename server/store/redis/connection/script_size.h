// ScriptSize: how many runs of callers one script may decide, so that it keeps the server from its
// other clients for at most 250 us.
//
// Each script tells when it began, by the server's clock. Of two scripts that were sent in one
// write, one behind the other, the second usually begins when the first is done: the server has
// read both at once, and decides them before it turns to another client. So the time between is
// what the first one cost, however far the server is, and however many others ask it. It may be
// more, if the server has read them apart, or was interrupted. So the lowest cost of a unit counts
// at once, and higher ones slowly. Scripts that were sent alone tell nothing: then there is nothing
// to divide either.
//
// Worked example: a script of 10 units began 200 us before the next one, so a unit costs 20 us. A
// script may have 12 of them.
//
// What a server reads of a connection at once, it decides before it turns to another client,
// however many scripts that is. Redis reads 16 KiB, or what its buffer has room for, mostly 20 KiB.
// So the bytes of a script bound that work: each unit takes at least kLeastBytes, or the script is
// padded. And a script has at most 4 KiB, unless its keys are long: if the buffer ends with more of
// a script that is cut off, Redis doubles it, and then reads twice as much at once, as long as it
// is busy (readQueryFromClient, sdsMakeRoomFor).
//
// Not thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_CONNECTION_SCRIPT_SIZE_H_
#define SLUICE_SERVER_STORE_REDIS_CONNECTION_SCRIPT_SIZE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice::store::redis {

class ScriptSize {
 public:
  // With this many units of one bucket each, the fixed cost of a script is 6 % of its whole cost,
  // and it has 4 KB.
  static constexpr size_t kMost = 16;
  // Of each unit. With keys of 30 bytes, one takes 117.
  static constexpr size_t kLeastBytes = 250;
  static constexpr int64_t kMostNs = 250'000;

  // `most`: 1 or more.
  explicit ScriptSize(size_t most = kMost)
      : most_(static_cast<double>(most)), units_(std::max(most_ / 2, 1.0)) {}

  // Units; from 1 to `most`.
  size_t units() const { return static_cast<size_t>(units_); }

  // A script of so many units took the server so long. Not positive: its clock was set.
  void OnDecided(size_t units, int64_t took_ns) {
    if (took_ns <= 0) return;
    const double fit =
        static_cast<double>(units) * static_cast<double>(kMostNs) / static_cast<double>(took_ns);
    units_ = std::clamp(fit > units_ ? fit : units_ + (fit - units_) / kSlowness, 1.0, most_);
  }

 private:
  // So many scripts until about two thirds of a change count.
  static constexpr double kSlowness = 32;

  const double most_;
  double units_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_SCRIPT_SIZE_H_
