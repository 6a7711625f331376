// A redis-server of the test's own: a process in a folder of its own, on a Unix socket (and a TCP
// port if asked), stopped by its process id. Replicas of it, and Sentinels that watch it.
#ifndef SLUICE_TESTS_SUPPORT_REDIS_SERVER_H_
#define SLUICE_TESTS_SUPPORT_REDIS_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

struct redisReply;

namespace sluice::testing {

// Not thread-safe. Waits. Fails the process (with a message) when redis-server does not start.
class RedisServer {
 public:
  // `arguments`: as on redis-server's command line, after ours.
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
  // With `config` as its file of configuration, which it may write.
  RedisServer(std::vector<std::string> arguments, const std::string& config);

 private:
  std::string folder_;
  std::string socket_path_;
  std::string config_path_;  // empty: none
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
};

// One that has a TCP port too, or is a replica of one.
class ReplicatedServer : public RedisServer {
 public:
  // `primary_port` 0: a primary.
  explicit ReplicatedServer(int primary_port = 0, std::vector<std::string> arguments = {});
  int port() const { return port_; }

 private:
  ReplicatedServer(int port, int primary_port, std::vector<std::string> arguments);
  const int port_;
};

// Watches the primary of one port, which it calls "primary"; its failover needs its own vote alone.
// `password`: wanted from its clients, if not empty.
class RedisSentinel : public RedisServer {
 public:
  explicit RedisSentinel(int primary_port, const std::string& password = "");
  // `tls`: arguments for TLS, which it speaks alone then, also with the primary.
  RedisSentinel(int primary_port, const std::vector<std::string>& tls);
  int port() const { return port_; }

 private:
  RedisSentinel(int port, int primary_port, const std::string& password,
                const std::vector<std::string>& tls);
  const int port_;
};

// An answer of Redis, simplified.
struct RedisValue {
  enum class Type : uint8_t { kNil, kInteger, kString, kArray, kError };
  Type type = Type::kNil;
  int64_t integer = 0;
  std::string text;  // of a string, a status, an error
  std::vector<RedisValue> elements;
};

// A connection that waits for each answer, independent of the server's own code.
class RedisCalls {
 public:
  explicit RedisCalls(const RedisServer& server);
  ~RedisCalls();
  RedisCalls(const RedisCalls&) = delete;
  RedisCalls& operator=(const RedisCalls&) = delete;

  // Sent again, on a new connection, when the server ended this one before it answered, as it does
  // when a Sentinel changes its role: what is called then may be executed twice.
  RedisValue Call(absl::Span<const std::string> arguments);

 private:
  void Connect();

  const std::string socket_path_;
  void* context_ = nullptr;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_REDIS_SERVER_H_
