// Continuous load on a shared store by several nodes with several clients each. Records all grants,
// and checks every window of them.
//
//   SharedLoad load(std::vector<std::string>(3, server.url()));
//   ASSERT_TRUE(load.AwaitGrants(500));
//   ... something fails ...
//   EXPECT_TRUE(load.AwaitGrants(500));
//   EXPECT_EQ(load.Check(), "");
#ifndef SLUICE_TESTS_SUPPORT_SHARED_LOAD_H_
#define SLUICE_TESTS_SUPPORT_SHARED_LOAD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/algorithm/make_parameters.h"
#include "tests/support/grant_history.h"
#include "tests/support/redis_node.h"
#include "tests/support/store_calls.h"

namespace sluice::testing {

// A limit for the clients, who acquire 1 to `most` permits of one of `keys` keys at random.
struct LoadedLimit {
  std::string name;
  algorithm::Parameters parameters;
  uint64_t most = 1;
  int keys = 1;
  store::Sharing sharing = store::Sharing::kExact;
  bool split_on_failure = false;  // on_store_failure: split
};

// One limit of each algorithm that refills within a second; one with debt; and one of many keys
// that refills in hours, so that a data loss that fills buckets is detected.
inline std::vector<LoadedLimit> LimitsOfAllKinds() {
  constexpr int64_t kSecondNs = 1'000'000'000;
  using algorithm::MakeFixedWindow;
  using algorithm::MakeSlidingLog;
  using algorithm::MakeSlidingWindow;
  using algorithm::MakeTokenBucket;
  return {
      {"bucket", MakeTokenBucket({1000, kSecondNs}, 50, 0).value(), 3, 1},
      {"indebted", MakeTokenBucket({200, kSecondNs}, 10, 20).value(), 25, 1},
      {"slow", MakeTokenBucket({1, 3600 * kSecondNs}, 20, 0).value(), 2, 1024},
      {"log", MakeSlidingLog({200, kSecondNs / 2}).value(), 2, 1},
      {"window", MakeSlidingWindow({200, kSecondNs / 2}, 10).value(), 2, 1},
      {"fixed", MakeFixedWindow({200, kSecondNs / 2}, 0).value(), 2, 1},
  };
}

// One limit of each algorithm that nodes decide by shares: always, or while Redis is down.
inline std::vector<LoadedLimit> LimitsOfNodes(store::Sharing sharing, bool split_on_failure) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  std::vector<LoadedLimit> limits = {
      {"bucket", algorithm::MakeTokenBucket({1000, kSecondNs}, 50, 0).value(), 3},
      {"indebted", algorithm::MakeTokenBucket({200, kSecondNs}, 10, 20).value(), 7},
      {"log", algorithm::MakeSlidingLog({200, kSecondNs / 4}).value(), 2},
      {"window", algorithm::MakeSlidingWindow({200, kSecondNs / 4}, 10).value(), 2},
      {"fixed", algorithm::MakeFixedWindow({200, kSecondNs / 4}, 0).value(), 2},
  };
  for (LoadedLimit& limit : limits) {
    limit.sharing = sharing;
    limit.split_on_failure = split_on_failure;
  }
  return limits;
}

struct LoadOptions {
  int clients = 8;  // of each node
  store::RedisStoreOptions store = BriskOptions();
  std::vector<LoadedLimit> limits = LimitsOfAllKinds();
  // Now and then charge two limits at once.
  bool several_charges = true;
  // Now and then ask for a receipt and give back later.
  bool refunds = true;
  // Pause of a client after a denial.
  int64_t pause_ns = 1'000'000;

  // A busy machine must not look like a failure, and a failure must be detected soon.
  static store::RedisStoreOptions BriskOptions() {
    store::RedisStoreOptions options = PatientOptions();
    options.budget_ns = 200'000'000;
    return options;
  }
};

// The time to live of nodes, in tests of shares.
inline constexpr int64_t kNodeTtlNs = 400'000'000;

// Load on limits that nodes decide by shares.
inline LoadOptions LoadOfNodes(store::Sharing sharing, bool split_on_failure) {
  LoadOptions options;
  options.limits = LimitsOfNodes(sharing, split_on_failure);
  options.store.node_ttl_ns = kNodeTtlNs;
  options.store.budget_ns = 50'000'000;
  return options;
}

// Member functions are called by one thread.
class SharedLoad {
 public:
  // A node for each URL. Starts at once.
  explicit SharedLoad(const std::vector<std::string>& urls, LoadOptions options = {})
      : options_(std::move(options)), granted_by_redis_(options_.limits.size()) {
    // Above the ids of MakeRule.
    static std::atomic<uint32_t> next_id{1'000'000};
    for (const LoadedLimit& limit : options_.limits) {
      auto rule = std::make_shared<store::Rule>();
      rule->id = next_id.fetch_add(1);
      rule->limit_id = rule->id;
      rule->limit_name = limit.name;
      rule->parameters = limit.parameters;
      rule->sharing = limit.sharing;
      rule->split_when_store_unavailable = limit.split_on_failure;
      rules_.push_back(rule);
      histories_.emplace_back();
      for (int k = 0; k < limit.keys; ++k) {
        histories_.back().push_back(std::make_unique<GrantHistory>(limit.parameters));
      }
    }
    for (const std::string& url : urls) MakeNode(url);
    for (size_t n = 0; n < nodes_.size(); ++n) StartClients(n);
  }
  ~SharedLoad() { Stop(); }
  SharedLoad(const SharedLoad&) = delete;
  SharedLoad& operator=(const SharedLoad&) = delete;

  // Adds a node with clients.
  void AddNode(const std::string& url) {
    MakeNode(url);
    StartClients(nodes_.size() - 1);
  }
  // Removes node `n`; the other nodes keep their numbers. `leaves`: it deregisters first.
  void RemoveNode(size_t n, bool leaves) {
    leaving_[n]->store(true);
    for (std::thread& thread : threads_[n]) thread.join();
    threads_[n].clear();
    if (leaves) nodes_[n]->store().Leave(/*most_ns=*/1'000'000'000);
    nodes_[n].reset();
  }

  RedisNode& node(size_t n) { return *nodes_[n]; }
  const std::shared_ptr<const store::Rule>& rule(size_t limit) const { return rules_[limit]; }

  // Waits for `more` permits to be granted, of the limit or of any limit. Returns false after
  // `patience_ns`.
  static constexpr size_t kAnyLimit = ~size_t{0};
  bool AwaitGrants(uint64_t more, size_t limit = kAnyLimit,
                   int64_t patience_ns = kPatienceNs) const {
    const uint64_t until = granted(limit) + more;
    return Await([&] { return granted(limit) >= until; }, patience_ns);
  }
  // The same for acquisitions that Redis decided.
  bool AwaitGrantsByRedis(uint64_t more, size_t limit) const {
    const uint64_t until = granted_by_redis(limit) + more;
    return Await([&] { return granted_by_redis(limit) >= until; }, kPatienceNs);
  }

  // Permits granted.
  uint64_t granted(size_t limit = kAnyLimit) const {
    uint64_t sum = 0;
    for (size_t l = 0; l < histories_.size(); ++l) {
      if (limit != kAnyLimit && limit != l) continue;
      for (const auto& history : histories_[l]) sum += history->permits();
    }
    return sum;
  }

  // Acquisitions that Redis granted and whose first charge was on the limit.
  uint64_t granted_by_redis(size_t limit) const { return granted_by_redis_[limit].load(); }

  // Denied without Redis.
  uint64_t unavailable() const { return unavailable_.load(); }
  // Granted by a node while Redis was down, and granted by shares or local knowledge.
  uint64_t granted_while_unavailable() const { return granted_while_unavailable_.load(); }
  uint64_t granted_locally() const { return granted_locally_.load(); }
  uint64_t refunded() const { return refunded_.load(); }
  // The longest time that a client waited for an answer.
  int64_t longest_ns() const { return longest_ns_.load(); }

  void Stop() {
    stop_.store(true);
    for (auto& of_node : threads_) {
      for (std::thread& thread : of_node) thread.join();
      of_node.clear();
    }
  }

  // Empty if no window of the limit exceeds it by more than `most` permits (twice that for logs and
  // windows, since late reports count later). REQUIRES: stopped.
  std::string CheckBeyond(size_t limit, uint64_t most) const {
    std::string over;
    for (const auto& history : histories_[limit]) over += history->Check(most);
    return over;
  }

  // Stops. Returns the windows that exceeded their limit, or an empty string. Prints how much of
  // each limit was used.
  std::string Check() {
    Stop();
    std::string over;
    size_t buckets = 0;
    size_t grants = 0;
    for (size_t l = 0; l < histories_.size(); ++l) {
      for (size_t k = 0; k < histories_[l].size(); ++k) {
        buckets += histories_[l][k]->grants() > 0 ? 1 : 0;
        grants += histories_[l][k]->grants();
        const std::string one = histories_[l][k]->Check();
        if (!one.empty()) {
          over += options_.limits[l].name + " of k" + std::to_string(k) + ": " + one + "\n";
        }
      }
      if (histories_[l].size() == 1) {
        std::printf("  %-15s %s\n", options_.limits[l].name.c_str(),
                    histories_[l][0]->Summary().c_str());
      }
    }
    std::printf("  checked: the windows from each of %zu grants on, of %zu buckets\n", grants,
                buckets);
    std::printf("  answered without Redis: %llu; refunded: %llu; longest answer: %.0f ms\n",
                static_cast<unsigned long long>(unavailable()),
                static_cast<unsigned long long>(refunded()),
                static_cast<double>(longest_ns()) / 1e6);
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n] == nullptr) continue;
      const store::StoreHealth health = nodes_[n]->store().Health();
      if (health.times_unavailable == 0) continue;
      std::printf("  node %zu was without Redis %llu times, last: %s\n", n,
                  static_cast<unsigned long long>(health.times_unavailable), health.why.c_str());
    }
    return over;
  }

 private:
  struct Part {
    size_t limit;
    size_t key;
    uint64_t permits;
  };
  // A grant with a receipt, which will be refunded.
  struct Open {
    Acquired acquired;
    std::vector<Part> parts;
  };

  static constexpr int64_t kPatienceNs = 20'000'000'000;

  template <typename Condition>
  static bool Await(Condition condition, int64_t patience_ns) {
    constexpr int64_t kStepNs = 5'000'000;
    for (int64_t waited_ns = 0; !condition(); waited_ns += kStepNs) {
      if (waited_ns > patience_ns) return false;
      std::this_thread::sleep_for(std::chrono::nanoseconds(kStepNs));
    }
    return true;
  }

  static std::string KeyOf(size_t key) { return "k" + std::to_string(key); }

  std::vector<store::Charge> ChargesOf(const std::vector<Part>& parts,
                                       const std::vector<std::string>& keys) const {
    std::vector<store::Charge> charges;
    for (size_t i = 0; i < parts.size(); ++i) {
      charges.push_back({rules_[parts[i].limit].get(), keys[i], parts[i].permits});
    }
    return charges;
  }

  void Record(const Acquired& acquired, const std::vector<Part>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      histories_[parts[i].limit][parts[i].key]->Add(
          acquired.now_ns - acquired.charges[i].debited_before_ns, parts[i].permits);
    }
  }

  void MakeNode(const std::string& url) {
    nodes_.push_back(std::make_unique<RedisNode>(url, options_.store));
    threads_.emplace_back();
    leaving_.push_back(std::make_unique<std::atomic<bool>>(false));
    if (!nodes_.back()->connected().ok()) {
      std::fprintf(stderr, "no connection to %s: %s\n", url.c_str(),
                   nodes_.back()->connected().ToString().c_str());
    }
    for (const auto& rule : rules_) nodes_.back()->store().Register(rule);
    nodes_.back()->store().AwaitNodes();
  }

  void StartClients(size_t n) {
    for (int c = 0; c < options_.clients; ++c) {
      threads_[n].emplace_back([this, &node = *nodes_[n], &leaving = *leaving_[n], n, c] {
        Client(node, leaving, n * 1000 + size_t(c));
      });
    }
  }

  void Client(RedisNode& node, const std::atomic<bool>& leaving, size_t seed) {
    std::minstd_rand random(static_cast<uint32_t>(seed + 1));
    const auto below = [&](size_t n) { return n == 0 ? 0 : random() / 7 % n; };
    std::deque<Open> open;
    while (!stop_.load() && !leaving.load()) {
      std::vector<Part> parts;
      std::vector<std::string> keys;
      const size_t first = below(rules_.size());
      const size_t count = options_.several_charges && below(8) == 0 ? 2 : 1;
      for (size_t i = 0; i < count && i < rules_.size(); ++i) {
        const size_t limit = (first + i) % rules_.size();
        parts.push_back({limit, below(static_cast<size_t>(options_.limits[limit].keys)),
                         1 + below(options_.limits[limit].most)});
        keys.push_back(KeyOf(parts.back().key));
      }
      AcquireOptions options;
      options.want_receipt = options_.refunds && below(8) == 0;
      const int64_t before_ns = node.clock().NowNs();
      Acquired acquired = Acquire(node.store(), ChargesOf(parts, keys), options);
      Longest(node.clock().NowNs() - before_ns);
      if (acquired.granted() && acquired.source == store::Source::kStoreUnavailable) {
        granted_while_unavailable_.fetch_add(1);
      }
      if (acquired.granted() && acquired.source == store::Source::kLocal) {
        granted_locally_.fetch_add(1);
      }
      if (acquired.granted() && acquired.source == store::Source::kStore) {
        granted_by_redis_[first].fetch_add(1);
      }
      if (acquired.granted() && options.want_receipt) {
        open.push_back({std::move(acquired), std::move(parts)});
        if (open.size() > 4) {
          GiveBack(node, open.front());
          open.pop_front();
        }
      } else if (acquired.granted()) {
        Record(acquired, parts);
      } else {
        if (acquired.outcome == store::Outcome::kUnavailable) unavailable_.fetch_add(1);
        std::this_thread::sleep_for(std::chrono::nanoseconds(options_.pause_ns));
      }
    }
    for (const Open& one : open) Record(one.acquired, one.parts);
  }

  // Grants that were refunded, or may have been, are not recorded.
  void GiveBack(RedisNode& node, const Open& open) {
    std::vector<std::string> keys;
    for (const Part& part : open.parts) keys.push_back(KeyOf(part.key));
    const Refunded refunded = Refund(node.store(), open.acquired.receipt_id,
                                     ChargesOf(open.parts, keys), open.acquired.grant_time_ns());
    if (refunded.outcome == store::RefundOutcome::kExpired) {
      Record(open.acquired, open.parts);
    } else {
      refunded_.fetch_add(1);
    }
  }

  void Longest(int64_t took_ns) {
    int64_t longest = longest_ns_.load();
    while (took_ns > longest && !longest_ns_.compare_exchange_weak(longest, took_ns)) {
    }
  }

  const LoadOptions options_;
  std::vector<std::shared_ptr<const store::Rule>> rules_;
  std::vector<std::vector<std::unique_ptr<GrantHistory>>> histories_;  // of each limit's keys
  std::vector<std::unique_ptr<RedisNode>> nodes_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> unavailable_{0};
  std::atomic<uint64_t> granted_while_unavailable_{0};
  std::atomic<uint64_t> granted_locally_{0};
  std::atomic<uint64_t> refunded_{0};
  std::vector<std::atomic<uint64_t>> granted_by_redis_;  // of each limit
  std::atomic<int64_t> longest_ns_{0};
  // Of each node.
  std::vector<std::unique_ptr<std::atomic<bool>>> leaving_;
  std::vector<std::vector<std::thread>> threads_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_SHARED_LOAD_H_
