// FakeStream: a net::Stream without a socket, whose peer is the test.
#ifndef SLUICE_TESTS_SUPPORT_FAKE_STREAM_H_
#define SLUICE_TESTS_SUPPORT_FAKE_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"

namespace sluice::testing {

class FakeStream final : public net::Stream {
 public:
  explicit FakeStream(net::EventLoop& loop) : loop_(loop) {}

  void Write(absl::Span<const uint8_t> data) override {
    output.append(reinterpret_cast<const char*>(data.data()), data.size());
    most_output = std::max(most_output, output.size());
  }
  size_t pending_output() const override { return stalled ? output.size() : 0; }
  net::OutputProgress output_progress() const override {
    return {.acknowledged = acknowledged, .outstanding = pending_output() + unacknowledged};
  }
  void PauseReading() override { paused = true; }
  void ResumeReading() override { paused = false; }
  void CloseAfterWrite(int64_t its_linger_ns) override {
    closing = true;
    linger_ns = its_linger_ns;
  }
  void Abort(absl::Status why) override {
    aborted = true;
    abort_status = std::move(why);
  }
  void SetIdle(bool is_idle) override { idle = is_idle; }
  int64_t ready_since_ns() const override {
    return ready_since >= 0 ? ready_since : loop_.now_ns();
  }
  int64_t round_trip_ns() const override { return 0; }
  std::string peer_address() const override { return "192.0.2.1:999"; }
  uint64_t peer() const override { return peer_number; }
  net::EventLoop& loop() override { return loop_; }

  std::string output;         // written, not yet taken by the test
  size_t most_output = 0;     // at any time
  bool stalled = false;       // the peer does not read; output stays pending
  uint64_t acknowledged = 0;  // by the peer's system
  size_t unacknowledged = 0;  // bytes that the kernel has accepted and the peer's has not
  bool paused = false;
  int64_t linger_ns = 0;  // of CloseAfterWrite
  bool closing = false;
  bool aborted = false;
  bool idle = true;
  absl::Status abort_status;
  int64_t ready_since = -1;
  uint64_t peer_number = 0;

 private:
  net::EventLoop& loop_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_FAKE_STREAM_H_
