// Watch: looks at a set of buckets again and again, and tells a sink what changed.
//
// A watch is a poller: every min_interval its buckets are queried on the hub's one thread, and
// what differs from what was last told is told. First comes a full answer. Refilling counts as a
// change when a whole permit came back; reset_after alone does not, since it changes always.
#ifndef SLUICE_SERVER_SERVICE_WATCH_H_
#define SLUICE_SERVER_SERVICE_WATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/service/types.h"

namespace sluice::service {

// Where the answers of one watch go. Called on the hub's thread, one call at a time, never under
// a lock; must not block. The hub shares ownership until the watch ended.
class WatchSink {
 public:
  virtual ~WatchSink() = default;

  // Whether it can take an answer now. While not (the peer does not read), changes gather.
  virtual bool Ready() = 0;

  // Those that changed, in the order of the request; valid until return.
  virtual void OnUpdate(absl::Span<const BucketStatus> changed, int64_t wall_ns) = 0;

  // The hub ended the watch (UNAVAILABLE: the server drains). Not called after Cancel returned,
  // except by a call that was under way.
  virtual void OnEnd(const absl::Status& status) = 0;
};

struct WatchedBucket {
  std::string limit;
  std::string key;
};

struct WatchOptions {
  std::vector<WatchedBucket> buckets;
  // Absent: 1 s. 10 ms to 1 h, else INVALID_ARGUMENT.
  bool has_min_interval = false;
  WireDuration min_interval;
};

// Thread-safe.
class WatchHub {
 public:
  virtual ~WatchHub() = default;

  // Starts a watch; returns what Cancel takes. INVALID_ARGUMENT and NOT_FOUND as in Query;
  // RESOURCE_EXHAUSTED: as many watches are open as may be.
  virtual absl::StatusOr<uint64_t> Start(WatchOptions options, std::shared_ptr<WatchSink> sink) = 0;

  // Ends a watch from the sink's side. Unknown ids are ignored.
  virtual void Cancel(uint64_t id) = 0;

  // Ends all with `status`, and refuses new ones with it.
  virtual void Drain(const absl::Status& status) = 0;
};

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_WATCH_H_
