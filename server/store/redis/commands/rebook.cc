#include "server/store/rebook.h"

#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"

namespace sluice::store::redis {
namespace {

// Parts of one operation that are in flight at a time.
constexpr size_t kMaxPartsInFlight = 64;

// Reservations that share buckets, directly or through others. All their buckets are in one slot of
// a Cluster, since those of each reservation are.
struct Part {
  std::vector<RebookItem> items;
  std::vector<Bucket> buckets;
};

// Destroys itself when its last part is done.
class RebookJob {
 public:
  RebookJob(CommandContext& context, RebookOperation* operation, std::deque<Part> parts)
      : context_(context), operation_(operation), parts_(std::move(parts)) {}

  void StartParts();
  // `stale`: nothing was changed, since a bucket is of a newer rule.
  void OnPartDone(const std::vector<RebookItem>& items, bool stale);

 private:
  CommandContext& context_;
  RebookOperation* const operation_;
  std::deque<Part> parts_;
  size_t in_flight_ = 0;
  bool starting_ = false;
  bool any_changed_ = false;  // or may be
  std::vector<Rebooking*> stale_;
};

class RebookCommand final : public BucketOperation {
 public:
  RebookCommand(CommandContext& context, RebookJob& job, Part part)
      : BucketOperation(context, std::move(part.buckets)),
        job_(job),
        items_(std::move(part.items)) {
    command_.DecideHere();
  }

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    now_ns_ = now_ns;
    Rebook(absl::MakeSpan(items_), open, now_ns);
  }
  void OnDecided() override {
    WriteOutcomes(items_, now_ns_);
    job_.OnPartDone(items_, /*stale=*/false);
  }
  bool OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) override {
    job_.OnPartDone(items_, /*stale=*/true);
    return false;
  }
  void OnUnavailable(bool) override { job_.OnPartDone(items_, /*stale=*/false); }

  RebookJob& job_;
  std::vector<RebookItem> items_;
  int64_t now_ns_ = 0;
};

void RebookJob::StartParts() {
  if (std::exchange(starting_, true)) return;  // a part is done at once
  while (!parts_.empty() && in_flight_ < kMaxPartsInFlight) {
    ++in_flight_;
    Part part = std::move(parts_.front());
    parts_.pop_front();
    BucketOperation::Start(std::make_unique<RebookCommand>(context_, *this, std::move(part)));
  }
  starting_ = false;
  if (in_flight_ > 0) return;
  for (Rebooking* const one : stale_) one->outcome = Rebooking::Outcome::kGone;
  operation_->status = any_changed_ ? RebookStatus::kDone : RebookStatus::kStaleRule;
  RebookOperation* const operation = operation_;
  delete this;
  operation->Done();
}

void RebookJob::OnPartDone(const std::vector<RebookItem>& items, bool stale) {
  --in_flight_;
  if (stale) {
    for (const RebookItem& item : items) stale_.push_back(item.asked);
  } else {
    any_changed_ = true;
  }
  StartParts();
}

// Which reservations are in one part: a union-find forest, whose roots name the parts.
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

void StartRebook(CommandContext& context, RebookOperation* operation) {
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
      Bucket bucket = context.BucketOf(*charge.rule, charge.key);
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
      item.set += SetIdOf(bucket);
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
  (new RebookJob(context, operation, std::move(parts)))->StartParts();
}

}  // namespace sluice::store::redis
