// Configurations of Envoy's rate-limit service that are refused, with the message for each.
#ifndef SLUICE_TESTS_UNIT_ENVOY_BAD_CONFIGURATIONS_H_
#define SLUICE_TESTS_UNIT_ENVOY_BAD_CONFIGURATIONS_H_

#include <ostream>
#include <string>
#include <string_view>

namespace sluice::envoy {

// `message` calls the file f.yaml.
struct BadConfiguration {
  std::string_view name;
  std::string text;
  std::string message;
};

inline void PrintTo(const BadConfiguration& c, std::ostream* out) { *out << c.name; }

// A descriptor with these lines beside its key, from line 4 on.
inline std::string With(std::string_view lines) {
  std::string text = "domain: d\ndescriptors:\n  - key: k\n";
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    text += "    " + std::string(lines.substr(0, end)) + "\n";
    lines = end == std::string_view::npos ? std::string_view() : lines.substr(end + 1);
  }
  return text;
}

inline std::string Nested(int levels) {
  std::string text = "{ key: k }";
  for (int i = 1; i < levels; ++i) text = "{ key: k, descriptors: [ " + text + " ] }";
  return "domain: d\ndescriptors: [ " + text + " ]\n";
}

inline const BadConfiguration kBadConfigurations[] = {
    {"Empty", "", "f.yaml:1:1: domain: is missing or empty; say the domain that Envoy sends"},
    {"NoDomain", "descriptors: []\n",
     "f.yaml:1:1: domain: is missing or empty; say the domain that Envoy sends"},
    {"EmptyDomain", "domain: ''\n",
     "f.yaml:1:9: domain: is missing or empty; say the domain that Envoy sends"},
    {"FloatDomain", "domain: 1.5\n",
     "f.yaml:1:9: domain: \"1.5\": is a number with a point or an exponent; put it in quotes"},
    {"RootIsAList", "- domain: d\n",
     "f.yaml:1:1: is a list, not a map; begin the file with domain:"},
    {"UnknownRootField", "domains: d\n",
     "f.yaml:1:1: \"domains\": no field has that name; did you mean domain?"},
    {"UnknownField", With("rate: 5"),
     "f.yaml:4:5: descriptors[0]: \"rate\": no field has that name; there are key, value, "
     "rate_limit, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, "
     "share_threshold and metadata"},
    {"MisspelledField", With("rate_limt: {}"),
     "f.yaml:4:5: descriptors[0]: \"rate_limt\": no field has that name; did you mean rate_limit?"},
    {"DescriptorsIsAMap", "domain: d\ndescriptors: { key: k }\n",
     "f.yaml:2:14: descriptors: is a map; say a list, each descriptor after a dash"},
    {"ListOfValues", "domain: d\ndescriptors: [k]\n",
     "f.yaml:2:15: descriptors[0]: is a single value, not a map; say a map with key:"},
    {"EmptyKey", "domain: d\ndescriptors:\n  - value: v\n",
     "f.yaml:3:5: key: is missing or empty; say the key of a descriptor's entry"},
    {"KeyIsAList", "domain: d\ndescriptors:\n  - key: [a]\n",
     "f.yaml:3:10: descriptors[0].key: is a list; say a text"},
    {"FloatValue", With("value: 1.5"),
     "f.yaml:4:12: descriptors[0].value: \"1.5\": is a number with a point or an exponent; put it "
     "in quotes"},
    {"ExponentValue", With("value: 1e3"),
     "f.yaml:4:12: descriptors[0].value: \"1e3\": is a number with a point or an exponent; put it "
     "in quotes"},
    {"DuplicateKey", "domain: d\ndescriptors:\n  - key: k\n  - key: k\n",
     "f.yaml:4:5: \"k\": this key and value are defined twice, first at f.yaml:3:5; keep one"},
    {"DuplicateKeyAndValue",
     "domain: d\ndescriptors:\n  - { key: a, value: b_c }\n  - { key: a_b, value: c }\n",
     "f.yaml:4:5: \"a_b_c\": this key and value are defined twice, first at f.yaml:3:5; keep one"},
    {"BadUnit", With("rate_limit: { unit: fortnight, requests_per_unit: 5 }"),
     "f.yaml:4:25: unit: \"fortnight\": say second, minute, hour, day, week, month or year"},
    {"UnknownUnit", With("rate_limit: { unit: unknown, requests_per_unit: 5 }"),
     "f.yaml:4:25: unit: \"unknown\": say second, minute, hour, day, week, month or year"},
    {"NoUnit", With("rate_limit: { requests_per_unit: 5 }"),
     "f.yaml:4:17: unit: is missing; say second, minute, hour, day, week, month or year"},
    {"EmptyRateLimit", With("rate_limit: {}"),
     "f.yaml:4:17: unit: is missing; say second, minute, hour, day, week, month or year"},
    {"UnlimitedWithUnit", With("rate_limit: { unlimited: true, unit: day }"),
     "f.yaml:4:42: unit: \"day\": an unlimited rate_limit has none; take out unit or unlimited"},
    {"RateLimitIsAValue", With("rate_limit: 5"),
     "f.yaml:4:17: descriptors[0].rate_limit: is a single value, not a map; say e.g. { unit: "
     "minute, requests_per_unit: 100 }"},
    {"NegativeRequests", With("rate_limit: { unit: day, requests_per_unit: -1 }"),
     "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: \"-1\": say a whole number from 0 "
     "to 4294967295, without quotes"},
    {"FloatRequests", With("rate_limit: { unit: day, requests_per_unit: 1.5 }"),
     "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: \"1.5\": say a whole number from 0 "
     "to 4294967295, without quotes"},
    {"TooManyRequests", With("rate_limit: { unit: day, requests_per_unit: 4294967296 }"),
     "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: \"4294967296\": say a whole number "
     "from 0 to 4294967295, without quotes"},
    {"QuotedRequests", With("rate_limit: { unit: day, requests_per_unit: \"5\" }"),
     "f.yaml:4:49: descriptors[0].rate_limit.requests_per_unit: \"5\": say a whole number from 0 "
     "to 4294967295, without quotes"},
    {"EmptyReplaces", With("rate_limit: { unit: day, replaces: [{ name: '' }] }"),
     "f.yaml:4:41: replaces: name: is missing or empty; say the name of a rate_limit"},
    {"ReplacesItself", With("rate_limit: { unit: day, name: a, replaces: [{ name: a }] }"),
     "f.yaml:4:50: replaces: \"a\": a rate_limit cannot replace itself; take it out"},
    {"ReplacesIsAListOfValues", With("rate_limit: { unit: day, replaces: [a] }"),
     "f.yaml:4:41: descriptors[0].rate_limit.replaces[0]: is a single value, not a map; say a list "
     "of names, e.g. [{ name: per-ip }]"},
    {"SharedWithoutWildcard", With("value: v\nshare_threshold: true"),
     "f.yaml:3:5: share_threshold: \"k_v\" has no *; take share_threshold out, or say a value with "
     "*"},
    {"FlagIsAText", With("shadow_mode: \"true\""),
     "f.yaml:4:18: descriptors[0].shadow_mode: \"true\": say true or false, without quotes"},
    {"MetadataIsAList", With("metadata: [1]"),
     "f.yaml:4:15: descriptors[0].metadata: is a list; say a map of any values"},
    {"TooLongValue", With("value: " + std::string(1100, 'v')),
     "f.yaml:3:5: key and value together have 1102 bytes; at most 1024"},
    {"TooDeep", Nested(13), "f.yaml:2:316: descriptors: are nested deeper than 12 levels"},
    {"DuplicateField", With("value: a\nvalue: b"),
     "f.yaml:5:5: \"value\": is given twice, first in line 4; keep one"},
    {"CyclicAlias", "domain: d\ndescriptors: &a\n  - key: k\n    descriptors: *a\n",
     "f.yaml:4:18: an alias of a node that it is itself in; write it out"},
    {"NotYaml", "domain: d\n  descriptors: {\n", "f.yaml:2:14: is not YAML: illegal map value"},
};

}  // namespace sluice::envoy

#endif  // SLUICE_TESTS_UNIT_ENVOY_BAD_CONFIGURATIONS_H_
