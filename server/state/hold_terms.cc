#include "server/state/hold_terms.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "common/bounds.h"
#include "server/state/fields.h"

namespace sluice::state {
namespace {

// By then all threads decide by the new limits.
constexpr int64_t kChangeTakesNs = int64_t{10} * 1'000'000'000;

}  // namespace

absl::Status HoldTerms::Read(const std::string& path, const MachineTime& now, int64_t now_ns) {
  const auto read = [&](RecordKind kind, FieldReader* from) {
    if (kind != RecordKind::kHoldTerms) from->Fail();
    const MachineTime then = ReadMachineTime(from);
    for (size_t i = from->Count(); i > 0; --i) {
      const std::string limit(from->Text());
      Term& term = terms_[limit];
      constexpr uint64_t kMost = common::bounds::kMaxHoldForNs;
      term.hold_for_ns = static_cast<int64_t>(from->NumberUpTo(kMost));
      const auto left_ns = static_cast<int64_t>(from->NumberUpTo(kMost + kChangeTakesNs));
      term.until_ns = now_ns + left_ns - std::min(left_ns, now.NsSince(then));
    }
    return absl::OkStatus();
  };
  absl::Status status = ReadStateFile(path, read);
  recorded_ = status.ok();
  if (!status.ok()) terms_.clear();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status HoldTerms::Write(const std::string& path, const BeforeStep& before_step,
                              const MachineTime& now, int64_t now_ns) const {
  auto file = StateFileWriter::Create(path, before_step);
  if (!file.ok()) return file.status();
  std::string fields;
  FieldWriter to(&fields);
  WriteMachineTime(now, &to);
  to.Number(terms_.size());
  for (const auto& [limit, term] : terms_) {
    to.Text(limit);
    to.Number(static_cast<uint64_t>(term.hold_for_ns));
    to.Number(static_cast<uint64_t>(std::max<int64_t>(term.until_ns - now_ns, 0)));
  }
  (*file)->Add(RecordKind::kHoldTerms, fields);
  return (*file)->Finish();
}

bool HoldTerms::Set(Term* term, int64_t hold_for_ns, int64_t now_ns) {
  if (term->hold_for_ns == hold_for_ns) return false;
  if (term->hold_for_ns > hold_for_ns) {
    term->until_ns = std::max(term->until_ns, now_ns + term->hold_for_ns + kChangeTakesNs);
  }
  term->hold_for_ns = hold_for_ns;
  return true;
}

std::optional<std::string> HoldTerms::Raise(const limits::LimitTable& table) {
  std::optional<std::string> raised;
  for (const limits::Limit* limit : table.limits()) {
    const algorithm::Parameters& parameters = limit->rule().parameters;
    if (!algorithm::IsConcurrency(parameters)) continue;
    Term& term = terms_[std::string(limit->name())];
    if (parameters.concurrency.hold_for_ns <= term.hold_for_ns) continue;
    term.hold_for_ns = parameters.concurrency.hold_for_ns;
    raised = limit->name();
  }
  return raised;
}

bool HoldTerms::Change(const limits::LimitTable& table, int64_t now_ns) {
  bool changed = !recorded_;
  for (const limits::Limit* limit : table.limits()) {
    const algorithm::Parameters& parameters = limit->rule().parameters;
    if (!algorithm::IsConcurrency(parameters)) continue;
    changed |= Set(&terms_[std::string(limit->name())], parameters.concurrency.hold_for_ns, now_ns);
  }
  for (auto term = terms_.begin(); term != terms_.end();) {
    const limits::Limit* const limit = table.Find(term->first);
    const bool has_slots = limit != nullptr && algorithm::IsConcurrency(limit->rule().parameters);
    if (!has_slots) changed |= Set(&term->second, 0, now_ns);
    const bool ended = !has_slots && term->second.until_ns <= now_ns;
    term = ended ? terms_.erase(term) : std::next(term);
  }
  recorded_ = !changed;
  return changed;
}

void HoldTerms::Close(int64_t now_ns, store::ClosedSlots* closed) const {
  if (!recorded_) closed->since_ns = now_ns;
  for (const auto& [limit, term] : terms_) {
    closed->Add(limit, std::max(term.until_ns, now_ns + term.hold_for_ns));
  }
}

}  // namespace sluice::state
