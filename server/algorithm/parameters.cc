#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

std::optional<Kind> ParseKind(std::string_view name) {
  for (const Kind kind : kKinds) {
    if (name == KindName(kind)) return kind;
  }
  return std::nullopt;
}

std::string KindNames() {
  std::string names;
  for (const Kind kind : kKinds) {
    if (!names.empty()) names += kind == *std::rbegin(kKinds) ? " or " : ", ";
    names += KindName(kind);
  }
  return names;
}

}  // namespace sluice::algorithm
