// A Redis Cluster of the test's own: real redis-server processes on free ports of the loopback,
// each of which has a folder and a Unix socket too.
#ifndef SLUICE_TESTS_SUPPORT_REDIS_CLUSTER_H_
#define SLUICE_TESTS_SUPPORT_REDIS_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/cluster_bus.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {

// Not thread-safe. Waits. Fails the process (with a message) when something does not come about.
//
// Servers are counted from 0: the primaries first, which share the slots evenly, then their
// replicas of the first.
class RedisCluster {
 public:
  struct Options {
    size_t primaries = 3;
    // Of the first primary, which stops when it has lost all of them (min-replicas-to-write). With
    // two, one can take its place and have the other.
    size_t replicas = 0;
    bool guarded = true;  // as just said
    size_t spares = 0;    // primaries without slots, behind all others
    // A server that was not heard of for so long counts as failed.
    int node_timeout_ms = 500;
    bool severable = false;                   // servers can be cut off from the Cluster bus
    std::vector<std::string> arguments = {};  // of each redis-server, after ours
    // Arguments for TLS: its ports speak nothing else then, among themselves neither.
    std::vector<std::string> tls = {};
  };

  RedisCluster() : RedisCluster(Options()) {}
  explicit RedisCluster(const Options& options);

  // "redis-cluster://127.0.0.1:PORT,127.0.0.1:PORT,..." of the primaries that there were at first;
  // over TLS "rediss-cluster://...".
  std::string url() const;
  size_t size() const { return servers_.size(); }
  RedisServer& server(size_t i) { return *servers_[i].server; }
  void Kill(size_t i);
  // Of a Cluster that is severable. Clients and replicas still reach a server that is cut off.
  ClusterBus& bus() { return *bus_; }
  uint16_t port(size_t i) const { return servers_[i].port; }
  // Sends a command to one server; it is up.
  RedisValue Call(size_t i, const std::vector<std::string>& words);
  RedisValue CallAll(const std::vector<std::string>& words);  // the last one's answer

  // By redis-server's own reckoning.
  uint16_t SlotOf(const std::string& key);
  // As server `at` sees it; size() if it knows of nobody.
  size_t OwnerOf(uint16_t slot, size_t at = 0);

  // Moving a slot, in the order in which an administrator's tool does it. Between the first and the
  // last step both servers serve the slot: ASK and TRYAGAIN.
  void BeginMove(uint16_t slot, size_t from, size_t to);
  // At most so many keys; returns how many.
  size_t MoveKeys(uint16_t slot, size_t from, size_t to, size_t most);
  void MoveKey(const std::string& key, size_t from, size_t to);
  void EndMove(uint16_t slot, size_t from, size_t to);
  void Move(uint16_t slot, size_t from, size_t to);

  // Waits until its INFO replication has it. False: it has not, in 20 s.
  bool AwaitInfo(size_t i, const std::string& text);
  // Waits until server `at` holds server `i` for failed, and serves its own slots. False: it does
  // not, in 20 s.
  bool AwaitFailure(size_t i, size_t at);
  // Waits until server `i` is a primary that serves slots. False: it is not, in 20 s.
  bool AwaitPromotion(size_t i);

 private:
  struct Server {
    std::unique_ptr<RedisServer> server;
    uint16_t port = 0;
    std::string id;
    bool up = true;
  };

  bool Settled(size_t i, size_t primaries);

  const bool tls_;
  std::unique_ptr<ClusterBus> bus_;  // null: it is not severable
  std::vector<Server> servers_;
  size_t primaries_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_REDIS_CLUSTER_H_
