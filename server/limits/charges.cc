#include <string>
#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/limits/nearest_name.h"
#include "server/limits/spec_check.h"

namespace sluice::limits {
namespace {

using common::ToAbsl;
using Kind = ChargesProblem::Kind;

constexpr size_t kShownOfCycle = 20;

// The `charges` of all limits as indices, in the order written.
using Edges = std::vector<std::vector<uint32_t>>;

std::optional<ChargesProblem> Resolve(absl::Span<const LimitSpec* const> specs, Edges* edges) {
  absl::flat_hash_map<absl::string_view, uint32_t> by_name;
  by_name.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto [it, inserted] = by_name.emplace(specs[i]->name, i);
    if (inserted) continue;
    const std::string& other = specs[it->second]->defined_at;
    const std::string line = other.empty() ? "" : " in line " + other.substr(other.rfind(':') + 1);
    return ChargesProblem{Kind::kDuplicateName,
                          i,
                          {"name", specs[i]->name,
                           absl::StrCat("is already the name of limits[", it->second, "]", line,
                                        "; give each limit a name of its own")}};
  }
  edges->resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t c = 0; c < specs[i]->charges.size(); ++c) {
      const std::string& name = specs[i]->charges[c];
      const auto it = by_name.find(name);
      if (it == by_name.end()) {
        std::vector<std::string_view> names;
        for (const LimitSpec* spec : specs) names.push_back(spec->name);
        const std::string_view near = NearestName(name, names);
        return ChargesProblem{Kind::kUnknown,
                              i,
                              {"charges", name,
                               near.empty() ? "no limit has that name; add it, or take this out"
                                            : absl::StrCat("no limit has that name; did you mean ",
                                                           ToAbsl(near), "?"),
                               c}};
      }
      (*edges)[i].push_back(it->second);
    }
  }
  return std::nullopt;
}

// Depth first, with an explicit stack: a chain may be as long as the file.
class CycleSearch {
 public:
  CycleSearch(absl::Span<const LimitSpec* const> specs, const Edges& edges)
      : specs_(specs), edges_(edges), colour_(specs.size(), Colour::kNew) {}

  std::optional<ChargesProblem> From(size_t start) {
    if (start >= specs_.size() || colour_[start] != Colour::kNew) return std::nullopt;
    Enter(static_cast<uint32_t>(start));
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.next == edges_[step.limit].size()) {
        colour_[step.limit] = Colour::kDone;
        path_.pop_back();
        continue;
      }
      const uint32_t to = edges_[step.limit][step.next++];
      if (colour_[to] == Colour::kOnPath) return Cycle(to);
      if (colour_[to] == Colour::kNew) Enter(to);
    }
    return std::nullopt;
  }

 private:
  enum class Colour : uint8_t { kNew, kOnPath, kDone };
  struct Step {
    uint32_t limit;
    size_t next;  // of its edges
  };

  void Enter(uint32_t limit) {
    colour_[limit] = Colour::kOnPath;
    path_.push_back({limit, 0});
  }

  ChargesProblem Cycle(uint32_t to) const {
    size_t begin = 0;
    while (path_[begin].limit != to) ++begin;
    std::string names = specs_[to]->name;
    for (size_t i = begin + 1; i < path_.size() && i - begin < kShownOfCycle; ++i) {
      absl::StrAppend(&names, " -> ", specs_[path_[i].limit]->name);
    }
    if (path_.size() - begin > kShownOfCycle) absl::StrAppend(&names, " -> ...");
    absl::StrAppend(&names, " -> ", specs_[to]->name);
    const size_t charge = path_[begin].next - 1;
    return {Kind::kCycle,
            to,
            {"charges", specs_[to]->charges[charge],
             absl::StrCat("makes a cycle, ", names,
                          "; a limit cannot charge itself, take one of them out"),
             charge}};
  }

  const absl::Span<const LimitSpec* const> specs_;
  const Edges& edges_;
  std::vector<Colour> colour_;
  std::vector<Step> path_;
};

// Breadth first from one limit; stops at the first charge too many.
std::optional<ChargesProblem> Follow(const Edges& edges, uint32_t start,
                                     std::vector<uint32_t>* found) {
  size_t next = 0;
  uint32_t from = start;
  while (true) {
    for (const uint32_t to : edges[from]) {
      if (absl::c_linear_search(*found, to)) continue;
      if (found->size() + 1 == common::bounds::kMaxCharges) {
        return ChargesProblem{
            Kind::kTooMany,
            start,
            {"charges", "",
             absl::StrCat("with those that the limits named here charge in turn, and ",
                          "itself, this limit makes more than ", common::bounds::kMaxCharges,
                          " charges of one; at most ", common::bounds::kMaxCharges)}};
      }
      found->push_back(to);
    }
    if (next == found->size()) return std::nullopt;
    from = (*found)[next++];
  }
}

// A split limit is decided by the node, which Settle and Refund of the slots may not reach.
std::optional<ChargesProblem> FindSplitSlots(absl::Span<const LimitSpec* const> specs,
                                             uint32_t limit, absl::Span<const uint32_t> parents) {
  const LimitSpec* slots = nullptr;
  const LimitSpec* split = nullptr;
  const auto look_at = [&](const LimitSpec& spec) {
    if (slots == nullptr && spec.algorithm == algorithm::Kind::kConcurrency) slots = &spec;
    if (split == nullptr && spec.sharing == store::Sharing::kSplit) split = &spec;
  };
  look_at(*specs[limit]);
  for (const uint32_t parent : parents) look_at(*specs[parent]);
  if (slots == nullptr || split == nullptr) return std::nullopt;
  return ChargesProblem{
      Kind::kSplitsSlots,
      limit,
      {"charges", "",
       absl::StrCat("\"", split->name, "\" says sharing: split and \"", slots->name,
                    "\" has algorithm concurrency, which cannot be charged together; have \"",
                    split->name, "\" say sharing: exact or relaxed")}};
}

}  // namespace

std::optional<ChargesProblem> ExpandCharges(absl::Span<const LimitSpec* const> specs, size_t first,
                                            std::vector<std::vector<uint32_t>>* parents) {
  parents->assign(specs.size(), {});
  Edges edges;
  if (auto problem = Resolve(specs, &edges)) return problem;
  CycleSearch search(specs, edges);
  if (auto problem = search.From(first)) return problem;
  for (uint32_t i = 0; i < specs.size(); ++i) {
    if (auto problem = search.From(i)) return problem;
  }
  for (uint32_t i = 0; i < specs.size(); ++i) {
    if (auto problem = Follow(edges, i, &(*parents)[i])) return problem;
    if (auto problem = FindSplitSlots(specs, i, (*parents)[i])) return problem;
  }
  return std::nullopt;
}

}  // namespace sluice::limits
