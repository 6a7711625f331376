#include "server/store/settle.h"

#include <memory>

#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/commands/receipt_use.h"

namespace sluice::store::redis {
namespace {

class SettleCommand final : public DecidedHere<SettleOperation, SettleOutcome> {
 public:
  SettleCommand(CommandContext& context, SettleOperation* operation, bool closes_rates)
      : DecidedHere(context, operation, context.BucketsOf(operation->charges)),
        closes_rates_(closes_rates) {}

 private:
  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    outcome_ = Settle(operation_, open, now_ns);
    closed_ = false;
    if (!closes_rates_) return;
    for (OpenBucket& bucket : open) closed_ |= bucket.CloseReceipt(operation_->receipt_id);
  }
  bool Writes() const override {
    return closed_ || outcome_ == SettleOutcome::kSettled || outcome_ == SettleOutcome::kLate;
  }
  void OnDecided() override {
    if (operation_->estimate) return DecidedHere::OnDecided();
    // Slots that have ended leave nothing in their buckets.
    if (outcome_ == SettleOutcome::kSettled) {
      // Not awaited: what comes before it gets UNKNOWN, and changes nothing either.
      WriteReceiptUse(context_, operation_->receipt_id, ReceiptUse::kSettled, [] {});
    }
    if (outcome_ != SettleOutcome::kUnknown) return DecidedHere::OnDecided();
    // This command is gone by then.
    ReadReceiptUse(context_, operation_->receipt_id, [operation = operation_](ReceiptUse use) {
      operation->outcome =
          OutcomeOfUsed(*operation, use == ReceiptUse::kSettled, use == ReceiptUse::kRefunded);
      operation->Done();
    });
  }

  const bool closes_rates_;
  bool closed_ = false;
};

}  // namespace

void StartSettle(CommandContext& context, SettleOperation* operation, bool closes_rates) {
  BucketOperation::Start(std::make_unique<SettleCommand>(context, operation, closes_rates));
}

}  // namespace sluice::store::redis
