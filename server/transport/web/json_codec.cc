#include "server/transport/web/json_codec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/errors.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/type_resolver_util.h"

namespace sluice::web {
namespace {

constexpr char kPrefix[] = "type.googleapis.com";

std::string UrlOf(const google::protobuf::Descriptor& type) {
  return absl::StrCat(kPrefix, "/", type.full_name());
}

}  // namespace

JsonCodec::JsonCodec()
    : types_(google::protobuf::util::NewTypeResolverForDescriptorPool(
          kPrefix, google::protobuf::DescriptorPool::generated_pool())) {}

JsonCodec::~JsonCodec() = default;

absl::Status JsonCodec::Parse(std::string_view json, const google::protobuf::Descriptor& type,
                              std::string* bytes) const {
  bytes->clear();
  if (json.empty()) return absl::OkStatus();
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto status = google::protobuf::util::JsonToBinaryString(
      types_.get(), UrlOf(type), {json.data(), json.size()}, bytes, options);
  if (status.ok()) return absl::OkStatus();
  // The text quotes the request.
  constexpr size_t kMostBytes = 256;
  return absl::InvalidArgumentError(absl::StrCat(
      type.name(), ": ",
      common::errors::Shown({status.message().data(), status.message().size()}, kMostBytes)));
}

std::string JsonCodec::Print(std::string_view bytes,
                             const google::protobuf::Descriptor& type) const {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::BinaryToJsonString(
      types_.get(), UrlOf(type), std::string(bytes), &json, options);
  if (!status.ok()) return "{}";  // the bytes are our own
  return json;
}

}  // namespace sluice::web
