// Real redis-server processes, their replicas, and Sentinels. Each has a temporary folder and a
// Unix socket, and is stopped by its process id.
#ifndef SLUICE_TESTS_SUPPORT_REDIS_SERVER_H_
#define SLUICE_TESTS_SUPPORT_REDIS_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

struct redisReply;

namespace sluice::testing {

// Not thread-safe. Blocks. Aborts with a message if redis-server does not start.
class RedisServer {
 public:
  // `arguments` follow ours on the command line of redis-server.
  explicit RedisServer(std::vector<std::string> arguments = {});
  virtual ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  const std::string& folder() const { return folder_; }
  std::string url() const { return "unix://" + socket_path_; }

  void Kill();   // SIGKILL
  void Start();  // again, after Kill
  void Pause();  // SIGSTOP
  void Resume();

 protected:
  // With `config` as its configuration file, which it may rewrite.
  RedisServer(std::vector<std::string> arguments, const std::string& config);

 private:
  bool Spawn();  // false if the process ends before it answers

  std::string folder_;
  std::string socket_path_;
  std::string config_path_;  // empty: none
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
};

// A server with a TCP port: a primary, or a replica of one.
class ReplicatedServer : public RedisServer {
 public:
  // `primary_port` 0: a primary.
  explicit ReplicatedServer(int primary_port = 0, std::vector<std::string> arguments = {});
  int port() const { return port_; }

 private:
  ReplicatedServer(int port, int primary_port, std::vector<std::string> arguments);
  const int port_;
};

// Watches the primary on one port under the name "primary". It fails over by its own vote alone.
// `password` is required from clients if it is not empty.
class RedisSentinel : public RedisServer {
 public:
  explicit RedisSentinel(int primary_port, const std::string& password = "");
  // `tls`: arguments for TLS. It then speaks nothing else, also with the primary.
  RedisSentinel(int primary_port, const std::vector<std::string>& tls);
  int port() const { return port_; }

 private:
  RedisSentinel(int port, int primary_port, const std::string& password,
                const std::vector<std::string>& tls);
  const int port_;
};

// A reply of Redis, simplified.
struct RedisValue {
  enum class Type : uint8_t { kNil, kInteger, kString, kArray, kError };
  Type type = Type::kNil;
  int64_t integer = 0;
  std::string text;  // of a string, a status, an error
  std::vector<RedisValue> elements;
};

// A blocking connection, independent of the code under test.
class RedisCalls {
 public:
  explicit RedisCalls(const RedisServer& server);
  ~RedisCalls();
  RedisCalls(const RedisCalls&) = delete;
  RedisCalls& operator=(const RedisCalls&) = delete;

  // Retries on a new connection if the server closes this one before it replies, as it does when a
  // Sentinel changes its role. The command may then be executed twice.
  RedisValue Call(absl::Span<const std::string> arguments);

 private:
  void Connect();

  const std::string socket_path_;
  void* context_ = nullptr;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_REDIS_SERVER_H_
