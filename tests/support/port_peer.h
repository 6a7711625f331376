// PortUnderTest and PortPeer: a port on virtual time and without sockets, and the bytes of one
// connection to it.
#ifndef SLUICE_TESTS_SUPPORT_PORT_PEER_H_
#define SLUICE_TESTS_SUPPORT_PORT_PEER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "server/transport/port/port_acceptor.h"
#include "tests/support/fake_stream.h"

namespace sluice::testing {

class PortUnderTest {
 public:
  virtual ~PortUnderTest() = default;

  virtual transport::PortAcceptor& acceptor() = 0;
  // Methods and routes are registered before the first connection.
  void Start() {
    if (started_) return;
    started_ = true;
    acceptor().AddLoop(*loop);
    loop->RunOnce(0);
  }
  void Advance(int64_t by_ns) {
    clock.Advance(by_ns);
    loop->RunOnce(0);
  }

  common::FakeClock clock;
  common::Metrics metrics;
  std::unique_ptr<net::EventLoop> loop{std::move(net::EventLoop::Create(clock)).value()};

 private:
  bool started_ = false;
};

// The server's end of one connection; the test feeds it bytes.
class PortPeer {
 public:
  explicit PortPeer(PortUnderTest& port) : port_(port), stream(*port.loop) {
    port.Start();
    handler_ = port.acceptor().Accept(stream);
    if (handler_ != nullptr) handler_->OnOpen();
    port.loop->RunOnce(0);
  }
  ~PortPeer() { Close(); }

  bool accepted() const { return handler_ != nullptr; }
  // As one read, and all turns that its work takes.
  void Feed(std::string_view bytes) {
    if (Read(bytes)) RunTurns();
  }
  // As one read, and one iteration of the loop.
  void FeedOnce(std::string_view bytes) {
    if (Read(bytes)) port_.loop->RunOnce(0);
  }
  void FeedInPieces(std::string_view bytes, size_t piece) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
      Feed(bytes.substr(0, piece));
    }
  }
  void RunTurns() {
    do {
      port_.loop->RunOnce(0);
    } while (!port_.loop->work().empty());
  }
  void PeerEnds() {
    if (!ended()) handler_->OnEnd();
    RunTurns();
  }
  void Writable() {
    if (!ended()) handler_->OnWritable();
    RunTurns();
  }
  void Close() {
    CloseOnce();
    RunTurns();
  }
  // Without the turns that the ends of many calls take.
  void CloseOnce() {
    if (handler_ != nullptr) std::exchange(handler_, nullptr)->OnClosed(absl::OkStatus());
  }
  std::string Take() { return std::exchange(stream.output, std::string()); }
  bool ended() const { return stream.closing || stream.aborted; }

 private:
  // Returns false if the connection has ended.
  bool Read(std::string_view bytes) {
    if (handler_ == nullptr || ended()) return false;
    handler_->OnData({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    handler_->OnReadsDone();
    return true;
  }

  PortUnderTest& port_;
  net::StreamHandler* handler_ = nullptr;

 public:
  FakeStream stream;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_PORT_PEER_H_
