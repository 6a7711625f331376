// ScriptSize: how many runs of callers one script may decide, so that it keeps the server from its
// other clients for at most 250 us.
//
// A server decides one command after the other. While commands are in flight all the time, what was
// answered in a period was decided in it, so a unit costs the server at most the period's time
// divided by its units. Most periods give a bound that is too high, because the network or this
// loop took the time. So the lowest bound counts at once, and higher ones slowly: a server that has
// become slower, or serves others meanwhile, gets smaller scripts.
//
// Worked example: 50 units were answered within 400 us, 8 us each. A script may have 31 of them.
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
  // With this many units of one bucket each, the fixed cost of a script is 3 % of its whole cost.
  static constexpr size_t kMost = 32;
  static constexpr int64_t kMostNs = 250'000;

  // `most`: 1 or more.
  explicit ScriptSize(size_t most = kMost)
      : most_(static_cast<double>(most)), units_(std::max(most_ / 2, 1.0)) {}

  // Units; from 1 to `most`.
  size_t units() const { return static_cast<size_t>(units_); }

  // A command is sent. `idle`: none was in flight.
  void OnSend(int64_t now_ns, bool idle) {
    if (!idle) return;
    since_ns_ = read_ns_ = now_ns;
    answered_ = 0;
  }
  // The reply to a command of this number of units was read.
  void OnAnswer(int64_t now_ns, size_t units) {
    // A period ends where replies were read: with all of them.
    if (now_ns > read_ns_ && read_ns_ - since_ns_ >= kMostNs) {
      const double fit =
          answered_ * static_cast<double>(kMostNs) / static_cast<double>(read_ns_ - since_ns_);
      units_ = std::clamp(fit > units_ ? fit : units_ + (fit - units_) / kSlowness, 1.0, most_);
      since_ns_ = read_ns_;
      answered_ = 0;
    }
    read_ns_ = now_ns;
    answered_ += static_cast<double>(units);
  }

 private:
  // The number of periods after which the size has followed two thirds of a change.
  static constexpr double kSlowness = 32;

  const double most_;
  double units_;
  int64_t since_ns_ = 0;
  int64_t read_ns_ = 0;
  double answered_ = 0;  // from since_ns_ to read_ns_
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_CONNECTION_SCRIPT_SIZE_H_
