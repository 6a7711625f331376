#include "server/service/rate_limiter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "server/service/key_usage.h"
#include "server/service/receipt.h"
#include "server/service/validation.h"

namespace sluice::service {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;

// How often an acquisition is resolved again because its limits changed under way. Each time means
// a reload between looking a limit up and deciding, which takes less than a microsecond.
constexpr size_t kMaxAttempts = 8;

// What an acquisition's fields are called in errors: "acquisitions[3]." or "".
std::string Prefix(AcquireCall::Form form, size_t acquisition) {
  return form == AcquireCall::Form::kBatch ? absl::StrCat("acquisitions[", acquisition, "].") : "";
}

std::string ChargePath(AcquireCall::Form form, size_t acquisition, size_t charge) {
  return absl::StrCat(Prefix(form, acquisition), "charges[", charge, "]");
}

// What max_wait and hold have to be, and what is not there yet. Sets *max_wait_ns.
absl::Status CheckOptions(const AcquisitionOptions& options, AcquireCall::Form form, size_t i,
                          int64_t* max_wait_ns) {
  *max_wait_ns = 0;
  if (options.max_wait.seconds == 0 && options.max_wait.nanos == 0 && !options.hold) {
    return absl::OkStatus();
  }
  const std::string prefix = Prefix(form, i);
  const auto max_wait = ToNanoseconds(absl::StrCat(prefix, "max_wait"), options.max_wait);
  if (!max_wait.ok()) return max_wait.status();
  if (*max_wait < 0) return errors::MaxWaitNegative(prefix);
  if (*max_wait > bounds::kMaxWaitNs) {
    return errors::MaxWaitTooLong(prefix, options.max_wait.seconds);
  }
  if (options.hold && form == AcquireCall::Form::kBatch) return errors::HoldInBatch(prefix);
  if (options.hold && *max_wait == 0) return errors::HoldWithoutMaxWait(prefix);
  *max_wait_ns = *max_wait;
  return absl::OkStatus();
}

}  // namespace

inline bool RateLimiter::PrepareUsual(const AcquireCall& call, const AcquireCall::Item& item,
                                      AcquireCall::Attempt& attempt) {
  const AcquisitionOptions& options = item.options;
  if (item.asked != 1 || options.hold || options.want_receipt || options.max_wait.seconds != 0 ||
      options.max_wait.nanos != 0) {
    return false;
  }
  const AcquireCall::Asked& asked = call.asked_[item.first];
  const limits::Limit* const limit = attempt.Find(asked.limit);
  // The name of a limit that there is needs no check that it is UTF-8.
  if (limit == nullptr || !limit->parents().empty() || asked.key.size() > bounds::kMaxKeyBytes ||
      (call.utf8_ == AcquireCall::Utf8::kUnchecked && !IsAscii(asked.key) && !IsUtf8(asked.key))) {
    return false;
  }
  const store::Rule& rule = limit->RuleFor(asked.key);
  if (asked.permits == 0 || asked.permits > algorithm::MaxGrant(rule.parameters)) return false;
  attempt.AddChecked(rule, asked.key, asked.permits);
  return true;
}

void RateLimiter::Prepare(AcquireCall& call, size_t i, AcquireCall::Attempt& attempt,
                          bool* suggested) {
  AcquireCall::Item& item = call.items_[i];
  const auto path = [&](size_t charge) { return ChargePath(call.form_, i, charge); };

  int64_t max_wait_ns = 0;
  absl::Status wrong = CheckOptions(item.options, call.form_, i, &max_wait_ns);
  if (wrong.ok() && item.options.hold) {
    if (line_ == nullptr) wrong = errors::HoldUnimplemented("");
    // Who would be let through after its own deadline could never be answered.
    if (call.deadline_ns_ != store::kNoDeadline) {
      const int64_t left_ns = call.deadline_ns_ - clock_.NowNs();
      call.cut_ns_ = max_wait_ns - std::clamp<int64_t>(left_ns, 0, max_wait_ns);
      max_wait_ns -= call.cut_ns_;
    }
  }
  attempt.Begin(max_wait_ns, item.options.want_receipt);
  if (wrong.ok() && item.asked > bounds::kMaxCharges) {
    wrong = errors::WithPath(Prefix(call.form_, i),
                             errors::TooManyCharges(item.asked, bounds::kMaxCharges));
  }

  const limits::LimitTable& table = *attempt.table;
  const limits::Limit* limits[bounds::kMaxCharges];
  for (size_t c = 0; wrong.ok() && c < item.asked; ++c) {
    const AcquireCall::Asked& asked = call.asked_[item.first + c];
    if (asked.permits == 0) {
      wrong = errors::PermitsZeroAt(path(c));
    } else if (asked.key.size() > bounds::kMaxKeyBytes) {
      wrong = errors::KeyTooLong(path(c), asked.key.size());
    } else if (call.utf8_ == AcquireCall::Utf8::kUnchecked && !IsUtf8(asked.key)) {
      wrong = errors::NotUtf8(absl::StrCat(path(c), ".key"));
    } else if (call.utf8_ == AcquireCall::Utf8::kUnchecked && !IsUtf8(asked.limit)) {
      wrong = errors::NotUtf8(absl::StrCat(path(c), ".limit"));
    } else if (limits[c] = attempt.Find(asked.limit); limits[c] == nullptr) {
      // One suggestion a call: looking for it costs more than all the rest.
      wrong = errors::UnknownLimit(
          path(c), asked.limit,
          std::exchange(*suggested, true) ? std::string_view() : NearestLimit(table, asked.limit));
    } else {
      const store::Rule& rule = limits[c]->RuleFor(asked.key);
      if (asked.permits > algorithm::MaxGrant(rule.parameters)) {
        wrong = errors::PermitsNeverGranted(path(c), asked.permits, rule.limit_name,
                                            MostAtOnce(rule.parameters));
      } else {
        attempt.Add(rule, asked.key, asked.permits);
      }
    }
  }
  for (size_t c = 0; wrong.ok() && c < item.asked; ++c) {
    const uint64_t permits = call.asked_[item.first + c].permits;
    for (const limits::Limit* parent : limits[c]->parents()) {
      const store::Rule& rule = parent->RuleFor("");
      if (permits > algorithm::MaxGrant(rule.parameters)) {
        wrong = errors::PermitsNeverGranted(path(c), permits, rule.limit_name,
                                            MostAtOnce(rule.parameters));
        break;
      }
      attempt.Add(rule, "", permits);
    }
  }

  if (wrong.ok() && max_wait_ns > 0 && store_.Shared()) {
    const auto check = [&](const store::Rule& rule) {
      if (!wrong.ok()) return;
      const char* const setting = rule.sharing == store::Sharing::kSplit     ? "sharing: split"
                                  : rule.sharing == store::Sharing::kRelaxed ? "sharing: relaxed"
                                  : rule.split_when_store_unavailable ? "on_store_failure: split"
                                                                      : nullptr;
      if (setting == nullptr) return;
      wrong = errors::SharingDoesNotBook(Prefix(call.form_, i), rule.limit_name, setting);
    };
    for (size_t c = 0; c < item.asked; ++c) {
      check(limits[c]->rule());
      for (const limits::Limit* parent : limits[c]->parents()) check(parent->rule());
    }
  }

  if (!wrong.ok()) {
    attempt.Fail(wrong);
    static_cast<void>(attempt.End());  // it is `wrong`
    item.status = std::move(wrong);
    return;
  }
  // What is left is about the acquisition as a whole: charges after expansion, sums of one bucket.
  item.status = attempt.End();
  if (!item.status.ok()) item.status = errors::WithPath(Prefix(call.form_, i), item.status);
}

void RateLimiter::Acquire(AcquireCall* call, int64_t deadline_ns, AcquireCall::DoneFn done,
                          void* context) {
  if (call->begun_ > bounds::kMaxBatch) {
    call->status_ = errors::TooManyAcquisitions(call->begun_);
    done(context, call);
    return;
  }
  call->limiter_ = this;
  call->deadline_ns_ = deadline_ns;
  call->done_ = done;
  call->context_ = context;
  Decide(call, nullptr);
}

// Resolves and decides all acquisitions, or, after an attempt, those that it found stale.
void RateLimiter::Decide(AcquireCall* call, AcquireCall::Attempt* last) {
  const size_t number = call->attempts_used_++;
  if (number == call->attempts_.size()) {
    call->attempts_.push_back(std::make_unique<AcquireCall::Attempt>(call));
  }
  AcquireCall::Attempt& attempt = *call->attempts_[number];
  attempt.Clear();
  attempt.table = registry_.Local();
  attempt.last_limit = nullptr;
  bool suggested = false;
  for (size_t i = 0; i < call->items_.size(); ++i) {
    AcquireCall::Item& item = call->items_[i];
    if (last != nullptr &&
        (!item.status.ok() || item.attempt + 1u != number ||
         last->acquisition(item.in_work).outcome != store::Outcome::kStaleRule)) {
      continue;
    }
    item.attempt = static_cast<uint8_t>(number);
    item.in_work = static_cast<uint32_t>(attempt.size());
    if (!PrepareUsual(*call, item, attempt)) Prepare(*call, i, attempt, &suggested);
  }
  engine_.Acquire(&attempt, call->deadline_ns_);
}

void RateLimiter::Decided(AcquireCall* call) {
  const size_t number = call->attempts_used_ - 1;
  AcquireCall::Attempt* const attempt = call->attempts_[number].get();
  bool stale = false;
  for (AcquireCall::Item& item : call->items_) {
    if (item.attempt != number || !item.status.ok()) continue;
    switch (attempt->acquisition(item.in_work).outcome) {
      case store::Outcome::kGranted:
      case store::Outcome::kDenied:
        break;
      case store::Outcome::kStaleRule:
        if (call->attempts_used_ < kMaxAttempts) {
          stale = true;
        } else {
          item.status = errors::LimitsKeepChanging();
        }
        break;
      case store::Outcome::kDeadlineExceeded:
        item.status = errors::PastDeadline();
        break;
      case store::Outcome::kPending:
      case store::Outcome::kUnavailable:
        item.status = attempt->acquisition(item.in_work).may_be_debited ? errors::StoreAnswerLost()
                                                                        : errors::StoreAway();
        item.store_away =
            attempt->acquisition(item.in_work).source == store::Source::kStoreUnavailable;
        break;
      case store::Outcome::kUnsupported:
        item.status = errors::StoreDoesNotBook(
            Prefix(call->form_, static_cast<size_t>(&item - call->items_.data())));
        break;
      case store::Outcome::kSeveralSlots: {
        const store::Acquisition& acquisition = attempt->acquisition(item.in_work);
        const store::Charge& one = acquisition.charges[0];
        const store::Charge& other = acquisition.charges[acquisition.elsewhere];
        item.status = errors::ReservationInSeveralSlots(
            Prefix(call->form_, static_cast<size_t>(&item - call->items_.data())),
            one.rule->limit_name, one.key, other.rule->limit_name, other.key);
        break;
      }
    }
  }
  if (stale) {
    Decide(call, attempt);
    return;
  }
  if (line_ != nullptr && call->form_ == AcquireCall::Form::kUnary && !call->items_.empty() &&
      call->items_[0].options.hold) {
    if (Hold(call)) return;
    BlameDeadline(call);
  }
  Count(*call);
  call->done_(call->context_, call);
}

bool RateLimiter::Hold(AcquireCall* call) {
  AcquireCall::Item& item = call->items_[0];
  if (!item.status.ok()) return false;
  store::Acquisition& decided = call->attempts_[item.attempt]->mutable_acquisition(item.in_work);
  if (decided.outcome != store::Outcome::kGranted || decided.wait_ns == 0) return false;
  call->held_.acquisition = &decided;
  call->held_.until_ns =
      (store_.UsesLocalClock() ? decided.now_ns : clock_.NowNs()) + decided.max_wait_ns;
  const std::shared_ptr<const limits::LimitTable>& table = call->attempts_[item.attempt]->table;
  call->held_.generation = table->serial();
  call->held_.rules = table;
  // What was asked for is in the attempt by now; a hundred thousand calls may wait for hours.
  std::vector<AcquireCall::Asked>().swap(call->asked_);
  // From here on the answer may come at any time, from another thread.
  if (line_->Hold(&call->held_)) return true;
  item.status = errors::Draining();
  return false;
}

void RateLimiter::Answer(AcquireCall* call, waiting::HeldOutcome outcome) {
  call->was_held_ = true;
  AcquireCall::Item& item = call->items_[0];
  switch (outcome) {
    case waiting::HeldOutcome::kGrantTime:
      break;
    case waiting::HeldOutcome::kDenied:
      BlameDeadline(call);
      break;
    case waiting::HeldOutcome::kCancelled:
      item.status = errors::CancelledWhileWaiting();
      break;
    case waiting::HeldOutcome::kDrained:
      item.status = errors::Draining();
      break;
    case waiting::HeldOutcome::kUnavailable:
      item.status = errors::StoreAnswerLost();
      break;
  }
  Count(*call);
  call->done_(call->context_, call);
}

// What on_store_failure decided.
void RateLimiter::CountAway(common::Metrics::Shard& shard, const store::Acquisition& decided) {
  for (const store::Charge& charge : decided.charges) {
    common::LimitCounters& limit = shard.OfLimit(charge.rule->limit_id);
    (decided.outcome == store::Outcome::kGranted ? limit.allowed_while_unavailable
                                                 : limit.denied_while_unavailable)
        .Add(1);
  }
}

void RateLimiter::BlameDeadline(AcquireCall* call) {
  const AcquireCall::Item& item = call->items_[0];
  if (call->cut_ns_ == 0 || !item.status.ok()) return;
  const store::Acquisition& decided = call->attempts_[item.attempt]->acquisition(item.in_work);
  // With all of its max_wait it would have been granted.
  if (decided.outcome != store::Outcome::kDenied || decided.retry_after_ns > call->cut_ns_) return;
  for (size_t c = 0; c < decided.charges.size(); ++c) {
    store::Reason& reason = decided.results[c].reason;
    if (reason == store::Reason::kNotEnough) reason = store::Reason::kDeadlineTooShort;
  }
}

// Counters, key usage and receipts of a call that is decided.
void RateLimiter::Count(AcquireCall& call) {
  common::Metrics::Shard& shard = metrics_.Local();
  // What is counted of nearly every decision is added once for a run of the same limit.
  common::LimitCounters* run = nullptr;
  const store::Rule* run_rule = nullptr;
  uint64_t run_grants = 0;
  uint64_t run_permits = 0;
  uint64_t granted_calls = 0;
  uint64_t denied_calls = 0;
  bool any_receipt = false;
  const auto end_run = [&] {
    if (run_grants == 0) return;
    run->granted.Add(run_grants);
    run->permits_granted.Add(run_permits);
    run_grants = run_permits = 0;
  };
  usage_.Record([&](auto usage) {
    for (AcquireCall::Item& item : call.items_) {
      if (!item.status.ok()) {
        if (item.store_away) CountAway(shard, call.AttemptOf(item).acquisition(item.in_work));
        continue;
      }
      const store::Acquisition& decided = call.AttemptOf(item).acquisition(item.in_work);
      const bool granted = decided.outcome == store::Outcome::kGranted;
      if (decided.source == store::Source::kStoreUnavailable) CountAway(shard, decided);
      ++(granted ? granted_calls : denied_calls);
      any_receipt |= decided.receipt_id != 0;
      for (size_t c = 0; c < decided.charges.size(); ++c) {
        const store::Charge& charge = decided.charges[c];
        const store::Reason reason = decided.results[c].reason;
        if (charge.rule != run_rule) {
          end_run();
          run_rule = charge.rule;
          run = &shard.OfLimit(charge.rule->limit_id);
        }
        common::LimitCounters& limit = *run;
        if (reason == store::Reason::kOverflow) limit.overflow_denied.Add(1);
        if (!granted) {
          limit.denied.Add(1);
          if (reason != store::Reason::kNone && reason != store::Reason::kShadowDenied) {
            usage.Denied(charge.rule->limit_id, charge.key);
          }
          continue;
        }
        ++run_grants;
        if (reason == store::Reason::kShadowDenied) {
          limit.shadow_denied.Add(1);
          usage.Denied(charge.rule->limit_id, charge.key);
          continue;
        }
        if (decided.source == store::Source::kOverflow) limit.overflow_allowed.Add(1);
        run_permits += charge.permits;
        usage.Used(charge.rule->limit_id, charge.key, charge.permits);
      }
    }
  });
  end_run();
  if (granted_calls != 0) shard.granted.Add(granted_calls);
  if (denied_calls != 0) shard.denied.Add(denied_calls);
  if (!any_receipt) return;
  for (AcquireCall::Item& item : call.items_) {
    if (!item.status.ok()) continue;
    const store::Acquisition& decided = call.AttemptOf(item).acquisition(item.in_work);
    if (decided.receipt_id == 0) continue;
    item.receipt = static_cast<uint32_t>(call.receipts_.size());
    // Of a reservation also when none was asked for: only with it can the place be given up.
    signer_.Append(decided.receipt_id, decided.wait_ns == 0 ? 0 : decided.now_ns + decided.wait_ns,
                   decided.charges, &call.receipts_);
    item.receipt_bytes = static_cast<uint32_t>(call.receipts_.size()) - item.receipt;
  }
}

// ---- Query ----

void RateLimiter::Resolve(QueryCall* call) {
  call->table_ = registry_.Local();
  if (call->added_ == 0) {
    call->status_ = errors::NoBuckets();
  } else if (call->added_ > bounds::kMaxQueryBuckets) {
    call->status_ = errors::TooManyBuckets(call->added_);
  }
  const limits::LimitTable& table = *call->table_;
  bool suggested = false;
  for (size_t i = 0; call->status_.ok() && i < call->asked_.size(); ++i) {
    QueryCall::Asked& asked = call->asked_[i];
    const auto path = [i] { return absl::StrCat("buckets[", i, "]"); };
    if (asked.key.size() > bounds::kMaxKeyBytes) {
      call->status_ = errors::KeyTooLong(path(), asked.key.size());
    } else if (!call->utf8_checked_ && !IsUtf8(asked.key)) {
      call->status_ = errors::NotUtf8(absl::StrCat(path(), ".key"));
    } else if (!call->utf8_checked_ && !IsUtf8(asked.limit)) {
      call->status_ = errors::NotUtf8(absl::StrCat(path(), ".limit"));
    } else if (const limits::Limit* limit = table.Find(asked.limit); limit == nullptr) {
      asked.error = errors::UnknownLimit(
          path(), asked.limit,
          std::exchange(suggested, true) ? std::string_view() : NearestLimit(table, asked.limit));
      if (call->unknown_ == QueryCall::UnknownLimit::kFailsCall) call->status_ = asked.error;
    } else {
      asked.item = static_cast<uint32_t>(call->operation_.found.size());
      store::QueryItem& item = call->operation_.found.emplace_back();
      item.rule = &limit->RuleFor(asked.key);
      item.key = asked.key;
    }
  }
}

absl::Status RateLimiter::Validate(QueryCall* call) {
  Resolve(call);
  return call->status_;
}

void RateLimiter::Query(QueryCall* call, int64_t deadline_ns, QueryCall::DoneFn done,
                        void* context) {
  call->limiter_ = this;
  call->done_ = done;
  call->context_ = context;
  Resolve(call);
  if (!call->status_.ok() || call->operation_.found.empty()) {
    Queried(call);
    return;
  }
  if (deadline_ns != store::kNoDeadline && clock_.NowNs() >= deadline_ns) {
    call->status_ = errors::PastDeadline();
    Queried(call);
    return;
  }
  call->operation_.items = absl::MakeSpan(call->operation_.found);
  call->operation_.deadline_ns = deadline_ns;
  store_.Query(&call->operation_);
}

void QueryCall::Operation::Done() { call->limiter_->Queried(call); }

void RateLimiter::Queried(QueryCall* call) {
  call->wall_ns_ = clock_.WallNs();
  call->done_(call->context_, call);
}

void QueryCall::Reset(UnknownLimit unknown, bool utf8_checked) {
  unknown_ = unknown;
  utf8_checked_ = utf8_checked;
  added_ = 0;
  asked_.clear();
  operation_.found.clear();
  table_.reset();
  status_ = absl::OkStatus();
}

void QueryCall::AddBucket(std::string_view limit, std::string_view key) {
  if (++added_ > bounds::kMaxQueryBuckets) return;
  asked_.push_back({limit, key, 0, absl::OkStatus()});
}

BucketStatus QueryCall::bucket(size_t i) const {
  const Asked& asked = asked_[i];
  BucketStatus bucket;
  bucket.limit = asked.limit;
  bucket.key = asked.key;
  bucket.error = asked.error;
  if (!asked.error.ok()) return bucket;
  const store::QueryItem& item = operation_.found[asked.item];
  if (item.unavailable) bucket.error = errors::BucketNotKnown();
  bucket.level = item.level;
  bucket.exists = item.exists;
  bucket.source = item.source;
  bucket.waiting = item.waiting;
  bucket.next_grant_after_ns = item.next_grant_after_ns;
  return bucket;
}

// ---- Refund ----

void RateLimiter::Refund(RefundCall* call, int64_t deadline_ns, RefundCall::DoneFn done,
                         void* context) {
  call->limiter_ = this;
  call->done_ = done;
  call->context_ = context;
  call->status_ = signer_.Open(call->receipt_, &call->decoded_);
  if (!call->status_.ok()) call->decoded_.charges.clear();
  call->refunded_.assign(call->decoded_.charges.size(), 0);
  if (call->status_.ok() && deadline_ns != store::kNoDeadline && clock_.NowNs() >= deadline_ns) {
    call->status_ = errors::PastDeadline();
  }
  if (!call->status_.ok()) {
    done(context, call);
    return;
  }
  call->operation_.deadline_ns = deadline_ns;
  TryRefund(call);
}

void RateLimiter::TryRefund(RefundCall* call) {
  ++call->attempts_;
  call->table_ = registry_.Local();
  call->charges_.clear();
  for (const ReceiptCharge& charge : call->decoded_.charges) {
    const limits::Limit* limit = call->table_->Find(charge.limit);
    if (limit == nullptr) {
      // The limit was deleted, and what was taken under it is nobody's any more.
      call->outcome_ = store::RefundOutcome::kExpired;
      call->done_(call->context_, call);
      return;
    }
    call->charges_.push_back({&limit->RuleFor(charge.key), charge.key, charge.permits});
  }
  call->operation_.receipt_id = call->decoded_.id;
  call->operation_.grant_time_ns = call->decoded_.grant_time_ns;
  call->operation_.charges = call->charges_;
  call->operation_.refunded = call->refunded_.data();
  call->operation_.outcome = store::RefundOutcome::kPending;
  store_.Refund(&call->operation_);
}

void RefundCall::Operation::Done() { call->limiter_->Refunded(call); }

void RateLimiter::Refunded(RefundCall* call) {
  call->outcome_ = call->operation_.outcome;
  switch (call->outcome_) {
    case store::RefundOutcome::kRefunded: {
      common::Metrics::Shard& shard = metrics_.Local();
      for (size_t i = 0; i < call->charges_.size(); ++i) {
        shard.OfLimit(call->charges_[i].rule->limit_id).refunded_permits.Add(call->refunded_[i]);
      }
      break;
    }
    case store::RefundOutcome::kAlreadyRefunded:
    case store::RefundOutcome::kExpired:
      call->refunded_.assign(call->refunded_.size(), 0);
      break;
    case store::RefundOutcome::kStaleRule:
      if (call->attempts_ < static_cast<int>(kMaxAttempts)) {
        TryRefund(call);
        return;
      }
      call->status_ = errors::LimitsKeepChanging();
      break;
    case store::RefundOutcome::kPending:
    case store::RefundOutcome::kUnavailable:
      call->status_ = errors::RefundUnanswered();
      break;
  }
  call->done_(call->context_, call);
}

void RefundCall::Reset(std::string_view receipt) {
  // More than any honest one has is cut: Open refuses it just so.
  receipt_.assign(receipt.substr(0, bounds::kMaxReceiptBytes + 1));
  decoded_.charges.clear();
  charges_.clear();
  refunded_.clear();
  table_.reset();
  status_ = absl::OkStatus();
  outcome_ = store::RefundOutcome::kPending;
  attempts_ = 0;
}

}  // namespace sluice::service
