#include "common/net/connection_budget.h"

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/net/stream.h"

namespace sluice::net {
namespace {

constexpr int64_t kLogIntervalNs = 1'000'000'000;

}  // namespace

uint64_t PeerOf(int fd, const SocketAddress& address) {
  if (address.family() != AF_UNIX) return address.PeerNetwork();
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.uid : 0;
}

Admission::~Admission() { budget_.GiveBack(*this); }

std::unique_ptr<Admission> ConnectionBudget::Admit(EventLoop& loop, uint64_t peer,
                                                   bool* displaced) {
  *displaced = false;
  std::unique_ptr<Admission> admission(new Admission(*this, loop, peer));
  common::MutexLock lock(&mu_);
  if (full()) {
    Admission* const victim = leaving_ < kMostLeaving ? FindVictim(peer) : nullptr;
    if (victim == nullptr) return nullptr;
    Remove(*victim);
    displaced_.PushBack(*victim);
    victim->displaced_ = true;
    ++leaving_;
    *displaced = true;
    // Under the lock: afterwards the victim may be gone, and its loop with it.
    victim->loop_.Post([this, &victims = victim->loop_] { CloseDisplaced(victims); });
  }
  Add(*admission);
  return admission;
}

int64_t ConnectionBudget::open() const {
  common::MutexLock lock(&mu_);
  return open_;
}

bool ConnectionBudget::full() const {
  if (open_ >= max_) return true;
  return options_.memory != nullptr && open_ >= kFew && options_.memory->nearly_over();
}

Admission* ConnectionBudget::FindVictim(uint64_t peer) {
  if (peers_.empty()) return nullptr;
  const auto own = peers_.find(peer);
  const size_t mine = own != peers_.end() ? own->second.connections : 0;
  const size_t present = peers_.size() + (mine == 0 ? 1 : 0);
  const bool has_share = mine < static_cast<size_t>(open_) / present;
  if (!has_share && !options_.displaces_idle) return nullptr;
  if (!has_share && mine > 0) return FindVictimOf(own->second, /*idle_only=*/true);
  return FindVictimOf(peers_.find(by_connections_.rbegin()->second)->second, !has_share);
}

Admission* ConnectionBudget::FindVictimOf(Peer& peer, bool idle_only) {
  Admission* const oldest = peer.list.front();
  Admission* victim = nullptr;
  int64_t idle_since_ns = 0;
  Admission* next = oldest;
  for (int i = 0; i < kMostLooks && next != nullptr; ++i) {
    Admission& one = *next;
    next = peer.list.Next(one);
    const int64_t since_ns = one.idle_since_ns_.load(std::memory_order_relaxed);
    if (since_ns == Admission::kBusy) {
      if (next == nullptr) break;
      peer.list.Remove(one);
      peer.list.PushBack(one);
    } else if (victim == nullptr || since_ns < idle_since_ns) {
      victim = &one;
      idle_since_ns = since_ns;
    }
  }
  return victim == nullptr && !idle_only ? oldest : victim;
}

void ConnectionBudget::Add(Admission& admission) {
  Peer& peer = peers_[admission.peer_];
  peer.list.PushBack(admission);
  Count(admission.peer_, peer.connections, peer.connections + 1);
  ++peer.connections;
  ++open_;
}

void ConnectionBudget::Remove(Admission& admission) {
  const auto found = peers_.find(admission.peer_);
  Peer& peer = found->second;
  peer.list.Remove(admission);
  Count(admission.peer_, peer.connections, peer.connections - 1);
  if (--peer.connections == 0) peers_.erase(found);
  --open_;
}

void ConnectionBudget::Count(uint64_t peer, size_t before, size_t after) {
  if (before > 0) by_connections_.erase({before, peer});
  if (after > 0) by_connections_.emplace(after, peer);
}

void ConnectionBudget::GiveBack(Admission& admission) {
  common::MutexLock lock(&mu_);
  if (Peer::List::Contains(admission)) Remove(admission);
  if (Displaced::Contains(admission)) displaced_.Remove(admission);
  if (admission.displaced_) --leaving_;
}

void ConnectionBudget::CloseDisplaced(EventLoop& loop) {
  std::vector<Stream*> streams;
  uint64_t logged = 0;
  {
    common::MutexLock lock(&mu_);
    for (Admission* next = displaced_.front(); next != nullptr;) {
      Admission& one = *next;
      next = displaced_.Next(one);
      if (&one.loop_ != &loop) continue;
      displaced_.Remove(one);
      streams.push_back(one.stream_);
    }
    unlogged_ += streams.size();
    if (!streams.empty() && loop.now_ns() >= log_next_ns_) {
      log_next_ns_ = loop.now_ns() + kLogIntervalNs;
      logged = std::exchange(unlogged_, 0);
    }
  }
  if (logged > 0 && options_.log != nullptr) {
    options_.log->Warning("connections_displaced",
                          {{"peer", streams.back()->peer_address()}, {"connections", logged}});
  }
  for (Stream* const one : streams) {
    one->Abort(absl::ResourceExhaustedError("another connection needs its place"));
  }
}

}  // namespace sluice::net
