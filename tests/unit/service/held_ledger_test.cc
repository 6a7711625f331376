// Held calls of clients that disconnect at random, through the use cases: granted permits less
// refunded ones must equal the debited permits. A limit that every call charges, which counts for a
// day and never runs out, serves as the ledger.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/service/acquire_call.h"
#include "server/service/key_usage.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/service/registry_rules.h"
#include "server/store/memory/memory_store.h"
#include "server/waiting/held_callers.h"
#include "tests/support/late_store.h"
#include "tests/support/store_calls.h"

namespace sluice::service {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kLedger = 1'000'000;

limits::LimitSpec PerSecond(std::string name, uint64_t permits) {
  limits::LimitSpec spec;
  spec.name = std::move(name);
  spec.rate = {permits, kSecond};
  return spec;
}

class NoAlarm final : public waiting::Alarm {
 public:
  void SetAt(int64_t) override {}
};

// A client and its call.
struct Client {
  AcquireCall call;
  uint64_t permits = 0;
  int64_t asked_ns = 0;
  int64_t deadline_ns = store::kNoDeadline;
  bool hold = false;
  bool left = false;  // disconnected before the answer
  // The answer.
  int answers = 0;
  absl::Status status;
  bool granted = false;
  int64_t answered_ns = 0;
};

struct Options {
  bool late = false;           // the store answers later
  bool change_limits = false;  // while callers wait
  bool drain = false;          // at the end, with callers waiting
};

class HeldLedger {
 public:
  HeldLedger(uint64_t seed, const Options& options)
      : options_(options),
        random_(seed),
        later_(memory_, {.in_order = true, .rebooks = true}, seed),
        store_(options.late ? static_cast<store::Store&>(later_) : memory_) {
    limiter_.UseHeldCallers(&line_);
    registry_.OnChange([this] { line_.LimitsChanged(); });
    SetLimits(20);
  }
  ~HeldLedger() { registry_.OnChange(nullptr); }

  void Play() {
    for (int step = 0; step < 1200; ++step) {
      for (uint64_t n = Below(4); options_.late && n > 0; --n) later_.Step();
      switch (Below(8)) {
        case 0:
        case 1:
          Advance(static_cast<int64_t>(Below(kSecond / 5)));
          break;
        case 2:
        case 3:
          Disconnect();
          break;
        case 4:
          if (options_.change_limits && Below(20) == 0) SetLimits(5 + Below(40));
          break;
        default:
          Ask();
      }
    }
    if (options_.drain) line_.Drain();
    for (int i = 0; i < 100'000 && (line_.size() > 0 || later_.under_way() > 0); ++i) {
      later_.Step();
      if (i % 8 == 0) Advance(kSecond / 20);
    }
  }

  void CheckBooks() {
    ASSERT_EQ(line_.size(), 0u);
    ASSERT_EQ(later_.under_way(), 0u);
    uint64_t granted = 0;
    uint64_t given_back = 0;
    uint64_t held = 0;
    for (const auto& client : clients_) {
      ASSERT_EQ(client->answers, 1) << "each is answered exactly once";
      if (client->status.ok()) {
        if (!client->granted) continue;
        granted += client->permits;
        held += client->answered_ns > client->asked_ns ? client->permits : 0;
        continue;
      }
      // A call that ended otherwise debited nothing.
      given_back += client->permits;
      if (client->status.code() == absl::StatusCode::kUnavailable) {
        EXPECT_TRUE(options_.drain) << client->status;
      } else {
        EXPECT_EQ(client->status.code(), absl::StatusCode::kCancelled) << client->status;
        EXPECT_TRUE(client->left);
      }
    }
    EXPECT_GT(held, 0u);
    EXPECT_GT(given_back, 0u);
    const auto table = registry_.Current();
    const store::QueryItem ledger = testing::Query(memory_, table->Find("ledger")->RuleFor({}), "");
    EXPECT_EQ(ledger.waiting, 0u);
    EXPECT_EQ(kLedger - static_cast<uint64_t>(ledger.level.remaining), granted);
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }

  void SetLimits(uint64_t per_second) {
    auto pace = PerSecond("pace", per_second);
    pace.burst = 4;
    pace.charges = {"ledger"};
    auto log = PerSecond("log", per_second);
    log.algorithm = algorithm::Kind::kSlidingLog;
    log.charges = {"pace"};
    limits::LimitSpec ledger;
    ledger.name = "ledger";
    ledger.algorithm = algorithm::Kind::kSlidingLog;
    ledger.rate = {kLedger, int64_t{24} * 3600 * kSecond};
    const auto applied = registry_.ApplyFile({pace, log, ledger}, std::to_string(++version_));
    ASSERT_TRUE(applied.ok()) << applied.status();
  }

  void Advance(int64_t by_ns) {
    clock_.Advance(by_ns);
    // Bounded: while a change is under way, Advance stays due.
    for (int i = 0; i < 100 && line_.Advance() <= clock_.NowNs(); ++i) {
    }
  }

  void Ask() {
    clients_.push_back(std::make_unique<Client>());
    Client* const client = clients_.back().get();
    client->permits = 1 + Below(3);
    client->hold = Below(5) > 0;
    client->asked_ns = clock_.NowNs();
    if (Below(4) == 0) {
      client->deadline_ns = client->asked_ns + static_cast<int64_t>(Below(3 * kSecond));
    }
    client->call.Reset(AcquireCall::Form::kUnary);
    AcquisitionOptions options;
    if (client->hold)
      options = {.max_wait = {1 + static_cast<int64_t>(Below(10)), 0}, .hold = true};
    client->call.BeginAcquisition(options);
    client->call.AddCharge(Below(2) == 0 ? "pace" : "log", "", client->permits);
    limiter_.Acquire(
        &client->call, client->deadline_ns,
        [](void* context, AcquireCall* call) { static_cast<HeldLedger*>(context)->Answered(call); },
        this);
  }

  void Answered(AcquireCall* call) {
    const auto client = std::find_if(clients_.begin(), clients_.end(),
                                     [&](const auto& one) { return &one->call == call; });
    ++(*client)->answers;
    const AcquisitionResult result = call->result(0);
    (*client)->status = result.status;
    (*client)->granted = result.status.ok() && result.granted;
    (*client)->answered_ns = clock_.NowNs();
    // Past its deadline nothing is debited, as in a denial.
    if (result.status.code() == absl::StatusCode::kDeadlineExceeded) {
      (*client)->status = absl::OkStatus();
    }
  }

  // In whatever state its call is.
  void Disconnect() {
    if (clients_.empty()) return;
    Client& client = *clients_[Below(clients_.size())];
    if (client.answers > 0) return;
    client.left = true;
    limiter_.CancelHeld(&client.call);
  }

  const Options options_;
  std::mt19937_64 random_;
  common::FakeClock clock_{1000 * kSecond};
  common::Metrics metrics_;
  store::MemoryStore memory_{clock_, {.seed = 1}};
  testing::LateStore later_;
  store::Store& store_;
  limits::LimitRegistry registry_{&store_};
  KeyUsage usage_;
  ReceiptSigner signer_;
  RateLimiter limiter_{registry_, store_, clock_, metrics_, usage_, signer_};
  RegistryRules rules_{registry_};
  NoAlarm alarm_;
  std::vector<std::unique_ptr<Client>> clients_;
  waiting::HeldCallers line_{store_, clock_, rules_, alarm_};
  int version_ = 0;
};

void KeepBooks(const Options& options) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    HeldLedger ledger(seed, options);
    ledger.Play();
    ledger.CheckBooks();
  }
}

TEST(HeldLedgerTest, GrantedPlusRefundedPermitsEqualDebitedPermits) { KeepBooks({}); }

TEST(HeldLedgerTest, BalancesOnAStoreThatAnswersLater) { KeepBooks({.late = true}); }

TEST(HeldLedgerTest, BalancesWhileLimitsChange) {
  KeepBooks({.change_limits = true});
  KeepBooks({.late = true, .change_limits = true});
}

TEST(HeldLedgerTest, DrainRefundsWaitingCalls) {
  KeepBooks({.drain = true});
  KeepBooks({.late = true, .drain = true});
}

}  // namespace
}  // namespace sluice::service
