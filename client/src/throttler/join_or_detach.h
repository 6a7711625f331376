// JoinOrDetach: waits for the end of a thread that is told to end.
#ifndef SLUICE_CLIENT_SRC_THROTTLER_JOIN_OR_DETACH_H_
#define SLUICE_CLIENT_SRC_THROTTLER_JOIN_OR_DETACH_H_

#include <thread>

namespace sluice {

// A thread that calls it for itself is left to end alone. Does nothing if there is no thread.
inline void JoinOrDetach(std::thread& thread) {
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else {
    thread.join();
  }
}

}  // namespace sluice

#endif  // SLUICE_CLIENT_SRC_THROTTLER_JOIN_OR_DETACH_H_
