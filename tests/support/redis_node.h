// A RedisStore with an event loop, a thread and real clocks, as in a node.
#ifndef SLUICE_TESTS_SUPPORT_REDIS_NODE_H_
#define SLUICE_TESTS_SUPPORT_REDIS_NODE_H_

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/redis_store.h"

namespace sluice::testing {

// A busy machine must not look like a failure.
inline store::RedisStoreOptions PatientOptions() {
  store::RedisStoreOptions options;
  options.budget_ns = 2'000'000'000;
  // Tests are run once more with a script for each bucket, and once more so that what comes while a
  // command is in flight goes together (tests/CMakeLists.txt).
  if (const char* const runs = std::getenv("SLUICE_TEST_SCRIPT_RUNS")) {
    options.max_script_runs = std::stoul(runs);
  }
  if (const char* const in_flight = std::getenv("SLUICE_TEST_IN_FLIGHT")) {
    options.max_in_flight = options.max_connections = std::stoul(in_flight);
  }
  return options;
}

class RedisNode {
 public:
  // `clock` and `log` outlive the node; null means the system clock, and no log.
  explicit RedisNode(const std::string& url, store::RedisStoreOptions options = PatientOptions(),
                     const common::Clock* clock = nullptr, common::Log* log = nullptr)
      : clock_(clock != nullptr ? *clock : system_clock_),
        loop_(std::move(net::EventLoop::Create(clock_)).value()) {
    options.url = store::redis::RedisUrl::Parse(url).value();
    net::EventLoop* const loops[] = {loop_.get()};
    store_ = std::move(store::RedisStore::Create(clock_, loops, *resolver_, options, log)).value();
    thread_ = std::thread([this] { loop_->Run(); });
    connected_ = store_->AwaitFirstConnections();
  }
  ~RedisNode() {
    Stop();
    store_.reset();
    resolver_.reset();
  }
  RedisNode(const RedisNode&) = delete;
  RedisNode& operator=(const RedisNode&) = delete;

  // Stops the event loop: all waiting callers are answered, and no others.
  void Stop() {
    loop_->Stop();
    if (thread_.joinable()) thread_.join();
  }

  store::RedisStore& store() { return *store_; }
  const common::Clock& clock() const { return clock_; }
  // The result of the first attempt to connect.
  const absl::Status& connected() const { return connected_; }

 private:
  const common::SystemClock system_clock_;
  const common::Clock& clock_;
  std::unique_ptr<net::EventLoop> loop_;
  std::unique_ptr<net::Resolver> resolver_ = std::make_unique<net::Resolver>();
  std::unique_ptr<store::RedisStore> store_;
  std::thread thread_;
  absl::Status connected_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_REDIS_NODE_H_
