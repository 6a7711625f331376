#include "server/service/acquire_call.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "common/utf8.h"
#include "server/service/decision_counter.h"
#include "server/service/key_usage.h"
#include "server/service/permission.h"
#include "server/service/receipt.h"

namespace sluice::service {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;

// The cost of a slice of a shared store, at which it is complete. Such a store takes longer to ask,
// and each slice costs a round trip.
constexpr size_t kSharedSlice = 256;
// What costs more than a decision on one bucket: a charge of several, a booking or a receipt, the
// text of an error.
constexpr size_t kJointCost = 4;
constexpr size_t kBookingCost = 10;
constexpr size_t kErrorCost = 16;
// Bytes of a key that cost as much: it is hashed, compared and counted.
constexpr size_t kKeyBytes = 64;

// Replaces the reason of charges that had not enough permits.
void Blame(const store::Acquisition& denied, store::Reason why) {
  for (size_t c = 0; c < denied.charges.size(); ++c) {
    store::Reason& reason = denied.results[c].reason;
    if (reason == store::Reason::kNotEnough) reason = why;
  }
}

}  // namespace

void AcquireCall::Reset(Form form, Utf8 utf8) {
  form_ = form;
  utf8_ = utf8;
  begun_ = 0;
  status_ = absl::OkStatus();
  items_.clear();
  error_bytes_ = 0;
  asked_.clear();
  once_.clear();
  ReleaseAttempts();
  receipts_.clear();
  first_ = end_ = 0;
  sliced_ = false;
  was_held_ = false;
  held_memory_ = 0;
  max_wait_cut_ns_ = 0;
  once_connection_.reset();
  places_.Use(nullptr);
  if (caller_ != nullptr) caller_ = nullptr;
  within_calls_ = SIZE_MAX;
  held_place_.Leave();
  HeldCaller::Reset();
}

void AcquireCall::BeginAcquisition(const AcquisitionOptions& options) {
  if (++begun_ > bounds::kMaxBatch) return;
  Item& item = items_.emplace_back();
  item.options = options;
  item.first = static_cast<uint32_t>(asked_.size());
}

void AcquireCall::AddCharge(std::string_view limit, std::string_view key, uint64_t permits) {
  if (begun_ > bounds::kMaxBatch) return;
  // Charges over the bound are counted for the error and not kept.
  if (++items_.back().asked > bounds::kMaxCharges) return;
  asked_.push_back({limit, key, permits});
}

void AcquireCall::Start(const Collaborators& with, int64_t deadline_ns, DoneFn done,
                        void* context) {
  with_ = &with;
  deadline_ns_ = deadline_ns;
  done_ = done;
  context_ = context;
  status_ = CheckAcquisitionCount(begun_);
  if (!status_.ok()) {
    done(context, this);
    return;
  }
  search_budget_ = store::SearchBudget();
  if (caller_ != nullptr) CountForClient();
  DecideSlice();
}

void AcquireCall::CountForClient() {
  access::ClientUse* const use = caller_->use();
  if (use == nullptr || items_.size() <= counted_) return;
  const int64_t now_ns = with_->clock.NowNs();
  within_calls_ = counted_ + use->TakeCalls(items_.size() - counted_, now_ns);
  const size_t over = items_.size() - within_calls_;
  if (over > 0) over_calls_ = use->Refuse(access::ClientBound::kCallsPerSecond, over, now_ns);
}

void AcquireCall::Continue() {
  first_ = end_;
  receipts_.clear();
  ReleaseAttempts();
  DecideSlice();
}

void AcquireCall::ReleaseAttempts() {
  for (size_t i = 0; i < attempts_used_; ++i) attempts_[i]->limits.Use(nullptr);
  attempts_used_ = 0;
}

FieldPath AcquireCall::PathOf(const Item& item) const {
  if (form_ == Form::kUnary) return FieldPath();
  return FieldPath().Element("acquisitions", static_cast<size_t>(&item - items_.data()));
}

AcquireCall::Attempt& AcquireCall::NewAttempt() {
  if (attempts_used_ == attempts_.size()) attempts_.push_back(std::make_unique<Attempt>(this));
  Attempt& attempt = *attempts_[attempts_used_++];
  attempt.Clear();
  attempt.limits.Use(with_->registry.Local());
  attempt.search_budget = &search_budget_;
  attempt.maker = MakerFor(caller_);
  attempt.ResetWork();
  return attempt;
}

// ---- A slice

void AcquireCall::DecideSlice() {
  Attempt& attempt = NewAttempt();
  slice_cost_ = 0;
  const size_t most = !sliced_ ? SIZE_MAX : with_->store.Shared() ? kSharedSlice : kSliceDecisions;
  if (sliced_) attempt.most_work = kSliceWork;
  while (end_ < items_.size() && slice_cost_ < most) {
    Item& item = items_[end_++];
    item.attempt = static_cast<uint8_t>(attempts_used_ - 1);
    item.index = static_cast<uint32_t>(attempt.size());
    if (end_ > within_calls_) {
      item.status = over_calls_;
      item.index = kUndecided;
      ++slice_cost_;
      continue;
    }
    slice_cost_ += AddUsual(item, attempt) ? 1 + asked_[item.first].key.size() / kKeyBytes
                                           : AddAny(item, attempt);
  }
  places_.Use(nullptr);
  attempt.Decide(with_->store, deadline_ns_);
}

void AcquireCall::DecideStale(const Attempt& last) {
  Attempt& attempt = NewAttempt();
  const size_t number = attempts_used_ - 1;
  for (Item& item : Slice()) {
    if (!item.status.ok() || item.attempt + 1u != number ||
        last.acquisition(item.index).outcome != store::Outcome::kStaleRule) {
      continue;
    }
    item.attempt = static_cast<uint8_t>(number);
    item.index = static_cast<uint32_t>(attempt.size());
    AddAny(item, attempt);
  }
  attempt.Decide(with_->store, deadline_ns_);
}

// The checks of validation.h for the usual request, which fails none of them.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool AcquireCall::AddUsual(const Item& item, Attempt& attempt) {
  if (item.asked != 1 || item.options.hold || !item.options.plain()) return false;
  const Asked& asked = asked_[item.first];
  // If there is a limit of that name, the name is UTF-8.
  const limits::Limit* const limit = attempt.limits.Find(asked.limit);
  if (limit == nullptr || !limit->direct() || !limit->parents().empty() ||
      asked.key.size() > bounds::kMaxKeyBytes ||
      (utf8_ == Utf8::kUnchecked && !common::IsAscii(asked.key) && !common::IsUtf8(asked.key))) {
    return false;
  }
  if (caller_ != nullptr && !caller_->MayUseLimit(asked.limit, limit->limit_id())) return false;
  const store::Rule& rule = limit->RuleFor(asked.key);
  if (asked.permits == 0 || asked.permits > algorithm::MaxGrant(rule.parameters) ||
      algorithm::IsConcurrency(rule.parameters)) {
    return false;
  }
  attempt.AddSingle(rule, asked.key, asked.permits);
  return true;
}

size_t AcquireCall::AddAny(Item& item, Attempt& attempt) {
  const size_t before = attempt.merged_charges();
  if (absl::Status status = Add(item, attempt); !status.ok()) {
    SetError(item, std::move(status));
    item.index = kUndecided;
    return kErrorCost;
  }
  return (attempt.merged_charges() - before) * (item.options.plain() ? kJointCost : kBookingCost);
}

absl::Status AcquireCall::Add(Item& item, Attempt& attempt) {
  const FieldPath path = PathOf(item);
  const auto max_wait_ns = CheckOptions(path, item.options, form_ == Form::kBatch);
  if (!max_wait_ns.ok()) return max_wait_ns.status();
  if (item.options.force && caller_ != nullptr) {
    if (absl::Status s = caller_->Check(access::Call::kForce); !s.ok()) return s;
  }
  if (item.options.hold && with_->held_callers == nullptr) {
    return errors::HoldUnimplemented(path.Field("hold"));
  }
  if (item.options.hold && caller_ != nullptr && !held_place_.taken()) {
    // Before the decision, so that a refusal takes nothing.
    absl::Status s =
        caller_->Enter(access::ClientBound::kHeldCalls, with_->clock.NowNs(), &held_place_);
    if (!s.ok()) return s;
  }
  if (item.options.hold && held_memory_ == 0) {
    held_memory_ = static_cast<uint32_t>(memory() + request_memory());
  }
  const auto settle_within_ns = CheckSettleWithin(path, item.options);
  if (!settle_within_ns.ok()) return settle_within_ns.status();
  if (absl::Status s = CheckChargeCount(path, item.asked); !s.ok()) return s;
  attempt.Begin(item.options.want_receipt || *settle_within_ns != 0);
  attempt.SetSettleWithin(*settle_within_ns);
  if (item.options.force) attempt.SetForced();
  absl::Status status = AddCharges(item, attempt);
  if (const store::Rule* slots = SlotsOf(attempt.last_merged()); status.ok() && slots != nullptr) {
    attempt.SetWantReceipt();
    if (*max_wait_ns > 0 && !item.options.hold) {
      status = errors::SlotsNeedHold(path.Field("max_wait"), slots->limit_name);
    } else if (!item.options.can_return_receipt) {
      status =
          errors::SlotsNeedReceipt(path.Element("charges", 0).Field("limit"), slots->limit_name);
    } else if (with_->store.Shared()) {
      status = CheckRatesOfSlots(path, *slots, attempt.last_merged());
    }
    if (with_->held_callers != nullptr &&
        with_->held_callers->SlotsAwaited(attempt.last_merged())) {
      attempt.SetBehindOthers();
    }
  }
  if (status.ok() && *max_wait_ns > 0 && with_->store.Shared()) {
    status = CheckBooksAhead(path, attempt.last_merged());
  }
  if (status.ok() && *settle_within_ns != 0 && with_->store.Shared()) {
    status = CheckEstimates(path, attempt.last_merged());
  }
  if (status.ok()) {
    status = item.options.force
                 ? CheckChargeCount(path, attempt.last_added())
                 : CheckMergedCharges(path, attempt.last_added(), attempt.last_merged());
  }
  if (status.ok() && item.options.once) status = AddOnce(item, attempt);
  if (!status.ok()) {
    attempt.DropLast();
  } else if (*max_wait_ns > 0) {
    attempt.SetMaxWait(CutMaxWaitNs(item, attempt.last_merged(), *max_wait_ns));
  }
  return status;
}

int64_t AcquireCall::CutMaxWaitNs(Item& item, absl::Span<const store::Charge> charges,
                                  int64_t max_wait_ns) {
  max_wait_ns = std::min(max_wait_ns, store::LeastMaxWaitNs(charges));
  // A caller that is let through after its own deadline cannot be answered.
  if (item.options.hold && deadline_ns_ != store::kNoDeadline) {
    const int64_t left_ns = deadline_ns_ - with_->clock.NowNs();
    max_wait_cut_ns_ = max_wait_ns - std::clamp<int64_t>(left_ns, 0, max_wait_ns);
    max_wait_ns -= max_wait_cut_ns_;
  }
  if (max_wait_ns == 0) return 0;
  item.connection_full = !places_.Take(with_->clock, with_->store.BookingsLeft());
  if (!item.connection_full) return max_wait_ns;
  max_wait_cut_ns_ = 0;  // the deadline is not to blame
  return 0;
}

absl::Status AcquireCall::AddCharges(const Item& item, Attempt& attempt) {
  const FieldPath path = PathOf(item);
  const limits::Limit* limits[bounds::kMaxCharges];
  for (size_t c = 0; c < item.asked; ++c) {
    const Asked& asked = asked_[item.first + c];
    const FieldPath charge = path.Element("charges", c);
    if (absl::Status s = CheckMayUse(caller_.get(), charge, asked.limit); !s.ok()) return s;
    const auto limit = CheckCharge(charge, asked.limit, asked.key, asked.permits,
                                   item.options.force, utf8_, attempt.limits);
    if (!limit.ok()) return limit.status();
    limits[c] = *limit;
    attempt.Add(limits[c]->RuleFor(asked.key), asked.key, asked.permits);
  }
  for (size_t c = 0; c < item.asked; ++c) {
    const uint64_t permits = asked_[item.first + c].permits;
    for (const limits::Limit* parent : limits[c]->parents()) {
      const store::Rule& rule = parent->RuleFor("");
      const absl::Status status = item.options.force
                                      ? CheckForcedParent(path, rule)
                                      : CheckPermits(path.Element("charges", c), permits, rule);
      if (!status.ok()) return status;
      attempt.AddChargedBy(c, rule, "", permits);
    }
  }
  return absl::OkStatus();
}

// ---- The decision

void AcquireCall::Decided() {
  const size_t number = attempts_used_ - 1;
  const Attempt& attempt = *attempts_[number];
  // It was estimated before the decision. A shared store reports no work, and its thread writes
  // nothing here: the transport may read it (UnaryUseCase).
  if (attempt.work_in_decisions() > slice_cost_) slice_cost_ = attempt.work_in_decisions();
  if (attempt.undecided > 0) EndSliceBefore(attempt.size() - attempt.undecided);
  bool stale = false;
  for (Item& item : Slice()) {
    if (item.attempt != number || !item.status.ok()) continue;
    const store::Acquisition& decided = attempt.acquisition(item.index);
    if (decided.outcome == store::Outcome::kGranted || decided.outcome == store::Outcome::kDenied) {
      continue;
    }
    if (decided.outcome == store::Outcome::kStaleRule && attempts_used_ < kMaxAttempts) {
      stale = true;
      continue;
    }
    SetError(item, StatusOf(item));
    item.store_unavailable = decided.outcome == store::Outcome::kUnavailable &&
                             decided.source == store::Source::kStoreUnavailable;
  }
  if (stale) return DecideStale(attempt);
  if (first_ < end_) {
    if (Hold()) return;
    BlameDeadline();
  }
  Finish();
}

void AcquireCall::SetError(Item& item, absl::Status error) {
  error_bytes_ += errors::MemoryOf(error);
  item.status = std::move(error);
}

void AcquireCall::EndSliceBefore(size_t undecided) {
  const auto is_undecided = [&](const Item& item) {
    return item.status.ok() && item.index >= undecided;
  };
  const absl::Span<Item> slice = Slice();
  end_ = first_ + static_cast<size_t>(std::find_if(slice.begin(), slice.end(), is_undecided) -
                                      slice.begin());
}

absl::Status AcquireCall::StatusOf(const Item& item) const {
  const store::Acquisition& decided = DecisionOf(item);
  switch (decided.outcome) {
    case store::Outcome::kGranted:
    case store::Outcome::kDenied:
      return absl::OkStatus();
    case store::Outcome::kStaleRule:
      return errors::LimitsKeepChanging();
    case store::Outcome::kDeadlineExceeded:
      return errors::PastDeadline();
    case store::Outcome::kPending:
    case store::Outcome::kUnavailable:
      return decided.may_be_debited ? errors::StoreAnswerLost() : errors::StoreUnavailable();
    case store::Outcome::kUnsupported:
      return errors::StoreDoesNotBook(PathOf(item).Field("max_wait"));
    case store::Outcome::kSeveralSlots: {
      const store::Charge& one = decided.charges[0];
      const store::Charge& other = decided.charges[decided.other_slot_charge];
      const char* const option = decided.settle_within_ns != 0 ? "settle_within"
                                 : decided.once != nullptr     ? "request_id"
                                                               : "max_wait";
      return errors::InSeveralSlots(PathOf(item).Field(option), option, one.rule->limit_name,
                                    one.key, other.rule->limit_name, other.key);
    }
    case store::Outcome::kOtherRequest:
      return errors::OtherRequestWithId(PathOf(item).Field("request_id"));
    case store::Outcome::kNotRemembered:
      return errors::NoRoomToRemember(PathOf(item).Field("request_id"));
    case store::Outcome::kNoRoomForEstimate:
      return errors::NoRoomForEstimate(PathOf(item).Field("settle_within"));
    case store::Outcome::kTooManyNewBuckets:
      return caller_->use()->Refuse(access::ClientBound::kNewKeysPerMinute, 1, decided.now_ns);
    case store::Outcome::kTableShareUsedUp:
      return caller_->use()->Refuse(access::ClientBound::kTableShare, 1, decided.now_ns);
    case store::Outcome::kEnded:
      return errors::GrantHasEnded(PathOf(item).Field("request_id"));
  }
  return errors::StoreAnswerLost();
}

// ---- Held calls

bool AcquireCall::Hold() {
  if (form_ != Form::kUnary || items_.empty()) return false;
  Item& item = items_[0];
  if (!item.options.hold || !item.status.ok()) return false;
  Attempt& attempt = *attempts_[item.attempt];
  store::Acquisition& decided = attempt.mutable_acquisition(item.index);
  const bool reserved = decided.outcome == store::Outcome::kGranted && decided.wait_ns > 0;
  if (!reserved && (decided.max_wait_ns == 0 || !store::LacksSlots(decided))) return false;
  HeldCaller::acquisition = &decided;
  since_ns = with_->store.UsesLocalClock() ? decided.now_ns : with_->clock.NowNs();
  until_ns = since_ns + decided.max_wait_ns;
  generation = attempt.limits.table()->serial();
  rules = attempt.limits.table();
  // The attempt has the charges; a hundred thousand calls may wait for hours.
  std::vector<Asked>().swap(asked_);
  // From here on the answer may come at any time, from another thread.
  if (reserved ? with_->held_callers->Hold(this) : with_->held_callers->WaitForSlots(this)) {
    return true;
  }
  item.status = errors::Draining();
  return false;
}

void AcquireCall::OnAnswer(waiting::HeldOutcome outcome) {
  was_held_ = true;
  Item& item = items_[0];
  switch (outcome) {
    case waiting::HeldOutcome::kGrantTime:
      break;
    case waiting::HeldOutcome::kDenied:
      BlameDeadline();
      CountRetryAfterFromNow();
      break;
    case waiting::HeldOutcome::kCancelled:
      item.status = errors::CancelledWhileWaiting();
      break;
    case waiting::HeldOutcome::kDrained:
      item.status = errors::Draining();
      break;
    case waiting::HeldOutcome::kUnavailable:
      item.status = StatusOf(item);
      if (item.status.ok()) item.status = errors::StoreAnswerLost();
      break;
  }
  Finish();
}

store::BucketMaker AcquireCall::Maker() const {
  store::BucketMaker maker = MakerFor(caller_);
  maker.rate = nullptr;
  return maker;
}

void AcquireCall::CountRetryAfterFromNow() {
  store::Acquisition& decided = attempts_[items_[0].attempt]->mutable_acquisition(items_[0].index);
  if (decided.retry_after_ns == algorithm::kNeverNs) return;
  const int64_t now_ns = with_->store.UsesLocalClock() ? decided.now_ns : with_->clock.NowNs();
  // So far it counts from until_ns, or from now if that has passed.
  const int64_t grant_after_ns = decided.retry_after_ns + std::max<int64_t>(until_ns - now_ns, 0);
  decided.retry_after_ns = std::max<int64_t>(grant_after_ns - (until_ns - since_ns), 0);
}

void AcquireCall::BlameDeadline() {
  // Only a call that asks to be held, which has one item, is cut.
  if (max_wait_cut_ns_ == 0 || !items_[0].status.ok()) return;
  const Item& item = items_[0];
  const store::Acquisition& decided = DecisionOf(item);
  if (decided.outcome != store::Outcome::kDenied || decided.retry_after_ns > max_wait_cut_ns_) {
    return;
  }
  Blame(decided, store::Reason::kDeadlineTooShort);
}

// ---- The answer

void AcquireCall::CountBookings() {
  const bool local = with_->store.UsesLocalClock();
  const int64_t now_ns = local ? 0 : with_->clock.NowNs();
  for (const Item& item : Slice()) {
    if (!item.status.ok()) continue;
    const store::Acquisition& decided = DecisionOf(item);
    if (decided.outcome == store::Outcome::kDenied && item.connection_full) {
      Blame(decided, store::Reason::kWaitingBound);
    } else if (decided.wait_ns > 0 && !was_held_ &&
               (decided.once == nullptr || !decided.once->repeated)) {
      places_.Book(decided.now_ns + decided.wait_ns, local ? 0 : decided.now_ns - now_ns);
    }
  }
  places_.GiveBack();
}

void AcquireCall::Finish() {
  if (places_.in_use()) CountBookings();
  if (!once_.empty()) ReturnRoom();
  held_place_.Leave();
  if (Count()) AppendReceipts();
  done_(context_, this);
}

bool AcquireCall::Count() {
  common::Metrics::Shard& shard = with_->metrics.Local();
  bool any_receipt = false;
  with_->usage.Record([&](auto usage) {
    DecisionCounter counter(shard, usage);
    for (const Item& item : Slice()) {
      if (item.status.ok()) {
        const store::Acquisition& decided = DecisionOf(item);
        any_receipt |= decided.receipt_id != 0;
        if (decided.once != nullptr && decided.once->repeated) continue;  // it took nothing
        counter.Count(decided);
      } else if (item.store_unavailable) {
        CountUnavailable(shard, DecisionOf(item));
      }
    }
  });
  return any_receipt;
}

void AcquireCall::AppendReceipts() {
  for (Item& item : Slice()) {
    if (!item.status.ok()) continue;
    const store::Acquisition& decided = DecisionOf(item);
    if (decided.receipt_id == 0) continue;
    item.receipt = static_cast<uint32_t>(receipts_.size());
    // A reservation always has one: without it the caller could not give its place up.
    int64_t grant_time_ns = decided.wait_ns == 0 ? 0 : decided.now_ns + decided.wait_ns;
    if (decided.once != nullptr && decided.once->repeated) {
      grant_time_ns = decided.once->grant_time_ns;
    }
    const auto kind = decided.settle_within_ns != 0         ? Receipt::Kind::kEstimate
                      : SlotsOf(decided.charges) != nullptr ? Receipt::Kind::kSlots
                                                            : Receipt::Kind::kAcquisition;
    with_->signer.Append(decided.receipt_id, grant_time_ns, decided.charges, &receipts_, kind,
                         decided.charged_by, decided.once);
    item.receipt_bytes = static_cast<uint32_t>(receipts_.size()) - item.receipt;
  }
}

}  // namespace sluice::service
