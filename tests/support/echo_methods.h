// Methods whose answers a test can foretell.
#ifndef SLUICE_TESTS_SUPPORT_ECHO_METHODS_H_
#define SLUICE_TESTS_SUPPORT_ECHO_METHODS_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/transport/h2/server_call.h"

namespace sluice::testing {

// Answers with the request.
class EchoMethod final : public transport::h2::UnaryMethod {
 public:
  void OnCall(transport::h2::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++calls;
    if (on_call) on_call(call);
    call.response().Append(request);
    call.Finish();
  }
  int calls = 0;
  std::function<void(transport::h2::ServerCall&)> on_call;
};

// Holds calls until the test answers them.
class HeldMethod final : public transport::h2::UnaryMethod {
 public:
  void OnCall(transport::h2::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++started;
    held.push_back(&call);
    requests.push_back(request);
  }
  void OnCancelled(transport::h2::ServerCall& call) override {
    ++cancelled;
    last_deadline_passed = call.deadline_passed();
    std::erase(held, &call);
  }
  std::vector<transport::h2::ServerCall*> held;
  std::vector<absl::Span<const uint8_t>> requests;
  int started = 0;
  int cancelled = 0;
  bool last_deadline_passed = false;
};

// Answers each request of a stream with itself, `times` over, and ends with OK.
class EchoStream final : public transport::h2::StreamingMethod {
 public:
  void OnStart(transport::h2::ServerCall& call) override { last = &call; }
  void OnMessage(transport::h2::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++messages;
    for (int i = 0; i < times; ++i) {
      call.response().Append(request);
      call.Send();
    }
    if (pause_after_each) call.PauseReading();
  }
  void OnRequestsDone(transport::h2::ServerCall& call) override { call.Finish(absl::OkStatus()); }
  void OnWritable(transport::h2::ServerCall&) override { ++writable; }
  void OnDrain(transport::h2::ServerCall& call) override {
    call.Finish(absl::StatusCode::kUnavailable, "draining");
  }
  void OnCancelled(transport::h2::ServerCall&) override {
    ++cancelled;
    last = nullptr;
  }
  transport::h2::ServerCall* last = nullptr;
  int times = 1;
  int messages = 0;
  int writable = 0;
  int cancelled = 0;
  bool pause_after_each = false;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_ECHO_METHODS_H_
