// Resolver: resolves host names on its own thread, since getaddrinfo blocks.
#ifndef SLUICE_COMMON_NET_RESOLVER_H_
#define SLUICE_COMMON_NET_RESOLVER_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"

namespace sluice::net {

// Thread-safe.
class Resolver {
 public:
  using Addresses = absl::StatusOr<std::vector<SocketAddress>>;
  using Done = absl::AnyInvocable<void(Addresses)>;
  // Looks up a name; blocks. Tests replace getaddrinfo.
  using Lookup = absl::AnyInvocable<Addresses(const Address&)>;

  // Names that wait for their lookup, at most.
  static constexpr size_t kMaxWaiting = 1024;

  Resolver() : Resolver(&GetAddrInfo) {}
  explicit Resolver(Lookup lookup);
  // Waits for the running lookup. Drops the waiting ones; their `done` is not called.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Never blocks. `done` is called on `loop`, which outlives the resolver. Errors: UNAVAILABLE
  // (unknown name, no name server), RESOURCE_EXHAUSTED (kMaxWaiting).
  void Resolve(const Address& address, EventLoop& loop, Done done);

  // The system's resolver. Blocks.
  static Addresses GetAddrInfo(const Address& address);

 private:
  struct Request {
    Address address;
    EventLoop* loop;
    Done done;
  };

  void Run();

  Lookup lookup_;  // used by the thread only
  common::Mutex mu_;
  common::CondVar changed_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_RESOLVER_H_
