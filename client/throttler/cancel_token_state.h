// What the copies of a CancelToken share.
#ifndef SLUICE_CLIENT_THROTTLER_CANCEL_TOKEN_STATE_H_
#define SLUICE_CLIENT_THROTTLER_CANCEL_TOKEN_STATE_H_

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/common/mutex.h"
#include "sluice/throttler.h"

namespace sluice {

// Thread-safe.
struct CancelToken::State {
  common::Mutex mu;
  bool cancelled ABSL_GUARDED_BY(mu) = false;
  // Each cancels one piece of work, if it has not begun.
  std::vector<std::function<void()>> cancel ABSL_GUARDED_BY(mu);
};

}  // namespace sluice

#endif  // SLUICE_CLIENT_THROTTLER_CANCEL_TOKEN_STATE_H_
