#include "server/algorithm/kind.h"

#include <iterator>

namespace sluice::algorithm {
namespace {

constexpr std::string_view Name(Kind kind) {
  switch (kind) {
    case Kind::kTokenBucket:
      return "token_bucket";
    case Kind::kSlidingLog:
      return "sliding_log";
    case Kind::kSlidingWindow:
      return "sliding_window";
    case Kind::kFixedWindow:
      return "fixed_window";
  }
  return "";
}

// kKinds has every kind, in the order of the values.
constexpr bool Complete() {
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    if (kKinds[i] != static_cast<Kind>(i)) return false;
  }
  return Name(static_cast<Kind>(std::size(kKinds))).empty();
}
static_assert(Complete());

}  // namespace

std::string_view KindName(Kind kind) { return Name(kind); }

std::optional<Kind> ParseKind(std::string_view name) {
  for (const Kind kind : kKinds) {
    if (name == Name(kind)) return kind;
  }
  return std::nullopt;
}

std::string KindNames() {
  std::string names;
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    if (i > 0) names += i + 1 == std::size(kKinds) ? " or " : ", ";
    names += Name(kKinds[i]);
  }
  return names;
}

}  // namespace sluice::algorithm
