// BackgroundTurns: the batches that the background loop works on in slices. One that is half done
// holds a hundred times the bytes of its request, so only a few are begun at a time; the others
// wait, first come, first served.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_BACKGROUND_TURNS_H_
#define SLUICE_SERVER_TRANSPORT_WEB_BACKGROUND_TURNS_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "common/net/event_loop.h"

namespace sluice::web {

// Used on the thread of `background`, which it outlives.
class BackgroundTurns {
 public:
  static constexpr size_t kMost = 4;

  explicit BackgroundTurns(net::EventLoop& background) : background_(background) {}

  // Runs `begin` now or later.
  void Begin(std::function<void()> begin) {
    waiting_.push_back(std::move(begin));
    if (!planned_) BeginNext();
  }
  // A batch was begun.
  void Enter() { ++begun_; }
  // It is done, or dropped.
  void Leave() {
    --begun_;
    Plan();
  }

 private:
  bool may_begin() const { return !waiting_.empty() && begun_ < kMost; }
  void BeginNext() {
    if (!may_begin()) return;
    const std::function<void()> begin = std::move(waiting_.front());
    waiting_.pop_front();
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
  std::deque<std::function<void()>> waiting_;
  size_t begun_ = 0;
  bool planned_ = false;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_BACKGROUND_TURNS_H_
