#include "server/transport/web/openapi.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json_string.h"
#include "common/strings.h"
#include "server/transport/http1/answer.h"
#include "server/transport/web/json_call.h"

namespace sluice::web {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

std::string Quoted(std::string_view text) {
  std::string json;
  common::AppendJsonString(text, &json);
  return json;
}

// The members of an object, in their order.
std::string Object(const std::vector<std::string>& members) {
  return absl::StrCat("{", absl::StrJoin(members, ","), "}");
}
std::string Member(std::string_view name, const std::string& json) {
  return absl::StrCat(Quoted(name), ":", json);
}

// Schemas by name: those that were asked for, and those that they refer to.
class Schemas {
 public:
  std::string ReferenceTo(const Descriptor& type) {
    const std::string name = NameOf(type.full_name());
    if (written_.emplace(name, "").second) written_[name] = SchemaOf(type);
    return Reference(name);
  }
  std::string ReferenceTo(const EnumDescriptor& type) {
    const std::string name = NameOf(type.full_name());
    std::vector<std::string> values;
    values.reserve(static_cast<size_t>(type.value_count()));
    for (int i = 0; i < type.value_count(); ++i) values.push_back(Quoted(type.value(i)->name()));
    written_[name] = absl::StrCat(R"({"type":"string","enum":[)", absl::StrJoin(values, ","), "]}");
    return Reference(name);
  }
  void Add(const std::string& name, const std::string& schema) { written_[name] = schema; }
  static std::string Reference(const std::string& name) {
    return absl::StrCat(R"({"$ref":"#/components/schemas/)", name, R"("})");
  }

  std::string ToJson() const {
    std::vector<std::string> members;
    members.reserve(written_.size());
    for (const auto& [name, schema] : written_) members.push_back(Member(name, schema));
    return Object(members);
  }

 private:
  // "QueryRequest.Bucket" for sluice.v1.QueryRequest.Bucket.
  static std::string NameOf(const std::string& full_name) {
    constexpr std::string_view kPackage = "sluice.v1.";
    return full_name.rfind(kPackage, 0) == 0 ? full_name.substr(kPackage.size()) : full_name;
  }

  std::string SchemaOf(const Descriptor& type) {
    std::vector<std::string> properties;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      properties.push_back(Member(field.json_name(), SchemaOf(field)));
    }
    return absl::StrCat(R"({"type":"object","properties":)", Object(properties),
                        R"(,"additionalProperties":false})");
  }

  std::string SchemaOf(const FieldDescriptor& field) {
    if (field.is_map()) {
      return absl::StrCat(R"({"type":"object","additionalProperties":)",
                          ValueSchemaOf(*field.message_type()->map_value()), "}");
    }
    if (!field.is_repeated()) return ValueSchemaOf(field);
    return absl::StrCat(R"({"type":"array","items":)", ValueSchemaOf(field), "}");
  }

  std::string ValueSchemaOf(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return R"({"type":"integer","format":"int32"})";
      case FieldDescriptor::CPPTYPE_UINT32:
        return R"({"type":"integer","minimum":0,"maximum":4294967295})";
      // JSON's numbers are doubles in many languages, so 64 bits are written as strings.
      case FieldDescriptor::CPPTYPE_INT64:
        return R"({"type":["string","integer"],"format":"int64","pattern":"^-?[0-9]+$"})";
      case FieldDescriptor::CPPTYPE_UINT64:
        return R"({"type":["string","integer"],"format":"uint64","pattern":"^[0-9]+$"})";
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return R"({"type":"number"})";
      case FieldDescriptor::CPPTYPE_BOOL:
        return R"({"type":"boolean"})";
      case FieldDescriptor::CPPTYPE_ENUM:
        return ReferenceTo(*field.enum_type());
      case FieldDescriptor::CPPTYPE_STRING:
        return field.type() == FieldDescriptor::TYPE_BYTES
                   ? R"({"type":"string","contentEncoding":"base64"})"
                   : R"({"type":"string"})";
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    const Descriptor& type = *field.message_type();
    if (type.full_name() == "google.protobuf.Duration") {
      return R"({"type":"string","pattern":"^-?[0-9]+(\\.[0-9]{1,9})?s$","examples":["1.5s"]})";
    }
    if (type.full_name() == "google.protobuf.Timestamp") {
      return R"({"type":"string","format":"date-time"})";
    }
    return ReferenceTo(type);
  }

  std::map<std::string, std::string> written_;
};

constexpr char kProblemSchema[] =
    R"({"type":"object","required":["type","title","status","detail","code","grpc_status"],)"
    R"("properties":{"type":{"type":"string"},"title":{"type":"string"},)"
    R"("status":{"type":"integer"},"detail":{"type":"string"},"code":{"type":"string"},)"
    R"("grpc_status":{"type":"integer"},"nothing_taken":{"type":"boolean"}}})";

std::string ProblemResponse() {
  return absl::StrCat(
      R"("default":{"description":"An error","content":{"application/problem+json":{"schema":)",
      Schemas::Reference("Problem"), "}}}");
}

std::string OperationOf(const MethodDescriptor& rpc, Schemas& schemas) {
  const std::string request = schemas.ReferenceTo(*rpc.input_type());
  const std::string response = schemas.ReferenceTo(*rpc.output_type());
  const std::string content =
      rpc.server_streaming() ? R"({"text/event-stream":{"schema":{"type":"string"}}})"
                             : absl::StrCat(R"({"application/json":{"schema":)", response, "}}");
  const std::string what =
      rpc.server_streaming()
          ? absl::StrCat("Events, whose data is a ", rpc.output_type()->name(), " in JSON")
          : rpc.output_type()->name();
  return absl::StrCat(R"({"post":{"operationId":)", Quoted(rpc.name()), R"(,"tags":[)",
                      Quoted(rpc.service()->name()),
                      R"(],"requestBody":{"content":{"application/json":{"schema":)", request,
                      R"(}}},"responses":{"200":{"description":)", Quoted(what), R"(,"content":)",
                      content, "},", ProblemResponse(), R"(},"security":[{},{"token":[]}]}})");
}

// One parameter of /v1/check.
std::string Parameter(std::string_view name, bool required, std::string_view schema,
                      std::string_view description) {
  return absl::StrCat(R"({"name":)", Quoted(name), R"(,"in":"query","required":)",
                      required ? "true" : "false", R"(,"schema":)", common::ToAbsl(schema),
                      R"(,"description":)", Quoted(description), "}");
}

std::string CheckOperation() {
  constexpr std::string_view kText = R"({"type":"string"})";
  constexpr std::string_view kTexts = R"({"type":"array","items":{"type":"string"}})";
  constexpr std::string_view kSwitch = R"({"type":"string","enum":["0","1"]})";
  const std::vector<std::string> parameters = {
      Parameter("limit", true, kText, "Name of a limit."),
      Parameter("key", false, kTexts, "Owner of the permits; several are joined."),
      Parameter("key_header", false, kTexts, "Name of a request header whose value is the key."),
      Parameter("permits", false, R"({"type":"integer","minimum":1})", "Default: 1."),
      Parameter("deny_status", false, R"({"type":"integer","minimum":400,"maximum":599})",
                "Status of a denial. Default: 429."),
      Parameter("x_ratelimit", false, kSwitch, "1: the answer has the X-RateLimit headers too."),
      Parameter("body", false, kSwitch,
                "1: the answer has an AcquireResponse as its body. Needed for slots."),
  };
  const auto response = [](std::string_view what) {
    return absl::StrCat(R"({"description":)", Quoted(what),
                        R"(,"headers":{"RateLimit":{"schema":{"type":"string"}},)"
                        R"("RateLimit-Policy":{"schema":{"type":"string"}}}})");
  };
  return absl::StrCat(R"({"get":{"operationId":"check","tags":["Gateways"],"parameters":[)",
                      absl::StrJoin(parameters, ","), R"(],"responses":{"200":)",
                      response("Granted"), R"(,"429":)", response("Denied; see Retry-After"), ",",
                      ProblemResponse(), R"(},"security":[{}]}})");
}

}  // namespace

std::string MakeOpenApi(const std::vector<const ServiceDescriptor*>& services,
                        std::string_view version) {
  Schemas schemas;
  schemas.Add("Problem", kProblemSchema);
  std::vector<std::string> paths = {Member("/v1/check", CheckOperation())};
  for (const ServiceDescriptor* const service : services) {
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor& rpc = *service->method(i);
      if (rpc.client_streaming()) continue;
      paths.push_back(Member(PathOf(rpc), OperationOf(rpc, schemas)));
    }
  }
  return absl::StrCat(
      R"({"openapi":"3.1.0","info":{"title":"Sluice","version":)", Quoted(version),
      R"(,"description":"A centralized rate-limit service. docs/http.md explains the API."},)",
      R"("paths":)", Object(paths), R"(,"components":{"schemas":)", schemas.ToJson(),
      R"(,"securitySchemes":{"token":{"type":"http","scheme":"bearer"}}}})", "\n");
}

}  // namespace sluice::web
