#include "common/net/loop_group.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::net {

absl::StatusOr<std::unique_ptr<LoopGroup>> LoopGroup::Create(const common::Clock& clock,
                                                             const Options& options) {
  if (options.threads < 1 || options.threads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; it must be from 1 to 1024"));
  }
  std::unique_ptr<LoopGroup> group(new LoopGroup());
  for (int i = 0; i < options.threads; ++i) {
    absl::StatusOr<std::unique_ptr<EventLoop>> loop = EventLoop::Create(clock, options.loop);
    if (!loop.ok()) return loop.status();
    group->loops_.push_back(*std::move(loop));
  }
  group->listeners_.resize(group->loops_.size());
  return group;
}

LoopGroup::~LoopGroup() {
  Stop();
  listeners_.clear();  // before their loops
}

absl::StatusOr<SocketAddress> LoopGroup::Listen(const Address& address, Acceptor& acceptor,
                                                const ListenerOptions& options,
                                                const ListeningSockets::Options& sockets) {
  if (stopped_) return absl::FailedPreconditionError("the loops have stopped");
  absl::StatusOr<ListeningSockets> opened =
      ListeningSockets::Open(address, static_cast<int>(loops_.size()), sockets);
  if (!opened.ok()) return opened.status();
  sockets_.push_back(std::make_unique<ListeningSockets>(*std::move(opened)));
  ListeningSockets* const shared = sockets_.back().get();
  for (size_t i = 0; i < loops_.size(); ++i) {
    // The loop takes its descriptor itself: if it stops before that, `sockets_` closes it.
    const auto add = [this, i, shared, &acceptor, options] {
      listeners_[i].push_back(std::make_unique<Listener>(
          *loops_[i], shared->Release(static_cast<int>(i)), acceptor, options));
    };
    started_ ? loops_[i]->Post(add) : add();
  }
  return shared->address();
}

void LoopGroup::Start() {
  if (started_) return;
  started_ = true;
  for (const auto& loop : loops_) {
    threads_.emplace_back([&loop = *loop] { loop.Run(); });
  }
}

void LoopGroup::StopAccepting() {
  if (stopped_) return;
  for (size_t i = 0; i < loops_.size(); ++i) {
    const auto stop = [this, i] {
      for (const auto& listener : listeners_[i]) listener->Stop();
    };
    started_ ? loops_[i]->Post(stop) : stop();
  }
}

void LoopGroup::Stop() {
  if (stopped_) return;
  stopped_ = true;
  for (const auto& loop : loops_) loop->Stop();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace sluice::net
