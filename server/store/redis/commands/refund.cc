#include "server/store/redis/commands/refund.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/store/decide.h"
#include "server/store/redis/commands/raw_command.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/wire/number_codec.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {
namespace {

// How long a second refund is answered kAlreadyRefunded; later, kExpired.
constexpr char kUsedReceiptSeconds[] = "600";

void Answer(RefundOperation* operation, RefundOutcome outcome) {
  operation->outcome = outcome;
  operation->Done();
}

}  // namespace

RefundCommand::RefundCommand(CommandContext& context, RefundOperation* operation, bool remembered)
    : BucketOperation(context, context.BucketsOf(operation->charges)),
      operation_(operation),
      remembered_(remembered) {
  // A reservation: its grant time may be ahead.
  if (operation->grant_time_ns != 0) command_.DecideHere();
}

bool RefundCommand::BuildScript(const FencingToken& token, std::vector<std::string>* words) {
  *words = ScriptWords(Script::kRefund, token);
  words->push_back(absl::StrCat(operation_->receipt_id));
  return true;
}

BucketOperation::Handled RefundCommand::OnScriptReply(const Reply& reply, int64_t) {
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
  AnswerExecuted();
  return Handled::kDone;
}

void RefundCommand::Decide(absl::Span<OpenBucket> open, int64_t now_ns) {
  open_ = Refund(*operation_, open, now_ns);
}

void RefundCommand::AnswerExecuted() {
  RefundOperation* const operation = operation_;
  if (!remembered_) return Answer(operation, RefundOutcome::kRefunded);
  UsedReceipts& used_receipts = context_.used_receipts();
  if (!open_ && used_receipts.Contains(operation->receipt_id)) {
    return Answer(operation, RefundOutcome::kAlreadyRefunded);
  }
  const std::string key =
      absl::StrCat(context_.settings().name_space, ":used:", operation->receipt_id);
  if (!open_) {
    // Perhaps refunded by another node, or by this one before it restarted.
    return RawCommand::Start(context_, key, {"EXISTS", key}, [operation](const Reply* reply) {
      const bool used = reply != nullptr && reply->integer == 1;
      Answer(operation, used ? RefundOutcome::kAlreadyRefunded : RefundOutcome::kExpired);
    });
  }
  used_receipts.Add(operation->receipt_id);
  // Answered when the other nodes can know, or if they cannot: the permits were given back.
  RawCommand::Start(context_, key, {"SET", key, "1", "EX", kUsedReceiptSeconds},
                    [operation](const Reply*) { Answer(operation, RefundOutcome::kRefunded); });
}

bool RefundCommand::OnNewerRule(size_t, const std::shared_ptr<const RuleEntry>&) {
  Answer(operation_, RefundOutcome::kStaleRule);
  return false;
}

void RefundCommand::OnUnavailable(bool) { Answer(operation_, RefundOutcome::kUnavailable); }

}  // namespace sluice::store::redis
