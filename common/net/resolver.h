// Resolver: turns host names into addresses on a thread of its own, since getaddrinfo blocks.
#ifndef SLUICE_COMMON_NET_RESOLVER_H_
#define SLUICE_COMMON_NET_RESOLVER_H_

#include <deque>
#include <string>
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
  // How a name is looked up; getaddrinfo but for tests. Blocks.
  using Lookup = absl::AnyInvocable<Addresses(const Address&)>;

  // Names that wait to be looked up, at most.
  static constexpr size_t kMaxWaiting = 1024;

  Resolver() : Resolver(&GetAddrInfo) {}
  explicit Resolver(Lookup lookup);
  // Waits for the lookup that is under way; what has not begun is dropped, `done` is not called.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // Never blocks. `done` is called on `loop`, which outlives the resolver. Errors: UNAVAILABLE (no
  // such name, no name server), RESOURCE_EXHAUSTED (kMaxWaiting).
  void Resolve(const Address& address, EventLoop& loop, Done done);

  // The system's resolver. Blocks.
  static Addresses GetAddrInfo(const Address& address);

 private:
  struct Question {
    Address address;
    EventLoop* loop;
    Done done;
  };

  void Run();

  Lookup lookup_;  // the thread's own
  common::Mutex mu_;
  common::CondVar asked_;
  std::deque<Question> questions_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all the above
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_RESOLVER_H_
