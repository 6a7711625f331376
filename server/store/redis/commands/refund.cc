#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/decide.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/commands/operations.h"
#include "server/store/redis/commands/receipt_use.h"
#include "server/store/redis/wire/remembered_grant.h"

namespace sluice::store::redis {
namespace {

void Answer(RefundOperation* operation, RefundOutcome outcome) {
  operation->outcome = outcome;
  operation->Done();
}

class RefundCommand final : public BucketOperation {
 public:
  RefundCommand(CommandContext& context, RefundOperation* operation, std::vector<Bucket> buckets,
                bool remembered)
      : BucketOperation(context, std::move(buckets)),
        operation_(operation),
        remembered_(remembered) {
    // A reservation: its grant time may be ahead.
    if (operation->grant_time_ns != 0) command_.DecideHere();
    if (operation->request_id != nullptr) {
      once_keys_.push_back({OnceKeyOf(*operation->request_id)});
    }
  }

 private:
  bool BuildScript(const FencingToken& token, std::vector<std::string>* words) override {
    *words = ScriptWords(Script::kRefund, token);
    words->push_back(absl::StrCat(operation_->receipt_id));
    return true;
  }

  Handled OnScriptReply(const Reply& reply, const FencingToken&) override {
    ReplyNumbers numbers(reply);
    numbers.NextTime();
    std::vector<uint64_t> given(buckets_.size(), 0);
    for (size_t i = 0; i < buckets_.size(); ++i) {
      const bool open = numbers.Next() == 1;
      const int64_t a = numbers.Next();
      const int64_t b = numbers.Next();
      if (!open) continue;
      open_ = true;
      const algorithm::Parameters& parameters = parameters_of(i);
      given[i] = parameters.kind == algorithm::Kind::kTokenBucket
                     ? TicksOf(parameters.token_bucket, a, b) / parameters.token_bucket.unit_ticks
                     : static_cast<uint64_t>(a);
    }
    if (!numbers.Good()) return Handled::kMalformed;
    std::copy(given.begin(), given.end(), operation_->refunded);
    OnDecided();
    return Handled::kDone;
  }

  void Decide(absl::Span<OpenBucket> open, int64_t now_ns) override {
    settled_ = WasSettled(operation_->receipt_id, open);
    open_ = !settled_ && Refund(*operation_, open, now_ns);
    if (settled_) std::fill_n(operation_->refunded, open.size(), uint64_t{0});
    if (!open_ || once_keys_.empty()) return;
    std::optional<RememberedGrant> grant = ParseGrant(once_keys_[0].known);
    if (!grant.has_value() || grant->receipt_id != operation_->receipt_id) return;
    grant->receipt_id = RememberedGrant::kRefunded;
    grant->counted.clear();
    once_keys_[0].to_set = FormatGrant(*grant);
  }
  bool Writes() const override { return open_ || operation_->place != nullptr; }

  // Answers by whether the receipt was open.
  void OnDecided() override {
    RefundOperation* const operation = operation_;
    if (settled_) return Answer(operation, RefundOutcome::kSettled);
    if (!remembered_) return Answer(operation, RefundOutcome::kRefunded);
    // Only tickets were removed.
    if (operation->receipt_id == 0) return Answer(operation, RefundOutcome::kExpired);
    UsedReceipts& used_receipts = context_.used_receipts();
    if (!open_ && used_receipts.Contains(operation->receipt_id)) {
      return Answer(operation, RefundOutcome::kAlreadyRefunded);
    }
    if (!open_) {
      // Perhaps refunded by another node, or by this one before it restarted.
      return ReadReceiptUse(context_, operation->receipt_id, [operation](ReceiptUse use) {
        Answer(operation, use == ReceiptUse::kRefunded  ? RefundOutcome::kAlreadyRefunded
                          : use == ReceiptUse::kSettled ? RefundOutcome::kSettled
                                                        : RefundOutcome::kExpired);
      });
    }
    used_receipts.Add(operation->receipt_id);
    // Answered when the other nodes can know, or if they cannot: the permits were given back.
    WriteReceiptUse(context_, operation->receipt_id, ReceiptUse::kRefunded,
                    [operation] { Answer(operation, RefundOutcome::kRefunded); });
  }

  bool OnNewerRule(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) override {
    // Nobody would repeat what gives a denied acquisition back.
    if (!remembered_) return BucketOperation::OnNewerRule(bucket, newer);
    Answer(operation_, RefundOutcome::kStaleRule);
    return false;
  }
  void OnUnavailable(bool) override { Answer(operation_, RefundOutcome::kUnavailable); }

  RefundOperation* const operation_;
  const bool remembered_;
  bool open_ = false;
  bool settled_ = false;
};

}  // namespace

void StartRefund(CommandContext& context, RefundOperation* operation, std::vector<Bucket> buckets,
                 bool remembered) {
  BucketOperation::Start(
      std::make_unique<RefundCommand>(context, operation, std::move(buckets), remembered));
}

}  // namespace sluice::store::redis
