// DescriptorTree: the configuration of envoyproxy/ratelimit as plain data: domains, their trees of
// descriptors, and where each was defined. YAML files (load.h) and xDS resources fill it in; Check
// finds the errors of both.
#ifndef SLUICE_SERVER_ENVOY_DESCRIPTOR_TREE_H_
#define SLUICE_SERVER_ENVOY_DESCRIPTOR_TREE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace sluice::envoy {

// The numbers of envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit.
enum class Unit : uint8_t {
  kUnknown = 0,
  kSecond = 1,
  kMinute = 2,
  kHour = 3,
  kDay = 4,
  kMonth = 5,
  kYear = 6,
  kWeek = 7,
};

// Nanoseconds. A month has 30 days, a year 365. 0: kUnknown.
int64_t UnitNs(Unit unit);
// The longest unit of which `period_ns` is a multiple, and how often; kUnknown: of none.
std::pair<Unit, uint32_t> UnitOf(int64_t period_ns);
// "second"; "unknown".
std::string_view UnitName(Unit unit);
// In any case of letters. Absent: not the name of a unit; kUnknown: "unknown".
std::optional<Unit> ParseUnit(std::string_view text);

// A value of `metadata`: google.protobuf.Value as plain data.
struct MetadataValue {
  enum class Kind : uint8_t { kNull, kBool, kNumber, kText, kList, kStruct };
  // Named fields, each name once. Of a kStruct.
  using Fields = std::vector<std::pair<std::string, MetadataValue>>;

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;
  std::string text = {};
  std::vector<MetadataValue> list = {};
  Fields fields = {};
};

// Where something is defined. Lines and columns count from 1.
struct SourcePlace {
  uint32_t source = 0;  // index into DescriptorTree::sources
  int line = 0;         // 0: the source has no lines (xDS)
  int column = 0;
};

struct RateLimit {
  Unit unit = Unit::kUnknown;
  // As written, if it names no unit; for the error.
  std::string unit_text = {};
  // Units a window, at least 1. YAML has no field for it.
  uint32_t unit_multiplier = 1;
  uint32_t requests_per_unit = 0;
  bool unlimited = false;
  std::string name = {};
  // Names of the limits that this one replaces, and where each is written.
  std::vector<std::pair<std::string, SourcePlace>> replaces = {};

  SourcePlace place = {};
  SourcePlace unit_place = {};  // line 0: the field is absent
};

struct Descriptor {
  std::string key;
  std::string value = {};  // empty: any value
  std::optional<RateLimit> rate_limit = {};
  std::vector<Descriptor> descriptors = {};
  bool shadow_mode = false;
  bool quota_mode = false;
  bool detailed_metric = false;
  bool value_to_metric = false;
  bool share_threshold = false;
  MetadataValue::Fields metadata = {};

  SourcePlace place = {};
};

struct Domain {
  std::string name;
  std::vector<Descriptor> descriptors = {};
  SourcePlace place = {};
};

struct DescriptorTree {
  // Files ("/etc/ratelimit/a.yaml") or resources ("xds:default/eg"), in the order of loading.
  std::vector<std::string> sources;
  // In the order of loading. Two with one name are an error, or merged (CheckOptions).
  std::vector<Domain> domains;
};

struct CheckOptions {
  // MERGE_DOMAIN_CONFIG: sources may have a domain in common; its descriptors are put together.
  bool merge_domains = false;
};

// Returns the first semantic error: INVALID_ARGUMENT, "SOURCE:LINE:COLUMN: what is wrong, what to
// write" (without lines: "SOURCE: ..."). Also bounds the tree: common/bounds.h. Pure; thread-safe.
absl::Status Check(const DescriptorTree& tree, const CheckOptions& options);

// "SOURCE:LINE:COLUMN", or without a line "SOURCE".
std::string PlaceText(const DescriptorTree& tree, const SourcePlace& place);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_DESCRIPTOR_TREE_H_
