// Inbox: operations that other threads start on a shard's loop.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_INBOX_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_INBOX_H_

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "common/mutex.h"
#include "common/net/event_loop.h"

namespace sluice::store::redis {

class Inbox final : private net::Task {
 public:
  // Starts an operation, on the loop. Two pointers of captures need no allocation.
  using Start = absl::AnyInvocable<void()>;

  // `on_drop` is called on the loop at its end, before the starts that are left then.
  Inbox(net::EventLoop& loop, absl::AnyInvocable<void()> on_drop)
      : loop_(loop), on_drop_(std::move(on_drop)) {}

  // Thread-safe.
  void Put(Start start) {
    bool post = false;
    {
      common::MutexLock lock(&mu_);
      post = starts_.empty();
      starts_.push_back(std::move(start));
    }
    if (post) loop_.Post(static_cast<net::Task&>(*this));
  }

 private:
  void Run() override {
    std::vector<Start> starts;
    {
      common::MutexLock lock(&mu_);
      starts.swap(starts_);
    }
    for (Start& start : starts) start();
  }
  void Drop() override {
    on_drop_();
    Run();
  }

  net::EventLoop& loop_;
  absl::AnyInvocable<void()> on_drop_;
  common::Mutex mu_;
  std::vector<Start> starts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_INBOX_H_
