// gRPC methods for tests of the transport: each answers in a way that the test controls.
#ifndef SLUICE_TESTS_SUPPORT_ECHO_METHODS_H_
#define SLUICE_TESTS_SUPPORT_ECHO_METHODS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/net/work_queue.h"
#include "gtest/gtest.h"
#include "server/transport/rpc/server_call.h"

namespace sluice::testing {

// Answers with the request.
class EchoMethod final : public transport::UnaryMethod {
 public:
  void OnCall(transport::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++calls;
    if (on_call) on_call(call);
    call.response().Append(request);
    call.Finish();
  }
  int calls = 0;
  std::function<void(transport::ServerCall&)> on_call;
};

// Holds calls until the test finishes them.
class HeldMethod final : public transport::UnaryMethod {
 public:
  void OnCall(transport::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++started;
    held.push_back(&call);
    requests.push_back(request);
  }
  void OnCancelled(transport::ServerCall& call) override {
    ++cancelled;
    last_deadline_passed = call.deadline_passed();
    std::erase(held, &call);
  }
  std::vector<transport::ServerCall*> held;
  std::vector<absl::Span<const uint8_t>> requests;
  int started = 0;
  int cancelled = 0;
  bool last_deadline_passed = false;
};

// Answers with the request after `steps` steps, each of which costs a whole turn.
class StepMethod final : public transport::UnaryMethod {
 public:
  void OnCall(transport::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++started;
    calls[&call] = {request, steps};
    Step(call);
  }
  void OnTurn(transport::ServerCall& call) override { Step(call); }
  void OnCancelled(transport::ServerCall& call) override { calls.erase(&call); }

  struct Progress {
    absl::Span<const uint8_t> request;
    int steps_left = 0;
  };
  int steps = 10;
  int started = 0;
  int steps_done = 0;
  std::map<transport::ServerCall*, Progress> calls;

 private:
  void Step(transport::ServerCall& call) {
    ++steps_done;
    call.Spend(net::WorkQueue::kTurnUnits);
    EXPECT_TRUE(call.turn_ended());
    if (--calls[&call].steps_left > 0) return call.ContinueLater();
    call.response().Append(calls[&call].request);
    calls.erase(&call);
    call.Finish();
  }
};

// Answers each request of a stream with `times` copies of it, and ends with OK.
class EchoStream final : public transport::StreamingMethod {
 public:
  void OnStart(transport::ServerCall& call) override { last = &call; }
  void OnMessage(transport::ServerCall& call, absl::Span<const uint8_t> request) override {
    ++messages;
    for (int i = 0; i < times; ++i) {
      call.response().Append(request);
      call.Send();
    }
    if (pause_after_each) call.PauseReading();
  }
  void OnRequestsDone(transport::ServerCall& call) override { call.Finish(absl::OkStatus()); }
  void OnWritable(transport::ServerCall&) override { ++writable; }
  void OnDrain(transport::ServerCall& call) override {
    call.Finish(absl::StatusCode::kUnavailable, "draining");
  }
  void OnCancelled(transport::ServerCall&) override {
    ++cancelled;
    last = nullptr;
  }
  transport::ServerCall* last = nullptr;
  int times = 1;
  int messages = 0;
  int writable = 0;
  int cancelled = 0;
  bool pause_after_each = false;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_ECHO_METHODS_H_
