#include "server/transport/services/reflection.h"

#include <algorithm>
#include <set>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"

namespace sluice::transport {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

constexpr int kNotFound = 5;
constexpr int kInvalidArgument = 3;

// The file, after all that it imports.
template <typename Files>
void AppendFile(const FileDescriptor* file, std::set<const FileDescriptor*>* done, Files* files) {
  if (!done->insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) AppendFile(file->dependency(i), done, files);
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  proto.SerializeToString(files->add_file_descriptor_proto());
}

// The two versions differ in their package only.
template <typename Request, typename Response>
void AnswerIt(const std::vector<std::string>& services, const Request& request,
              Response* response) {
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

Reflection::Reflection(std::vector<std::string> services) : services_(std::move(services)) {
  std::sort(services_.begin(), services_.end());
}

void Reflection::Answer(const ::grpc::reflection::v1::ServerReflectionRequest& request,
                        ::grpc::reflection::v1::ServerReflectionResponse* response) const {
  AnswerIt(services_, request, response);
}

void Reflection::Answer(const ::grpc::reflection::v1alpha::ServerReflectionRequest& request,
                        ::grpc::reflection::v1alpha::ServerReflectionResponse* response) const {
  AnswerIt(services_, request, response);
}

}  // namespace sluice::transport
