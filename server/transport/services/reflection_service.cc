#include "server/transport/services/reflection_service.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/protobuf_messages.h"

namespace sluice::transport {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

constexpr int kNotFound = 5;
constexpr int kInvalidArgument = 3;

// Appends the file after all files that it imports.
template <typename Files>
void AppendFile(const FileDescriptor* file, std::set<const FileDescriptor*>* done, Files* files) {
  if (!done->insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) AppendFile(file->dependency(i), done, files);
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  proto.SerializeToString(files->add_file_descriptor_proto());
}

// v1alpha has the same bytes: the versions differ in their package only.
using Request = grpc::reflection::v1::ServerReflectionRequest;
using Response = grpc::reflection::v1::ServerReflectionResponse;

// Something that is not found is an error_response, never an RPC error.
void Answer(const std::vector<std::string>& services, const Request& request, Response* response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  const auto fail = [&](int code, std::string message) {
    response->mutable_error_response()->set_error_code(code);
    response->mutable_error_response()->set_error_message(std::move(message));
  };
  const auto answer_file = [&](const FileDescriptor* file, const std::string& what) {
    if (file == nullptr) return fail(kNotFound, what + ": not known to this server");
    std::set<const FileDescriptor*> done;
    AppendFile(file, &done, response->mutable_file_descriptor_response());
  };
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      answer_file(pool.FindFileByName(request.file_by_filename()), request.file_by_filename());
      break;
    case Request::kFileContainingSymbol:
      answer_file(pool.FindFileContainingSymbol(request.file_containing_symbol()),
                  request.file_containing_symbol());
      break;
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const auto* type = pool.FindMessageTypeByName(asked.containing_type());
      const FieldDescriptor* extension =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
      answer_file(extension == nullptr ? nullptr : extension->file(),
                  "extension " + std::to_string(asked.extension_number()) + " of " +
                      asked.containing_type());
      break;
    }
    case Request::kAllExtensionNumbersOfType: {
      const auto* type = pool.FindMessageTypeByName(request.all_extension_numbers_of_type());
      if (type == nullptr) {
        fail(kNotFound, request.all_extension_numbers_of_type() + ": not known to this server");
        break;
      }
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      auto* const numbers = response->mutable_all_extension_numbers_response();
      numbers->set_base_type_name(request.all_extension_numbers_of_type());
      for (const FieldDescriptor* extension : extensions) {
        numbers->add_extension_number(extension->number());
      }
      break;
    }
    case Request::kListServices:
      for (const std::string& service : services) {
        response->mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      fail(kInvalidArgument, "message_request: not set; ask for a file, a symbol or the services");
      break;
  }
}

}  // namespace

// One response for each request, until the client ends the stream or the server drains.
class ReflectionService::InfoMethod final : public StreamingMethod {
 public:
  explicit InfoMethod(const std::vector<std::string>& services) : services_(services) {}

  void OnMessage(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    Request request;
    if (!Parse(bytes, &request)) {
      call.Finish(absl::StatusCode::kInvalidArgument,
                  "ServerReflectionRequest: the bytes are not such a message");
      return;
    }
    Response response;
    Answer(services_, request, &response);
    Append(response, &call.response());
    call.Send();
  }
  void OnRequestsDone(ServerCall& call) override { call.Finish(absl::OkStatus()); }
  void OnDrain(ServerCall& call) override { call.Finish(common::errors::Draining()); }

 private:
  const std::vector<std::string>& services_;
};

ReflectionService::ReflectionService(std::vector<std::string> services)
    : services_(std::move(services)) {
  services_.insert(services_.end(), {"grpc.reflection.v1.ServerReflection",
                                     "grpc.reflection.v1alpha.ServerReflection"});
  std::sort(services_.begin(), services_.end());
  // Also puts v1alpha's file into the pool.
  google::protobuf::LinkMessageReflection<grpc::reflection::v1alpha::ServerReflectionRequest>();
  info_ = std::make_unique<InfoMethod>(services_);
}

ReflectionService::~ReflectionService() = default;

void ReflectionService::Register(MethodTable* methods) {
  for (const char* version : {"v1", "v1alpha"}) {
    methods->AddStreaming(
        absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo"),
        *info_);
  }
}

}  // namespace sluice::transport
