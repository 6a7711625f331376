// ForkMark: tells whether the process was forked since the mark was made. The child of a fork has
// none of the parent's threads, and may have the same process id in a PID namespace of its own.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_FORK_MARK_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_FORK_MARK_H_

#include <pthread.h>

#include <atomic>

#include "sluice/status.h"

namespace sluice::client_internal {

class ForkMark {
 public:
  bool forked() const { return forks_.load(std::memory_order_relaxed) != made_at_; }

 private:
  static int Forks() {
    static const int registered =
        pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
    static_cast<void>(registered);
    return forks_.load(std::memory_order_relaxed);
  }

  // How many times this process became the child of a fork.
  static inline std::atomic<int> forks_{0};

  const int made_at_ = Forks();
};

// Of a call in the child.
inline Status ForkedError(StatusCode code = StatusCode::kFailedPrecondition) {
  return Status(code,
                "this client was created before fork(): create a client in the child process");
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_FORK_MARK_H_
