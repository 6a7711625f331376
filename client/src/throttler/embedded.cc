#include "sluice/embedded.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/throttler/embedded_state.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/algorithm/parameters.h"
#include "server/limits/limit_table.h"
#include "server/limits/nearest_name.h"
#include "server/limits/notation.h"

namespace sluice {
namespace throttler_internal {
namespace {

namespace errors = common::errors;
using common::MutexLock;
using std::chrono::nanoseconds;

Status FromAbsl(const absl::Status& status) {
  return Status(static_cast<StatusCode>(status.code()), std::string(status.message()));
}

algorithm::Rate ToRate(const LimitRate& rate) { return {rate.permits, rate.period.count()}; }

Result<limits::LimitSpec> ToSpec(const LimitInfo& info) {
  limits::LimitSpec spec;
  spec.name = info.name;
  const auto bad = [&](const char* field, const std::string& value, const absl::Status& why) {
    return Status(StatusCode::kInvalidArgument, absl::StrCat("limit \"", info.name, "\": ", field,
                                                             ": \"", value, "\": ", why.message()));
  };
  if (!info.algorithm.empty()) {
    const auto kind = limits::ParseAlgorithm(info.algorithm);
    if (!kind.ok()) return bad("algorithm", info.algorithm, kind.status());
    spec.algorithm = *kind;
  }
  if (!info.mode.empty()) {
    const auto mode = limits::ParseMode(info.mode);
    if (!mode.ok()) return bad("mode", info.mode, mode.status());
    spec.mode = *mode;
  }
  spec.rate = ToRate(info.rate);
  spec.burst = info.burst;
  spec.debt = info.debt;
  spec.max_owed = info.max_owed;
  spec.permits = info.permits;
  if (info.hold_for.has_value()) spec.hold_for_ns = info.hold_for->count();
  spec.sub_windows = info.sub_windows;
  if (info.utc_offset.has_value()) spec.utc_offset_ns = info.utc_offset->count();
  // Its callers are one program, which may wait as long as it likes.
  spec.max_wait_ns = info.max_wait.value_or(nanoseconds(common::bounds::kMaxWaitNs)).count();
  spec.min_keys = info.min_keys;
  spec.direct = info.direct;
  spec.charges = info.charges;
  for (const LimitKeyOverride& key : info.keys) {
    limits::KeyOverride& out = spec.keys.emplace_back();
    out.key = key.key;
    if (key.rate.has_value()) out.rate = ToRate(*key.rate);
    out.burst = key.burst;
    out.debt = key.debt;
    out.permits = key.permits;
  }
  return spec;
}

Status UnknownLimit(const limits::LimitTable& table, const std::string& name) {
  return FromAbsl(errors::NoLimitNamed("throttler.limit", name, limits::NearestLimit(table, name)));
}

absl::Status HasSlots(std::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("limit \"", common::ToAbsl(limit),
                   "\" has slots, which a throttler does not hold; use Client::AcquirePermit "
                   "(sluice/embedded_connection.h)"));
}

// Writes the charges of an acquisition: the limit's own bucket and its parents' shared buckets.
// Returns their number; `charges` has room for all.
size_t FillCharges(const limits::Limit& limit, std::string_view key, uint64_t permits,
                   store::Charge* charges) {
  charges[0] = {&limit.RuleFor(key), key, permits};
  size_t n = 1;
  for (const limits::Limit* parent : limit.parents()) {
    charges[n++] = {&parent->RuleFor({}), {}, permits};
  }
  return n;
}

// An acquisition on the stack, with room for kRoom charges.
template <size_t kRoom>
class Decision final : public store::AcquireOperation {
 public:
  Decision(const limits::Limit& limit, std::string_view key, uint64_t permits,
           nanoseconds max_wait) {
    acquisition_.charges =
        absl::MakeConstSpan(charges_, FillCharges(limit, key, permits, charges_));
    acquisition_.results = results_;
    acquisition_.max_wait_ns =
        std::min<int64_t>(max_wait.count(), store::LeastMaxWaitNs(acquisition_.charges));
    acquisitions = absl::MakeSpan(&acquisition_, 1);
  }

  // Returns an error if the permits could never be granted, or would be held. One permit of a rate
  // always can.
  absl::Status Check() const {
    for (const store::Charge& charge : acquisition_.charges) {
      if (algorithm::IsConcurrency(charge.rule->parameters)) {
        return HasSlots(charge.rule->limit_name);
      }
    }
    if (charges_[0].permits == 1) return absl::OkStatus();
    if (charges_[0].permits == 0) return errors::PermitsZero("throttler.permits");
    for (const store::Charge& charge : acquisition_.charges) {
      const algorithm::Parameters& parameters = charge.rule->parameters;
      if (charge.permits > algorithm::MaxGrant(parameters)) {
        return errors::PermitsNeverGranted("throttler.permits", charge.permits,
                                           charge.rule->limit_name,
                                           limits::FormatMaxGrant(parameters));
      }
    }
    return absl::OkStatus();
  }

  void Done() override {}

  const store::Acquisition& acquisition() const { return acquisition_; }

  store::Reason reason() const {
    for (size_t i = 0; i < acquisition_.charges.size(); ++i) {
      if (results_[i].reason != store::Reason::kNone) return results_[i].reason;
    }
    return store::Reason::kNone;
  }

 private:
  store::Acquisition acquisition_;
  store::Charge charges_[kRoom];
  store::ChargeResult results_[kRoom];
};

class EmbeddedGate final : public Gate {
 public:
  EmbeddedGate(std::shared_ptr<Embedded> embedded, EmbeddedState& state, std::string limit,
               std::string key)
      : embedded_(std::move(embedded)),
        state_(state),
        limit_(std::move(limit)),
        key_(std::move(key)) {}

  nanoseconds Try(uint64_t permits, Status* error) override {
    nanoseconds wait(-1);
    Decide(permits, nanoseconds(0), error, [&](const auto& decision) {
      wait = decision.acquisition().outcome == store::Outcome::kGranted
                 ? nanoseconds(0)
                 : nanoseconds(std::max<int64_t>(decision.acquisition().retry_after_ns, 1));
    });
    return wait;
  }

  void Book(uint64_t permits, nanoseconds max_wait, std::function<void(Booking)> done) override {
    Booking booking;
    booking.permits = permits;
    Decide(permits, max_wait, &booking.status, [&](const auto& decision) {
      const store::Acquisition& decided = decision.acquisition();
      if (decided.outcome == store::Outcome::kGranted) {
        booking.grant_time = nanoseconds(decided.now_ns + decided.wait_ns);
        booking.receipt_id = decided.receipt_id;
        return;
      }
      booking.status = NoGrantTime(decision.reason(), decided.retry_after_ns);
    });
    done(std::move(booking));
  }

  bool Refund(const Booking& booking) override {
    if (booking.receipt_id == 0) return false;
    for (;;) {
      const limits::Limit* limit = state_.registry().Local()->Find(limit_);
      if (limit == nullptr) return false;
      StoreRefund refund(*limit, key_, booking);
      state_.store().Refund(&refund);
      if (refund.outcome == store::RefundOutcome::kStaleRule) continue;
      return refund.outcome == store::RefundOutcome::kRefunded;
    }
  }

  // The charges of a booking under the current limits; empty if the limit was deleted, or is of
  // slots now.
  std::vector<store::Charge> CurrentCharges(const limits::LimitTable& table,
                                            uint64_t permits) const {
    std::vector<store::Charge> charges;
    if (const limits::Limit* limit = table.Find(limit_); limit != nullptr) {
      charges.resize(1 + limit->parents().size());
      FillCharges(*limit, key_, permits, charges.data());
    }
    for (const store::Charge& charge : charges) {
      if (algorithm::IsConcurrency(charge.rule->parameters)) return {};
    }
    return charges;
  }

  Status NoGrantTime(store::Reason reason, int64_t retry_after_ns) const {
    const bool bound = reason == store::Reason::kWaitingBound || reason == store::Reason::kOverflow;
    return Status(bound ? StatusCode::kResourceExhausted : StatusCode::kDeadlineExceeded,
                  absl::StrCat("limit \"", limit_, "\": ",
                               bound ? "too many reservations wait for it already"
                                     : "no grant time within max_wait",
                               "; try again in ", limits::FormatDuration(retry_after_ns)));
  }

  bool MoveUp(Booking* booking) override {
    for (;;) {
      const limits::Limit* limit = state_.registry().Local()->Find(limit_);
      if (limit == nullptr) return false;
      store::Charge charges[common::bounds::kMaxCharges];
      struct Inline final : store::MoveOperation {
        void Done() override {}
      } move;
      move.receipt_id = booking->receipt_id;
      move.charges =
          absl::MakeConstSpan(charges, FillCharges(*limit, key_, booking->permits, charges));
      move.grant_time_ns = booking->grant_time.count();
      state_.store().Move(&move);
      if (move.outcome == store::MoveOutcome::kStaleRule) continue;
      if (move.outcome != store::MoveOutcome::kMoved) return false;
      booking->grant_time = nanoseconds(move.grant_time_ns);
      return true;
    }
  }

 private:
  class StoreRefund final : public store::RefundOperation {
   public:
    StoreRefund(const limits::Limit& limit, std::string_view key, const Booking& booking) {
      receipt_id = booking.receipt_id;
      grant_time_ns = booking.grant_time.count();
      charges = absl::MakeConstSpan(charges_, FillCharges(limit, key, booking.permits, charges_));
      refunded = refunded_;
    }
    void Done() override {}

   private:
    store::Charge charges_[common::bounds::kMaxCharges];
    uint64_t refunded_[common::bounds::kMaxCharges];
  };

  // Decides under the current limits and calls `done(decision)`, or sets *error. Takes no lock.
  template <typename Done>
  void Decide(uint64_t permits, nanoseconds max_wait, Status* error, const Done& done) {
    // The table is not kept between calls. If a bucket has newer rules than this table, the next
    // round reads a newer table.
    for (;;) {
      const limits::LimitTable& table = *state_.registry().Local();
      const limits::Limit* limit = table.Find(limit_);
      if (limit == nullptr) {
        *error = UnknownLimit(table, limit_);
        return;
      }
      // Small: a decision initializes the room for all its charges.
      const size_t parents = limit->parents().size();
      const bool decided = parents == 0   ? DecideIn<1>(*limit, permits, max_wait, error, done)
                           : parents == 1 ? DecideIn<2>(*limit, permits, max_wait, error, done)
                                          : DecideIn<common::bounds::kMaxCharges>(
                                                *limit, permits, max_wait, error, done);
      if (decided) return;
    }
  }

  // Returns false if the limits changed meanwhile.
  template <size_t kRoom, typename Done>
  bool DecideIn(const limits::Limit& limit, uint64_t permits, nanoseconds max_wait, Status* error,
                const Done& done) {
    Decision<kRoom> decision(limit, key_, permits, max_wait);
    if (const absl::Status status = decision.Check(); !status.ok()) {
      *error = FromAbsl(status);
      return true;
    }
    state_.store().Acquire(&decision);
    if (decision.acquisition().outcome == store::Outcome::kStaleRule) return false;
    done(decision);
    return true;
  }

  const std::shared_ptr<Embedded> embedded_;  // keeps state_
  EmbeddedState& state_;
  const std::string limit_;
  const std::string key_;
};

// Rebooks all in one atomic step under the current limits. Grant times of deleted limits stand.
void RebookAll(EmbeddedState& state, std::vector<Rebooking>* rebookings) {
  struct Inline final : store::RebookOperation {
    void Done() override {}
  };
  for (;;) {
    const limits::LimitTable& table = *state.registry().Local();
    std::vector<Rebooking*> changing;
    std::vector<std::vector<store::Charge>> charges;
    for (Rebooking& one : *rebookings) {
      const auto& gate = static_cast<const EmbeddedGate&>(*one.gate);
      std::vector<store::Charge> current = gate.CurrentCharges(table, one.booking.permits);
      if (current.empty()) continue;
      changing.push_back(&one);
      charges.push_back(std::move(current));
    }
    std::vector<store::Rebooking> items(changing.size());
    std::vector<std::vector<store::ChargeResult>> results(changing.size());
    for (size_t i = 0; i < items.size(); ++i) {
      results[i].resize(charges[i].size());
      items[i].receipt_id = changing[i]->booking.receipt_id;
      items[i].charges = charges[i];
      items[i].results = results[i].data();
      items[i].grant_time_ns = changing[i]->booking.grant_time.count();
      items[i].until_ns = changing[i]->latest.count();
    }
    Inline operation;
    operation.items = absl::MakeSpan(items);
    if (items.empty()) return;
    state.store().Rebook(&operation);
    if (operation.status == store::RebookStatus::kStaleRule) continue;
    for (size_t i = 0; i < items.size(); ++i) {
      Booking& booking = changing[i]->booking;
      if (items[i].outcome == store::Rebooking::Outcome::kBooked) {
        booking.grant_time = nanoseconds(items[i].grant_time_ns);
      } else if (items[i].outcome == store::Rebooking::Outcome::kDenied) {
        const auto reason = std::find_if(
            results[i].begin(), results[i].end(),
            [](const store::ChargeResult& r) { return r.reason != store::Reason::kNone; });
        booking.status =
            static_cast<const EmbeddedGate&>(*changing[i]->gate)
                .NoGrantTime(reason == results[i].end() ? store::Reason::kNone : reason->reason,
                             items[i].retry_after_ns);
      }
    }
    return;
  }
}

class EmbeddedSource final : public GateSource {
 public:
  EmbeddedSource(std::shared_ptr<Embedded> embedded, EmbeddedState& state)
      : embedded_(std::move(embedded)), state_(state) {}

  const std::shared_ptr<Clock>& clock() const override { return state_.clock(); }
  bool in_process() const override { return true; }

  Result<std::unique_ptr<Gate>> Open(std::string limit, std::string key) override {
    if (key.size() > common::bounds::kMaxKeyBytes) {
      return FromAbsl(errors::KeyTooLong("throttler.key", key.size()));
    }
    const limits::LimitTable& table = *state_.registry().Local();
    const limits::Limit* const found = table.Find(limit);
    if (found == nullptr) return UnknownLimit(table, limit);
    if (!found->direct()) return FromAbsl(errors::LimitNotDirect("throttler.limit", limit));
    if (algorithm::IsConcurrency(found->RuleFor(key).parameters)) return FromAbsl(HasSlots(limit));
    return std::unique_ptr<Gate>(
        std::make_unique<EmbeddedGate>(embedded_, state_, std::move(limit), std::move(key)));
  }

 private:
  const std::shared_ptr<Embedded> embedded_;  // keeps state_
  EmbeddedState& state_;
};

}  // namespace

Status EmbeddedState::SetLimits(const std::vector<LimitInfo>& limits) {
  std::vector<limits::LimitSpec> specs;
  for (const LimitInfo& info : limits) {
    Result<limits::LimitSpec> spec = ToSpec(info);
    if (!spec.ok()) return spec.status();
    specs.push_back(*std::move(spec));
  }
  {
    MutexLock lock(&change_mu_);
    const auto applied = registry_.ApplyFile(std::move(specs), absl::StrCat(++version_));
    if (!applied.ok()) return FromAbsl(applied.status());
    store_.Maintain();
  }
  std::vector<std::shared_ptr<Core>> throttlers;
  Attached* attached = nullptr;
  {
    MutexLock lock(&mu_);
    attached = attached_.get();
    for (const std::weak_ptr<Core>& weak : throttlers_) {
      if (std::shared_ptr<Core> core = weak.lock(); core != nullptr) {
        throttlers.push_back(std::move(core));
      }
    }
  }
  Core::Rebook(std::move(throttlers),
               [this](std::vector<Rebooking>* rebookings) { RebookAll(*this, rebookings); });
  if (attached != nullptr) attached->LimitsChanged();
  return Status();
}

Attached& EmbeddedState::Attach(const std::function<std::unique_ptr<Attached>()>& make) {
  MutexLock lock(&mu_);
  if (attached_ == nullptr) attached_ = make();
  return *attached_;
}

void EmbeddedState::Add(const std::shared_ptr<Core>& throttler) {
  MutexLock lock(&mu_);
  std::erase_if(throttlers_, [](const std::weak_ptr<Core>& weak) { return weak.expired(); });
  throttlers_.push_back(throttler);
}

}  // namespace throttler_internal

using throttler_internal::EmbeddedState;

Result<std::shared_ptr<Embedded>> Embedded::Create(const std::vector<LimitInfo>& limits,
                                                   EmbeddedOptions options) {
  std::shared_ptr<Clock> clock = std::move(options.clock);
  if (clock == nullptr) clock = std::make_shared<SystemClock>();
  auto state = std::make_unique<EmbeddedState>(std::move(clock));
  if (Status status = state->SetLimits(limits); !status.ok()) return status;
  return std::shared_ptr<Embedded>(new Embedded(std::move(state)));
}

Embedded::Embedded(std::unique_ptr<EmbeddedState> state) : state_(std::move(state)) {}
Embedded::~Embedded() = default;

Status Embedded::SetLimits(const std::vector<LimitInfo>& limits) {
  return state_->SetLimits(limits);
}

const std::shared_ptr<Clock>& Embedded::clock() const { return state_->clock(); }

Result<Throttler> Throttler::Create(std::shared_ptr<Embedded> embedded, ThrottlerOptions options) {
  EmbeddedState& state = *embedded->state_;
  Result<Throttler> throttler = throttler_internal::Core::MakeThrottler(
      std::make_unique<throttler_internal::EmbeddedSource>(std::move(embedded), state),
      std::move(options));
  if (throttler.ok()) state.Add(throttler->core_);
  return throttler;
}

}  // namespace sluice
