// Await: lets a call with a callback block until its answer.
#ifndef SLUICE_CLIENT_SRC_AWAIT_H_
#define SLUICE_CLIENT_SRC_AWAIT_H_

#include <future>
#include <memory>
#include <utility>

namespace sluice::client_internal {

// Calls start(done), and returns what done was called with. The callback owns the promise, since it
// may still run when this returns.
template <typename T, typename Start>
T Await(const Start& start) {
  auto answer = std::make_shared<std::promise<T>>();
  std::future<T> future = answer->get_future();
  start([answer](T result) { answer->set_value(std::move(result)); });
  return future.get();
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_AWAIT_H_
