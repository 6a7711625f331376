// StartOwnThread: starts a thread of the library. It blocks all signals, which are the program's.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_OWN_THREAD_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_OWN_THREAD_H_

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

namespace sluice::client_internal {

// Stores the thread in `thread`, or detaches it if that is null. Debuggers show its name, of at
// most 15 bytes. Returns false if the system starts no more threads.
template <typename Fn>
bool StartOwnThread(Fn fn, const char* name, std::thread* thread) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread made(std::move(fn));
    pthread_setname_np(made.native_handle(), name);
    if (thread == nullptr) {
      made.detach();
    } else {
      *thread = std::move(made);
    }
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_OWN_THREAD_H_
