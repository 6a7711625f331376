// What a decision of the Redis store costs, in CPU time of this process and of Redis. Starts a
// redis-server of its own. Closed loop: each caller asks again as soon as it was answered.
//
// Beside it, the same script on the same keys, pipelined as redis-benchmark does, with as many in
// flight: what Redis itself can do.
//
//   redis_store_bench [SECONDS_A_CASE [hot|random|single|pipelined|compare|away]]
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/algorithm/make_parameters.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/key_names.h"
#include "server/store/redis/wire/resp.h"
#include "server/store/redis/wire/stored_bucket.h"
#include "tests/support/redis_node.h"
#include "tests/support/redis_server.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {
namespace {

double OwnCpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double RedisField(RedisCalls& calls, const char* section, const char* field) {
  const RedisValue info = calls.Call({"INFO", section});
  for (const absl::string_view line : absl::StrSplit(info.text, "\r\n")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ':');
    double value;
    if (parts.size() == 2 && parts[0] == field && absl::SimpleAtod(parts[1], &value)) return value;
  }
  return 0;
}

// Scripts that Redis ran.
double RedisScripts(RedisCalls& calls) {
  const RedisValue info = calls.Call({"INFO", "commandstats"});
  for (const absl::string_view line : absl::StrSplit(info.text, "\r\n")) {
    double value;
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::ByAnyChar(":=,"), absl::SkipEmpty());
    if (parts.size() > 2 && parts[0] == "cmdstat_evalsha" && absl::SimpleAtod(parts[2], &value)) {
      return value;
    }
  }
  return 0;
}

double RedisCpu(RedisCalls& calls) {
  return RedisField(calls, "cpu", "used_cpu_user") + RedisField(calls, "cpu", "used_cpu_sys");
}

// As redis-benchmark fills in its random numbers.
std::string KeyName(const std::string& number) { return absl::StrCat("user:", number); }

// Buckets that live on after a decision (they are full again after 5 s, and each is asked for more
// often than that), and grant all that is asked here.
std::shared_ptr<const store::Rule> BenchRule() {
  return MakeRule(1, algorithm::MakeTokenBucket({1, 5'000'000'000}, 100'000'000, 0).value());
}

struct Shared {
  store::Store* store;
  const store::Rule* rule;
  const std::vector<std::string>* keys;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> decided{0};
  std::atomic<uint64_t> failed{0};
  std::atomic<int> open{0};
};

// Lives on the store's loop once started.
struct Caller final : store::AcquireOperation {
  void Start() {
    charge.rule = shared->rule;
    charge.key = (*shared->keys)[random % shared->keys->size()];
    random = random * 6364136223846793005u + 1442695040888963407u;
    acquisition.charges = absl::MakeConstSpan(&charge, 1);
    acquisition.results = &result;
    acquisitions = absl::MakeSpan(&acquisition, 1);
    shared->store->Acquire(this);
  }
  void Done() override {
    const bool good = acquisition.outcome == store::Outcome::kGranted;
    (good ? shared->decided : shared->failed).fetch_add(1, std::memory_order_relaxed);
    // What failed is answered at once, and would recurse.
    if (shared->stop.load(std::memory_order_relaxed) || !good) {
      shared->open.fetch_sub(1);
      return;
    }
    Start();
  }

  Shared* shared = nullptr;
  uint64_t random = 0;
  store::Charge charge;
  store::Acquisition acquisition;
  store::ChargeResult result;
};

// What each returns: microseconds of Redis' CPU for a decision.
double Measure(const char* name, RedisServer& server, size_t keys, size_t callers, double seconds) {
  RedisCalls calls(server);
  // Before a node knows that there was a fence, or buckets would begin empty.
  calls.Call({"FLUSHALL"});
  RedisNode node(server.url());
  const auto rule = BenchRule();
  node.store().Register(rule);
  std::vector<std::string> names;
  for (size_t i = 0; i < keys; ++i)
    names.push_back(KeyName(absl::StrCat(absl::Dec(i, absl::kZeroPad12))));
  Shared shared{&node.store(), rule.get(), &names};
  std::vector<Caller> all(callers);
  shared.open = static_cast<int>(callers);
  for (size_t i = 0; i < callers; ++i) {
    all[i].shared = &shared;
    all[i].random = i * 0x9e3779b97f4a7c15u + 1;
    all[i].Start();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  const double own_before = OwnCpuSeconds();
  const double redis_before = RedisCpu(calls);
  const double reads_before = RedisField(calls, "stats", "total_reads_processed");
  const double scripts_before = RedisScripts(calls);
  const uint64_t decided_before = shared.decided.load();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const auto decided = static_cast<double>(shared.decided.load() - decided_before);
  const double own = OwnCpuSeconds() - own_before;
  const double redis = RedisCpu(calls) - redis_before;
  const double reads = RedisField(calls, "stats", "total_reads_processed") - reads_before;
  const double scripts = RedisScripts(calls) - scripts_before;
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  shared.stop.store(true);
  while (shared.open.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::printf(
      "%-28s %10.0f decisions/s  node %7.3f us  redis %7.3f us a decision  "
      "%.2fM decisions/s of node CPU  redis %4.1f %% of a core, %.0f a second of its CPU  "
      "%.1f a read, %.1f a script  failed %llu\n",
      name, decided / wall, own / decided * 1e6, redis / decided * 1e6, decided / own / 1e6,
      redis / wall * 100, decided / redis, decided / reads, decided / scripts,
      static_cast<unsigned long long>(shared.failed.load()));
  std::fflush(stdout);
  return redis / decided * 1e6;
}

// A command whose key has kRandom in it, of which each sending has its own number.
constexpr char kRandom[] = "__rand_int__";
using Command = std::vector<std::string>;

// The script as TokenBucketsCommand calls it for one bucket, on the same keys.
Command ScriptCommand(RedisServer& server) {
  using namespace store::redis;
  RedisCalls calls(server);
  calls.Call({"FLUSHALL"});
  const ScriptText& script = TextOf(Script::kAcquireTokenBuckets);
  calls.Call({"SCRIPT", "LOAD", script.text});
  // A word whose encoding is `raw` is all that scripts look at (prelude.lua).
  constexpr char kFence[] = "sluice:fence";
  calls.Call({"SET", kFence, std::string(64, 'm')});
  const auto rule = BenchRule();
  std::string numbers = PackHeader(/*test_now_ns=*/-1, ServerClock(), kReadTogether,
                                   /*may_set_range=*/true);
  PackTokenBucket(rule->parameters, /*limit=*/2, /*floor_us=*/0, /*runs=*/1, &numbers);
  PackRun(rule->parameters, 1, 1, &numbers);
  Command command = {
      "EVALSHA",
      script.sha,
      "2",
      KeysOf("sluice", rule->limit_name, KeyName(kRandom))[0],
      kFence,
      numbers,
      absl::StrCat(EncodeParameters(rule->parameters), " 0123456789abcdef.", rule->id, " ")};
  if (const RedisValue first = calls.Call(command); first.type != RedisValue::Type::kString) {
    std::fprintf(stderr, "the script's command is not taken: %s\n", first.text.c_str());
    std::exit(1);
  }
  return command;
}

double ReportRedis(const char* name, double done, double redis, double wall, double reads) {
  std::printf(
      "%-28s %10.0f commands/s  redis %7.3f us each, %.0f a second of its CPU  %.1f a read\n", name,
      done / wall, redis / done * 1e6, done / redis, done / reads);
  std::fflush(stdout);
  return redis / done * 1e6;
}

constexpr int kConnections = 8;

double MeasureRedisBenchmark(RedisServer& server, const char* name, const Command& command,
                             size_t keys, int in_flight, int count) {
  RedisCalls calls(server);
  std::string line =
      absl::StrCat("redis-benchmark -s ", server.socket_path(), " --csv -r ", keys, " -c ",
                   kConnections, " -P ", in_flight / kConnections, " -n ", count);
  for (const std::string& word : command) absl::StrAppend(&line, " '", word, "'");
  absl::StrAppend(&line, " > /dev/null");
  const auto begin = std::chrono::steady_clock::now();
  const double redis_before = RedisCpu(calls);
  const double reads_before = RedisField(calls, "stats", "total_reads_processed");
  if (std::system(line.c_str()) != 0) std::fprintf(stderr, "redis-benchmark failed\n");
  const double redis = RedisCpu(calls) - redis_before;
  const double reads = RedisField(calls, "stats", "total_reads_processed") - reads_before;
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ReportRedis(name, count, redis, wall, reads);
}

// One of redis-benchmark's connections: sends so many commands at once, and waits for all answers.
class Pipeline {
 public:
  explicit Pipeline(const RedisServer& server) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    server.socket_path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      std::perror("connect");
      std::exit(1);
    }
  }
  ~Pipeline() { ::close(socket_); }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void Send(const std::string& commands) {
    for (size_t sent = 0; sent < commands.size();) {
      const ssize_t n = ::send(socket_, commands.data() + sent, commands.size() - sent, 0);
      if (n <= 0) std::exit(1);
      sent += static_cast<size_t>(n);
    }
  }
  void Await(int answers) {
    store::redis::Reply reply;
    while (answers > 0) {
      const auto whole = reader_.Next(&reply);
      if (!whole.ok() || reply.is_error()) {
        std::fprintf(stderr, "Redis answered: %s\n", reply.text.c_str());
        std::exit(1);
      }
      if (*whole) {
        --answers;
        continue;
      }
      uint8_t data[16384];
      const ssize_t n = ::recv(socket_, data, sizeof(data), 0);
      if (n <= 0) std::exit(1);
      reader_.Feed(absl::MakeConstSpan(data, static_cast<size_t>(n)));
    }
  }

 private:
  const int socket_;
  store::redis::ReplyReader reader_;
};

// What redis-benchmark does, which cannot send a word with a zero byte in it, as packed numbers
// have. How near it comes to that is measured too (Compare).
double MeasurePipelined(RedisServer& server, const char* name, Command command, size_t keys,
                        int in_flight, int count) {
  RedisCalls calls(server);
  const int depth = in_flight / kConnections;
  std::vector<std::string> batches(static_cast<size_t>(count / depth));
  uint64_t random = 1;
  const auto at = std::find_if(command.begin(), command.end(), [](const std::string& word) {
    return word.find(kRandom) != std::string::npos;
  });
  const std::string pattern = *at;
  for (std::string& batch : batches) {
    for (int i = 0; i < depth; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      *at = pattern;
      at->replace(at->find(kRandom), sizeof(kRandom) - 1,
                  absl::StrCat(absl::Dec((random >> 33) % keys, absl::kZeroPad12)));
      store::redis::AppendCommand(command, &batch);
    }
  }
  std::vector<std::unique_ptr<Pipeline>> pipelines;
  for (int i = 0; i < kConnections; ++i) pipelines.push_back(std::make_unique<Pipeline>(server));
  const auto begin = std::chrono::steady_clock::now();
  const double redis_before = RedisCpu(calls);
  const double reads_before = RedisField(calls, "stats", "total_reads_processed");
  for (size_t i = 0; i < batches.size() + pipelines.size(); ++i) {
    Pipeline& pipeline = *pipelines[i % pipelines.size()];
    if (i >= pipelines.size()) pipeline.Await(depth);
    if (i < batches.size()) pipeline.Send(batches[i]);
  }
  const double redis = RedisCpu(calls) - redis_before;
  const double reads = RedisField(calls, "stats", "total_reads_processed") - reads_before;
  const double wall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ReportRedis(name, static_cast<double>(batches.size()) * depth, redis, wall, reads);
}

constexpr size_t kKeys = 10'000;
constexpr int kInFlight = 256;

void PrintRatios(const char* what, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  std::printf("%s: median %.2f (%.2f to %.2f)\n", what, ratios[ratios.size() / 2], ratios.front(),
              ratios.back());
}

// Each of ours between two of the pipelines: a machine may be twice as fast a second later. Beside
// it a command that redis-benchmark can send too.
void Compare(RedisServer& server, double seconds) {
  const int count = static_cast<int>(seconds * 60'000) / kInFlight * kInFlight;
  const Command set = {"SET", KeyName(kRandom), std::string(40, 'x'), "PX", "5000"};
  std::vector<double> ratios;
  std::vector<double> likeness;
  for (int round = 0; round < 20; ++round) {
    const double one = MeasurePipelined(server, "the same script, pipelined", ScriptCommand(server),
                                        kKeys, kInFlight, count);
    const double ours = Measure("10000 keys, 256 callers", server, kKeys, kInFlight, seconds);
    const double two = MeasurePipelined(server, "the same script, pipelined", ScriptCommand(server),
                                        kKeys, kInFlight, count);
    ratios.push_back((one + two) / 2 / ours);
    const double first = MeasurePipelined(server, "SET, pipelined", set, kKeys, kInFlight, count);
    const double theirs =
        MeasureRedisBenchmark(server, "SET, redis-benchmark", set, kKeys, kInFlight, count);
    const double second = MeasurePipelined(server, "SET, pipelined", set, kKeys, kInFlight, count);
    likeness.push_back(theirs / ((first + second) / 2));
  }
  PrintRatios("SETs of Redis, pipelined, of what redis-benchmark reaches", likeness);
  PrintRatios("decisions of Redis, of what it makes of the same script pipelined", ratios);
}

// How soon the breaker opens on a server that hangs, and what a decision costs then.
void MeasureAway(RedisServer& server) {
  RedisNode node(server.url(), store::RedisStoreOptions());
  const auto rule = BenchRule();
  node.store().Register(rule);
  Acquire(node.store(), *rule, "k");
  const auto since = [](std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  server.Pause();
  auto begin = std::chrono::steady_clock::now();
  Acquire(node.store(), *rule, "k");
  std::printf("hanging server, first answer after %.1f ms\n", since(begin) * 1e3);
  common::SystemClock clock;
  store::MemoryStore memory(clock, {});
  memory.Register(rule);
  // Beside it the memory store, with the same batches.
  const std::vector<std::vector<store::Charge>> batch(4096, {{rule.get(), "k", 1}});
  for (int round = 0; round < 3; ++round) {
    for (store::Store* const each :
         {static_cast<store::Store*>(&node.store()), static_cast<store::Store*>(&memory)}) {
      const double cpu = OwnCpuSeconds();
      for (int i = 0; i < 100; ++i) AcquireBatch(*each, batch);
      std::printf("%s, batches of 4096: %.3f us of CPU a decision\n",
                  each == &memory ? "memory store" : "breaker open",
                  (OwnCpuSeconds() - cpu) / 409600 * 1e6);
    }
  }
  server.Resume();
}

}  // namespace
}  // namespace sluice::testing

int main(int argc, char** argv) {
  using namespace sluice::testing;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  const std::string_view only = argc > 2 ? argv[2] : "";
  if (!(seconds > 0)) {
    std::fprintf(stderr,
                 "usage: redis_store_bench [SECONDS [hot|random|pipelined|compare|single|away]]\n"
                 "\"%s\" is no number of seconds above 0\n",
                 argv[1]);
    return 2;
  }
  const auto wanted = [&](std::string_view name) { return only.empty() || only == name; };
  RedisServer server;
  for (int round = 0; round < 3; ++round) {
    if (wanted("hot")) Measure("one hot key, 1000 callers", server, 1, 1000, seconds);
    if (wanted("random")) Measure("10000 keys, 256 callers", server, 10'000, 256, seconds);
    if (wanted("pipelined")) {
      MeasurePipelined(server, "the same script, pipelined", ScriptCommand(server), kKeys,
                       kInFlight, static_cast<int>(seconds * 60'000));
    }
    if (wanted("single")) Measure("10000 keys, 1 caller", server, 10'000, 1, seconds);
  }
  if (only == "compare") Compare(server, seconds);
  if (wanted("away")) MeasureAway(server);
}
