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
  const SocketAddress bound = opened->address();
  absl::Status listening =
      Listen(std::make_shared<ListeningSockets>(*std::move(opened)), acceptor, options);
  if (!listening.ok()) return listening;
  return bound;
}

absl::Status LoopGroup::Listen(std::shared_ptr<ListeningSockets> sockets, Acceptor& acceptor,
                               const ListenerOptions& options) {
  if (stopped_) return absl::FailedPreconditionError("the loops have stopped");
  if (absl::Status status = sockets->Prepare(static_cast<int>(loops_.size())); !status.ok()) {
    return status;
  }
  for (int index = 0; index < sockets->prepared(); ++index) {
    const size_t i = static_cast<size_t>(index) % loops_.size();
    // The loop takes its descriptor itself: if it stops before that, `sockets` closes it.
    const auto add = [this, i, index, sockets, &acceptor, options] {
      listeners_[i].push_back(
          std::make_unique<Listener>(*loops_[i], sockets->Release(index), acceptor, options));
    };
    started_ ? loops_[i]->Post(add) : add();
  }
  sockets_.push_back(std::move(sockets));
  return absl::OkStatus();
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
  for (const auto& sockets : sockets_) sockets->Close();
}

void LoopGroup::LeaveSockets() {
  if (stopped_) return;
  sockets_.clear();
  for (size_t i = 0; i < loops_.size(); ++i) {
    const auto leave = [this, i] {
      for (const auto& listener : listeners_[i]) listener->Leave();
    };
    started_ ? loops_[i]->Post(leave) : leave();
  }
}

void LoopGroup::Stop() {
  if (stopped_) return;
  stopped_ = true;
  for (const auto& loop : loops_) loop->Stop();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace sluice::net
