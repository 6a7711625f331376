#include "common/net/socket_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/net/connection_budget.h"
#include "tests/unit/common/net/net_testing.h"

namespace sluice::net {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string Pattern(size_t size) {
  std::string data(size, '\0');
  uint32_t x = 1;
  for (char& c : data) {
    x = x * 1664525 + 1013904223;
    c = static_cast<char>(x >> 24);
  }
  return data;
}

class SocketStreamTest : public ::testing::Test {
 protected:
  void Start(SocketPair pair, const StreamOptions& options = {}) {
    stream_ = SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address, options,
                                          nullptr);
    stream_->SetHandler(&handler_);
    peer_ = std::move(pair.peer);
    stream_->Open();
  }
  // The loop calls handlers until it is destroyed, so they live longer.
  RecordingHandler& NewHandler() { return handlers_.emplace_back(); }
  void TearDown() override { loop_.reset(); }
  bool Until(const std::function<bool()>& done) { return RunUntil(*loop_, done); }
  bool UntilClosed() {
    return Until([this] { return handler_.closed.has_value(); });
  }

  common::FakeClock clock_;
  ConnectionBudget budget_{3};
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
  RecordingHandler handler_;
  std::deque<RecordingHandler> handlers_;
  SocketStream* stream_ = nullptr;
  RawSocket peer_;
};

TEST_F(SocketStreamTest, DeliversDataThenEnd) {
  Start(TcpPair());
  EXPECT_EQ(handler_.opens, 1);
  peer_.Send("hello");
  ASSERT_TRUE(Until([this] { return handler_.reads_done == 1; }));
  EXPECT_EQ(handler_.received, "hello");
  EXPECT_THAT(stream_->peer_address(), ::testing::StartsWith("127.0.0.1:"));
}

TEST_F(SocketStreamTest, ReportsRoundTripTime) {
  Start(TcpPair());
  peer_.Send("hello");
  ASSERT_TRUE(Until([this] { return handler_.reads_done == 1; }));
  // The kernel measures it in the handshake; on loopback it is below a second.
  EXPECT_GT(stream_->round_trip_ns(), 0);
  EXPECT_LT(stream_->round_trip_ns(), 1'000'000'000);
}

TEST_F(SocketStreamTest, UnixSocketHasNoRoundTripTime) {
  Start(UnixPair());
  EXPECT_EQ(stream_->round_trip_ns(), 0);
}

TEST_F(SocketStreamTest, SendsWritesOfAnIterationInOneCall) {
  Start(TcpPair());
  handler_.on_data = [this](absl::Span<const uint8_t>) {
    for (int i = 0; i < 100; ++i) stream_->Write(Bytes("0123456789"));
  };
  peer_.Send("go");
  std::string got;
  ASSERT_TRUE(Until([&] { return (got += peer_.Receive()).size() == 1000; }));
  EXPECT_EQ(loop_->counters().writes.value(), 1u);
  EXPECT_EQ(loop_->counters().bytes_out.value(), 1000u);
  EXPECT_EQ(stream_->pending_output(), 0u);
}

TEST_F(SocketStreamTest, SendsLargeWriteAtOnceInOrder) {
  Start(TcpPair());
  const std::string large = Pattern(40'000);
  handler_.on_data = [&](absl::Span<const uint8_t>) {
    stream_->Write(Bytes(large));
    EXPECT_EQ(stream_->pending_output(), 0u);
    stream_->Write(Bytes("small"));
    EXPECT_EQ(stream_->pending_output(), 5u);
    stream_->Write(Bytes(large));  // behind what waits, which goes first
    EXPECT_EQ(stream_->pending_output(), 0u);
  };
  peer_.Send("go");
  std::string got;
  ASSERT_TRUE(Until([&] { return (got += peer_.Receive()).size() == 5 + 2 * large.size(); }));
  EXPECT_TRUE(got == large + "small" + large);
  EXPECT_EQ(loop_->counters().writes.value(), 3u);
  EXPECT_EQ(loop_->counters().bytes_out.value(), got.size());
}

TEST_F(SocketStreamTest, SendsFullBlockAtOnce) {
  Start(TcpPair());
  const std::string data = Pattern(70 * 1000);
  handler_.on_data = [&](absl::Span<const uint8_t>) {
    for (size_t i = 0; i < 70; ++i) {
      stream_->Write(Bytes(data.substr(i * 1000, 1000)));
      EXPECT_LE(stream_->pending_output(), BufferPool::kBlockBytes);
    }
  };
  peer_.Send("go");
  std::string got;
  ASSERT_TRUE(Until([&] { return (got += peer_.Receive()).size() == data.size(); }));
  EXPECT_TRUE(got == data);
  EXPECT_EQ(loop_->counters().writes.value(), 3u);  // 32,000 twice, and the rest
}

// Bytes that the peer does not take are not sent again with each write.
TEST_F(SocketStreamTest, SendsOncePerIterationToPeerThatDoesNotRead) {
  Start(TcpPair());
  handler_.on_data = [&](absl::Span<const uint8_t>) {
    const std::string fills = Pattern(12 << 20);
    stream_->Write(Bytes(fills));
    EXPECT_GT(stream_->pending_output(), BufferPool::kBlockBytes);
    const uint64_t writes = loop_->counters().writes.value();
    for (int i = 0; i < 100; ++i) stream_->Write(Bytes("0123456789"));
    EXPECT_EQ(loop_->counters().writes.value(), writes);
  };
  peer_.Send("go");
  ASSERT_TRUE(Until([&] { return handler_.received == "go"; }));
}

// Of many connections with much input, the first responses do not wait for the last input.
TEST_F(SocketStreamTest, IterationThatReadsMuchSendsInBetween) {
  struct Echo {
    RawSocket peer;
    RecordingHandler handler;
    SocketStream* stream = nullptr;
  };
  std::deque<Echo> echoes;
  std::vector<uint64_t> writes_before;
  const std::string much = Pattern(EventLoop::kWarmBytes / 2);
  for (int i = 0; i < 6; ++i) {
    SocketPair pair = TcpPair();
    Echo& echo = echoes.emplace_back();
    echo.stream =
        SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address, {}, nullptr);
    echo.stream->SetHandler(&echo.handler);
    echo.peer = std::move(pair.peer);
    echo.handler.on_data = [&, stream = echo.stream](absl::Span<const uint8_t>) {
      writes_before.push_back(loop_->counters().writes.value());
      stream->Write(Bytes("answer"));
    };
    echo.stream->Open();
    ASSERT_EQ(echo.peer.Send(much), much.size());
  }
  loop_->RunOnce(0);
  EXPECT_THAT(writes_before, ::testing::ElementsAre(0, 0, 2, 2, 4, 4));
  EXPECT_EQ(loop_->counters().writes.value(), 6u);
  for (Echo& echo : echoes) EXPECT_EQ(echo.peer.Receive(), "answer");
  loop_.reset();  // its streams tell these handlers
}

TEST_F(SocketStreamTest, LargeWriteToClosedPeerEndsTheStream) {
  Start(TcpPair());
  peer_.Close();
  const std::string large = Pattern(40'000);
  // The first write causes the peer's reset, the second one fails.
  for (int i = 0; i < 2; ++i) stream_->Write(Bytes(large));
  EXPECT_EQ(stream_->pending_output(), 0u);
  ASSERT_TRUE(UntilClosed());
  EXPECT_FALSE(handler_.closed->ok());
}

TEST_F(SocketStreamTest, SlowReaderReceivesAllBytes) {
  Start(TcpPair());
  const std::string data = Pattern(8 << 20);
  stream_->Write(Bytes(data));
  loop_->RunOnce(0);
  EXPECT_GT(stream_->pending_output(), 0u);
  EXPECT_GE(stream_->buffer_memory(), stream_->pending_output());
  std::string got;
  size_t step = 1;
  ASSERT_TRUE(Until([&] {
    got += peer_.Receive(step = step * 3 % 200'003 + 1);
    EXPECT_LE(stream_->buffer_memory(), 4 * stream_->pending_output() + 4);
    return got.size() == data.size();
  }));
  EXPECT_TRUE(got == data);
  Settle(*loop_);
  EXPECT_EQ(stream_->pending_output(), 0u);
  EXPECT_EQ(handler_.writables, 1);  // above the mark once, below it once
}

// As the last answer of a connection.
TEST_F(SocketStreamTest, IsNotIdleUntilItsLastBytesAreSent) {
  bool displaced = false;
  const auto open = [&] {
    clock_.Advance(kSecond);
    loop_->RunOnce(0);
    SocketPair pair = TcpPair();
    auto* const stream = SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address,
                                                     {}, budget_.Admit(*loop_, 1, &displaced));
    stream->SetHandler(&NewHandler());
    stream->Open();
    return std::pair(stream, std::move(pair.peer));
  };
  const auto busy = open();
  auto behind = open();
  const auto idle = open();
  busy.first->SetIdle(false);
  behind.first->SetIdle(false);
  behind.first->Write(Bytes(Pattern(8 << 20)));
  behind.first->SetIdle(true);
  Settle(*loop_);
  ASSERT_GT(behind.first->pending_output(), 0u);
  const auto newcomer = budget_.Admit(*loop_, 2, &displaced);
  Settle(*loop_);
  EXPECT_FALSE(handlers_[1].closed.has_value());
  EXPECT_TRUE(handlers_[2].closed.has_value());
  ASSERT_TRUE(Until([&] {
    behind.second.Receive();
    return behind.first->pending_output() == 0;
  }));
  // It has been idle for longer than the other.
  clock_.Advance(kSecond);
  loop_->RunOnce(0);
  busy.first->SetIdle(true);
  const auto next = budget_.Admit(*loop_, 3, &displaced);
  Settle(*loop_);
  EXPECT_FALSE(handlers_[0].closed.has_value());
  EXPECT_TRUE(handlers_[1].closed.has_value());
}

class OutputProgressTest : public SocketStreamTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Sockets, OutputProgressTest, ::testing::Bool(),
                         [](const auto& of_unix) { return of_unix.param ? "Unix" : "Tcp"; });

TEST_P(OutputProgressTest, ReportsWhatPeerHasAcknowledged) {
  Start(GetParam() ? UnixPair() : TcpPair());
  EXPECT_EQ(stream_->output_progress().outstanding, 0u);
  const std::string data = Pattern(8 << 20);
  stream_->Write(Bytes(data));
  Settle(*loop_);
  const OutputProgress unread = stream_->output_progress();
  EXPECT_GT(unread.outstanding, stream_->pending_output());  // the kernel holds some, too
  EXPECT_LT(unread.acknowledged, data.size());
  size_t got = 0;
  ASSERT_TRUE(Until([&] { return (got += peer_.Receive().size()) == data.size(); }));
  ASSERT_TRUE(Until([&] { return stream_->output_progress().outstanding == 0; }));
  EXPECT_EQ(stream_->output_progress().acknowledged, data.size());
}

TEST_F(SocketStreamTest, ResetsPeerThatDoesNotReadTheLastBytes) {
  Start(TcpPair());
  stream_->Write(Bytes(Pattern(12 << 20)));
  stream_->CloseAfterWrite(kSecond);
  Settle(*loop_);
  EXPECT_FALSE(handler_.closed.has_value());
  ASSERT_TRUE(Until([this] {
    clock_.Advance(kSecond / 100);
    return handler_.closed.has_value();
  }));
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kDeadlineExceeded);
  while (!peer_.Receive().empty()) {
  }
  EXPECT_EQ(peer_.error, ECONNRESET);
}

// The bytes fit the kernel's buffers, and the peer's system does not acknowledge them.
TEST_F(SocketStreamTest, ResetsPeerWhoseSystemHoldsTheLastBytesBack) {
  SocketPair pair = TcpPair();
  const int small = 4096;
  setsockopt(pair.peer.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  Start(std::move(pair));
  stream_->Write(Bytes(Pattern(1 << 20)));
  Settle(*loop_);
  ASSERT_EQ(stream_->pending_output(), 0u);
  stream_->CloseAfterWrite(kSecond);
  ASSERT_TRUE(Until([this] {
    clock_.Advance(kSecond / 100);
    return handler_.closed.has_value();
  }));
  EXPECT_THAT(std::string(handler_.closed->message()), ::testing::HasSubstr("does not read"));
  while (!peer_.Receive().empty()) {
  }
  EXPECT_EQ(peer_.error, ECONNRESET);
}

TEST_F(SocketStreamTest, StopsReadingFromPeerThatDoesNotRead) {
  StreamOptions options;
  options.high_water_bytes = 100'000;
  options.low_water_bytes = 10'000;
  Start(TcpPair(), options);
  handler_.on_data = [this](absl::Span<const uint8_t> data) { stream_->Write(data); };
  const std::string chunk = Pattern(50'000);
  size_t sent = 0;
  size_t most = 0;
  int idle = 0;
  while (idle < 50) {
    const size_t n = peer_.Send(chunk);
    sent += n;
    idle = n == 0 ? idle + 1 : 0;
    loop_->RunOnce(0);
    most = std::max(most, stream_->pending_output());
  }
  // The kernel's buffers are full in both directions; ours holds at most the mark and one read.
  EXPECT_GE(most, options.high_water_bytes);
  EXPECT_LE(most, options.high_water_bytes + loop_->read_buffer().size());
  const uint64_t iterations = loop_->counters().reads.value();
  Settle(*loop_);
  EXPECT_EQ(loop_->counters().reads.value(), iterations);
  // Once the peer reads, it receives all bytes.
  size_t got = 0;
  ASSERT_TRUE(Until([&] { return (got += peer_.Receive().size()) == sent; }));
}

TEST_F(SocketStreamTest, AbortsStreamWhoseOutputExceedsTheBound) {
  StreamOptions options;
  options.max_output_bytes = 1 << 20;
  Start(TcpPair(), options);
  const std::string chunk = Pattern(300'000);
  // The kernel takes some megabytes; the rest stays in our buffer.
  for (int i = 0; i < 200; ++i) {
    stream_->Write(Bytes(chunk));
    EXPECT_LE(stream_->pending_output(), options.max_output_bytes);
  }
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SocketStreamTest, PausedStreamLeavesDataInTheKernel) {
  Start(TcpPair());
  handler_.on_data = [this](absl::Span<const uint8_t>) { stream_->PauseReading(); };
  peer_.Send("one");
  ASSERT_TRUE(Until([this] { return handler_.received == "one"; }));
  EXPECT_EQ(handler_.reads_done, 1);
  peer_.Send("two");
  Settle(*loop_);
  EXPECT_EQ(handler_.received, "one");
  stream_->ResumeReading();
  ASSERT_TRUE(Until([this] { return handler_.received == "onetwo"; }));
}

TEST_F(SocketStreamTest, WritesAfterHalfCloseOfThePeer) {
  Start(TcpPair());
  handler_.on_end = [this] {
    stream_->Write(Bytes("answer"));
    stream_->CloseAfterWrite(kSecond);
  };
  peer_.Send("question");
  shutdown(peer_.fd(), SHUT_WR);
  ASSERT_TRUE(UntilClosed());
  EXPECT_TRUE(handler_.closed->ok()) << *handler_.closed;
  EXPECT_EQ(handler_.ends, 1);
  EXPECT_EQ(handler_.received, "question");
  EXPECT_EQ(peer_.Receive(), "answer");
  peer_.Receive();
  EXPECT_TRUE(peer_.at_end);
}

TEST_F(SocketStreamTest, DeliversLastBytesWhilePeerStillSends) {
  Start(TcpPair());
  const std::string last = Pattern(3 << 20);
  stream_->Write(Bytes(last));
  stream_->CloseAfterWrite(kSecond);
  stream_->Write(Bytes("too late"));
  std::string got;
  while (!peer_.at_end) {
    peer_.Send("more of what nobody wants any more");
    got += peer_.Receive(100'000);
    ASSERT_TRUE(peer_.error == 0 || peer_.error == EAGAIN) << std::strerror(peer_.error);
    loop_->RunOnce(0);
  }
  EXPECT_TRUE(got == last);
  EXPECT_FALSE(handler_.closed.has_value());
  peer_.Close();
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.received, "");
}

TEST_F(SocketStreamTest, ClosesAfterLingerTimeIfPeerDoesNotClose) {
  Start(TcpPair());
  stream_->Write(Bytes("bye"));
  stream_->CloseAfterWrite(5 * kSecond);
  Settle(*loop_);
  EXPECT_EQ(peer_.Receive(), "bye");
  clock_.Advance(5 * kSecond - 1);
  Settle(*loop_);
  EXPECT_FALSE(handler_.closed.has_value());
  clock_.Advance(1'000'000);
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SocketStreamTest, ClosesAfterLingerTimeIfPeerDoesNotRead) {
  Start(TcpPair());
  stream_->Write(Bytes(Pattern(8 << 20)));
  stream_->CloseAfterWrite(5 * kSecond);
  Settle(*loop_);
  clock_.Advance(4 * kSecond);
  size_t got = 0;
  while (got < (4 << 20)) {  // progress restarts the timeout
    got += peer_.Receive().size();
    loop_->RunOnce(0);
  }
  clock_.Advance(4 * kSecond);
  Settle(*loop_);
  EXPECT_FALSE(handler_.closed.has_value());
  // The peer's system may acknowledge its last bytes now, which restarts the time-out once more.
  ASSERT_TRUE(Until([this] {
    clock_.Advance(kSecond / 100);
    return handler_.closed.has_value();
  }));
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SocketStreamTest, AbortReportsItsReasonLaterAndResetsThePeer) {
  Start(TcpPair());
  stream_->Write(Bytes("never sent"));
  stream_->Abort(absl::InternalError("enough"));
  stream_->Abort(absl::InternalError("again"));
  stream_->PauseReading();
  EXPECT_FALSE(handler_.closed.has_value());
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->message(), "enough");
  peer_.Receive();
  EXPECT_EQ(peer_.error, ECONNRESET);
  EXPECT_EQ(loop_->counters().streams.value(), 0u);
}

TEST_F(SocketStreamTest, MayBeAbortedFromEveryCallback) {
  for (int callback = 0; callback < 5; ++callback) {
    SCOPED_TRACE(callback);
    RecordingHandler& handler = NewHandler();
    SocketPair pair = TcpPair();
    StreamOptions options;
    options.high_water_bytes = 1;
    options.low_water_bytes = 0;
    auto* const stream = SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address,
                                                     options, nullptr);
    const auto abort = [&] {
      stream->Write(Bytes("x"));
      stream->Abort(absl::InternalError("here"));
      stream->Write(Bytes("y"));
      stream->ResumeReading();
      stream->CloseAfterWrite(1);
    };
    if (callback == 0) handler.on_open = abort;
    if (callback == 1) handler.on_data = [&](absl::Span<const uint8_t>) { abort(); };
    if (callback == 2) handler.on_reads_done = abort;
    if (callback == 3) handler.on_end = abort;
    if (callback == 4) handler.on_writable = abort;
    stream->SetHandler(&handler);
    stream->Open();
    if (callback == 4) stream->Write(Bytes("fill"));
    pair.peer.Send("data");
    shutdown(pair.peer.fd(), SHUT_WR);
    ASSERT_TRUE(RunUntil(*loop_, [&] { return handler.closed.has_value(); }));
    EXPECT_EQ(handler.closed->message(), "here");
    EXPECT_EQ(handler.reads_done, callback >= 2 && callback != 4 ? 1 : 0);
    EXPECT_EQ(handler.ends, callback == 3 ? 1 : 0);
  }
}

TEST_F(SocketStreamTest, ResetAtAnyByteClosesTheStreamOnce) {
  const std::string message = "a message of some bytes";
  for (size_t cut = 0; cut <= message.size(); ++cut) {
    RecordingHandler& handler = NewHandler();
    SocketPair pair = TcpPair();
    auto* const stream =
        SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address, {}, nullptr);
    handler.on_data = [stream](absl::Span<const uint8_t> data) { stream->Write(data); };
    stream->SetHandler(&handler);
    stream->Open();
    pair.peer.Send(message.substr(0, cut));
    if (cut % 2 == 0) Settle(*loop_);  // else data and reset come together
    pair.peer.Reset();
    ASSERT_TRUE(RunUntil(*loop_, [&] { return handler.closed.has_value(); })) << cut;
    EXPECT_EQ(handler.closed->code(), absl::StatusCode::kUnavailable) << *handler.closed;
    EXPECT_EQ(handler.received, message.substr(0, handler.received.size()));
    EXPECT_EQ(handler.ends, 0);
  }
  EXPECT_EQ(loop_->counters().streams.value(), 0u);
}

TEST_F(SocketStreamTest, DetectsResetWhilePaused) {
  Start(TcpPair());
  stream_->PauseReading();
  Settle(*loop_);
  peer_.Reset();
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(SocketStreamTest, PausedUnixStreamKeepsDataOfClosedPeerWithoutBusyLoop) {
  Start(UnixPair());
  stream_->PauseReading();
  Settle(*loop_);
  peer_.Send("the last words");
  peer_.Close();
  Settle(*loop_);
  EXPECT_FALSE(handler_.closed.has_value());
  bool woken = false;  // without a busy loop only the task ends the wait
  loop_->Post([&] { woken = true; });
  loop_->RunOnce(-1);
  EXPECT_TRUE(woken);
  const uint64_t iterations = loop_->counters().iterations.value();
  loop_->RunOnce(20'000'000);
  EXPECT_EQ(loop_->counters().iterations.value(), iterations + 1);
  stream_->ResumeReading();
  ASSERT_TRUE(Until([this] { return handler_.ends == 1; }));
  EXPECT_EQ(handler_.received, "the last words");
  stream_->CloseAfterWrite(kSecond);
  ASSERT_TRUE(UntilClosed());
  EXPECT_TRUE(handler_.closed->ok());
}

TEST_F(SocketStreamTest, WriteToClosedPeerEndsTheStream) {
  Start(UnixPair());
  peer_.Close();
  ASSERT_TRUE(Until([this] { return handler_.ends == 1; }));
  Settle(*loop_);
  stream_->Write(Bytes("anybody there?"));
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(SocketStreamTest, LoopStopClosesStreamsWithCancelled) {
  Start(TcpPair());
  bool in_loop = false;
  handler_.on_closed = [&] { in_loop = loop_->InLoopThread(); };
  loop_->Stop();
  loop_->Run();
  ASSERT_TRUE(handler_.closed.has_value());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(in_loop);
}

TEST_F(SocketStreamTest, FastSenderDoesNotDelayOtherConnections) {
  Start(TcpPair());
  RecordingHandler& other = NewHandler();
  SocketPair pair = TcpPair();
  auto* const quiet =
      SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address, {}, nullptr);
  quiet->SetHandler(&other);
  quiet->Open();
  const std::string flood = Pattern(1 << 20);
  while (peer_.Send(flood) > 0) {
  }
  pair.peer.Send("me too");
  const size_t before = handler_.received.size();
  loop_->RunOnce(-1);
  EXPECT_EQ(other.received, "me too");
  EXPECT_LE(handler_.received.size() - before, loop_->read_buffer().size());
}

TEST_F(SocketStreamTest, BytesLeftInTheKernelKeepTheirArrivalTime) {
  EventLoop::Options small;
  small.read_buffer_bytes = 1000;
  loop_ = *EventLoop::Create(clock_, small);
  Start(UnixPair());
  std::vector<int64_t> ages;
  handler_.on_data = [&](absl::Span<const uint8_t>) {
    ages.push_back(loop_->now_ns() - stream_->ready_since_ns());
    clock_.Advance(kSecond);  // each read's work takes that long
  };
  ASSERT_EQ(peer_.Send(Pattern(3999)), 3999u);
  ASSERT_TRUE(Until([&] { return handler_.received.size() == 3999; }));
  EXPECT_THAT(ages, ::testing::ElementsAre(0, kSecond, 2 * kSecond, 3 * kSecond));
  peer_.Send("fresh");
  ASSERT_TRUE(Until([&] { return handler_.received.size() == 4004; }));
  EXPECT_LE(ages.back(), kSecond);
}

// What a connection holds may take long to free: the open ones have their turn in between.
TEST_F(SocketStreamTest, ClosingOfManyIsSpreadOverIterations) {
  struct SlowHandler final : StreamHandler {
    void OnData(absl::Span<const uint8_t>) override {}
    void OnEnd() override {}
    void OnClosed(const absl::Status&) override {
      clock->Advance(300'000);
      ++*closed;
    }
    common::FakeClock* clock = nullptr;
    int* closed = nullptr;
  };
  int closed = 0;
  std::vector<SlowHandler> handlers(5);
  std::vector<RawSocket> peers;
  for (SlowHandler& handler : handlers) {
    handler.clock = &clock_;
    handler.closed = &closed;
    SocketPair pair = UnixPair();
    SocketStream* const stream = SocketStream::FromConnected(
        *loop_, pair.ours.Release(), pair.peer_address, StreamOptions(), nullptr);
    stream->SetHandler(&handler);
    stream->Open();
    stream->Abort(absl::CancelledError("test"));
    peers.push_back(std::move(pair.peer));
  }
  loop_->RunOnce(0);
  EXPECT_EQ(closed, 2);
  loop_->RunOnce(-1);  // does not sleep
  EXPECT_EQ(closed, 4);
  loop_.reset();  // closes all that are left
  EXPECT_EQ(closed, 5);
}

// Peers that leave together are served over several iterations, and the others in each.
TEST_F(SocketStreamTest, EndsOfManyPeersAreSpreadOverIterations) {
  Start(TcpPair());
  int ended = 0;
  std::vector<RawSocket> peers;
  for (int i = 0; i < 5; ++i) {
    RecordingHandler& handler = NewHandler();
    handler.on_end = handler.on_closed = [&] {
      clock_.Advance(300'000);
      ++ended;
    };
    SocketPair pair = TcpPair();
    auto* const stream =
        SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address, {}, nullptr);
    stream->SetHandler(&handler);
    stream->Open();
    peers.push_back(std::move(pair.peer));
  }
  for (int i = 0; i < 5; ++i) i % 2 == 0 ? peers[i].Close() : peers[i].Reset();
  std::string sent;
  for (const int expected : {2, 4, 5}) {
    peer_.Send("x");
    sent += "x";
    loop_->RunOnce(-1);
    EXPECT_EQ(ended, expected);
    EXPECT_EQ(handler_.received, sent);
  }
  loop_.reset();  // its streams tell these handlers
}

TEST_F(SocketStreamTest, DeliversAllThatPrecedesTheEnd) {
  EventLoop::Options small;
  small.read_buffer_bytes = 1000;
  loop_ = *EventLoop::Create(clock_, small);
  Start(TcpPair());
  handler_.on_data = [this](absl::Span<const uint8_t>) {
    stream_->PauseReading();
    loop_->Post([this] { stream_->ResumeReading(); });
  };
  const std::string data = Pattern(3500);
  ASSERT_EQ(peer_.Send(data), data.size());
  shutdown(peer_.fd(), SHUT_WR);
  ASSERT_TRUE(Until([this] { return handler_.ends == 1; }));
  EXPECT_TRUE(handler_.received == data);
  stream_->Write(Bytes("answer"));
  Settle(*loop_);
  EXPECT_EQ(peer_.Receive(), "answer");
}

TEST_F(SocketStreamTest, DetectsResetAfterTheEndOfThePeer) {
  Start(TcpPair());
  shutdown(peer_.fd(), SHUT_WR);
  ASSERT_TRUE(Until([this] { return handler_.ends == 1; }));
  Settle(*loop_);
  EXPECT_FALSE(handler_.closed.has_value());
  peer_.Reset();
  ASSERT_TRUE(UntilClosed());
  EXPECT_EQ(handler_.closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(SocketStreamTest, IdleStreamIsSmall) { EXPECT_LE(sizeof(SocketStream), 512u); }

}  // namespace
}  // namespace sluice::net
