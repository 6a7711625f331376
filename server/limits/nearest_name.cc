#include "server/limits/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "common/bounds.h"

namespace sluice::limits {
namespace {

constexpr size_t kMaxCandidates = 10'000;

// Optimal string alignment distance: three rows of the usual table.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string_view NearestName(std::string_view name, absl::Span<const std::string_view> candidates) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, name.size() / 3) + 1;
  if (candidates.size() > kMaxCandidates) candidates = candidates.first(kMaxCandidates);
  for (const std::string_view candidate : candidates) {
    const size_t difference = candidate.size() > name.size() ? candidate.size() - name.size()
                                                             : name.size() - candidate.size();
    if (candidate.empty() || difference >= best_distance) continue;
    const size_t distance = Distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string_view NearestLimit(const LimitTable& table, std::string_view name) {
  // Of the comparison's tables: 100 us.
  constexpr size_t kMaxCells = 40'000;
  if (name.size() > common::bounds::kMaxLimitNameBytes) return {};
  std::vector<std::string_view> names;
  size_t cells = 0;
  for (const Limit* limit : table.limits()) {
    cells += name.size() * limit->name().size();
    if (cells > kMaxCells) break;
    names.push_back(limit->name());
  }
  return NearestName(name, names);
}

}  // namespace sluice::limits
