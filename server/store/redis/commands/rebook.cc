#include "server/store/redis/commands/rebook.h"

#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "server/store/rebook.h"
#include "server/store/redis/commands/script_command.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {
namespace {

// Parts of one operation at Redis at a time.
constexpr size_t kPartsUnderWay = 64;

// Those that are connected by buckets. (Each one's are in one slot of a Cluster, hence all are.)
struct Part {
  std::vector<RebookItem> items;
  std::vector<Bucket> buckets;
};

// Destroys itself when its last part is through.
class RebookJob {
 public:
  RebookJob(Shard& shard, RebookOperation* operation, std::deque<Part> parts)
      : shard_(shard), operation_(operation), parts_(std::move(parts)) {}

  void StartParts();
  // A part is through; `stale`: nothing was changed, since a rule is newer.
  void Ended(const std::vector<RebookItem>& items, bool stale);

 private:
  Shard& shard_;
  RebookOperation* const operation_;
  std::deque<Part> parts_;
  size_t under_way_ = 0;
  bool starting_ = false;
  bool any_changed_ = false;  // or may be
  std::vector<Rebooking*> stale_;
};

class RebookCommand final : public ScriptCommand {
 public:
  RebookCommand(Shard& shard, RebookJob& job, Part part)
      : ScriptCommand(shard), job_(job), part_(std::move(part)) {
    DecideHere();
  }

 protected:
  absl::Span<const Bucket> buckets() const override { return part_.buckets; }
  // There is no script for it.
  bool BuildScript(const FencingToken&, std::vector<std::string>*) override { return false; }
  bool Handle(const Reply&) override { return false; }
  void AnswerUnavailable() override { job_.Ended(part_.items, /*stale=*/false); }
  bool Stale(size_t, const std::shared_ptr<const RuleEntry>&) override {
    job_.Ended(part_.items, /*stale=*/true);
    return false;
  }
  void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) override {
    now_ns_ = now_ns;
    Rebook(absl::MakeSpan(part_.items), open, now_ns);
  }
  void AnswerOpen() override {
    WriteOutcomes(part_.items, now_ns_);
    job_.Ended(part_.items, /*stale=*/false);
  }

 private:
  RebookJob& job_;
  Part part_;
  int64_t now_ns_ = 0;
};

void RebookJob::StartParts() {
  if (std::exchange(starting_, true)) return;  // a part that ends at once
  while (!parts_.empty() && under_way_ < kPartsUnderWay) {
    ++under_way_;
    Part part = std::move(parts_.front());
    parts_.pop_front();
    Command::Start(std::make_unique<RebookCommand>(shard_, *this, std::move(part)));
  }
  starting_ = false;
  if (under_way_ > 0) return;
  for (Rebooking* const one : stale_) one->outcome = Rebooking::Outcome::kGone;
  operation_->status = any_changed_ ? RebookStatus::kDone : RebookStatus::kStaleRule;
  RebookOperation* const operation = operation_;
  delete this;
  operation->Done();
}

void RebookJob::Ended(const std::vector<RebookItem>& items, bool stale) {
  --under_way_;
  if (stale) {
    for (const RebookItem& item : items) stale_.push_back(item.asked);
  } else {
    any_changed_ = true;
  }
  StartParts();
}

// Which of them are in one part: a forest, whose roots stand for the parts.
class Parts {
 public:
  explicit Parts(size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0u); }
  uint32_t RootOf(uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void Join(uint32_t a, uint32_t b) { parent_[RootOf(a)] = RootOf(b); }

 private:
  std::vector<uint32_t> parent_;
};

}  // namespace

void StartRebook(Shard& shard, RebookOperation* operation) {
  const auto end = [operation](RebookStatus status) {
    operation->status = status;
    operation->Done();
  };
  const absl::Span<Rebooking> asked = operation->items;
  if (asked.empty()) return end(RebookStatus::kDone);
  struct Known {
    uint32_t item;  // the first that charges it
    const Rule* rule;
    uint32_t place;  // in its part; known once the parts are
  };
  absl::flat_hash_map<std::string, Known> buckets;
  std::vector<std::vector<Bucket>> of_item(asked.size());
  Parts joined(asked.size());
  for (uint32_t i = 0; i < asked.size(); ++i) {
    for (const Charge& charge : asked[i].charges) {
      Bucket bucket = shard.BucketOf(*charge.rule, charge.key);
      const auto [known, added] = buckets.try_emplace(bucket.keys[0], Known{i, charge.rule, 0});
      // One has an older rule.
      if (known->second.rule != charge.rule) return end(RebookStatus::kStaleRule);
      if (!added) joined.Join(i, known->second.item);
      of_item[i].push_back(std::move(bucket));
    }
  }
  std::deque<Part> parts;
  absl::flat_hash_map<uint32_t, size_t> part_of;  // by its root
  for (uint32_t i = 0; i < asked.size(); ++i) {
    asked[i].outcome = Rebooking::Outcome::kPending;
    const auto [at, added] = part_of.try_emplace(joined.RootOf(i), parts.size());
    if (added) parts.emplace_back();
    Part& part = parts[at->second];
    RebookItem item;
    item.asked = &asked[i];
    for (Bucket& bucket : of_item[i]) {
      item.set += Shard::SetOf(bucket);
      Known& known = buckets.find(bucket.keys[0])->second;
      if (known.item == i) {
        known.place = static_cast<uint32_t>(part.buckets.size());
        part.buckets.push_back(std::move(bucket));
      }
      item.buckets.push_back(known.place);
    }
    if (part.buckets.size() > kMaxRebookedBuckets) return end(RebookStatus::kUnsupported);
    part.items.push_back(std::move(item));
  }
  (new RebookJob(shard, operation, std::move(parts)))->StartParts();
}

}  // namespace sluice::store::redis
