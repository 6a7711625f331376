// A Redis Cluster of real redis-server processes on free loopback ports.
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

// Not thread-safe. Blocks. Aborts with a message if the Cluster does not form.
//
// Servers are numbered from 0: first the primaries, which share the slots evenly, then the replicas
// of the first primary, then the spares.
class RedisCluster {
 public:
  struct Options {
    size_t primaries = 3;
    // Of the first primary, which stops serving without any of them (min-replicas-to-write). With
    // two, one can be promoted and have the other as its replica.
    size_t replicas = 0;
    bool guarded = true;  // min-replicas-to-write is set
    size_t spares = 0;    // primaries without slots
    // cluster-node-timeout.
    int node_timeout_ms = 500;
    bool severable = false;                   // servers can be cut off from the Cluster bus
    std::vector<std::string> arguments = {};  // of each redis-server, after ours
    // Arguments for TLS. All connections then use TLS.
    std::vector<std::string> tls = {};
  };

  RedisCluster() : RedisCluster(Options()) {}
  explicit RedisCluster(const Options& options);

  // "redis-cluster://127.0.0.1:PORT,127.0.0.1:PORT,..." with the first primaries; with TLS
  // "rediss-cluster://...".
  std::string url() const;
  size_t size() const { return servers_.size(); }
  RedisServer& server(size_t i) { return *servers_[i].server; }
  void Kill(size_t i);
  // REQUIRES: severable. Clients and replicas still reach a server that is cut off.
  ClusterBus& bus() { return *bus_; }
  uint16_t port(size_t i) const { return servers_[i].port; }
  // Sends a command to one server, which must be up.
  RedisValue Call(size_t i, const std::vector<std::string>& words);
  RedisValue CallAll(const std::vector<std::string>& words);  // the last reply

  // As redis-server computes it.
  uint16_t SlotOf(const std::string& key);
  // The owner in the view of server `at`; size() if there is none.
  size_t OwnerOf(uint16_t slot, size_t at = 0);

  // Steps of moving a slot, in the order of redis-cli. Between the first and the last step both
  // servers serve the slot, with ASK and TRYAGAIN.
  void BeginMove(uint16_t slot, size_t from, size_t to);
  // Moves at most `most` keys, and returns their number.
  size_t MoveKeys(uint16_t slot, size_t from, size_t to, size_t most);
  void MoveKey(const std::string& key, size_t from, size_t to);
  void EndMove(uint16_t slot, size_t from, size_t to);
  void Move(uint16_t slot, size_t from, size_t to);

  // Waits until its INFO replication contains `text`. Returns false after 20 s.
  bool AwaitInfo(size_t i, const std::string& text);
  // Waits until server `at` regards server `i` as failed, and serves its own slots. Returns false
  // after 20 s.
  bool AwaitFailure(size_t i, size_t at);
  // Waits until server `i` is a primary that serves slots. Returns false after 20 s.
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
  std::unique_ptr<ClusterBus> bus_;  // null: not severable
  std::vector<Server> servers_;
  size_t primaries_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_REDIS_CLUSTER_H_
