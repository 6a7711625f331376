#include "server/envoy/xds/rate_limit_resources.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/protobuf_wire.h"
#include "ratelimit/config/ratelimit/v3/rls_conf.pb.h"

namespace sluice::envoy {
namespace {

namespace config = ratelimit::config::ratelimit::v3;
namespace bounds = common::bounds;

absl::Status Bad(absl::string_view source, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(source, ": ", what));
}

// Adds the descriptors in the field `field` of a message, and theirs, to `count`. Stops above the
// bound. A descriptor of two bytes becomes hundreds once it is parsed, so they are counted before.
void CountDescriptors(std::string_view message, uint32_t field, int depth, size_t* count) {
  common::WireReader reader(message);
  std::string_view descriptor;
  while (*count <= bounds::kMaxDescriptors && reader.Next()) {
    if (reader.field() != field || !reader.ReadBytes(&descriptor)) continue;
    ++*count;
    // protobuf's parser refuses messages that are nested deeper.
    constexpr int kMaxDepth = 100;
    if (depth < kMaxDepth) {
      CountDescriptors(descriptor, config::RateLimitDescriptor::kDescriptorsFieldNumber, depth + 1,
                       count);
    }
  }
}

// ---- Messages to plain data ----

MetadataValue::Fields ReadFields(google::protobuf::Struct& from);

MetadataValue ReadValue(google::protobuf::Value& from) {
  using Kind = MetadataValue::Kind;
  MetadataValue value;
  switch (from.kind_case()) {
    case google::protobuf::Value::kBoolValue:
      value.kind = Kind::kBool;
      value.boolean = from.bool_value();
      break;
    case google::protobuf::Value::kNumberValue:
      value.kind = Kind::kNumber;
      value.number = from.number_value();
      break;
    case google::protobuf::Value::kStringValue:
      value.kind = Kind::kText;
      value.text = std::move(*from.mutable_string_value());
      break;
    case google::protobuf::Value::kListValue:
      value.kind = Kind::kList;
      for (google::protobuf::Value& one : *from.mutable_list_value()->mutable_values()) {
        value.list.push_back(ReadValue(one));
      }
      break;
    case google::protobuf::Value::kStructValue:
      value.kind = Kind::kStruct;
      value.fields = ReadFields(*from.mutable_struct_value());
      break;
    case google::protobuf::Value::kNullValue:
    case google::protobuf::Value::KIND_NOT_SET:
      break;
  }
  return value;
}

MetadataValue::Fields ReadFields(google::protobuf::Struct& from) {
  MetadataValue::Fields fields;
  for (auto& [name, value] : *from.mutable_fields()) fields.emplace_back(name, ReadValue(value));
  return fields;
}

RateLimit ReadRateLimit(config::RateLimitPolicy& from, SourcePlace place) {
  RateLimit limit;
  if (from.unit() >= config::UNKNOWN && from.unit() <= config::WEEK) {
    limit.unit = static_cast<Unit>(from.unit());
  } else {
    limit.unit_text = absl::StrCat(from.unit());
  }
  limit.requests_per_unit = from.requests_per_unit();
  limit.unlimited = from.unlimited();
  limit.name = std::move(*from.mutable_name());
  for (config::RateLimitReplace& one : *from.mutable_replaces()) {
    limit.replaces.emplace_back(std::move(*one.mutable_name()), place);
  }
  limit.place = place;
  limit.unit_place = place;
  return limit;
}

Descriptor ReadDescriptor(config::RateLimitDescriptor& from, SourcePlace place) {
  Descriptor descriptor;
  descriptor.key = std::move(*from.mutable_key());
  descriptor.value = std::move(*from.mutable_value());
  if (from.has_rate_limit()) {
    descriptor.rate_limit = ReadRateLimit(*from.mutable_rate_limit(), place);
  }
  descriptor.descriptors.reserve(from.descriptors_size());
  for (config::RateLimitDescriptor& one : *from.mutable_descriptors()) {
    descriptor.descriptors.push_back(ReadDescriptor(one, place));
  }
  descriptor.shadow_mode = from.shadow_mode();
  descriptor.quota_mode = from.quota_mode();
  descriptor.detailed_metric = from.detailed_metric();
  if (from.has_metadata()) descriptor.metadata = ReadFields(*from.mutable_metadata());
  descriptor.place = place;
  return descriptor;
}

}  // namespace

absl::StatusOr<DescriptorTree> ReadResources(
    ::envoy::service::discovery::v3::DiscoveryResponse* response) {
  const size_t count = response->resources_size();
  if (count > bounds::kMaxXdsResources) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the response has ", count, " resources; send at most ", bounds::kMaxXdsResources));
  }
  DescriptorTree tree;
  absl::flat_hash_set<std::string> names;
  size_t descriptors = 0;
  for (google::protobuf::Any& resource : *response->mutable_resources()) {
    const std::string where = absl::StrCat("xds: resource ", tree.sources.size() + 1);
    if (resource.type_url() != kRateLimitConfigType) {
      return Bad(where, absl::StrCat("its type is \"", resource.type_url(), "\"; send ",
                                     kRateLimitConfigType));
    }
    CountDescriptors(resource.value(), config::RateLimitConfig::kDescriptorsFieldNumber, 0,
                     &descriptors);
    if (descriptors > bounds::kMaxDescriptors) {
      return Bad(where, absl::StrCat("with it there are more than ", bounds::kMaxDescriptors,
                                     " descriptors; send fewer"));
    }
    config::RateLimitConfig message;
    if (!message.ParseFromString(resource.value())) {
      return Bad(where,
                 "its value is not a RateLimitConfig: the encoding is not valid, a text is not "
                 "UTF-8, or messages are nested too deep");
    }
    std::string().swap(*resource.mutable_value());
    if (!names.insert(message.name()).second) {
      return Bad(where, absl::StrCat("another resource has the name \"", message.name(),
                                     "\"; give each a name of its own"));
    }
    const SourcePlace place{
        .source = static_cast<uint32_t>(tree.sources.size()), .line = 0, .column = 0};
    tree.sources.push_back(absl::StrCat("xds:", message.name()));
    Domain domain{.name = std::move(*message.mutable_domain()), .descriptors = {}, .place = place};
    domain.descriptors.reserve(message.descriptors_size());
    for (config::RateLimitDescriptor& one : *message.mutable_descriptors()) {
      domain.descriptors.push_back(ReadDescriptor(one, place));
    }
    tree.domains.push_back(std::move(domain));
  }
  return tree;
}

}  // namespace sluice::envoy
