#include "server/limits/charges.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/limits/nearest_name.h"

namespace sluice::limits {
namespace {

using common::ToAbsl;
using Kind = ChargesProblem::Kind;

constexpr size_t kShownOfCycle = 20;

// The `charges` of all limits as indices, in the order written.
using Edges = std::vector<std::vector<uint32_t>>;

ChargesProblem Problem(Kind kind, size_t limit, std::optional<size_t> charge, std::string value,
                       std::string advice) {
  ChargesProblem problem;
  problem.kind = kind;
  problem.limit = limit;
  problem.problem.field = "charges";
  problem.problem.index = charge;
  problem.problem.value = std::move(value);
  problem.problem.advice = std::move(advice);
  return problem;
}

std::optional<ChargesProblem> Resolve(absl::Span<const LimitSpec* const> specs, Edges* edges) {
  absl::flat_hash_map<absl::string_view, uint32_t> by_name;
  by_name.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) by_name.emplace(specs[i]->name, i);
  edges->resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t c = 0; c < specs[i]->charges.size(); ++c) {
      const std::string& name = specs[i]->charges[c];
      const auto it = by_name.find(name);
      if (it == by_name.end()) {
        std::vector<std::string_view> names;
        for (const LimitSpec* spec : specs) names.push_back(spec->name);
        const std::string_view near = NearestName(name, names);
        return Problem(
            Kind::kUnknown, i, c, name,
            near.empty()
                ? std::string("no limit has that name; add it, or take this out")
                : absl::StrCat("no limit has that name; did you mean ", ToAbsl(near), "?"));
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

  std::optional<ChargesProblem> From(uint32_t start) {
    if (colour_[start] != Colour::kNew) return std::nullopt;
    Enter(start);
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
    return Problem(Kind::kCycle, to, charge, specs_[to]->charges[charge],
                   absl::StrCat("makes a cycle, ", names,
                                "; a limit cannot charge itself, take one of them out"));
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
      bool known = false;
      for (const uint32_t other : *found) known = known || other == to;
      if (known) continue;
      if (found->size() + 1 == common::bounds::kMaxCharges) {
        return Problem(
            Kind::kTooMany, start, std::nullopt, "",
            absl::StrCat("with those that the limits named here charge in turn, and ",
                         "itself, this limit makes more than ", common::bounds::kMaxCharges,
                         " charges of one; at most ", common::bounds::kMaxCharges));
      }
      found->push_back(to);
    }
    if (next == found->size()) return std::nullopt;
    from = (*found)[next++];
  }
}

}  // namespace

std::optional<ChargesProblem> ExpandCharges(absl::Span<const LimitSpec* const> specs, size_t first,
                                            std::vector<std::vector<uint32_t>>* parents) {
  parents->assign(specs.size(), {});
  Edges edges;
  if (auto problem = Resolve(specs, &edges)) return problem;
  CycleSearch search(specs, edges);
  if (first < specs.size()) {
    if (auto problem = search.From(static_cast<uint32_t>(first))) return problem;
  }
  for (uint32_t i = 0; i < specs.size(); ++i) {
    if (auto problem = search.From(i)) return problem;
  }
  for (uint32_t i = 0; i < specs.size(); ++i) {
    if (auto problem = Follow(edges, i, &(*parents)[i])) return problem;
  }
  return std::nullopt;
}

}  // namespace sluice::limits
