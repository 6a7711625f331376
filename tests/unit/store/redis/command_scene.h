// CommandScene: the shard of a command under test, on one thread and a clock of the test, connected
// to servers whose replies the test writes. What a real redis-server does is tested in
// tests/contract, tests/differential and tests/faults.
#ifndef SLUICE_TESTS_UNIT_STORE_REDIS_COMMAND_SCENE_H_
#define SLUICE_TESTS_UNIT_STORE_REDIS_COMMAND_SCENE_H_

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/resolver.h"
#include "server/store/redis/commands/command_context.h"
#include "server/store/redis/wire/parameters_text.h"
#include "tests/support/store_calls.h"

namespace sluice::store::redis {

// A server on a Unix socket, for one connection at a time. It lets clients connect and load
// scripts; other commands wait in `asked` until the test answers them, in order.
class ScriptedServer {
 public:
  using Words = std::vector<std::string>;

  ScriptedServer() {
    char folder[] = "/tmp/sluice_scripted_XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
  }
  ~ScriptedServer() {
    HangUp();
    close(listener_);
    std::filesystem::remove_all(folder_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::string path() const { return folder_ + "/redis.sock"; }

  // Receives what has arrived.
  void Serve() {
    if (peer_ < 0) {
      peer_ = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (peer_ < 0) return;
      ++accepted;
      reader_ = std::make_unique<ReplyReader>();
    }
    uint8_t buffer[size_t{64} << 10];
    ssize_t n = 0;
    while ((n = recv(peer_, buffer, sizeof(buffer), 0)) > 0) {
      reader_->Feed({buffer, static_cast<size_t>(n)});
    }
    if (n == 0 || errno == ECONNRESET) {
      // The client has closed the connection.
      asked.clear();
      return HangUp();
    }
    // A command has the form of a reply that is an array.
    Reply command;
    while (*reader_->Next(&command)) {
      Words words;
      for (const Reply& word : command.elements) words.push_back(word.text);
      asked.push_back(std::move(words));
      AnswerOwn();
    }
  }
  void Send(std::string_view bytes) {
    EXPECT_EQ(send(peer_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Answers the oldest command that is not answered, with RESP.
  void Answer(std::string_view bytes) {
    ASSERT_FALSE(asked.empty());
    asked.pop_front();
    Send(bytes);
    AnswerOwn();
  }
  void HangUp() {
    if (peer_ >= 0) close(std::exchange(peer_, -1));
  }

  std::deque<Words> asked;
  size_t loads = 0;     // scripts
  size_t accepted = 0;  // connections

 private:
  // Answers commands that are none of the test's, as soon as those before them are answered.
  void AnswerOwn() {
    for (; !asked.empty(); asked.pop_front()) {
      const std::string& name = asked.front()[0];
      if (name == "INFO") {
        Send("$47\r\nredis_version:7.0.0\r\nrole:master\r\nmaxmemory:0\r\n\r\n");
      } else if (name == "SCRIPT" || name == "PING") {
        loads += name == "SCRIPT" ? 1 : 0;
        Send("+OK\r\n");
      } else {
        return;
      }
    }
  }

  std::string folder_;
  int listener_ = -1;
  int peer_ = -1;
  std::unique_ptr<ReplyReader> reader_;
};

// Two servers. Keys are at the first one until `at` says otherwise.
class CommandScene : public ::testing::Test, public CommandContext, public Router {
 public:
  // CommandContext.
  const CommandSettings& settings() const override { return settings_; }
  const common::Clock& clock() const override { return clock_; }
  net::EventLoop& loop() override { return *loop_; }
  Router& router() override { return *this; }
  ShardCounters& counters() override { return counters_; }
  SendState& sends() override { return sends_; }
  PendingAcquires& acquires() override { return acquires_; }
  OpenCache& open_buckets() override { return open_buckets_; }
  IdSource& ids() override { return ids_; }
  UsedReceipts& used_receipts() override { return used_receipts_; }
  std::shared_ptr<const RuleEntry> EntryOf(const Rule& rule) override {
    auto entry = std::make_shared<RuleEntry>();
    entry->rule = std::make_shared<Rule>(rule);
    entry->encoded_parameters = EncodeParameters(rule.parameters);
    entry->writer = "node.1";
    return entry;
  }
  std::shared_ptr<const RuleEntry> NewerThan(const RuleEntry&, std::string_view) override {
    return newer_rule;
  }
  void OnConverted(const Bucket&, std::string_view, const algorithm::Parameters&) override {}
  bool MayWait(size_t waiting) override { return waiting < most_waiting; }
  void LogError(std::string_view event, std::string_view) override { logged.emplace_back(event); }

  // Router.
  void Start() override {}
  Endpoint* EndpointOf(std::string_view) override { return at; }
  bool Splits() const override { return splits; }
  const FencingToken& TokenFor(Endpoint&, std::string_view) override { return token; }
  bool MayPromise(Endpoint&, absl::Span<const LimitPromise>, int64_t) override {
    return may_promise;
  }
  void LiftFloor(const std::string&, int64_t, LiftDone done) override { done(0); }
  bool AllUnavailable() const override { return false; }
  Course OnError(Endpoint& from, std::string_view key, const Reply& error) override {
    return course ? course(error) : Router::OnError(from, key, error);
  }

 protected:
  static constexpr int64_t kBudgetNs = 20'000'000;
  static constexpr int64_t kRetryNs = 2'000'000;

  CommandScene() {
    settings_.name_space = "ns";
    settings_.retry_ns = kRetryNs;
    token.word_key = "ns:identity:word";
    for (size_t i = 0; i < 2; ++i) {
      owners_.push_back(std::make_unique<Owner>(*this, i));
      endpoints.push_back(MakeEndpoint(i));
      endpoints[i]->Start();
    }
    at = endpoints[0].get();
    EXPECT_TRUE(
        Until([&] { return !endpoints[0]->unavailable() && !endpoints[1]->unavailable(); }));
  }
  ~CommandScene() override {
    endpoints.clear();
    resolver_.reset();
  }
  // Commands that are still in flight end with the loop.
  void TearDown() override {
    loop_->Stop();
    loop_->Run();
  }

  // Of that server. One at a time.
  std::unique_ptr<Endpoint> MakeEndpoint(size_t server) {
    EndpointOptions options;
    options.connection.url = RedisUrl::Parse("unix://" + servers[server].path()).value();
    options.budget_ns = kBudgetNs;
    options.max_connections = 1;
    options.breaker = &breaker_;
    return std::make_unique<Endpoint>(*loop_, *resolver_, options, counters_, *owners_[server]);
  }
  // Runs the loop and the servers until `condition` holds. False: it does not come to hold.
  bool Until(const std::function<bool()>& condition) {
    for (int i = 0; i < 10'000; ++i) {
      if (condition()) return true;
      loop_->RunOnce(/*max_wait_ns=*/100'000);
      for (ScriptedServer& server : servers) server.Serve();
    }
    return condition();
  }
  // Until nothing more happens without the test.
  void Settle() {
    int rounds = 0;
    Until([&] { return ++rounds > 20; });
  }
  // Lets time pass as a loop sees it that polls all the while.
  void Pass(int64_t time_ns) {
    for (int64_t passed_ns = 0; passed_ns < time_ns; passed_ns += 1'000'000) {
      clock_.Advance(std::min<int64_t>(time_ns - passed_ns, 1'000'000));
      loop_->RunOnce(0);
      for (ScriptedServer& server : servers) server.Serve();
    }
    Settle();
  }
  bool Asked(size_t commands, size_t server = 0) {
    Until([&] { return servers[server].asked.size() >= commands; });
    Settle();
    return servers[server].asked.size() == commands;
  }

  common::FakeClock clock_;
  std::unique_ptr<net::EventLoop> loop_ = std::move(net::EventLoop::Create(clock_)).value();
  std::unique_ptr<net::Resolver> resolver_ = std::make_unique<net::Resolver>();
  CommandSettings settings_;
  ShardCounters counters_;
  CircuitBreaker breaker_{clock_, /*log=*/nullptr, "unix",
                          [] { return CircuitBreaker::Decided(); }};
  SendState sends_;
  PendingAcquires acquires_{counters_, [](const Acquisition&) {}, [] {}};
  OpenCache open_buckets_;
  IdSource ids_;
  UsedReceipts used_receipts_;

 public:
  ScriptedServer servers[2];
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  Endpoint* at = nullptr;
  bool splits = false;
  FencingToken token;
  std::function<Course(const Reply& error)> course;
  std::shared_ptr<const RuleEntry> newer_rule;
  bool may_promise = true;
  size_t most_waiting = 100;
  std::vector<std::string> logged;
  std::function<void(Endpoint&)> on_unavailable = [](Endpoint&) {};
  // A new connection is ready. The endpoint serves at once until the test says otherwise.
  std::function<void(Endpoint&)> on_ready = [](Endpoint& endpoint) { endpoint.Serve(); };
  std::vector<absl::Status> failures;  // attempts to connect, of all endpoints

 private:
  // Of one endpoint.
  struct Owner final : Endpoint::Owner {
    Owner(CommandScene& its_scene, size_t its_place) : scene(its_scene), place(its_place) {}
    absl::Status OnInfo(const std::string&) override { return absl::OkStatus(); }
    absl::Status OnFurtherInfo(const std::string&) override { return absl::OkStatus(); }
    void OnReady() override { scene.on_ready(*scene.endpoints[place]); }
    void OnAvailable() override {}
    void OnUnavailable() override { scene.on_unavailable(*scene.endpoints[place]); }
    void OnFailed(const absl::Status& why) override { scene.failures.push_back(why); }

    CommandScene& scene;
    const size_t place;
  };

  std::vector<std::unique_ptr<Owner>> owners_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_TESTS_UNIT_STORE_REDIS_COMMAND_SCENE_H_
