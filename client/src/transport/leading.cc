// What leaders do: wait for the sockets of their links, read, and handle what was read.
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

#include "client/src/transport/http2_core.h"

namespace sluice::client_internal {

using std::chrono::steady_clock;

// The socket, and what wakes its leader.
void Http2Core::PrepareTurn(Link& link, pollfd* polled) {
  link.leader = true;
  const auto events = static_cast<short>(link.blocked ? POLLIN | POLLOUT : POLLIN);
  polled[0] = {link.channel->fd(), events, 0};
  polled[1] = {link.wake_fd, POLLIN, 0};
}

void Http2Core::ReadTurn(const pollfd* polled, Turn* turn) {
  turn->readable = (polled[0].revents & ~POLLOUT) != 0;
  turn->writable = (polled[0].revents & POLLOUT) != 0;
  if (polled[1].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(turn->link->wake_fd, &count, sizeof(count));
  }
  const Link& link = *turn->link;
  if (turn->readable && !link.channel->tls()) turn->read = link.channel->Read(turn->link->input);
}

void Http2Core::FinishTurn(const Turn& turn) {
  Link& link = *turn.link;
  if (turn.writable) link.blocked = false;
  if (!turn.readable && !link.broken() && !link.KeepAlive(steady_clock::now())) {
    BreakLink(link, "the server does not answer PINGs");
  }
  if (turn.readable && !link.channel->tls()) {
    if (!link.broken()) TakeInput(link, turn.read);
  } else if (turn.readable) {
    // TLS may hold decrypted bytes of which the socket knows nothing.
    Channel::IoResult read = {Channel::Io::kDone};
    while (read.io == Channel::Io::kDone && !link.broken()) {
      read = link.channel->Read(link.input);
      TakeInput(link, read);
    }
  }
  if (!link.broken()) Flush(link);
}

void Http2Core::HandOver(Link& link) {
  if (link.leader || link.broken()) return;
  if (CallbackThreadLeads(link)) return WakeThread();
  const Calls& blocking = link.calls(/*blocking=*/true);
  for (CallStream* call = blocking.front(); call != nullptr; call = Calls::Next(*call)) {
    auto& waiting = static_cast<BlockingCall&>(*call);
    // Those that are awake look for themselves.
    if (waiting.asleep_) return WakeThreadOf(waiting);
  }
  CallStream* const waiting = FirstWaiting(link, /*blocking=*/true);
  if (waiting != nullptr) WakeThreadOf(static_cast<BlockingCall&>(*waiting));
}

CallStream* Http2Core::FirstWaiting(const Link& link, bool blocking) const {
  if (&link != current_ || !link.idle()) return nullptr;
  for (CallStream* call = waiting_.front(); call != nullptr; call = Calls::Next(*call)) {
    if (call->blocking == blocking) return call;
  }
  return nullptr;
}

}  // namespace sluice::client_internal
