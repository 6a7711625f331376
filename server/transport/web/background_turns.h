// BackgroundTurns: the batches that the background loop works on in slices. One that is half done
// holds a hundred times the bytes of its request, so only a few are begun at a time. The peers of
// the others have turns, so that none waits for all batches of another; those of one peer are first
// come, first served.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_BACKGROUND_TURNS_H_
#define SLUICE_SERVER_TRANSPORT_WEB_BACKGROUND_TURNS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "absl/container/node_hash_map.h"
#include "common/net/event_loop.h"

namespace sluice::web {

// Used on the thread of `background`, which it outlives.
class BackgroundTurns {
 public:
  static constexpr size_t kMost = 4;

  explicit BackgroundTurns(net::EventLoop& background) : background_(background) {}

  // Runs `begin` now or later, which begins a batch of the peer.
  void Begin(uint64_t peer, std::function<void()> begin) {
    std::deque<std::function<void()>>& its = waiting_[peer];
    if (its.empty()) turns_.push_back(peer);
    its.push_back(std::move(begin));
    if (!planned_) BeginNext();
  }
  // A batch that was begun is done, or dropped.
  void Leave() {
    --begun_;
    Plan();
  }

 private:
  bool may_begin() const { return !turns_.empty() && begun_ < kMost; }
  void BeginNext() {
    if (!may_begin()) return;
    const auto its = waiting_.find(turns_.front());
    turns_.pop_front();
    const std::function<void()> begin = std::move(its->second.front());
    its->second.pop_front();
    if (its->second.empty()) {
      waiting_.erase(its);
    } else {
      turns_.push_back(its->first);
    }
    ++begun_;
    begin();
    Plan();
  }
  // One at a time, so that other work of the loop gets its turns.
  void Plan() {
    if (!may_begin() || std::exchange(planned_, true)) return;
    background_.Post([this] {
      planned_ = false;
      BeginNext();
    });
  }

  net::EventLoop& background_;
  absl::node_hash_map<uint64_t, std::deque<std::function<void()>>> waiting_;  // by peer
  std::deque<uint64_t> turns_;  // the peers that wait: whose turn is next
  size_t begun_ = 0;
  bool planned_ = false;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_BACKGROUND_TURNS_H_
