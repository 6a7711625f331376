#include "server/transport/services/reflection_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/described_files.h"
#include "server/transport/services/protobuf_messages.h"

namespace sluice::transport {
namespace {

constexpr int kNotFound = 5;
constexpr int kInvalidArgument = 3;

// v1alpha has the same bytes: the versions differ in their package only.
using Request = grpc::reflection::v1::ServerReflectionRequest;
using Response = grpc::reflection::v1::ServerReflectionResponse;

// Something that is not found is an error_response, never an RPC error.
void Answer(const std::vector<std::string>& services, const DescribedFiles& files,
            const Request& request, Response* response) {
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  const auto fail = [&](int code, std::string message) {
    response->mutable_error_response()->set_error_code(code);
    response->mutable_error_response()->set_error_message(std::move(message));
  };
  const auto answer = [&](const DescribedFiles::Files* found, const std::string& what) {
    if (found == nullptr) return fail(kNotFound, what + ": not known to this server");
    for (const std::string& file : *found) {
      response->mutable_file_descriptor_response()->add_file_descriptor_proto(file);
    }
  };
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      answer(files.FindFile(request.file_by_filename()), request.file_by_filename());
      break;
    case Request::kFileContainingSymbol:
      answer(files.FindSymbol(request.file_containing_symbol()), request.file_containing_symbol());
      break;
    // None of the files has extensions.
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      fail(kNotFound, absl::StrCat("extension ", asked.extension_number(), " of ",
                                   asked.containing_type(), ": not known to this server"));
      break;
    }
    case Request::kAllExtensionNumbersOfType: {
      const std::string& type = request.all_extension_numbers_of_type();
      if (!files.HasMessage(type)) {
        fail(kNotFound, type + ": not known to this server");
        break;
      }
      response->mutable_all_extension_numbers_response()->set_base_type_name(type);
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
  explicit InfoMethod(const std::vector<std::string>& services)
      : services_(services), files_(services) {}

  void OnMessage(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    Request request;
    if (!Parse(bytes, &request)) {
      call.Finish(absl::StatusCode::kInvalidArgument,
                  "ServerReflectionRequest: the bytes are not such a message");
      return;
    }
    Response response;
    Answer(services_, files_, request, &response);
    const size_t unsent = call.response().size();
    Append(response, &call.response());
    constexpr size_t kBytesPerUnit = 64;
    call.Spend(
        static_cast<int64_t>((bytes.size() + call.response().size() - unsent) / kBytesPerUnit));
    call.Send();
  }
  void OnRequestsDone(ServerCall& call) override { call.Finish(absl::OkStatus()); }
  void OnDrain(ServerCall& call) override { call.Finish(common::errors::Draining()); }

 private:
  const std::vector<std::string>& services_;
  const DescribedFiles files_;
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
        *info_, {.max_request_bytes = common::bounds::kMaxNameRequestBytes});
  }
}

}  // namespace sluice::transport
