#include "sluice/connection.h"

#include <future>
#include <utility>

namespace sluice {

Result<Decision> Connection::AcquireBlocking(const Acquisition& acquisition, const Call& call) {
  auto answer = std::make_shared<std::promise<Result<Decision>>>();
  std::future<Result<Decision>> future = answer->get_future();
  Acquire(acquisition, call,
          [answer](Result<Decision> result) { answer->set_value(std::move(result)); });
  return future.get();
}

}  // namespace sluice
