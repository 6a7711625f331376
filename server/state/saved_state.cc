#include "server/state/saved_state.h"

#include <time.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/algorithm/token_bucket.h"
#include "server/state/fields.h"
#include "server/state/saved_bucket.h"
#include "server/state/saved_limit.h"

namespace sluice::state {
namespace {

using algorithm::Moment;
using store::MemoryStore;

int64_t ReadClock(clockid_t id) {
  timespec now;
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void WriteMoment(Moment at, FieldWriter* to) {
  to->Signed(at.now_ns);
  to->Signed(at.wall_ns);
}

Moment ReadMoment(FieldReader* from) {
  const int64_t now_ns = from->Signed();
  return {now_ns, from->Signed()};
}

void WriteHead(const SavedState& state, FieldWriter* to) {
  to->Number(state.id);
  to->Number(state.at_drain ? 1 : 0);
  to->Signed(state.now_ns);
  WriteMachineTime(state.machine, to);
  to->Number(state.seed);
  to->Number(state.empty_since.has_value() ? 1 : 0);
  if (state.empty_since.has_value()) WriteMoment(*state.empty_since, to);
}

void ReadHead(FieldReader* from, SavedState* state) {
  state->id = from->Number();
  state->at_drain = from->Flag();
  state->now_ns = from->Signed();
  state->machine = ReadMachineTime(from);
  state->seed = from->Number();
  if (from->Flag()) state->empty_since = ReadMoment(from);
  if (state->now_ns < 0) from->Fail();
}

void WriteTail(const SavedState& state, FieldWriter* to) {
  to->Number(state.next_receipt);
  to->Text(state.receipt_key);
  to->Number(state.limits.last_rule_id);
  to->Text(state.limits.file_version);
  to->Text(state.limits.envoy_version);
}

void ReadTail(FieldReader* from, SavedState* state) {
  state->next_receipt = from->Number();
  state->receipt_key = from->Text();
  state->limits.last_rule_id =
      static_cast<uint32_t>(from->NumberUpTo(std::numeric_limits<uint32_t>::max()));
  state->limits.file_version = from->Text();
  state->limits.envoy_version = from->Text();
}

// Only of those that are still closed.
void WriteClosedSlots(const store::ClosedSlots& closed, int64_t now_ns, FieldWriter* to) {
  const bool since =
      closed.since_ns.has_value() && *closed.since_ns + common::bounds::kMaxHoldForNs > now_ns;
  to->Optional(since ? closed.since_ns : std::nullopt);
  const auto is_closed = [&](const auto& limit) { return limit.second > now_ns; };
  to->Number(static_cast<uint64_t>(absl::c_count_if(closed.until_ns, is_closed)));
  for (const auto& limit : closed.until_ns) {
    if (!is_closed(limit)) continue;
    to->Text(limit.first);
    to->Signed(limit.second);
  }
}

store::ClosedSlots ReadClosedSlots(FieldReader* from) {
  store::ClosedSlots closed;
  closed.since_ns = from->Optional<int64_t>();
  for (size_t i = from->Count(); i > 0; --i) {
    const std::string limit(from->Text());
    closed.Add(limit, from->Signed());
  }
  return closed;
}

// A rule as buckets name it: of its limit only the id.
store::Rule ReadRule(FieldReader* from) {
  constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
  store::Rule rule;
  rule.id = static_cast<uint32_t>(from->NumberUpTo(kMost));
  rule.limit_id = static_cast<uint32_t>(from->NumberUpTo(kMost));
  rule.parameters = ReadParameters(from);
  rule.max_owed = from->Optional<uint64_t>();
  if (rule.id == 0) from->Fail();
  return rule;
}

// A bucket of either kind of record.
struct ReadBucketResult {
  uint32_t rule_id = 0;
  std::string_view key;
  uint64_t tat = 0;                             // kTokens
  std::optional<algorithm::BucketImage> image;  // kBucket
};

ReadBucketResult ReadBucket(RecordKind kind, FieldReader* from) {
  ReadBucketResult bucket;
  bucket.rule_id = static_cast<uint32_t>(from->NumberUpTo(std::numeric_limits<uint32_t>::max()));
  bucket.key = from->Text();
  if (bucket.key.size() > common::bounds::kMaxKeyBytes) from->Fail();
  if (kind == RecordKind::kTokens) {
    bucket.tat = from->NumberUpTo(algorithm::kMaxTat);
  } else {
    bucket.image.emplace(ReadImage(from));
  }
  return bucket;
}

struct Remembered {
  store::RequestId id;
  store::RememberedGrant grant;
  int64_t end_ns = 0;
};

Remembered ReadRemembered(FieldReader* from) {
  Remembered one;
  const std::string_view id = from->Text();
  if (id.size() == store::RequestId::kBytes) {
    one.id = store::RequestId::From(id);
  } else {
    from->Fail();
  }
  one.grant.fingerprint = from->Number();
  one.grant.grant_time_ns = from->Signed();
  one.grant.receipt_id = from->Number();
  one.end_ns = from->Signed();
  // Only if permits were forgiven. Version 1 of the format does not have it.
  if (!from->rest().empty()) {
    one.grant.counted.resize(from->NumberUpTo(common::bounds::kMaxCharges));
    for (uint64_t& counted : one.grant.counted) counted = from->Number();
  }
  return one;
}

std::vector<uint64_t> ReadRefunded(FieldReader* from) {
  std::vector<uint64_t> refunded(from->Count());
  for (uint64_t& id : refunded) id = from->Number();
  return refunded;
}

// Reads a whole file, so that nothing of it is used unless all of it is right.
class FileCheck {
 public:
  // As ReadStateFile.
  static absl::Status Run(const std::string& path, SavedState* state) {
    FileCheck check(state);
    absl::Status status = ReadStateFile(
        path, [&](RecordKind kind, FieldReader* from) { return check.Read(kind, from); });
    if (!status.ok()) return status;
    const bool whole = check.heads_ == 1 && check.tails_ == 1 &&
                       check.limit_ids_end_ <= state->limits.names.size() &&
                       check.rule_ids_end_ <= uint64_t{state->limits.last_rule_id} + 1;
    return whole ? absl::OkStatus()
                 : absl::DataLossError(absl::StrCat(path, ": damaged: its records do not agree"));
  }

 private:
  explicit FileCheck(SavedState* state) : state_(*state) {}

  absl::Status Read(RecordKind kind, FieldReader* from) {
    switch (kind) {
      case RecordKind::kHead:
        ++heads_;
        ReadHead(from, &state_);
        break;
      case RecordKind::kRule: {
        const store::Rule rule = ReadRule(from);
        limit_ids_end_ = std::max(limit_ids_end_, uint64_t{rule.limit_id} + 1);
        rule_ids_end_ = std::max(rule_ids_end_, uint64_t{rule.id} + 1);
        rules_[rule.id] = rule.parameters.kind;
        break;
      }
      case RecordKind::kTokens:
      case RecordKind::kBucket:
        CheckBucket(kind, from);
        ++state_.buckets;
        break;
      case RecordKind::kRefunded:
        ReadRefunded(from);
        break;
      case RecordKind::kRemembered:
        ReadRemembered(from);
        break;
      case RecordKind::kClosedSlots:
        state_.closed_slots = ReadClosedSlots(from);
        break;
      case RecordKind::kLimitName:
        state_.limits.names.emplace_back(from->Text());
        break;
      case RecordKind::kAdminLimit:
        state_.limits.admin.push_back(ReadLimit(from));
        break;
      case RecordKind::kDeletedLimit:
        state_.limits.deleted.emplace_back(from->Text());
        break;
      case RecordKind::kTail:
        ++tails_;
        ReadTail(from, &state_);
        break;
      default:
        from->Fail();
    }
    return absl::OkStatus();
  }

  void CheckBucket(RecordKind kind, FieldReader* from) const {
    const auto rule = rules_.find(ReadBucket(kind, from).rule_id);
    const bool right = rule != rules_.end() && (kind == RecordKind::kBucket ||
                                                rule->second == algorithm::Kind::kTokenBucket);
    if (!right) from->Fail();
  }

  SavedState& state_;
  int heads_ = 0;
  int tails_ = 0;
  uint64_t limit_ids_end_ = 0;
  uint64_t rule_ids_end_ = 0;
  absl::flat_hash_map<uint32_t, algorithm::Kind> rules_;
};

// Puts the buckets of a file into a store. A bucket whose limit has the same parameters as before
// gets its limit's rule. Any other one keeps its own rule, of a lower id, and is converted when it
// is used, as after a reload.
class BucketLoader {
 public:
  BucketLoader(const limits::SavedLimits& saved, MemoryStore* store,
               limits::LimitRegistry* registry)
      : saved_(saved), store_(*store), table_(registry->Current()) {}

  void Read(RecordKind kind, FieldReader* from) {
    if (kind == RecordKind::kRule) return AddRule(ReadRule(from));
    const ReadBucketResult bucket = ReadBucket(kind, from);
    const store::Rule* const rule = RuleOf(bucket.rule_id, bucket.key);
    if (rule == nullptr) {
      from->Fail();
      return;
    }
    const bool restored = bucket.image.has_value()
                              ? store_.RestoreBucket(*rule, bucket.key, *bucket.image)
                              : store_.RestoreBucket(*rule, bucket.key, bucket.tat);
    if (!restored) ++without_room_;
  }
  uint64_t without_room() const { return without_room_; }

 private:
  struct SavedRule {
    std::shared_ptr<const store::Rule> rule;
    const limits::Limit* limit = nullptr;  // of the same name; null: there is none
    bool registered = false;
  };

  void AddRule(store::Rule rule) {
    if (rule.limit_id >= saved_.names.size()) return;
    rule.limit_name = saved_.names[rule.limit_id];
    SavedRule& saved = rules_[rule.id];
    saved.limit = table_->Find(rule.limit_name);
    // Of all rules of a limit, and not saved.
    if (saved.limit != nullptr) rule.min_keys = saved.limit->RuleFor("").min_keys;
    saved.rule = std::make_shared<const store::Rule>(std::move(rule));
  }

  const store::Rule* RuleOf(uint32_t id, std::string_view key) {
    if (last_ == nullptr || last_->rule->id != id) {
      const auto found = rules_.find(id);
      if (found == rules_.end()) return nullptr;
      last_ = &found->second;
    }
    if (last_->limit != nullptr) {
      const store::Rule& now = last_->limit->RuleFor(key);
      if (now.parameters == last_->rule->parameters) return &now;
    }
    if (!last_->registered) store_.Register(last_->rule);
    last_->registered = true;
    return last_->rule.get();
  }

  const limits::SavedLimits& saved_;
  MemoryStore& store_;
  const std::shared_ptr<const limits::LimitTable> table_;
  absl::node_hash_map<uint32_t, SavedRule> rules_;
  SavedRule* last_ = nullptr;
  uint64_t without_room_ = 0;
};

// Writes the buckets of a store.
class BucketWriter {
 public:
  explicit BucketWriter(StateFileWriter* file) : file_(*file) {}

  void Write(const MemoryStore::SavedBucket& bucket) {
    if (bucket.rule->id != last_rule_ && rules_.insert(bucket.rule->id).second) {
      WriteRule(*bucket.rule);
    }
    last_rule_ = bucket.rule->id;
    fields_.clear();
    FieldWriter to(&fields_);
    to.Number(bucket.rule->id);
    to.Text(bucket.key);
    if (bucket.image == nullptr) {
      to.Number(bucket.tat);
      file_.Add(RecordKind::kTokens, fields_);
    } else {
      WriteImage(*bucket.image, &to);
      file_.Add(RecordKind::kBucket, fields_);
    }
    ++buckets_;
  }
  uint64_t buckets() const { return buckets_; }

 private:
  void WriteRule(const store::Rule& rule) {
    fields_.clear();
    FieldWriter to(&fields_);
    to.Number(rule.id);
    to.Number(rule.limit_id);
    WriteParameters(rule.parameters, &to);
    to.Optional(rule.max_owed);
    file_.Add(RecordKind::kRule, fields_);
  }

  StateFileWriter& file_;
  absl::flat_hash_set<uint32_t> rules_;
  uint32_t last_rule_ = 0;
  std::string fields_;
  uint64_t buckets_ = 0;
};

// Adds one record whose fields `write` writes.
template <typename Write>
void AddRecord(RecordKind kind, StateFileWriter* file, Write write) {
  std::string fields;
  FieldWriter to(&fields);
  write(&to);
  file->Add(kind, fields);
}

// What is not in buckets.
absl::Status WriteRest(const MemoryStore& store, const SavedState& state, StateFileWriter* file) {
  AddRecord(RecordKind::kRefunded, file, [&](FieldWriter* to) {
    const std::vector<uint64_t> refunded = store.RefundedReceipts();
    to->Number(refunded.size());
    for (const uint64_t id : refunded) to->Number(id);
  });
  AddRecord(RecordKind::kClosedSlots, file,
            [&](FieldWriter* to) { WriteClosedSlots(store.closed_slots(), state.now_ns, to); });
  absl::Status status = file->WriteIfLarge();
  store.ForEachRemembered(
      [&](const store::RequestId& id, const store::RememberedGrant& grant, int64_t end_ns) {
        AddRecord(RecordKind::kRemembered, file, [&](FieldWriter* to) {
          to->Text(id.bytes());
          to->Number(grant.fingerprint);
          to->Signed(grant.grant_time_ns);
          to->Number(grant.receipt_id);
          to->Signed(end_ns);
          if (grant.counted.empty()) return;
          to->Number(grant.counted.size());
          for (const uint64_t counted : grant.counted) to->Number(counted);
        });
        if (status.ok()) status = file->WriteIfLarge();
      });
  for (const std::string& name : state.limits.names) {
    AddRecord(RecordKind::kLimitName, file, [&](FieldWriter* to) { to->Text(name); });
    if (status.ok()) status = file->WriteIfLarge();
  }
  for (const limits::LimitSpec& spec : state.limits.admin) {
    AddRecord(RecordKind::kAdminLimit, file, [&](FieldWriter* to) { WriteLimit(spec, to); });
    if (status.ok()) status = file->WriteIfLarge();
  }
  for (const std::string& name : state.limits.deleted) {
    AddRecord(RecordKind::kDeletedLimit, file, [&](FieldWriter* to) { to->Text(name); });
    if (status.ok()) status = file->WriteIfLarge();
  }
  AddRecord(RecordKind::kTail, file, [&](FieldWriter* to) { WriteTail(state, to); });
  return status;
}

}  // namespace

MachineTime MachineTime::Now() {
  MachineTime now;
  // Not to be seen in some sandboxes.
  std::ifstream("/proc/sys/kernel/random/boot_id") >> now.boot_id;
  now.boottime_ns = ReadClock(CLOCK_BOOTTIME);
  now.wall_ns = ReadClock(CLOCK_REALTIME);
  return now;
}

int64_t MachineTime::NsSince(const MachineTime& then) const {
  const bool same_boot = !boot_id.empty() && boot_id == then.boot_id;
  if (same_boot && boottime_ns >= then.boottime_ns) return boottime_ns - then.boottime_ns;
  return std::max<int64_t>(wall_ns - then.wall_ns, 0);
}

void WriteMachineTime(const MachineTime& time, FieldWriter* to) {
  to->Text(time.boot_id);
  to->Signed(time.boottime_ns);
  to->Signed(time.wall_ns);
}

MachineTime ReadMachineTime(FieldReader* from) {
  MachineTime time;
  time.boot_id = from->Text();
  time.boottime_ns = from->Signed();
  time.wall_ns = from->Signed();
  return time;
}

absl::Status CheckState(const std::string& path, SavedState* state) {
  return FileCheck::Run(path, state);
}

absl::StatusOr<LoadedState> LoadState(const std::string& path, const SavedState& state,
                                      MemoryStore* store, limits::LimitRegistry* registry) {
  LoadedState loaded;
  BucketLoader loader(state.limits, store, registry);
  const auto read = [&](RecordKind kind, FieldReader* from) {
    switch (kind) {
      case RecordKind::kRule:
      case RecordKind::kTokens:
      case RecordKind::kBucket:
        loader.Read(kind, from);
        break;
      case RecordKind::kRefunded:
        loaded.refunded = ReadRefunded(from);
        break;
      case RecordKind::kRemembered: {
        const Remembered one = ReadRemembered(from);
        store->RestoreRemembered(one.id, one.grant, one.end_ns);
        break;
      }
      default:
        from->Skip();
    }
    return absl::OkStatus();
  };
  if (absl::Status status = ReadStateFile(path, read); !status.ok()) return status;
  loaded.without_room = loader.without_room();
  return loaded;
}

absl::StatusOr<uint64_t> WriteState(SavedState state, MemoryStore& store,
                                    limits::LimitRegistry& registry, StateFileWriter* file,
                                    absl::FunctionRef<absl::Status()> between_parts) {
  state.seed = store.seed();
  state.empty_since = store.empty_since();
  AddRecord(RecordKind::kHead, file, [&](FieldWriter* to) { WriteHead(state, to); });
  BucketWriter buckets(file);
  for (size_t part = 0; part < MemoryStore::kSavedParts; ++part) {
    store.ForEachBucket(part,
                        [&](const MemoryStore::SavedBucket& bucket) { buckets.Write(bucket); });
    if (absl::Status status = file->WriteIfLarge(); !status.ok()) return status;
    if (absl::Status status = between_parts(); !status.ok()) return status;
  }
  // After the buckets: they have no receipt and no limit that is newer.
  state.limits = registry.Save();
  state.next_receipt = store.next_receipt();
  if (absl::Status status = WriteRest(store, state, file); !status.ok()) return status;
  if (absl::Status status = file->Finish(); !status.ok()) return status;
  return buckets.buckets();
}

}  // namespace sluice::state
