#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/envoy/descriptor_tree.h"
#include "server/limits/spec_check.h"

namespace sluice::envoy {
namespace {

namespace bounds = common::bounds;
using limits::Quoted;

constexpr absl::string_view kUnits = "second, minute, hour, day, week, month or year";

// Where the descriptors of one level stand, by KEY_VALUE or KEY.
using Places = absl::flat_hash_map<std::string, SourcePlace>;

class Checker {
 public:
  Checker(const DescriptorTree& tree, const CheckOptions& options)
      : tree_(tree), options_(options) {}

  absl::Status Run() {
    absl::flat_hash_map<std::string, Places> domains;
    for (const Domain& domain : tree_.domains) {
      if (domain.name.empty()) {
        return Error(domain.place, "domain: is missing or empty; say the domain that Envoy sends");
      }
      if (domain.name.size() > bounds::kMaxDescriptorBytes) {
        return Error(domain.place, absl::StrCat("domain: has ", domain.name.size(),
                                                " bytes; at most ", bounds::kMaxDescriptorBytes));
      }
      const auto [it, added] = domains.try_emplace(domain.name);
      if (!added && !options_.merge_domains) {
        return Error(domain.place, absl::StrCat("domain: ", Quoted(domain.name), ": is also in ",
                                                tree_.sources[PlaceOfDomain(domain.name).source],
                                                "; keep one, or merge them (MERGE_DOMAIN_CONFIG, "
                                                "--ratelimit_merge_domains)"));
      }
      if (absl::Status status = CheckLevel(domain.descriptors, 1, &it->second); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Error(const SourcePlace& place, absl::string_view text) const {
    return absl::InvalidArgumentError(absl::StrCat(PlaceText(tree_, place), ": ", text));
  }

  const SourcePlace& PlaceOfDomain(std::string_view name) const {
    for (const Domain& domain : tree_.domains) {
      if (domain.name == name) return domain.place;
    }
    return tree_.domains.front().place;
  }

  absl::Status CheckLevel(const std::vector<Descriptor>& descriptors, size_t depth,
                          Places* places) {
    for (const Descriptor& one : descriptors) {
      if (absl::Status status = CheckDescriptor(one, depth, places); !status.ok()) return status;
      Places below;
      absl::Status status = CheckLevel(one.descriptors, depth + 1, &below);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CheckDescriptor(const Descriptor& one, size_t depth, Places* places) {
    if (one.key.empty()) {
      return Error(one.place, "key: is missing or empty; say the key of a descriptor's entry");
    }
    if (++descriptors_ > bounds::kMaxDescriptors) {
      return Error(one.place,
                   absl::StrCat("is one descriptor too many; a configuration has at most ",
                                bounds::kMaxDescriptors));
    }
    if (depth > bounds::kMaxDescriptorDepth) {
      return Error(one.place, absl::StrCat("descriptors: are nested deeper than ",
                                           bounds::kMaxDescriptorDepth, " levels"));
    }
    const std::string text = one.value.empty() ? one.key : absl::StrCat(one.key, "_", one.value);
    if (text.size() > bounds::kMaxDescriptorBytes) {
      return Error(one.place, absl::StrCat("key and value together have ", text.size(),
                                           " bytes; at most ", bounds::kMaxDescriptorBytes));
    }
    const auto [it, added] = places->emplace(text, one.place);
    if (!added) {
      return Error(one.place,
                   absl::StrCat(Quoted(text), ": this key and value are defined twice, ",
                                "first at ", PlaceText(tree_, it->second), "; keep one"));
    }
    if (one.share_threshold && !absl::StrContains(text, "*")) {
      return Error(one.place,
                   absl::StrCat("share_threshold: ", Quoted(text),
                                " has no *; take share_threshold out, or say a value with *"));
    }
    return one.rate_limit.has_value() ? CheckRateLimit(*one.rate_limit) : absl::OkStatus();
  }

  absl::Status CheckRateLimit(const RateLimit& limit) {
    const SourcePlace& unit_place = limit.unit_place.line > 0 ? limit.unit_place : limit.place;
    if (limit.unlimited && limit.unit != Unit::kUnknown) {
      return Error(unit_place, absl::StrCat("unit: ", Quoted(UnitName(limit.unit)),
                                            ": an unlimited rate_limit has none; take out unit or "
                                            "unlimited"));
    }
    if (!limit.unlimited && limit.unit == Unit::kUnknown) {
      return Error(unit_place,
                   limit.unit_text.empty()
                       ? absl::StrCat("unit: is missing; say ", kUnits)
                       : absl::StrCat("unit: ", Quoted(limit.unit_text), ": say ", kUnits));
    }
    if (limit.unit_multiplier == 0 ||
        UnitNs(limit.unit) > bounds::kMaxPeriodNs / limit.unit_multiplier) {
      return Error(unit_place, absl::StrCat("unit_multiplier: ", limit.unit_multiplier,
                                            ": a window has at least 1 unit and at most 366 days"));
    }
    if (!limit.unlimited && ++limits_ > bounds::kMaxLimits) {
      return Error(limit.place,
                   absl::StrCat("is one rate_limit too many; a configuration has at most ",
                                bounds::kMaxLimits));
    }
    for (const auto& [name, place] : limit.replaces) {
      if (name.empty()) {
        return Error(place, "replaces: name: is missing or empty; say the name of a rate_limit");
      }
      if (name == limit.name) {
        return Error(place, absl::StrCat("replaces: ", Quoted(name),
                                         ": a rate_limit cannot replace itself; take it out"));
      }
    }
    return absl::OkStatus();
  }

  const DescriptorTree& tree_;
  const CheckOptions& options_;
  size_t descriptors_ = 0;
  size_t limits_ = 0;
};

}  // namespace

absl::Status Check(const DescriptorTree& tree, const CheckOptions& options) {
  return Checker(tree, options).Run();
}

}  // namespace sluice::envoy
