// Peers that make the server hold memory: open calls, answers that they never take, more
// connections than the process has memory for.
#include <string>
#include <vector>

#include "common/bounds.h"
#include "common/memory_account.h"
#include "tests/security/attack.h"

namespace sluice::testing {
namespace {

namespace bounds = common::bounds;
constexpr int64_t kSecond = 1'000'000'000;

class MemoryTest : public AttackTest {
 protected:
  // A client whose streams' windows stay closed.
  std::unique_ptr<H2Client> ShutClient() {
    auto client = std::make_unique<H2Client>(*server_, /*auto_window=*/false);
    const nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
    nghttp2_submit_settings(client->session, 0, &shut, 1);
    client->Pump();
    return client;
  }
  // Exchanges bytes, so that PINGs are answered, for at most so long. Returns the seconds until the
  // connection ended.
  int64_t SecondsUntilEnd(H2Client& client, int64_t most_s) {
    for (int64_t s = 0; s < most_s; ++s) {
      if (client.connection.ended()) return s;
      server_->Advance(kSecond);
      client.Pump();
      neighbour_->Pump();
    }
    return most_s;
  }
  uint64_t Stalls() { return server_->metrics.Snapshot(0).transports[0].stalls; }
};

// ---- Calls

// Each call refers four times to one entry of HPACK's table, a byte each.
TEST_F(MemoryTest, KeepsNoHeadersThatNoHandlerReads) {
  H2Client client(*server_);
  client.Pump();
  const std::string value(3800, 'v');
  for (uint32_t i = 0; i < bounds::kMaxStreamsPerConnection; ++i) {
    client.Call("/t.T/Stream", "", {{"x-a", value}, {"x-a", value}, {"x-a", value}, {"x-a", value}},
                false);
    if (i % 100 == 0) client.Pump();
  }
  client.Pump();
  EXPECT_FALSE(client.connection.ended());
  EXPECT_LT(Memory(), size_t{3} << 20);
  ExpectOthersUnharmed();
}

TEST_F(MemoryTest, CallsGiveTheirMemoryBack) {
  H2Client client(*server_);
  client.Pump();
  size_t before = 0;
  for (int round = 0; round < 2; ++round) {
    before = Memory();  // in the second round with HPACK's tables
    held_.held.clear();
    const int32_t held = client.Call("/t.T/Held", Framed(std::string(50'000, 'x')));
    const int32_t open = client.Call("/t.T/Stream", Framed(std::string(50'000, 'y')), {}, false);
    client.Pump();
    EXPECT_GT(Memory(), before + 50'000);
    held_.held[0]->Finish();
    server_->loop->RunOnce(0);
    client.Continue(open, "", true);
    client.Pump();
    EXPECT_TRUE(client.calls[held].closed && client.calls[open].closed);
  }
  EXPECT_EQ(Memory(), before);
}

TEST_F(MemoryTest, CountsTheMemoryOfBuffersThatAreHalfUsed) {
  const auto client = ShutClient();
  const size_t before = Memory();
  client->Call("/t.T/Echo", Framed(std::string(70'000, 'x')));
  client->Pump();
  EXPECT_GE(Memory() - before, 2 * 131'072u);  // the request and the answer
}

TEST_F(MemoryTest, RefusesLastingCallsAboveTheConnectionsShare) {
  H2Client client(*server_);
  client.Pump();
  const int32_t first = client.Call("/t.T/Held", Framed(""));
  const int32_t second = client.Call("/t.T/Held", Framed(""));
  client.Pump();
  const size_t before = Memory();
  EXPECT_TRUE(held_.held[0]->TrySetLastingBytes(bounds::kMaxConnectionWatchBytes - 1000));
  EXPECT_FALSE(held_.held[1]->TrySetLastingBytes(1001));
  EXPECT_TRUE(held_.held[1]->TrySetLastingBytes(1000));
  EXPECT_EQ(Memory() - before, bounds::kMaxConnectionWatchBytes);
  held_.held[1]->Finish();
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client.Pump();
  EXPECT_TRUE(client.calls[first].closed && client.calls[second].closed);
  EXPECT_LT(Memory(), before);
}

TEST_F(MemoryTest, RefusesLastingCallsAboveThePortsShareButForSmallOnes) {
  transport::RpcServerOptions options;
  options.max_loop_lasting_bytes = bounds::kMaxConnectionWatchBytes;
  Begin(options);
  H2Client first(*server_);
  H2Client second(*server_);
  for (H2Client* client : {&first, &second}) {
    client->Pump();
    client->Call("/t.T/Held", Framed(""));
    client->Pump();
  }
  EXPECT_TRUE(held_.held[0]->TrySetLastingBytes(bounds::kMaxConnectionWatchBytes));
  EXPECT_FALSE(held_.held[1]->TrySetLastingBytes(bounds::kMinConnectionWatchBytes + 1));
  EXPECT_TRUE(held_.held[1]->TrySetLastingBytes(bounds::kMinConnectionWatchBytes));
  EXPECT_TRUE(held_.held[0]->TrySetLastingBytes(0));
  EXPECT_TRUE(held_.held[1]->TrySetLastingBytes(bounds::kMaxConnectionWatchBytes));
  for (transport::ServerCall* call : held_.held) call->Finish();
  server_->loop->RunOnce(0);
}

// As of a watch whose query the store has not answered.
TEST_F(MemoryTest, CountsLastingBytesUntilTheyAreFreed) {
  H2Client client(*server_);
  client.Pump();
  client.Call("/t.T/Held", Framed(""));
  client.Pump();
  const size_t before = Memory();
  std::shared_ptr<void> kept = held_.held[0]->HoldLastingBytes(100'000);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(held_.held[0]->HoldLastingBytes(bounds::kMaxConnectionWatchBytes - 99'999), nullptr);
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client.Pump();
  EXPECT_GT(Memory(), before + 90'000);
  kept.reset();
  server_->loop->RunOnce(0);
  EXPECT_LT(Memory(), before);
}

TEST_F(MemoryTest, CountsLastingBytesOfAConnectionThatHasEnded) {
  static common::MemoryBudget budget(1 << 30);
  transport::RpcServerOptions options;
  options.memory = &budget;
  options.max_loop_lasting_bytes = 300'000;
  Begin(options);
  auto client = std::make_unique<H2Client>(*server_);
  client->Pump();
  client->Call("/t.T/Held", Framed(""));
  client->Pump();
  std::shared_ptr<void> kept = held_.held[0]->HoldLastingBytes(300'000);
  ASSERT_NE(kept, nullptr);
  client->connection.Close();
  EXPECT_GT(budget.held(), 200'000);
  H2Client next(*server_);
  next.Pump();
  next.Call("/t.T/Held", Framed(""));
  next.Pump();
  EXPECT_EQ(held_.held[0]->HoldLastingBytes(100'000), nullptr);
  kept.reset();
  server_->loop->RunOnce(0);
  EXPECT_LT(budget.held(), 100'000);
  EXPECT_NE(held_.held[0]->HoldLastingBytes(100'000), nullptr);
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
}

// A decision that takes long, as one of Redis.
TEST_F(MemoryTest, NextCallsWaitWhileUndecidedOnesHoldTheShare) {
  H2Client client(*server_);
  client.Pump();
  client.Call("/t.T/Held", Framed(""));
  client.Pump();
  held_.held[0]->SetPendingBytes(bounds::kMaxConnectionPendingBytes + 1);
  const int32_t next = client.Call("/t.T/Echo", Framed("x"));
  client.Pump();
  EXPECT_EQ(echo_.calls, 0);
  ExpectOthersUnharmed();
  held_.held[0]->Finish();
  server_->loop->RunOnce(0);
  client.Pump();
  EXPECT_EQ(client.calls[next].status(), "0");
}

// ---- Answers

TEST_F(MemoryTest, NextCallsWaitWhileStreamWindowsStayClosed) {
  const auto client = ShutClient();
  for (int i = 0; i < 300; ++i) {
    client->Call("/t.T/Echo", Framed(std::string(100'000, 'x')));
    client->Pump();
  }
  EXPECT_LE(echo_.calls, 12);            // 1 MiB of 100 kB each
  EXPECT_LT(Memory(), size_t{6} << 20);  // in buffers of 128 KiB, with the requests that wait
  ExpectOthersUnharmed();
}

TEST_F(MemoryTest, WaitingCallsGoOnWhenAnswersAreTaken) {
  const auto client = ShutClient();
  std::vector<int32_t> ids;
  for (int i = 0; i < 50; ++i)
    ids.push_back(client->Call("/t.T/Echo", Framed(std::string(100'000, 'x'))));
  client->Pump();
  EXPECT_LE(echo_.calls, 13);
  const nghttp2_settings_entry open = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
  nghttp2_submit_settings(client->session, 0, &open, 1);
  nghttp2_session_set_local_window_size(client->session, 0, 0, 1 << 30);
  client->Pump();
  for (const int32_t id : ids) EXPECT_EQ(client->calls[id].status(), "0");
  EXPECT_EQ(Stalls(), 0u);
}

TEST_F(MemoryTest, ConnectionsThatTakeNoAnswersShareThePortsBytes) {
  constexpr size_t kAnswer = 100'000;
  transport::RpcServerOptions options;
  options.max_loop_unsent_bytes = 20 * kAnswer;
  Begin(options);
  std::vector<std::unique_ptr<H2Client>> clients;
  std::vector<int32_t> ids;
  for (int c = 0; c < 20; ++c) {
    clients.push_back(ShutClient());
    for (int i = 0; i < 10; ++i) {
      const int32_t id = clients.back()->Call("/t.T/Echo", Framed(std::string(kAnswer, 'x')));
      if (c == 19) ids.push_back(id);
    }
    clients.back()->Pump();
  }
  // Until the port's bytes are used up, then one answer of each connection.
  EXPECT_GE(echo_.calls, 20 + 18);
  EXPECT_LE(echo_.calls, 21 + 18);
  ExpectOthersUnharmed();
  // A peer that begins to take its answers gets all of them, while the others take none.
  H2Client& reader = *clients.back();
  const nghttp2_settings_entry open = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
  nghttp2_submit_settings(reader.session, 0, &open, 1);
  nghttp2_session_set_local_window_size(reader.session, 0, 0, 1 << 30);
  reader.Pump();
  for (const int32_t id : ids) EXPECT_EQ(reader.calls[id].status(), "0");
}

TEST_F(MemoryTest, ClosesPeerThatTakesNoAnswerAndAnswersPings) {
  const auto client = ShutClient();
  client->Call("/t.T/Echo", Framed("x"));
  client->Pump();
  const int64_t seconds = SecondsUntilEnd(*client, 100);
  EXPECT_GE(seconds, 30);
  EXPECT_LE(seconds, 32);
  EXPECT_EQ(Stalls(), 1u);
  ExpectOthersUnharmed();
}

TEST_F(MemoryTest, ClosesPeerThatReadsNothing) {
  H2Client client(*server_);
  client.Pump();
  client.connection.stream.stalled = true;
  client.Call("/t.T/Echo", Framed("x"));
  client.connection.Feed(client.TakeOutput());
  int64_t seconds = 0;
  for (; seconds < 100 && !client.connection.ended(); ++seconds) {
    server_->Advance(kSecond);
    client.connection.Feed(Frame(NGHTTP2_PING, 1, 0, "12345678"));  // lives, and reads nothing
  }
  EXPECT_GE(seconds, 30);
  EXPECT_LE(seconds, 35);
  EXPECT_TRUE(client.connection.stream.aborted);
}

// The kernel's buffers may take all answers of a peer that reads none.
TEST_F(MemoryTest, ClosesPeerThatAcknowledgesNothing) {
  H2Client client(*server_);
  client.Pump();
  client.connection.stream.unacknowledged = 1;
  client.Call("/t.T/Echo", Framed("x"));
  client.Pump();
  const int64_t seconds = SecondsUntilEnd(client, 100);
  EXPECT_GE(seconds, 30);
  EXPECT_LE(seconds, 32);
  EXPECT_TRUE(client.connection.stream.aborted);
  EXPECT_EQ(Stalls(), 1u);
  ExpectOthersUnharmed();
}

TEST_F(MemoryTest, PeerThatAcknowledgesSlowlyIsNotStalled) {
  H2Client client(*server_);
  client.Pump();
  client.connection.stream.unacknowledged = 1;
  client.Call("/t.T/Echo", Framed("x"));
  client.Pump();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(SecondsUntilEnd(client, 25), 25);
    ++client.connection.stream.acknowledged;
  }
}

TEST_F(MemoryTest, PeerThatTakesAnswersSlowlyIsNotStalled) {
  const auto client = ShutClient();
  const int32_t id = client->Call("/t.T/Echo", Framed("0123456789"));
  client->Pump();
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(SecondsUntilEnd(*client, 20), 20);
    nghttp2_submit_window_update(client->session, 0, id, 1);
    client->Pump();
  }
  EXPECT_EQ(client->calls[id].messages(), std::vector<std::string>{"0123456789"});
}

TEST_F(MemoryTest, ResetsTheStalledCallAndServesTheOthersOfItsConnection) {
  const auto client = ShutClient();
  const int32_t stalled = client->Call("/t.T/Echo", Framed("x"));
  const int32_t slow = client->Call("/t.T/Echo", Framed(std::string(100, 'y')));
  client->Pump();
  for (int s = 0; s < 40; ++s) {
    nghttp2_submit_window_update(client->session, 0, slow, 1);
    EXPECT_EQ(SecondsUntilEnd(*client, 1), 1);
  }
  EXPECT_TRUE(client->calls[stalled].closed);
  EXPECT_EQ(client->calls[stalled].error_code, uint32_t{NGHTTP2_ENHANCE_YOUR_CALM});
  EXPECT_FALSE(client->calls[slow].closed);
  EXPECT_EQ(Stalls(), 1u);
}

TEST_F(MemoryTest, CallThatHasNothingToSayIsNotStalled) {
  const auto client = ShutClient();
  client->Call("/t.T/Held", Framed(""));
  client->Call("/t.T/Stream", "", {}, false);
  client->Pump();
  EXPECT_EQ(SecondsUntilEnd(*client, 300), 300);
  EXPECT_EQ(Stalls(), 0u);
}

// ---- The process

class MemoryLimitedTest : public MemoryTest {
 protected:
  MemoryLimitedTest() {
    neighbour_.reset();
    server_.reset();
    transport::RpcServerOptions options;
    options.memory = &budget_;
    options.metrics_name = "data";
    Begin(options);
  }
  ~MemoryLimitedTest() override {
    neighbour_.reset();
    server_.reset();
    EXPECT_EQ(budget_.held(), 0);
  }

  common::MemoryBudget budget_{int64_t{4} << 20};
};

TEST_F(MemoryLimitedTest, OverTheLimitOnlyCallsOfConnectionsThatHoldMuchAreRefused) {
  H2Client holder(*server_);
  holder.Pump();
  holder.Call("/t.T/Held", Framed(""));
  holder.Pump();
  held_.held[0]->SetPendingBytes(size_t{5} << 20);
  holder.Call("/t.T/Held", Framed(""));  // the account is settled after input
  holder.Pump();
  ASSERT_TRUE(budget_.over());
  const int32_t refused = holder.Call("/t.T/Echo", Framed("x"));
  holder.Pump();
  EXPECT_EQ(holder.calls[refused].status(), "8");
  EXPECT_EQ(holder.calls[refused].Header("sluice-executed"), "no");
  EXPECT_EQ(echo_.calls, 0);
  const int32_t served = neighbour_->Call("/t.T/Echo", Framed("x"));
  neighbour_->Pump();
  EXPECT_EQ(neighbour_->calls[served].status(), "0");
  EXPECT_EQ(echo_.calls, 1);
  EXPECT_EQ(server_->metrics.Snapshot(0).transports[0].calls_refused_over_memory, 1u);
}

// They were admitted before.
TEST_F(MemoryLimitedTest, OverTheLimitStreamsEndBeforeTheirNextMessage) {
  H2Client holder(*server_);
  holder.Pump();
  holder.Call("/t.T/Held", Framed(""));
  const int32_t stream = holder.Call("/t.T/Stream", Framed("first"), {}, false);
  const int32_t idle = holder.Call("/t.T/Stream", "", {}, false);
  const int32_t small = neighbour_->Call("/t.T/Stream", "", {}, false);
  holder.Pump();
  neighbour_->Pump();
  held_.held[0]->SetPendingBytes(size_t{5} << 20);
  holder.Call("/t.T/Held", Framed(""));  // the account is settled after input
  holder.Pump();
  ASSERT_TRUE(budget_.over());
  holder.Continue(stream, Framed("second"), false);
  holder.Continue(idle, std::string(1, 0), false);  // no message yet
  neighbour_->Continue(small, Framed("x"), false);
  holder.Pump();
  neighbour_->Pump();
  EXPECT_EQ(holder.calls[stream].status(), "8");
  EXPECT_EQ(holder.calls[stream].Header("sluice-executed"), "no");
  EXPECT_EQ(stream_.messages, 2);
  EXPECT_FALSE(holder.calls[idle].closed);
  EXPECT_FALSE(neighbour_->calls[small].closed);
  EXPECT_EQ(server_->metrics.Snapshot(0).transports[0].calls_refused_over_memory, 1u);
  // What may be held is a hundred times what was sent.
  neighbour_->Continue(small, Framed(std::string(40'000, 'x')), false);
  neighbour_->Pump();
  EXPECT_EQ(neighbour_->calls[small].status(), "8");
}

TEST_F(MemoryLimitedTest, ClosesTheConnectionThatHoldsMostBeforeCallsAreRefused) {
  H2Client small(*server_);
  H2Client large(*server_);
  for (H2Client* client : {&small, &large}) {
    client->Pump();
    client->Call("/t.T/Held", Framed(""));
    client->Pump();
  }
  held_.held[0]->SetPendingBytes(size_t{1} << 20);
  held_.held[1]->SetPendingBytes(size_t{11} << 18);
  for (H2Client* client : {&small, &large}) {
    client->Call("/t.T/Held", Framed(""));
    client->Pump();
  }
  ASSERT_TRUE(budget_.nearly_over());
  ASSERT_FALSE(budget_.over());
  server_->server.RelieveMemory();
  server_->loop->RunOnce(0);
  EXPECT_TRUE(large.connection.stream.aborted);
  EXPECT_FALSE(small.connection.ended());
  large.connection.Close();
  EXPECT_FALSE(budget_.nearly_over());
  EXPECT_EQ(server_->metrics.Snapshot(0).transports[0].connections_closed_over_memory, 1u);
  ExpectOthersUnharmed();
}

}  // namespace
}  // namespace sluice::testing
