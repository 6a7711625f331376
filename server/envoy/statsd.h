// Statsd: sends the counters of envoyproxy/ratelimit to a statsd server, as plain lines over UDP.
#ifndef SLUICE_SERVER_ENVOY_STATSD_H_
#define SLUICE_SERVER_ENVOY_STATSD_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/envoy/statistics.h"

namespace sluice::envoy {

// Sends what the counters have grown by, "NAME:17|c", at each interval and at the end, from a
// thread of its own. What the network does not take is lost: it is never waited for.
class Statsd {
 public:
  struct Options {
    std::string host;  // a name is resolved at each interval
    uint16_t port = 0;
    std::chrono::nanoseconds interval = std::chrono::seconds(10);
  };

  // `statistics` outlives it.
  Statsd(Options options, const Statistics& statistics);
  ~Statsd() { Stop(); }
  Statsd(const Statsd&) = delete;
  Statsd& operator=(const Statsd&) = delete;

  // Sends for the last time. Idempotent.
  void Stop();

 private:
  void Run();
  void Send();

  const Options options_;
  const Statistics& statistics_;
  // What was sent. Used only by the thread.
  absl::flat_hash_map<std::string, uint64_t> sent_;
  common::Mutex mu_;
  common::CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all members above
};

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_STATSD_H_
