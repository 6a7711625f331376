#include "tests/support/redis_server.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/free_port.h"

namespace sluice::testing {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

RedisValue ValueOf(const redisReply* reply) {
  RedisValue value;
  switch (reply->type) {
    case REDIS_REPLY_INTEGER:
      value.type = RedisValue::Type::kInteger;
      value.integer = reply->integer;
      break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      value.type = RedisValue::Type::kString;
      value.text.assign(reply->str, static_cast<size_t>(reply->len));
      break;
    case REDIS_REPLY_ERROR:
      value.type = RedisValue::Type::kError;
      value.text.assign(reply->str, static_cast<size_t>(reply->len));
      break;
    case REDIS_REPLY_ARRAY:
      value.type = RedisValue::Type::kArray;
      for (size_t i = 0; i < reply->elements; ++i) {
        value.elements.push_back(ValueOf(reply->element[i]));
      }
      break;
    default:
      break;
  }
  return value;
}

}  // namespace

RedisServer::RedisServer(std::vector<std::string> arguments)
    : RedisServer(std::move(arguments), "") {}

RedisServer::RedisServer(std::vector<std::string> arguments, const std::string& config)
    : arguments_(std::move(arguments)) {
  char folder[] = "/tmp/sluice_redis_XXXXXX";
  if (mkdtemp(folder) == nullptr) Die("mkdtemp failed");
  folder_ = folder;
  socket_path_ = folder_ + "/redis.sock";
  if (!config.empty()) {
    config_path_ = folder_ + "/redis.conf";
    std::ofstream(config_path_) << config;
  }
  Start();
}

RedisServer::~RedisServer() {
  Kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void RedisServer::Start() {
  // Once more: a child of a killed server may still hold its port or its lock on nodes.conf.
  for (int tries = 0; tries < 5; ++tries) {
    if (Spawn()) return;
    usleep(200'000);
  }
  std::ifstream log(folder_ + "/redis.log");
  Die("redis-server did not start; is it installed? Its log:\n" +
      std::string(std::istreambuf_iterator<char>(log), {}));
}

bool RedisServer::Spawn() {
  unlink(socket_path_.c_str());
  std::vector<std::string> words = {"redis-server",
                                    "--port",
                                    "0",
                                    "--unixsocket",
                                    socket_path_,
                                    "--save",
                                    "",
                                    "--dir",
                                    folder_,
                                    "--logfile",
                                    folder_ + "/redis.log",
                                    "--daemonize",
                                    "no",
                                    "--maxmemory-policy",
                                    "noeviction"};
  if (!config_path_.empty()) words.insert(words.begin() + 1, config_path_);
  words.insert(words.end(), arguments_.begin(), arguments_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  signal(SIGPIPE, SIG_IGN);  // hiredis writes without MSG_NOSIGNAL
  pid_ = fork();
  if (pid_ < 0) Die("fork failed");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  for (int tries = 0; tries < 1000; ++tries) {
    if (redisContext* context = redisConnectUnix(socket_path_.c_str()); context != nullptr) {
      redisReply* reply = nullptr;
      if (context->err == 0) {
        reply = static_cast<redisReply*>(redisCommand(context, "PING"));
      }
      const bool up =
          reply != nullptr &&
          (reply->type == REDIS_REPLY_STATUS ||
           (reply->type == REDIS_REPLY_ERROR && std::string(reply->str).find("NOAUTH") == 0));
      if (reply != nullptr) freeReplyObject(reply);
      redisFree(context);
      if (up) return true;
    }
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return false;
    }
    usleep(10'000);
  }
  Die("redis-server does not answer");
}

void RedisServer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RedisServer::Pause() { kill(pid_, SIGSTOP); }
void RedisServer::Resume() { kill(pid_, SIGCONT); }

namespace {

std::vector<std::string> Joined(std::vector<std::string> first,
                                const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

ReplicatedServer::ReplicatedServer(int primary_port, std::vector<std::string> arguments)
    : ReplicatedServer(FreePort(), primary_port, std::move(arguments)) {}

ReplicatedServer::ReplicatedServer(int port, int primary_port, std::vector<std::string> arguments)
    : RedisServer(Joined(
          primary_port == 0
              ? std::vector<std::string>{}
              : std::vector<std::string>{"--replicaof", "127.0.0.1", std::to_string(primary_port)},
          // Detects a failure soon, and retries a failover soon.
          Joined({"--port", std::to_string(port), "--repl-diskless-sync", "yes",
                  "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"},
                 arguments))),
      port_(port) {}

RedisSentinel::RedisSentinel(int primary_port, const std::string& password)
    : RedisSentinel(FreePort(), primary_port, password, {}) {}

RedisSentinel::RedisSentinel(int primary_port, const std::vector<std::string>& tls)
    : RedisSentinel(FreePort(), primary_port, "", tls) {}

RedisSentinel::RedisSentinel(int port, int primary_port, const std::string& password,
                             const std::vector<std::string>& tls)
    : RedisServer(Joined({"--sentinel"},
                         tls.empty() ? std::vector<std::string>{"--port", std::to_string(port)}
                                     : Joined({"--port", "0", "--tls-port", std::to_string(port),
                                               "--tls-replication", "yes"},
                                              tls)),
                  "sentinel monitor primary 127.0.0.1 " + std::to_string(primary_port) +
                      " 1\n"
                      "sentinel down-after-milliseconds primary 300\n"
                      "sentinel failover-timeout primary 3000\n" +
                      (password.empty() ? "" : "requirepass " + password + "\n")),
      port_(port) {}

RedisCalls::RedisCalls(const RedisServer& server) : socket_path_(server.socket_path()) {
  Connect();
}

RedisCalls::~RedisCalls() { redisFree(static_cast<redisContext*>(context_)); }

void RedisCalls::Connect() {
  if (context_ != nullptr) redisFree(static_cast<redisContext*>(context_));
  redisContext* context = redisConnectUnix(socket_path_.c_str());
  if (context == nullptr || context->err != 0) Die("cannot connect to the test's redis-server");
  context_ = context;
}

RedisValue RedisCalls::Call(absl::Span<const std::string> arguments) {
  std::vector<const char*> words;
  std::vector<size_t> sizes;
  for (const std::string& argument : arguments) {
    words.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  for (int tries = 0; tries < 3; ++tries) {
    auto* reply = static_cast<redisReply*>(redisCommandArgv(static_cast<redisContext*>(context_),
                                                            static_cast<int>(words.size()),
                                                            words.data(), sizes.data()));
    if (reply != nullptr) {
      RedisValue value = ValueOf(reply);
      freeReplyObject(reply);
      return value;
    }
    Connect();
  }
  Die("the test's redis-server went away");
}

}  // namespace sluice::testing
