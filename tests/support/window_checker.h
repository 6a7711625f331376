// Looks at EVERY window of a recorded history of grants, in exact arithmetic. Shares no code with
// the server. n grants are checked in O(n log n) at most, so histories of a million are fine.
#ifndef SLUICE_TESTS_SUPPORT_WINDOW_CHECKER_H_
#define SLUICE_TESTS_SUPPORT_WINDOW_CHECKER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test_support {

__extension__ typedef __int128 Wide;

struct Grant {
  int64_t at_ns = 0;
  uint64_t permits = 0;
};

inline std::string WideText(Wide value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  std::string digits;
  for (; value != 0; value /= 10) {
    digits.insert(digits.begin(),
                  static_cast<char>('0' + static_cast<int>(value % 10) * (negative ? -1 : 1)));
  }
  return negative ? "-" + digits : digits;
}

// For a token bucket of `permits` every `period_ns`: for every pair of grants i <= j, in the order
// of the history (its clock may have stepped back),
//     permits of i..j  <=  allowance + rate * (t_j - t_i),      allowance: burst + debt.
// Empty if it holds; else says which window is over.
//
// With S the permits granted up to and including a grant, this is
//     (S_j - rate * t_j) - (S_{i-1} - rate * t_i) <= allowance,
// so for each j only the least second term of all i <= j needs to be looked at. All is multiplied
// by the period, hence exact. REQUIRES: less than 2^62 permits in all, moments below 2^62.
inline std::string CheckRateInEveryWindow(const std::vector<Grant>& history, uint64_t permits,
                                          int64_t period_ns, uint64_t allowance) {
  Wide sum = 0;
  Wide least = 0;
  size_t least_at = 0;
  for (size_t j = 0; j < history.size(); ++j) {
    const Wide rate_time = static_cast<Wide>(permits) * history[j].at_ns;
    const Wide before = sum * period_ns - rate_time;
    if (j == 0 || before < least) {
      least = before;
      least_at = j;
    }
    sum += history[j].permits;
    const Wide over =
        sum * period_ns - rate_time - least - static_cast<Wide>(allowance) * period_ns;
    if (over > 0) {
      return "grants " + std::to_string(least_at) + ".." + std::to_string(j) + " (from " +
             std::to_string(history[least_at].at_ns) + " to " + std::to_string(history[j].at_ns) +
             " ns) are over by " + WideText(over) + "/" + std::to_string(period_ns) + " permits";
    }
  }
  return "";
}

// For a log or a window: no half-open window [t, t + length_ns), at any t, holds more than `most`
// permits. A window that holds most begins with a grant, so each grant's is looked at. The
// history's order does not matter.
inline std::string CheckCountInEveryWindow(std::vector<Grant> history, int64_t length_ns,
                                           Wide most) {
  std::sort(history.begin(), history.end(),
            [](const Grant& a, const Grant& b) { return a.at_ns < b.at_ns; });
  Wide sum = 0;
  size_t begin = 0;
  for (const Grant& grant : history) {
    sum += grant.permits;
    while (static_cast<Wide>(history[begin].at_ns) + length_ns <= grant.at_ns) {
      sum -= history[begin++].permits;
    }
    if (sum > most) {
      return "the window that begins at " + std::to_string(history[begin].at_ns) + " ns holds " +
             WideText(sum) + " permits at " + std::to_string(grant.at_ns) + " ns, more than " +
             WideText(most);
    }
  }
  return "";
}

}  // namespace sluice::test_support

#endif  // SLUICE_TESTS_SUPPORT_WINDOW_CHECKER_H_
