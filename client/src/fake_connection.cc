#include "sluice/fake_connection.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "client/src/transport/time_after.h"
#include "common/mutex.h"

namespace sluice {

using common::MutexLock;

namespace {

enum class Act { kGrant, kDeny, kFail, kHang };

struct Scripted {
  Act act = Act::kGrant;
  std::chrono::nanoseconds retry_after{0};
  Status status;
};

// An open stream or watch.
struct Open {
  StreamEvents events;
  WatchEvents watch_events;
  bool is_watch = false;
};

}  // namespace

struct FakeConnection::State {
  mutable common::Mutex mu;
  TimePoint now ABSL_GUARDED_BY(mu) = TimePoint(std::chrono::hours(1));
  std::chrono::nanoseconds suspended ABSL_GUARDED_BY(mu){0};
  bool closed ABSL_GUARDED_BY(mu) = false;
  std::deque<Scripted> script ABSL_GUARDED_BY(mu);
  std::deque<Status> query_failures ABSL_GUARDED_BY(mu);
  std::deque<Status> refund_failures ABSL_GUARDED_BY(mu);
  std::deque<Status> stream_failures ABSL_GUARDED_BY(mu);
  std::deque<Scripted> renew_script ABSL_GUARDED_BY(mu);
  struct Hold {
    TimePoint end;
    std::chrono::nanoseconds hold_for;
    std::vector<Charge> charges;
  };
  std::map<std::string, std::chrono::nanoseconds, std::less<>> hold_for ABSL_GUARDED_BY(mu);
  std::map<std::string, Hold, std::less<>> holds ABSL_GUARDED_BY(mu);  // by receipt
  std::vector<size_t> renewals ABSL_GUARDED_BY(mu);
  std::map<std::pair<std::string, std::string>, uint64_t> permits ABSL_GUARDED_BY(mu);
  std::map<std::pair<std::string, std::string>, uint64_t> capacity ABSL_GUARDED_BY(mu);
  std::set<std::string> refunded ABSL_GUARDED_BY(mu);
  std::map<std::string, Decision> remembered ABSL_GUARDED_BY(mu);  // grants by request id
  std::map<std::string, std::vector<Charge>> settled ABSL_GUARDED_BY(mu);
  std::vector<Settlement> settlements ABSL_GUARDED_BY(mu);
  std::deque<Scripted> settle_script ABSL_GUARDED_BY(mu);
  // What estimates have taken so far, by receipt.
  std::map<std::string, std::vector<Charge>> estimates ABSL_GUARDED_BY(mu);
  std::vector<Acquisition> acquisitions ABSL_GUARDED_BY(mu);
  std::vector<size_t> messages ABSL_GUARDED_BY(mu);
  int queries ABSL_GUARDED_BY(mu) = 0;
  int refunds ABSL_GUARDED_BY(mu) = 0;
  int streams_opened ABSL_GUARDED_BY(mu) = 0;
  TimePoint last_deadline ABSL_GUARDED_BY(mu);
  uint64_t next_id ABSL_GUARDED_BY(mu) = 1;
  // Delayed answers by id. `end` sends the answer if the status is OK, else the status.
  struct Hung {
    TimePoint deadline;
    std::function<void(Status)> end;
  };
  std::map<uint64_t, Hung> hung ABSL_GUARDED_BY(mu);
  std::multimap<TimePoint, std::function<void()>> timers ABSL_GUARDED_BY(mu);
  std::map<uint64_t, std::shared_ptr<Open>> open ABSL_GUARDED_BY(mu);
  // For each stream: messages with delayed answers.
  std::map<uint64_t, int> delayed ABSL_GUARDED_BY(mu);

  // The slots of a grant.
  void HoldSlots(const Acquisition& acquisition, Decision* decision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Hold hold;
    for (size_t i = 0; i < acquisition.charges.size(); ++i) {
      const auto found = hold_for.find(acquisition.charges[i].limit);
      if (found == hold_for.end()) continue;
      decision->charges[i].held_for = hold.hold_for = found->second;
      hold.charges.push_back(acquisition.charges[i]);
    }
    if (hold.charges.empty()) return;
    hold.end = now + hold.hold_for;
    if (decision->receipt.empty()) decision->receipt = "receipt-" + std::to_string(next_id++);
    holds[decision->receipt] = std::move(hold);
  }
  void GiveBack(const Hold& hold) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (const Charge& charge : hold.charges) {
      const auto found = permits.find({charge.limit, charge.key});
      if (found != permits.end()) found->second += charge.permits;
    }
  }
  void EndHold(std::string_view receipt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto hold = holds.find(receipt);
    if (hold == holds.end()) return;
    GiveBack(hold->second);
    holds.erase(hold);
  }

  SettleResult CarryOut(const Settlement& settlement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto same = [](const Charge& a, const Charge& b) {
      return a.limit == b.limit && a.key == b.key && a.permits == b.permits;
    };
    SettleResult result;
    result.outcome = SettleOutcome::kSettled;
    if (const auto before = settled.find(settlement.receipt); before != settled.end()) {
      if (!std::equal(before->second.begin(), before->second.end(), settlement.actual.begin(),
                      settlement.actual.end(), same)) {
        result.outcome = SettleOutcome::kAlreadySettled;
      }
      return result;
    }
    std::vector<Charge>& taken = estimates[settlement.receipt];
    for (const Charge& actual : settlement.actual) Correct(actual, settlement.more, &taken);
    if (settlement.more) return result;
    EndHold(settlement.receipt);
    estimates.erase(settlement.receipt);
    settled.emplace(settlement.receipt, settlement.actual);
    return result;
  }
  // Gives back or takes what the estimate took differs by.
  void Correct(const Charge& actual, bool more, std::vector<Charge>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto found = permits.find({actual.limit, actual.key});
    for (Charge& charge : *taken) {
      if (charge.limit != actual.limit || charge.key != actual.key) continue;
      if (actual.permits < charge.permits && more) continue;
      if (found != permits.end()) {
        const uint64_t whole = found->second + charge.permits;
        found->second = whole - std::min(whole, actual.permits);
      }
      charge.permits = actual.permits;
    }
  }

  // Decides by the next script entry, or by the permits that were set. Sets *hang if the decision
  // is to be sent later.
  Result<Decision> Decide(const Acquisition& acquisition, bool* hang)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    acquisitions.push_back(acquisition);
    for (auto hold = holds.begin(); hold != holds.end();) {
      if (hold->second.end <= now) GiveBack(hold->second);
      hold = hold->second.end <= now ? holds.erase(hold) : std::next(hold);
    }
    Decision decision;
    decision.granted = true;
    decision.source = Source::kStore;
    Scripted entry;
    bool scripted = false;
    if (!script.empty()) {
      entry = std::move(script.front());
      script.pop_front();
      scripted = true;
    }
    if (entry.act == Act::kFail) return entry.status;
    if (entry.act == Act::kHang) {
      *hang = true;
      scripted = false;
    }
    if (const auto known = remembered.find(acquisition.request_id); known != remembered.end()) {
      decision = known->second;
      decision.repeated = true;
      return decision;
    }
    if (entry.act == Act::kDeny) {
      decision.granted = false;
      decision.retry_after = entry.retry_after;
    }
    std::map<std::pair<std::string, std::string>, uint64_t> wanted;
    for (const Charge& charge : acquisition.charges) {
      wanted[{charge.limit, charge.key}] += charge.permits;
    }
    if (!scripted) {
      for (const auto& [bucket, count] : wanted) {
        const auto found = permits.find(bucket);
        if (found != permits.end() && found->second < count) decision.granted = false;
      }
      if (decision.granted) {
        for (const auto& [bucket, count] : wanted) {
          const auto found = permits.find(bucket);
          if (found != permits.end()) found->second -= count;
        }
      }
    }
    for (const Charge& charge : acquisition.charges) {
      ChargeStatus& status = decision.charges.emplace_back();
      const auto found = permits.find({charge.limit, charge.key});
      if (found != permits.end()) {
        status.remaining = static_cast<int64_t>(found->second);
        status.capacity = capacity[{charge.limit, charge.key}];
      }
      if (!decision.granted) status.reason = Reason::kNotEnough;
    }
    if (decision.granted && (acquisition.want_receipt || acquisition.settle_within.count() != 0)) {
      decision.receipt = "receipt-" + std::to_string(next_id++);
    }
    if (decision.granted && acquisition.settle_within.count() != 0) {
      std::vector<Charge> rates;
      for (const Charge& charge : acquisition.charges) {
        if (!hold_for.contains(charge.limit)) rates.push_back(charge);
      }
      estimates[decision.receipt] = std::move(rates);
    }
    if (decision.granted) HoldSlots(acquisition, &decision);
    if (decision.granted && !acquisition.request_id.empty()) {
      remembered.emplace(acquisition.request_id, decision);
    }
    return decision;
  }

  BatchDecisions DecideAll(std::span<const Acquisition> batch, bool* hang)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    BatchDecisions decisions;
    for (const Acquisition& acquisition : batch) decisions.push_back(Decide(acquisition, hang));
    return decisions;
  }

  void Hang(TimePoint deadline, std::function<void(Status)> end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    hung.emplace(next_id++, Hung{deadline, std::move(end)});
  }

  // Sends the answer, or that the deadline passed, later.
  template <typename T>
  void Hang(TimePoint deadline, Result<T> answer, Callback<T> done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Hang(deadline, [answer = std::move(answer), done = std::move(done)](Status status) mutable {
      if (!status.ok()) answer = std::move(status);
      done(std::move(answer));
    });
  }

  std::vector<BucketStatus> Look(std::span<const Bucket> buckets)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::vector<BucketStatus> answers;
    for (const Bucket& bucket : buckets) {
      BucketStatus& status = answers.emplace_back();
      status.limit = bucket.limit;
      status.key = bucket.key;
      status.source = Source::kStore;
      const auto found = permits.find({bucket.limit, bucket.key});
      status.exists = found != permits.end();
      if (status.exists) {
        status.remaining = static_cast<int64_t>(found->second);
        status.capacity = capacity[{bucket.limit, bucket.key}];
      }
    }
    return answers;
  }

  // Ends a stream or watch if it is open.
  void EndOpen(uint64_t id, Status status) {
    std::shared_ptr<Open> ended;
    {
      MutexLock lock(&mu);
      const auto found = open.find(id);
      if (found == open.end()) return;
      ended = std::move(found->second);
      open.erase(found);
    }
    if (ended->is_watch) {
      ended->watch_events.on_closed(std::move(status));
    } else {
      ended->events.on_closed(std::move(status));
    }
  }
};

namespace {

Status FakeShutDown() { return Status(StatusCode::kCancelled, "the connection was shut down"); }

}  // namespace

class FakeConnection::Stream final : public StreamCall {
 public:
  Stream(std::shared_ptr<State> state, uint64_t id) : state_(std::move(state)), id_(id) {}
  ~Stream() override { Cancel(); }

  void Send(std::span<const Acquisition> batch) override {
    BatchDecisions answers;
    std::shared_ptr<Open> open;
    {
      MutexLock lock(&state_->mu);
      const auto found = state_->open.find(id_);
      if (found == state_->open.end()) return;
      state_->messages.push_back(batch.size());
      bool hang = false;
      answers = state_->DecideAll(batch, &hang);
      // Answers are in order: later messages wait for a delayed one.
      int& delayed = state_->delayed[id_];
      if (hang || delayed > 0) {
        ++delayed;
        state_->Hang(TimePoint::max(),
                     [this_state = state_, id = id_,
                      answers = std::move(answers)](const Status& status) mutable {
                       std::shared_ptr<Open> still;
                       {
                         MutexLock inner(&this_state->mu);
                         --this_state->delayed[id];
                         if (!status.ok()) return;
                         const auto it = this_state->open.find(id);
                         if (it == this_state->open.end()) return;
                         still = it->second;
                       }
                       still->events.on_answers(std::move(answers));
                     });
        return;
      }
      open = found->second;
    }
    open->events.on_answers(std::move(answers));
  }

  void Cancel() override {
    state_->EndOpen(id_, Status::MaybeExecuted(StatusCode::kCancelled, "the stream was cancelled"));
  }

 private:
  const std::shared_ptr<State> state_;
  const uint64_t id_;
};

class FakeConnection::WatchHandle final : public WatchCall {
 public:
  WatchHandle(std::shared_ptr<State> state, uint64_t id) : state_(std::move(state)), id_(id) {}
  ~WatchHandle() override { Cancel(); }
  void Cancel() override {
    state_->EndOpen(id_, Status(StatusCode::kCancelled, "the watch was cancelled"));
  }

 private:
  const std::shared_ptr<State> state_;
  const uint64_t id_;
};

FakeConnection::FakeConnection() : state_(std::make_shared<State>()) {}

FakeConnection::~FakeConnection() { Shutdown(); }

void FakeConnection::GrantNext(int count) {
  MutexLock lock(&state_->mu);
  state_->script.insert(state_->script.end(), static_cast<size_t>(count),
                        Scripted{Act::kGrant, {}, {}});
}

void FakeConnection::DenyNext(std::chrono::nanoseconds retry_after, int count) {
  MutexLock lock(&state_->mu);
  state_->script.insert(state_->script.end(), static_cast<size_t>(count),
                        Scripted{Act::kDeny, retry_after, {}});
}

void FakeConnection::FailNext(const Status& status, int count) {
  MutexLock lock(&state_->mu);
  state_->script.insert(state_->script.end(), static_cast<size_t>(count),
                        Scripted{Act::kFail, {}, status});
}

void FakeConnection::HangNext(int count) {
  MutexLock lock(&state_->mu);
  state_->script.insert(state_->script.end(), static_cast<size_t>(count),
                        Scripted{Act::kHang, {}, {}});
}

void FakeConnection::ReleaseHung() {
  // Repeat: callbacks may send messages, which wait behind delayed ones.
  for (;;) {
    std::map<uint64_t, State::Hung> hung;
    {
      MutexLock lock(&state_->mu);
      hung.swap(state_->hung);
    }
    if (hung.empty()) return;
    for (auto& [id, one] : hung) one.end(Status());
  }
}

void FakeConnection::SetPermits(std::string_view limit, std::string_view key, uint64_t permits) {
  MutexLock lock(&state_->mu);
  state_->permits[{std::string(limit), std::string(key)}] = permits;
  state_->capacity[{std::string(limit), std::string(key)}] = permits;
}

void FakeConnection::SetHoldFor(std::string_view limit, std::chrono::nanoseconds hold_for) {
  MutexLock lock(&state_->mu);
  state_->hold_for[std::string(limit)] = hold_for;
}

void FakeConnection::EndHolds() {
  MutexLock lock(&state_->mu);
  while (!state_->holds.empty()) state_->EndHold(std::string(state_->holds.begin()->first));
}

void FakeConnection::FailNextRenew(const Status& status, int count) {
  MutexLock lock(&state_->mu);
  state_->renew_script.insert(state_->renew_script.end(), static_cast<size_t>(count),
                              Scripted{Act::kFail, {}, status});
}

void FakeConnection::HangNextRenew(int count) {
  MutexLock lock(&state_->mu);
  state_->renew_script.insert(state_->renew_script.end(), static_cast<size_t>(count),
                              Scripted{Act::kHang, {}, {}});
}

void FakeConnection::FailNextSettle(const Status& status, int count) {
  MutexLock lock(&state_->mu);
  state_->settle_script.insert(state_->settle_script.end(), static_cast<size_t>(count),
                               Scripted{Act::kFail, {}, status});
}

void FakeConnection::HangNextSettle(int count) {
  MutexLock lock(&state_->mu);
  state_->settle_script.insert(state_->settle_script.end(), static_cast<size_t>(count),
                               Scripted{Act::kHang, {}, {}});
}

void FakeConnection::FailNextQuery(const Status& status, int count) {
  MutexLock lock(&state_->mu);
  state_->query_failures.insert(state_->query_failures.end(), static_cast<size_t>(count), status);
}

void FakeConnection::FailNextRefund(const Status& status, int count) {
  MutexLock lock(&state_->mu);
  state_->refund_failures.insert(state_->refund_failures.end(), static_cast<size_t>(count), status);
}

void FakeConnection::FailNextStreams(const Status& status, int count) {
  MutexLock lock(&state_->mu);
  state_->stream_failures.insert(state_->stream_failures.end(), static_cast<size_t>(count), status);
}

void FakeConnection::BreakStreams(const Status& status) {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(&state_->mu);
    for (const auto& [id, open] : state_->open) ids.push_back(id);
  }
  for (const uint64_t id : ids) state_->EndOpen(id, status);
}

void FakeConnection::Advance(std::chrono::nanoseconds by) {
  TimePoint end;
  {
    MutexLock lock(&state_->mu);
    end = state_->now + by;
  }
  for (;;) {
    std::function<void()> run;
    {
      MutexLock lock(&state_->mu);
      auto late = std::find_if(state_->hung.begin(), state_->hung.end(),
                               [&](const auto& one) { return one.second.deadline <= end; });
      const auto timer = state_->timers.begin();
      const bool timer_due = timer != state_->timers.end() && timer->first <= end;
      if (late != state_->hung.end() && (!timer_due || late->second.deadline <= timer->first)) {
        state_->now = std::max(state_->now, late->second.deadline);
        run = [end_call = std::move(late->second.end)] {
          end_call(Status::MaybeExecuted(StatusCode::kDeadlineExceeded, "Deadline Exceeded"));
        };
        state_->hung.erase(late);
      } else if (timer_due) {
        state_->now = std::max(state_->now, timer->first);
        run = std::move(timer->second);
        state_->timers.erase(timer);
      } else {
        state_->now = end;
        return;
      }
    }
    run();
  }
}

void FakeConnection::Suspend(std::chrono::nanoseconds time) {
  MutexLock lock(&state_->mu);
  state_->suspended += time;
}

TimePoint FakeConnection::BootNow() const {
  MutexLock lock(&state_->mu);
  return state_->now + state_->suspended;
}

std::vector<Acquisition> FakeConnection::acquisitions() const {
  MutexLock lock(&state_->mu);
  return state_->acquisitions;
}

std::vector<size_t> FakeConnection::messages() const {
  MutexLock lock(&state_->mu);
  return state_->messages;
}

int FakeConnection::queries() const {
  MutexLock lock(&state_->mu);
  return state_->queries;
}

size_t FakeConnection::settled() const {
  MutexLock lock(&state_->mu);
  return state_->settled.size();
}

std::vector<Settlement> FakeConnection::settlements() const {
  MutexLock lock(&state_->mu);
  return state_->settlements;
}

int FakeConnection::refunds() const {
  MutexLock lock(&state_->mu);
  return state_->refunds;
}

int FakeConnection::streams_opened() const {
  MutexLock lock(&state_->mu);
  return state_->streams_opened;
}

std::vector<size_t> FakeConnection::renewals() const {
  MutexLock lock(&state_->mu);
  return state_->renewals;
}

TimePoint FakeConnection::last_deadline() const {
  MutexLock lock(&state_->mu);
  return state_->last_deadline;
}

void FakeConnection::Acquire(const Acquisition& acquisition, const Call& call,
                             Callback<Decision> done) {
  Result<Decision> answer = FakeShutDown();
  {
    MutexLock lock(&state_->mu);
    state_->last_deadline = call.deadline;
    if (!state_->closed) {
      bool hang = false;
      answer = state_->Decide(acquisition, &hang);
      if (hang) {
        state_->Hang(call.deadline, std::move(answer), std::move(done));
        return;
      }
    }
  }
  done(std::move(answer));
}

void FakeConnection::AcquireBatch(std::span<const Acquisition> batch, const Call& call,
                                  Callback<BatchDecisions> done) {
  Result<BatchDecisions> answer = FakeShutDown();
  {
    MutexLock lock(&state_->mu);
    state_->last_deadline = call.deadline;
    if (!state_->closed) {
      if (!state_->script.empty() && state_->script.front().act == Act::kFail) {
        // Fail the whole call.
        answer = std::move(state_->script.front().status);
        state_->script.pop_front();
      } else {
        bool hang = false;
        answer = state_->DecideAll(batch, &hang);
        if (hang) {
          state_->Hang(call.deadline, std::move(answer), std::move(done));
          return;
        }
      }
    }
  }
  done(std::move(answer));
}

void FakeConnection::Query(std::span<const Bucket> buckets, const Call& call,
                           Callback<std::vector<BucketStatus>> done) {
  Result<std::vector<BucketStatus>> answer = FakeShutDown();
  {
    MutexLock lock(&state_->mu);
    state_->last_deadline = call.deadline;
    ++state_->queries;
    if (!state_->query_failures.empty()) {
      answer = std::move(state_->query_failures.front());
      state_->query_failures.pop_front();
    } else if (!state_->closed) {
      answer = state_->Look(buckets);
    }
  }
  done(std::move(answer));
}

void FakeConnection::Refund(std::string_view receipt, const Call& call,
                            Callback<RefundResult> done) {
  Result<RefundResult> answer = FakeShutDown();
  {
    MutexLock lock(&state_->mu);
    state_->last_deadline = call.deadline;
    ++state_->refunds;
    if (!state_->refund_failures.empty()) {
      answer = std::move(state_->refund_failures.front());
      state_->refund_failures.pop_front();
    } else if (!state_->closed) {
      RefundResult result;
      state_->EndHold(receipt);
      if (const auto one = state_->estimates.find(std::string(receipt));
          one != state_->estimates.end()) {
        const std::vector<Charge> charges = one->second;
        for (Charge charge : charges) {
          charge.permits = 0;
          state_->Correct(charge, /*more=*/false, &one->second);
        }
        state_->estimates.erase(one);
      }
      result.outcome = state_->refunded.insert(std::string(receipt)).second
                           ? RefundOutcome::kRefunded
                           : RefundOutcome::kAlreadyRefunded;
      answer = std::move(result);
    }
  }
  done(std::move(answer));
}

void FakeConnection::Settle(const Settlement& settlement, const Call& call,
                            Callback<SettleResult> done) {
  SettleBatch(std::span(&settlement, 1), call,
              [done = std::move(done)](Result<BatchSettlements> results) {
                done(results.ok() ? std::move(results->front()) : results.status());
              });
}

void FakeConnection::SettleBatch(std::span<const Settlement> batch, const Call& call,
                                 Callback<BatchSettlements> done) {
  Result<BatchSettlements> answer = FakeShutDown();
  {
    MutexLock lock(&state_->mu);
    state_->last_deadline = call.deadline;
    Scripted scripted;
    if (!state_->closed) {
      state_->settlements.insert(state_->settlements.end(), batch.begin(), batch.end());
      if (!state_->settle_script.empty()) {
        scripted = std::move(state_->settle_script.front());
        state_->settle_script.pop_front();
      }
      if (scripted.act == Act::kFail) {
        answer = scripted.status;
      } else {
        BatchSettlements results;
        for (const Settlement& one : batch) results.push_back(state_->CarryOut(one));
        answer = std::move(results);
      }
      if (scripted.act == Act::kHang) {
        return state_->Hang(call.deadline, std::move(answer), std::move(done));
      }
    }
  }
  done(std::move(answer));
}

void FakeConnection::Renew(std::span<const std::string> receipts, const Call& call,
                           Callback<std::vector<Renewal>> done) {
  Result<std::vector<Renewal>> answer = FakeShutDown();
  {
    MutexLock lock(&state_->mu);
    state_->last_deadline = call.deadline;
    state_->renewals.push_back(receipts.size());
    Scripted scripted;
    if (!state_->renew_script.empty()) {
      scripted = std::move(state_->renew_script.front());
      state_->renew_script.pop_front();
    }
    if (scripted.act == Act::kFail) {
      answer = scripted.status;
    } else if (!state_->closed) {
      std::vector<Renewal> renewed(receipts.size());
      for (size_t i = 0; i < receipts.size(); ++i) {
        const auto hold = state_->holds.find(receipts[i]);
        if (hold == state_->holds.end() || hold->second.end <= state_->now) continue;
        hold->second.end = state_->now + hold->second.hold_for;
        renewed[i].outcome = RenewOutcome::kRenewed;
        renewed[i].held_for = hold->second.hold_for;
      }
      answer = std::move(renewed);
      if (scripted.act == Act::kHang) {
        return state_->Hang(call.deadline, std::move(answer), std::move(done));
      }
    }
  }
  done(std::move(answer));
}

std::unique_ptr<StreamCall> FakeConnection::OpenStream(StreamEvents events) {
  auto open = std::make_shared<Open>();
  open->events = std::move(events);
  uint64_t id = 0;
  Status failure;
  {
    MutexLock lock(&state_->mu);
    id = state_->next_id++;
    ++state_->streams_opened;
    if (state_->closed) failure = FakeShutDown();
    if (failure.ok() && !state_->stream_failures.empty()) {
      failure = std::move(state_->stream_failures.front());
      state_->stream_failures.pop_front();
    }
    state_->open.emplace(id, open);
  }
  auto stream = std::make_unique<Stream>(state_, id);
  if (!failure.ok()) state_->EndOpen(id, std::move(failure));
  return stream;
}

std::unique_ptr<WatchCall> FakeConnection::Watch(std::span<const Bucket> buckets,
                                                 const WatchOptions& options, WatchEvents events) {
  auto open = std::make_shared<Open>();
  open->watch_events = std::move(events);
  open->is_watch = true;
  uint64_t id = 0;
  bool closed = false;
  std::vector<BucketStatus> first;
  {
    MutexLock lock(&state_->mu);
    id = state_->next_id++;
    closed = state_->closed;
    first = state_->Look(buckets);
    state_->open.emplace(id, open);
  }
  if (closed) {
    state_->EndOpen(id, FakeShutDown());
  } else {
    open->watch_events.on_change(std::move(first));
  }
  return std::make_unique<WatchHandle>(state_, id);
}

void FakeConnection::RunAfter(std::chrono::nanoseconds delay, std::function<void()> fn) {
  {
    MutexLock lock(&state_->mu);
    if (!state_->closed && delay.count() > 0) {
      state_->timers.emplace(client_internal::After(state_->now, delay), std::move(fn));
      return;
    }
  }
  fn();
}

TimePoint FakeConnection::Now() const {
  MutexLock lock(&state_->mu);
  return state_->now;
}

void FakeConnection::Shutdown() {
  std::map<uint64_t, State::Hung> hung;
  std::multimap<TimePoint, std::function<void()>> timers;
  {
    MutexLock lock(&state_->mu);
    if (state_->closed) return;
    state_->closed = true;
    hung.swap(state_->hung);
    timers.swap(state_->timers);
  }
  for (auto& [id, one] : hung) {
    one.end(Status::MaybeExecuted(StatusCode::kCancelled, "the connection was shut down"));
  }
  BreakStreams(Status::MaybeExecuted(StatusCode::kCancelled, "the connection was shut down"));
  for (auto& [at, fn] : timers) fn();
}

}  // namespace sluice
