#include "server/transport/envoy/descriptor_call.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "server/algorithm/make_parameters.h"
#include "server/service/permission.h"
#include "server/transport/envoy/codec.h"

namespace sluice::transport {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;
using Limited = DescriptorStatus::Limit;

// Copied instead of made in place, as MergedAcquisitions does.
constinit const store::Acquisition kUndecided;

bool IsCompatible(const envoy::MatchedLimit& match) {
  return match.counting.mode == envoy::CountMode::kCompatible;
}

}  // namespace

void DescriptorCall::Reset(Method method) {
  method_ = method;
  request_.Clear();
  if (caller_ != nullptr) caller_ = nullptr;
  items_.clear();
  acquisitions_.clear();
  queries_.clear();
  queried_.clear();
  probed_.clear();
  tables_.clear();
  statuses_.clear();
  status_ = absl::OkStatus();
  sliced_ = false;
  left_ = Left::kNothing;
  slice_cost_ = 0;
  settling_ = Settling::kNotTried;
  reservation_id_.clear();
}

size_t DescriptorCall::memory() const {
  return sizeof(*this) + request_.descriptors.capacity() * sizeof(RequestedDescriptor) +
         request_.entries.capacity() * sizeof(envoy::Entry) + items_.capacity() * sizeof(Item) +
         keys_.size() * sizeof(envoy::BucketKey) +
         acquisitions_.capacity() * sizeof(store::Acquisition) +
         charges_.capacity() * (sizeof(store::Charge) + sizeof(store::ChargeResult)) +
         places_.capacity() * sizeof(ChargePlace) + todo_.capacity() * sizeof(uint32_t) +
         (queries_.capacity() + probe_items_.capacity()) *
             (sizeof(store::QueryItem) + sizeof(uint32_t)) +
         replacing_.capacity() * sizeof(const envoy::MatchedLimit*) +
         replaced_.capacity() * sizeof(std::string_view) +
         key_entries_.capacity() * sizeof(envoy::Entry) + finding_.memory() +
         statuses_.capacity() * sizeof(DescriptorStatus) + receipt_.capacity() +
         reservation_id_.capacity() + (settle_ == nullptr ? 0 : settle_->memory());
}

size_t DescriptorCall::request_memory() const {
  return sizeof(*this) +
         request_.descriptors.size() *
             (sizeof(RequestedDescriptor) + sizeof(Item) + sizeof(envoy::BucketKey) +
              sizeof(store::Acquisition) + sizeof(store::Charge) + sizeof(store::ChargeResult) +
              sizeof(ChargePlace) + sizeof(store::QueryItem) + sizeof(DescriptorStatus)) +
         request_.entries.size() * sizeof(envoy::Entry);
}

void DescriptorCall::Encode(common::Buffer* out) const {
  if (method_ == Method::kCommit) return;  // its message is empty
  const AnswerOptions& options = with_->options.answer;
  const bool ok = options.shadow_all || method_ == Method::kReport;
  const Code code = ok ? Code::kOk : OverallCode(statuses_);
  if (method_ == Method::kReserve) return EncodeReserveResponse(code, reservation_id_, out);
  EncodeRateLimitResponse(request_, code, statuses_, options, out);
}

void DescriptorCall::Start(const DescriptorCollaborators& with, int64_t deadline_ns, DoneFn done,
                           void* context) {
  with_ = &with;
  deadline_ns_ = deadline_ns;
  done_ = done;
  context_ = context;
  if (absl::Status status = Validate(); !status.ok()) return Fail(std::move(status));
  const size_t size = request_.descriptors.size();
  items_.resize(size);
  statuses_.resize(size);
  todo_.resize(size);
  std::iota(todo_.begin(), todo_.end(), 0);
  while (keys_.size() < size) keys_.emplace_back();
  slice_cost_ = size;
  search_budget_ = store::SearchBudget();
  checks_.undecided = probes_.undecided = 0;
  counted_ = false;
  first_attempt_ = true;
  Decide();
}

void DescriptorCall::Decide() {
  if (absl::Status status = UseTable(); !status.ok()) return Fail(std::move(status));
  matched_ = 0;
  matching_ = false;
  MatchAll();
}

void DescriptorCall::MatchAll() {
  // Of texts that are looked at, again for each pattern: a byte takes up to 1.6 ns.
  constexpr int64_t kSliceBytes = 64 << 10;
  constexpr int64_t kBytesPerDecision = 64;
  // Later attempts may be made where a slice cannot end.
  const bool bounded = sliced_ && (first_attempt_ || !with_->service.store.Shared());
  const int64_t most = bounded ? kSliceBytes : INT64_MAX;
  int64_t left = most;
  for (; matched_ < todo_.size(); ++matched_) {
    const absl::StatusOr<bool> done = Match(todo_[matched_], &left);
    if (!done.ok()) return Fail(done.status());
    if (*done) continue;
    slice_cost_ += static_cast<size_t>((most - left) / kBytesPerDecision);
    return EndSlice(Left::kMatches);
  }
  if (first_attempt_ || bounded) {
    slice_cost_ += static_cast<size_t>((most - left) / kBytesPerDecision);
  }
  const bool replaces = std::any_of(todo_.begin(), todo_.end(), [this](uint32_t d) {
    return items_[d].match != nullptr && !items_[d].match->replaces.empty();
  });
  if (replaces) DropReplaced();
  if (Settle()) return;
  PlanAll();
}

void DescriptorCall::PlanAll() {
  acquisitions_.clear();
  charges_.clear();
  places_.clear();
  probed_.clear();
  joint_ = joint_impossible_ = false;
  for (const uint32_t d : todo_) Plan(d);
  probed_.empty() ? Send() : SendProbes();
}

void DescriptorCall::SendProbes() {
  const size_t left = probes_.undecided > 0 ? probes_.undecided : probe_items_.size();
  probes_.ResetWork();
  if (sliced_) probes_.most_work = service::kSliceWork;
  probes_.items = absl::MakeSpan(probe_items_).last(left);
  probes_.deadline_ns = deadline_ns_;
  with_->service.store.Query(&probes_);
}

void DescriptorCall::Send() {
  if (absl::Status status = PlanJoint(); !status.ok()) return Fail(std::move(status));
  if (acquisitions_.empty()) return SendChecks();
  SendDebits();
}

// The texts are those of envoyproxy/ratelimit, and so is the code.
absl::Status DescriptorCall::Validate() const {
  if (request_.domain.empty()) {
    return absl::UnknownError("rate limit domain must not be empty");
  }
  if (caller_ != nullptr && !caller_->MayUseDomain(request_.domain)) {
    const access::Client* const client = caller_->client();
    if (client == nullptr) return caller_->Check(access::Call::kAcquire);
    return common::errors::DomainNotAllowed(client->name, request_.domain,
                                            client->domains.ToString());
  }
  if (request_.descriptors.empty()) {
    return absl::UnknownError("rate limit descriptor list must not be empty");
  }
  if (method_ == Method::kReserve) {
    if (const auto ttl_ns = TtlNs(); !ttl_ns.ok()) return ttl_ns.status();
  }
  for (size_t d = 0; d < request_.descriptors.size(); ++d) {
    const RequestedDescriptor& descriptor = request_.descriptors[d];
    if (!descriptor.has_limit) continue;
    const RequestedLimit& limit = descriptor.limit;
    const auto invalid = [&](std::string_view field, int64_t value, std::string_view remedy) {
      return errors::Invalid(
          common::ToStd(absl::StrCat("descriptors[", d, "].limit.", common::ToAbsl(field))), value,
          common::ToAbsl(remedy));
    };
    if (limit.unit <= 0 || limit.unit > static_cast<int32_t>(envoy::Unit::kWeek)) {
      return invalid("unit", limit.unit,
                     " is no unit; say SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR");
    }
    if (!limit.has_multiplier) continue;
    if (limit.unit_multiplier == 0) {
      return invalid("unit_multiplier", 0, " makes no window; say at least 1");
    }
    const int64_t most = bounds::kMaxPeriodNs / envoy::UnitNs(static_cast<envoy::Unit>(limit.unit));
    if (limit.unit_multiplier > most && with_->options.request_limits) {
      return invalid("unit_multiplier", limit.unit_multiplier,
                     absl::StrCat(" makes too long a window; at most ", most, " of this unit"));
    }
  }
  return absl::OkStatus();
}

absl::Status DescriptorCall::UseTable() {
  tables_.push_back(with_->service.registry.Local());
  matched_table_ = tables_.back().get();
  matcher_ = envoy::MatcherOf(*matched_table_);
  if (matcher_ == nullptr) return absl::UnknownError("no rate limit configuration loaded");
  domain_ = matcher_->FindDomain(request_.domain);
  if (domain_ == nullptr) with_->counters.Local().calls.domain_not_found.Add(1);
  return absl::OkStatus();
}

// ---- The limits

absl::StatusOr<bool> DescriptorCall::Match(size_t d, int64_t* budget) {
  const RequestedDescriptor& descriptor = request_.descriptors[d];
  Item& item = items_[d];
  DescriptorStatus& status = statuses_[d];
  item = Item();
  status = DescriptorStatus();
  status.quota_mode = with_->options.answer.quota_all && !OfReservation();
  item.hits = request_.HitsOf(descriptor);
  item.key = &keys_[d];
  if (domain_ == nullptr) return true;
  if (descriptor.has_limit && with_->options.request_limits) {
    const absl::Status matched = MatchRequested(d);
    if (!matched.ok()) return matched;
    return true;
  }
  if (!matching_) finding_.Begin(*domain_, request_.EntriesOf(descriptor), &keys_[d]);
  matching_ = !finding_.Step(budget);
  if (matching_) return false;
  const envoy::MatchedLimit* const match = finding_.limit();
  if (match == nullptr) return true;
  if (!match->unlimited) {
    item.limit = envoy::LimitOf(*matched_table_, *match);
    if (item.limit == nullptr) return true;
  }
  item.match = match;
  status.limit = match->unlimited ? Limited::kUnlimited : Limited::kCounted;
  status.shadow_mode = match->shadow_mode;
  // A reservation is all or none.
  status.quota_mode =
      (status.quota_mode || match->quota_mode) && !match->unlimited && !OfReservation();
  status.requests_per_unit = match->requests_per_unit;
  status.unit_multiplier = match->unit_multiplier;
  status.unit = match->unit;
  status.name = match->name;
  if (!match->unlimited && !match->metadata.empty()) status.metadata = &match->metadata;
  if (item.limit != nullptr && item.limit->spec().origin != limits::Origin::kEnvoy) {
    UsePut(d);
  } else if (IsCompatible(*match)) {
    item.window_ns = envoy::UnitNs(match->unit) * match->unit_multiplier;
  }
  return true;
}

void DescriptorCall::UsePut(size_t d) {
  const store::Rule& rule = items_[d].limit->RuleFor(items_[d].key->view());
  DescriptorStatus& status = statuses_[d];
  status.shadow_mode = rule.shadow;
  status.requests_per_unit =
      static_cast<uint32_t>(std::min<uint64_t>(algorithm::MaxGrant(rule.parameters), UINT32_MAX));
  const auto [unit, multiplier] = envoy::UnitOf(algorithm::RateOf(rule.parameters).period_ns);
  status.unit = unit;
  status.unit_multiplier = multiplier;
}

absl::Status DescriptorCall::MatchRequested(size_t d) {
  if (method_ == Method::kReserve) {
    return errors::Invalid(common::ToStd(absl::StrCat("descriptors[", d, "].limit")),
                           "limits of requests cannot be reserved; configure the limit");
  }
  const RequestedLimit& limit = request_.descriptors[d].limit;
  const auto unit = static_cast<envoy::Unit>(limit.unit);
  const uint32_t multiplier = limit.has_multiplier ? limit.unit_multiplier : 1;
  Item& item = items_[d];
  item.limit = RequestedWindows::Find(*tables_.back(), unit, multiplier);
  if (item.limit == nullptr) {
    if (absl::Status added = with_->windows.Add(unit, multiplier); !added.ok()) return added;
    tables_.push_back(with_->service.registry.Local());
    item.limit = RequestedWindows::Find(*tables_.back(), unit, multiplier);
    if (item.limit == nullptr) return errors::LimitsKeepChanging();
  }
  item.window_ns = envoy::UnitNs(unit) * multiplier;
  if (!RequestedWindows::IsAsMade(*item.limit, item.window_ns)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "limit \"", common::ToAbsl(item.limit->name()),
        "\" cannot count the hits of requests that bring their limit along, since a limits file or "
        "an admin has put another limit under its name; delete or rename that"));
  }
  // The domain belongs to the key: the limit is the same for all.
  const auto entries = request_.EntriesOf(request_.descriptors[d]);
  key_entries_.assign(1, {request_.domain, {}});
  key_entries_.insert(key_entries_.end(), entries.begin(), entries.end());
  envoy::Matcher::WriteKey(key_entries_, &keys_[d]);
  DescriptorStatus& status = statuses_[d];
  status.limit = Limited::kCounted;
  status.requests_per_unit = limit.requests_per_unit;
  status.unit_multiplier = multiplier;
  status.unit = unit;
  return absl::OkStatus();
}

// Unlimited descriptors replace others, and are not replaced.
void DescriptorCall::DropReplaced() {
  replacing_.clear();
  for (const Item& item : items_) {
    if (item.match != nullptr && !item.match->replaces.empty()) replacing_.push_back(item.match);
  }
  // A thousand descriptors may lead to one limit.
  std::sort(replacing_.begin(), replacing_.end());
  replacing_.erase(std::unique(replacing_.begin(), replacing_.end()), replacing_.end());
  replaced_.clear();
  for (const envoy::MatchedLimit* const match : replacing_) {
    replaced_.insert(replaced_.end(), match->replaces.begin(), match->replaces.end());
  }
  std::sort(replaced_.begin(), replaced_.end());
  for (size_t d = 0; d < items_.size(); ++d) {
    Item& item = items_[d];
    if (item.way != Way::kMatched || item.match == nullptr || item.match->unlimited ||
        !std::binary_search(replaced_.begin(), replaced_.end(), item.match->name)) {
      continue;
    }
    item.match = nullptr;
    item.limit = nullptr;
    statuses_[d] = DescriptorStatus();
    statuses_[d].quota_mode = with_->options.answer.quota_all;
  }
}

// ---- What the store is to do

void DescriptorCall::Plan(size_t d) {
  Item& item = items_[d];
  if (item.limit == nullptr) {
    item.way = Way::kDecided;
    return;
  }
  const store::Rule& rule = item.limit->RuleFor(item.key->view());
  if (OfReservation()) return PlanReservation(d, rule);
  const bool compatible = item.window_ns != 0;
  const bool negative = request_.descriptors[d].negative_hits;
  const bool forced = compatible || method_ == Method::kReport;
  item.joint = !compatible && !forced && item.match->counting.all_or_none && !rule.shadow &&
               !item.match->quota_mode;
  if (compatible && !negative && method_ == Method::kShouldRateLimit &&
      with_->options.stop_when_over && todo_.size() > 1) {
    return AddProbe(d, rule);
  }
  if (item.hits == 0 || method_ == Method::kCheck || (negative && !compatible)) {
    item.joint = false;
    return AddCheck(d, rule);
  }
  if (negative) {
    item.debit = store::Debit::kGiveBack;
  } else if (!forced) {
    item.debit = store::Debit::kIfAllowed;
    // What can never be taken is not asked for; the query tells the level.
    if (item.hits >
        std::min<uint64_t>(algorithm::MaxGrant(rule.parameters), statuses_[d].requests_per_unit)) {
      joint_impossible_ |= item.joint;
      item.joint = false;
      return AddCheck(d, rule);
    }
  }
  item.way = Way::kDebit;
  joint_ |= item.joint;
  if (!item.joint) AddDebit(d, rule);
}

void DescriptorCall::AddProbe(size_t d, const store::Rule& rule) {
  if (probed_.empty()) probe_items_.clear();
  store::QueryItem& probe = probe_items_.emplace_back();
  probe.rule = &rule;
  probe.key = items_[d].key->view();
  probe.with_refundable = false;
  probed_.push_back(static_cast<uint32_t>(d));
}

// If a descriptor would be over its limit, only such ones are counted.
void DescriptorCall::AddCheck(size_t d, const store::Rule& rule) {
  items_[d].way = Way::kCheck;
  store::QueryItem& query = queries_.emplace_back();
  query.rule = &rule;
  query.key = items_[d].key->view();
  query.with_refundable = false;
  queried_.push_back(static_cast<uint32_t>(d));
}

void DescriptorCall::AddDebit(size_t d, const store::Rule& rule) {
  const Item& item = items_[d];
  places_.push_back({static_cast<uint32_t>(d), static_cast<uint32_t>(acquisitions_.size()),
                     static_cast<uint32_t>(charges_.size())});
  charges_.push_back({&rule, item.key->view(), std::min(item.hits, bounds::kMaxEnvoyHits)});
  acquisitions_.push_back(kUndecided);
  acquisitions_.back().debit = item.debit;
}

// One acquisition, in which descriptors of one bucket are added up.
absl::Status DescriptorCall::PlanJoint() {
  if (!joint_) return absl::OkStatus();
  const auto first = static_cast<uint32_t>(charges_.size());
  const auto acquisition = static_cast<uint32_t>(acquisitions_.size());
  for (const uint32_t d : todo_) {
    if (!items_[d].joint) continue;
    const store::Rule& rule = items_[d].limit->RuleFor(items_[d].key->view());
    if (joint_impossible_) {
      AddCheck(d, rule);
      continue;
    }
    uint32_t c = first;
    while (c < charges_.size() && (charges_[c].rule->limit_id != rule.limit_id ||
                                   charges_[c].key != items_[d].key->view())) {
      ++c;
    }
    if (c == charges_.size()) {
      if (c - first == bounds::kMaxCharges) {
        return errors::Invalid("descriptors", "more than ", bounds::kMaxCharges,
                               " limits are to be taken all or none; at most ",
                               bounds::kMaxCharges);
      }
      charges_.push_back({&rule, items_[d].key->view(), 0});
    }
    const uint64_t before = OfReservation() ? 0 : charges_[c].permits;
    charges_[c].permits = before + items_[d].hits;
    places_.push_back({d, acquisition, c});
  }
  if (joint_impossible_) return absl::OkStatus();
  acquisitions_.push_back(kUndecided);
  if (method_ == Method::kCommit) acquisitions_.back().debit = store::Debit::kForced;
  if (method_ != Method::kReserve) return absl::OkStatus();
  return MakeEstimate(absl::MakeConstSpan(charges_).subspan(first), &acquisitions_.back());
}

void DescriptorCall::SendDebits() {
  // Only now the vectors no longer move.
  results_.resize(charges_.size());
  size_t end = charges_.size();
  for (size_t i = acquisitions_.size(); i-- > 0;) {
    // All but the last, which may be the joint one, have one charge.
    const size_t begin = std::min(i, end - 1);
    acquisitions_[i].charges = absl::MakeConstSpan(charges_).subspan(begin, end - begin);
    acquisitions_[i].results = results_.data() + begin;
    end = begin;
  }
  debited_ = judged_ = 0;
  todo_.clear();
  SendSlice();
}

void DescriptorCall::SendSlice() {
  debits_.ResetWork();
  if (sliced_) debits_.most_work = service::kSliceWork;
  debits_.search_budget = &search_budget_;
  debits_.acquisitions = absl::MakeSpan(acquisitions_).subspan(debited_);
  debits_.deadline_ns = deadline_ns_;
  debits_.maker = service::MakerFor(caller_);
  with_->service.store.Acquire(&debits_);
}

void DescriptorCall::Continue() {
  slice_cost_ = 0;
  switch (std::exchange(left_, Left::kNothing)) {
    case Left::kNothing:
      break;
    case Left::kMatches:
      return MatchAll();
    case Left::kSettlement:
      return settle_->Continue();
    case Left::kProbes:
      return SendProbes();
    case Left::kDebits:
      return SendSlice();
    case Left::kChecks:
      return SendChecks();
  }
}

void DescriptorCall::SendChecks() {
  if (queries_.empty()) return Finish();
  const size_t left = checks_.undecided > 0 ? checks_.undecided : queries_.size();
  checks_.ResetWork();
  if (sliced_) checks_.most_work = service::kSliceWork;
  checks_.items = absl::MakeSpan(queries_).last(left);
  checks_.deadline_ns = deadline_ns_;
  with_->service.store.Query(&checks_);
}

// ---- The end

void DescriptorCall::Fail(absl::Status status) {
  auto& calls = with_->counters.Local().calls;
  const bool of_store = !acquisitions_.empty() || !queries_.empty() || !probed_.empty();
  ((absl::IsUnknown(status) && of_store) || absl::IsUnavailable(status) ? calls.redis_error
                                                                        : calls.service_error)
      .Add(1);
  status_ = std::move(status);
  Finish();
}

void DescriptorCall::EndSlice(Left left) {
  left_ = left;
  done_(context_, this);
}

void DescriptorCall::Finish() {
  if (OfReservation() && status_.ok()) EndReservation();
  done_(context_, this);
}

}  // namespace sluice::transport
