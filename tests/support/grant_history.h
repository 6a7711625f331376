// What one bucket granted, by the moments of the store that decided; and whether any window of that
// history holds more than the limit allows.
#ifndef SLUICE_TESTS_SUPPORT_GRANT_HISTORY_H_
#define SLUICE_TESTS_SUPPORT_GRANT_HISTORY_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "server/algorithm/parameters.h"
#include "tests/support/window_checker.h"

namespace sluice::testing {

// Thread-safe.
class GrantHistory {
 public:
  explicit GrantHistory(const algorithm::Parameters& parameters) : parameters_(parameters) {}

  void Add(int64_t at_ns, uint64_t permits) {
    common::MutexLock lock(&mu_);
    grants_.push_back({at_ns, permits});
    permits_ += permits;
  }

  uint64_t permits() const {
    common::MutexLock lock(&mu_);
    return permits_;
  }

  size_t grants() const {
    common::MutexLock lock(&mu_);
    return grants_.size();
  }

  // Empty: no window holds more than it may; else the first that does.
  // `beyond`: permits that it may hold on top of the limit; of a log or window twice as many.
  std::string Check(uint64_t beyond = 0) const {
    const std::vector<test_support::Grant> grants = Sorted();
    using algorithm::Kind;
    switch (parameters_.kind) {
      case Kind::kTokenBucket: {
        const algorithm::TokenBucket& p = parameters_.token_bucket;
        return test_support::CheckRateInEveryWindow(grants, p.rate.permits, p.rate.period_ns,
                                                    p.burst + p.debt + beyond);
      }
      case Kind::kSlidingLog:
      case Kind::kSlidingWindow:
        return test_support::CheckCountInEveryWindow(grants, rate().period_ns,
                                                     rate().permits + 2 * beyond);
      case Kind::kFixedWindow:
        return CheckAligned(grants, 2 * beyond);
      case Kind::kConcurrency:
        break;  // it has no windows
    }
    return "a limit of no kind";
  }

  // What was granted, what could have been granted from the first to the last grant, and the
  // longest time without a grant.
  std::string Summary() const {
    const std::vector<test_support::Grant> grants = Sorted();
    if (grants.empty()) return "nothing granted";
    const int64_t took_ns = grants.back().at_ns - grants.front().at_ns;
    int64_t pause_ns = 0;
    for (size_t i = 1; i < grants.size(); ++i) {
      pause_ns = std::max(pause_ns, grants[i].at_ns - grants[i - 1].at_ns);
    }
    const double possible = static_cast<double>(algorithm::MaxGrant(parameters_)) +
                            static_cast<double>(rate().permits) * static_cast<double>(took_ns) /
                                static_cast<double>(rate().period_ns);
    char text[160];
    std::snprintf(text, sizeof(text),
                  "granted %llu of %.0f (%.0f %%) in %.2f s, longest pause %.0f ms",
                  static_cast<unsigned long long>(permits()), possible,
                  100 * static_cast<double>(permits()) / possible,
                  static_cast<double>(took_ns) / 1e9, static_cast<double>(pause_ns) / 1e6);
    return text;
  }

 private:
  const algorithm::Rate& rate() const {
    using algorithm::Kind;
    return parameters_.kind == Kind::kTokenBucket     ? parameters_.token_bucket.rate
           : parameters_.kind == Kind::kSlidingLog    ? parameters_.sliding_log.rate
           : parameters_.kind == Kind::kSlidingWindow ? parameters_.sliding_window.rate
                                                      : parameters_.fixed_window.rate;
  }

  std::vector<test_support::Grant> Sorted() const {
    common::MutexLock lock(&mu_);
    std::vector<test_support::Grant> sorted = grants_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.at_ns < b.at_ns; });
    return sorted;
  }

  // No window of the wall clock holds more than it may.
  std::string CheckAligned(const std::vector<test_support::Grant>& grants, uint64_t beyond) const {
    std::map<int64_t, uint64_t> windows;
    for (const test_support::Grant& grant : grants) {
      const int64_t index =
          (grant.at_ns + parameters_.fixed_window.utc_offset_ns) / rate().period_ns;
      if ((windows[index] += grant.permits) > rate().permits + beyond) {
        return "window " + std::to_string(index) + " of the clock holds " +
               std::to_string(windows[index]) + " permits, more than " +
               std::to_string(rate().permits);
      }
    }
    return "";
  }

  const algorithm::Parameters parameters_;
  mutable common::Mutex mu_;
  std::vector<test_support::Grant> grants_ ABSL_GUARDED_BY(mu_);
  uint64_t permits_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_GRANT_HISTORY_H_
