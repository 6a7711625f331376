#include "tests/conformance/test_service.h"

#include <deque>
#include <string>

#include "common/net/event_loop.h"
#include "interop.pb.h"
#include "server/transport/rpc/server_call.h"

namespace sluice::conformance {
namespace {

using transport::Buffer;
using transport::ServerCall;
namespace wire = grpc::testing;

bool Parse(absl::Span<const uint8_t> bytes, google::protobuf::MessageLite* message,
           ServerCall* call) {
  if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return true;
  call->Finish(absl::StatusCode::kInvalidArgument, "the request is not the method's message");
  return false;
}

void Write(const google::protobuf::MessageLite& message, ServerCall* call) {
  const size_t size = message.ByteSizeLong();
  message.SerializeToArray(call->response().Reserve(size), static_cast<int>(size));
  call->response().Commit(size);
}

constexpr std::string_view kInitial = "x-grpc-test-echo-initial";
constexpr std::string_view kTrailing = "x-grpc-test-echo-trailing-bin";

// The custom_metadata case: metadata with these names is echoed.
void EchoMetadata(ServerCall* call) {
  if (const auto value = call->metadata(kInitial)) call->AddInitialMetadata(kInitial, *value);
  if (const auto value = call->metadata(kTrailing)) call->AddTrailingMetadata(kTrailing, *value);
}

class EmptyCall final : public transport::UnaryMethod {
 public:
  void OnCall(ServerCall& call, absl::Span<const uint8_t>) override { call.Finish(); }
};

class UnaryCall final : public transport::UnaryMethod {
 public:
  void OnCall(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    wire::SimpleRequest request;
    if (!Parse(bytes, &request, &call)) return;
    EchoMetadata(&call);
    if (request.response_status().code() != 0) {
      call.Finish(static_cast<absl::StatusCode>(request.response_status().code()),
                  request.response_status().message());
      return;
    }
    wire::SimpleResponse response;
    response.mutable_payload()->mutable_body()->resize(
        static_cast<size_t>(std::max(0, request.response_size())));
    Write(response, &call);
    call.Finish();
  }
};

class StreamingInputCall final : public transport::StreamingMethod {
 public:
  void OnStart(ServerCall& call) override { call.set_state(new int64_t(0)); }
  void OnMessage(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    wire::StreamingInputCallRequest request;
    if (!Parse(bytes, &request, &call)) {
      OnCancelled(call);
      return;
    }
    *static_cast<int64_t*>(call.state()) += request.payload().body().size();
  }
  void OnRequestsDone(ServerCall& call) override {
    wire::StreamingInputCallResponse response;
    response.set_aggregated_payload_size(static_cast<int>(*static_cast<int64_t*>(call.state())));
    OnCancelled(call);
    Write(response, &call);
    call.Send();
    call.Finish(absl::OkStatus());
  }
  void OnCancelled(ServerCall& call) override { delete static_cast<int64_t*>(call.state()); }
};

// StreamingOutputCall and FullDuplexCall: each request asks for a series of responses, each after
// its own pause.
class OutputCall final : public transport::StreamingMethod {
 public:
  void OnStart(ServerCall& call) override {
    EchoMetadata(&call);
    call.set_state(new Work(&call));
  }
  void OnMessage(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    auto* work = static_cast<Work*>(call.state());
    wire::StreamingOutputCallRequest request;
    if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      delete work;
      call.Finish(absl::StatusCode::kInvalidArgument, "the request is not the method's message");
      return;
    }
    if (request.response_status().code() != 0) {
      delete work;
      call.Finish(static_cast<absl::StatusCode>(request.response_status().code()),
                  request.response_status().message());
      return;
    }
    for (const wire::ResponseParameters& wanted : request.response_parameters()) {
      work->wanted.push_back({wanted.size(), int64_t{wanted.interval_us()} * 1000});
    }
    work->Next();
  }
  void OnRequestsDone(ServerCall& call) override {
    auto* work = static_cast<Work*>(call.state());
    work->requests_done = true;
    work->Next();
  }
  void OnWritable(ServerCall& call) override { static_cast<Work*>(call.state())->Next(); }
  void OnCancelled(ServerCall& call) override { delete static_cast<Work*>(call.state()); }

 private:
  struct Wanted {
    int32_t size;
    int64_t pause_ns;
  };
  struct Work {
    explicit Work(ServerCall* call) : call(call), timer(net::Timer::To<&Work::OnTime>, this) {}

    void Next() {
      while (!timer.armed() && !call->congested() && !wanted.empty()) {
        if (wanted.front().pause_ns > 0) {
          const int64_t pause_ns = wanted.front().pause_ns;
          wanted.front().pause_ns = 0;
          call->loop().Arm(timer, call->loop().clock().NowNs() + pause_ns);
          return;
        }
        wire::StreamingOutputCallResponse response;
        response.mutable_payload()->mutable_body()->resize(
            static_cast<size_t>(std::max(0, wanted.front().size)));
        wanted.pop_front();
        Write(response, call);
        call->Send();
      }
      if (requests_done && wanted.empty()) {
        ServerCall* finished = call;
        delete this;
        finished->Finish(absl::OkStatus());
      }
    }
    void OnTime() { Next(); }

    ServerCall* const call;
    net::Timer timer;
    std::deque<Wanted> wanted;
    bool requests_done = false;
  };
};

}  // namespace

struct TestService::Handlers {
  EmptyCall empty;
  UnaryCall unary;
  StreamingInputCall input;
  OutputCall output;
};

TestService::TestService() : handlers_(new Handlers) {}
TestService::~TestService() { delete handlers_; }

void TestService::Register(transport::MethodTable* methods) {
  const transport::MethodOptions large{.max_request_bytes = size_t{16} << 20,
                                       .metadata = {kInitial, kTrailing}};
  const transport::MethodOptions echo{.metadata = {kInitial, kTrailing}};
  methods->AddUnary("/grpc.testing.TestService/EmptyCall", handlers_->empty);
  methods->AddUnary("/grpc.testing.TestService/UnaryCall", handlers_->unary, large);
  methods->AddStreaming("/grpc.testing.TestService/StreamingInputCall", handlers_->input, large);
  methods->AddStreaming("/grpc.testing.TestService/StreamingOutputCall", handlers_->output, echo);
  methods->AddStreaming("/grpc.testing.TestService/FullDuplexCall", handlers_->output, echo);
}

}  // namespace sluice::conformance
