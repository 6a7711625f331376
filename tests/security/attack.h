// AttackTest: a server, an attacker that sends frames as bytes, valid or not, and an honest client
// on another connection of the same loop, which must be served all the time.
#ifndef SLUICE_TESTS_SECURITY_ATTACK_H_
#define SLUICE_TESTS_SECURITY_ATTACK_H_

#include <time.h>

#include <memory>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tests/support/echo_methods.h"
#include "tests/support/h2_peer.h"
#include "tests/support/http2_frames.h"

namespace sluice::testing {

class AttackTest : public ::testing::Test {
 protected:
  AttackTest() { Begin({}); }

  void Begin(const transport::RpcServerOptions& options) {
    neighbour_.reset();
    server_ = std::make_unique<H2Server>(options);
    server_->methods.AddUnary("/t.T/Echo", echo_);
    server_->methods.AddUnary("/t.T/Held", held_);
    server_->methods.AddStreaming("/t.T/Stream", stream_);
    neighbour_ = std::make_unique<H2Client>(*server_);
    neighbour_->Pump();
  }
  // Checks that the honest client is served.
  void ExpectOthersUnharmed() {
    const int32_t id = neighbour_->Call("/t.T/Echo", Framed("fine"));
    neighbour_->Pump();
    EXPECT_EQ(neighbour_->calls[id].messages(), std::vector<std::string>{"fine"});
    EXPECT_EQ(neighbour_->calls[id].status(), "0");
  }
  // Feeds `frame` until the connection ends. Returns how often. Discards the output, as a peer that
  // reads does.
  static int FeedUntilEnd(H2Connection& connection, const std::string& frame, int most) {
    for (int i = 0; i < most; ++i) {
      connection.Feed(frame);
      connection.Take();
      if (connection.ended()) return i + 1;
    }
    return most;
  }
  // Whether a GOAWAY with this error is in the bytes.
  static bool HasGoaway(const std::string& bytes, uint32_t error) {
    for (size_t at = 0; at + 9 <= bytes.size();) {
      const auto* p = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
      const size_t size = size_t{p[0]} << 16 | size_t{p[1]} << 8 | p[2];
      if (p[3] == NGHTTP2_GOAWAY && at + 17 <= bytes.size()) {
        if ((uint32_t{p[13]} << 24 | uint32_t{p[14]} << 16 | uint32_t{p[15]} << 8 | p[16]) ==
            error) {
          return true;
        }
      }
      at += 9 + size;
    }
    return false;
  }
  size_t Memory() const { return server_->server.memory_in_use(); }

  EchoMethod echo_;
  HeldMethod held_;
  EchoStream stream_;
  std::unique_ptr<H2Server> server_;
  std::unique_ptr<H2Client> neighbour_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SECURITY_ATTACK_H_
