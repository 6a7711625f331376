// Measures common/net: timers, posted tasks, an echo through a loop, and the memory of idle
// connections (printed as a counter).
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/socket_stream.h"
#include "common/net/timer_wheel.h"

namespace sluice::net {
namespace {

struct NoOp {
  void OnTimer() {}
  Timer timer{Timer::To<&NoOp::OnTimer>, this};
};

// Re-arms one of many timers, as a connection does with each input.
void BM_ArmTimer(benchmark::State& state) {
  TimerWheel wheel(0);
  std::vector<std::unique_ptr<NoOp>> timers(state.range(0));
  for (auto& timer : timers) timer = std::make_unique<NoOp>();
  std::mt19937_64 random(1);
  std::vector<std::pair<size_t, int64_t>> steps(1 << 16);
  for (auto& [which, at_ns] : steps) {
    which = random() % timers.size();
    at_ns = static_cast<int64_t>(random() % 60'000'000'000);
  }
  size_t i = 0;
  for (auto _ : state) {
    const auto& [which, at_ns] = steps[i++ & 0xffff];
    wheel.Arm(timers[which]->timer, at_ns);
  }
}
BENCHMARK(BM_ArmTimer)->Arg(1000)->Arg(100'000);

// How late a timer fires on an idle loop, with the wake-up.
void BM_TimerLateness(benchmark::State& state) {
  common::SystemClock clock;
  auto loop = *EventLoop::Create(clock);
  struct Probe {
    void OnTimer() { late_ns.push_back(clock->NowNs() - at_ns); }
    const common::Clock* clock;
    int64_t at_ns = 0;
    std::vector<int64_t> late_ns = {};
    Timer timer{Timer::To<&Probe::OnTimer>, this};
  } probe{&clock};
  std::mt19937_64 random(1);
  for (auto _ : state) {
    probe.at_ns = clock.NowNs() + 100'000 + static_cast<int64_t>(random() % 3'000'000);
    loop->Arm(probe.timer, probe.at_ns);
    while (probe.timer.armed()) loop->RunOnce(-1);
  }
  std::sort(probe.late_ns.begin(), probe.late_ns.end());
  const auto at = [&](double share) {
    return static_cast<double>(probe.late_ns[static_cast<size_t>(share * probe.late_ns.size())]) /
           1000;
  };
  state.counters["least_us"] = at(0);
  state.counters["p50_us"] = at(0.5);
  state.counters["p99_us"] = at(0.99);
}
BENCHMARK(BM_TimerLateness)->Iterations(1000)->UseRealTime();

void BM_PostOnTheLoop(benchmark::State& state) {
  common::SystemClock clock;
  auto loop = *EventLoop::Create(clock);
  int64_t ran = 0;
  for (auto _ : state) {
    for (int i = 0; i < 64; ++i) loop->Post([&ran] { ++ran; });
    loop->RunOnce(0);
  }
  state.SetItemsProcessed(ran);
}
BENCHMARK(BM_PostOnTheLoop);

struct Echo final : StreamHandler {
  void OnData(absl::Span<const uint8_t> data) override { stream->Write(data); }
  void OnEnd() override {}
  void OnClosed(const absl::Status&) override {}
  Stream* stream = nullptr;
};

// Many connections with one message each per iteration. The time is for one message, with the
// system calls of both sides.
void BM_Echo(benchmark::State& state) {
  common::SystemClock clock;
  auto loop = *EventLoop::Create(clock);
  const auto connections = static_cast<size_t>(state.range(0));
  std::vector<Echo> echoes(connections);
  std::vector<int> peers;
  SocketAddress unix_peer;
  unix_peer.storage.ss_family = AF_UNIX;
  for (Echo& echo : echoes) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) {
      return state.SkipWithError("no descriptors");
    }
    auto* const stream = SocketStream::FromConnected(*loop, fds[0], unix_peer, {}, nullptr);
    echo.stream = stream;
    stream->SetHandler(&echo);
    stream->Open();
    peers.push_back(fds[1]);
  }
  char message[100] = {};
  for (auto _ : state) {
    for (const int peer : peers) {
      if (send(peer, message, sizeof(message), 0) < 0) return state.SkipWithError("send");
    }
    loop->RunOnce(-1);
    for (const int peer : peers) {
      if (recv(peer, message, sizeof(message), 0) < 0) return state.SkipWithError("recv");
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * connections));
  loop.reset();
  for (const int peer : peers) close(peer);
}
BENCHMARK(BM_Echo)->Arg(1)->Arg(8)->Arg(64);

// Heap memory of an idle connection that was used once, without its handler's.
void BM_IdleConnections(benchmark::State& state) {
  common::SystemClock clock;
  constexpr size_t kConnections = 8000;
  SocketAddress unix_peer;
  unix_peer.storage.ss_family = AF_UNIX;
  for (auto _ : state) {
    auto loop = *EventLoop::Create(clock);
    std::vector<Echo> echoes(kConnections);
    std::vector<int> peers;
    peers.reserve(kConnections);
    const size_t before = mallinfo2().uordblks;
    for (Echo& echo : echoes) {
      int fds[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) {
        return state.SkipWithError("no descriptors");
      }
      auto* const stream = SocketStream::FromConnected(*loop, fds[0], unix_peer, {}, nullptr);
      echo.stream = stream;
      stream->SetHandler(&echo);
      stream->Open();
      peers.push_back(fds[1]);
      if (send(fds[1], "x", 1, 0) < 0) return state.SkipWithError("send");
    }
    for (int i = 0; i < 100; ++i) loop->RunOnce(0);
    state.counters["bytes_each"] =
        static_cast<double>(mallinfo2().uordblks - before) / kConnections;
    loop.reset();
    for (const int peer : peers) close(peer);
  }
}
BENCHMARK(BM_IdleConnections)->Iterations(1);

}  // namespace
}  // namespace sluice::net

BENCHMARK_MAIN();
