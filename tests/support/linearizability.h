// Is a history of concurrent operations linearizable? (After Wing and Gong, with Lowe's memory of
// what has been tried.)
//
// Each operation has a moment at which it was called and one at which it returned, both from one
// counter. The history is linearizable if there is an order of all operations that keeps the order
// of any two that did not overlap, and in which a sequential model gives each of them the answer
// that it got. The search tries as the next operation each that was called before any other open
// one returned, and remembers pairs of (operations done, state of the model) that led nowhere.
//
// Exponential in the worst case: for small histories, at most 64 operations.
#ifndef SLUICE_TESTS_SUPPORT_LINEARIZABILITY_H_
#define SLUICE_TESTS_SUPPORT_LINEARIZABILITY_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace sluice::test_support {

template <typename Operation>
struct Timed {
  uint64_t called = 0;
  uint64_t returned = 0;
  Operation operation;
};

// Model: copyable, ordered by <, with `bool Apply(const Operation&)`: does what the operation does,
// and says whether it would have got the answer that is recorded in it.
template <typename Model, typename Operation>
class LinearizabilityChecker {
 public:
  static bool Check(const std::vector<Timed<Operation>>& history, const Model& initial) {
    LinearizabilityChecker checker(history);
    return checker.Search(0, initial);
  }

 private:
  explicit LinearizabilityChecker(const std::vector<Timed<Operation>>& history)
      : history_(history) {}

  bool Search(uint64_t done, const Model& model) {
    if (done == All()) return true;
    if (!tried_.insert({done, model}).second) return false;
    uint64_t first_return = std::numeric_limits<uint64_t>::max();
    for (size_t i = 0; i < history_.size(); ++i) {
      if ((done >> i & 1) == 0 && history_[i].returned < first_return) {
        first_return = history_[i].returned;
      }
    }
    for (size_t i = 0; i < history_.size(); ++i) {
      if ((done >> i & 1) != 0 || history_[i].called > first_return) continue;
      Model next = model;
      if (next.Apply(history_[i].operation) && Search(done | uint64_t{1} << i, next)) return true;
    }
    return false;
  }

  uint64_t All() const {
    return history_.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << history_.size()) - 1;
  }

  const std::vector<Timed<Operation>>& history_;
  std::set<std::pair<uint64_t, Model>> tried_;
};

}  // namespace sluice::test_support

#endif  // SLUICE_TESTS_SUPPORT_LINEARIZABILITY_H_
