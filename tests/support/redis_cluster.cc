#include "tests/support/redis_cluster.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/free_port.h"

namespace sluice::testing {
namespace {

constexpr size_t kSlots = 16384;
const char* const kHost = "127.0.0.1";

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// Polls `condition` for 20 s. Returns whether it became true.
template <typename Condition>
bool Await(Condition condition) {
  for (int tries = 0; tries < 4000; ++tries) {
    if (condition()) return true;
    usleep(5'000);
  }
  return false;
}

void Check(const RedisValue& value, const char* what) {
  if (value.type == RedisValue::Type::kError) Die(std::string(what) + ": " + value.text);
}

}  // namespace

RedisCluster::RedisCluster(const Options& options)
    : tls_(!options.tls.empty()), primaries_(options.primaries) {
  const size_t replicating = options.primaries + options.replicas;
  const size_t count = replicating + options.spares;
  std::vector<uint16_t> buses;
  for (size_t i = 0; i < count; ++i) buses.push_back(static_cast<uint16_t>(FreePort()));
  if (options.severable) bus_ = std::make_unique<ClusterBus>(buses);
  for (size_t i = 0; i < count; ++i) {
    Server& server = servers_.emplace_back();
    server.port = static_cast<uint16_t>(FreePort());
    std::vector<std::string> arguments = {
        "--port", std::to_string(server.port), "--bind", kHost, "--cluster-enabled", "yes",
        "--cluster-port", std::to_string(buses[i]), "--cluster-node-timeout",
        std::to_string(options.node_timeout_ms),
        // A replica may be promoted however old its data is.
        "--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no",
        "--repl-diskless-sync-delay", "0"};
    if (bus_ != nullptr) {
      arguments.insert(arguments.end(),
                       // Protected mode knows one address of this host only.
                       {"--protected-mode", "no", "--bind-source-addr", ClusterBus::SourceOf(i),
                        "--cluster-announce-ip", kHost, "--cluster-announce-bus-port",
                        std::to_string(bus_->port(i))});
    }
    if (tls_) {
      arguments[0] = "--tls-port";
      arguments.insert(arguments.end(),
                       {"--port", "0", "--tls-cluster", "yes", "--tls-replication", "yes"});
      arguments.insert(arguments.end(), options.tls.begin(), options.tls.end());
    }
    const bool replicated =
        options.replicas > 0 && (i == 0 || (i >= primaries_ && i < replicating));
    if (replicated && options.guarded) {
      arguments.insert(arguments.end(), {"--min-replicas-to-write", "1", "--min-replicas-max-lag",
                                         "1", "--repl-ping-replica-period", "1"});
    }
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    server.server = std::make_unique<RedisServer>(std::move(arguments));
    server.id = Call(i, {"CLUSTER", "MYID"}).text;
    Check(Call(i, {"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)}), "SET-CONFIG-EPOCH");
  }
  for (size_t i = 0; i < primaries_; ++i) {
    const size_t first = kSlots * i / primaries_;
    const size_t last = kSlots * (i + 1) / primaries_ - 1;
    Check(Call(i, {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)}),
          "ADDSLOTSRANGE");
  }
  for (size_t i = 0; i < count; ++i) {
    const uint16_t bus = bus_ == nullptr ? buses[i] : bus_->port(i);
    for (size_t j = 0; j < count; ++j) {
      if (j == i) continue;
      Check(Call(j,
                 {"CLUSTER", "MEET", kHost, std::to_string(servers_[i].port), std::to_string(bus)}),
            "MEET");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (!Await([&] { return Settled(i, primaries_); })) Die("the Cluster does not come about");
  }
  for (size_t i = primaries_; i < replicating; ++i) {
    if (!Await([&] { return Call(i, {"CLUSTER", "REPLICATE", servers_[0].id}).text == "OK"; })) {
      Die("a replica does not find its primary");
    }
  }
  for (size_t i = primaries_; i < replicating; ++i) {
    if (!Await([&] {
          return Call(i, {"INFO", "replication"}).text.find("master_link_status:up") !=
                 std::string::npos;
        })) {
      Die("a replica does not follow its primary");
    }
  }
  if (options.replicas == 0 || !options.guarded) return;
  const std::string good = "min_slaves_good_slaves:" + std::to_string(options.replicas);
  if (!Await(
          [&] { return Call(0, {"INFO", "replication"}).text.find(good) != std::string::npos; })) {
    Die("a primary does not hear of its replicas");
  }
}

bool RedisCluster::Settled(size_t i, size_t primaries) {
  const std::string info = Call(i, {"CLUSTER", "INFO"}).text;
  return info.find("cluster_state:ok") != std::string::npos &&
         info.find("cluster_size:" + std::to_string(primaries)) != std::string::npos &&
         info.find("cluster_known_nodes:" + std::to_string(servers_.size())) != std::string::npos;
}

void RedisCluster::Kill(size_t i) {
  servers_[i].up = false;
  servers_[i].server->Kill();
}

std::string RedisCluster::url() const {
  std::string url = tls_ ? "rediss-cluster://" : "redis-cluster://";
  for (size_t i = 0; i < primaries_; ++i) {
    if (i > 0) url += ",";
    url += std::string(kHost) + ":" + std::to_string(servers_[i].port);
  }
  return url;
}

RedisValue RedisCluster::Call(size_t i, const std::vector<std::string>& words) {
  return RedisCalls(server(i)).Call(words);
}

RedisValue RedisCluster::CallAll(const std::vector<std::string>& words) {
  RedisValue last;
  for (size_t i = 0; i < servers_.size(); ++i) last = Call(i, words);
  return last;
}

uint16_t RedisCluster::SlotOf(const std::string& key) {
  return static_cast<uint16_t>(Call(0, {"CLUSTER", "KEYSLOT", key}).integer);
}

size_t RedisCluster::OwnerOf(uint16_t slot, size_t at) {
  for (const RedisValue& range : Call(at, {"CLUSTER", "SLOTS"}).elements) {
    if (slot < range.elements[0].integer || slot > range.elements[1].integer) continue;
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (range.elements[2].elements[2].text == servers_[i].id) return i;
    }
  }
  return servers_.size();
}

void RedisCluster::BeginMove(uint16_t slot, size_t from, size_t to) {
  const std::string number = std::to_string(slot);
  Check(Call(to, {"CLUSTER", "SETSLOT", number, "IMPORTING", servers_[from].id}), "IMPORTING");
  Check(Call(from, {"CLUSTER", "SETSLOT", number, "MIGRATING", servers_[to].id}), "MIGRATING");
}

size_t RedisCluster::MoveKeys(uint16_t slot, size_t from, size_t to, size_t most) {
  const RedisValue keys =
      Call(from, {"CLUSTER", "GETKEYSINSLOT", std::to_string(slot), std::to_string(most)});
  for (const RedisValue& key : keys.elements) MoveKey(key.text, from, to);
  return keys.elements.size();
}

void RedisCluster::MoveKey(const std::string& key, size_t from, size_t to) {
  Check(Call(from, {"MIGRATE", kHost, std::to_string(port(to)), key, "0", "5000"}), "MIGRATE");
}

void RedisCluster::EndMove(uint16_t slot, size_t from, size_t to) {
  const std::string number = std::to_string(slot);
  const auto tell = [&](size_t i) {
    Check(Call(i, {"CLUSTER", "SETSLOT", number, "NODE", servers_[to].id}), "SETSLOT");
  };
  tell(to);
  tell(from);
  // Gossip spreads the change, and may still carry the old state for a while.
  for (size_t i = 0; i < primaries_; ++i) {
    if (servers_[i].up && !Await([&] { return OwnerOf(slot, i) == to; })) {
      Die("a server does not learn who has a slot");
    }
  }
}

void RedisCluster::Move(uint16_t slot, size_t from, size_t to) {
  BeginMove(slot, from, to);
  while (MoveKeys(slot, from, to, 100) > 0) {
  }
  EndMove(slot, from, to);
}

bool RedisCluster::AwaitInfo(size_t i, const std::string& text) {
  return Await(
      [&] { return Call(i, {"INFO", "replication"}).text.find(text) != std::string::npos; });
}

bool RedisCluster::AwaitFailure(size_t i, size_t at) {
  const auto failed = [&] {
    const std::string nodes = Call(at, {"CLUSTER", "NODES"}).text;
    const size_t line = nodes.find(servers_[i].id + " ");
    return nodes.substr(line, nodes.find('\n', line) - line).find(",fail ") != std::string::npos;
  };
  return Await([&] {
    return failed() &&
           Call(at, {"CLUSTER", "INFO"}).text.find("cluster_state:ok") != std::string::npos;
  });
}

bool RedisCluster::AwaitPromotion(size_t i) {
  return Await([&] {
    return Call(i, {"INFO", "replication"}).text.find("role:master") != std::string::npos &&
           Call(i, {"CLUSTER", "INFO"}).text.find("cluster_state:ok") != std::string::npos;
  });
}

}  // namespace sluice::testing
