#include "server/store/redis/commands/refund.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/store/decide.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/reply_numbers.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {

using algorithm::Kind;

RefundCommand::RefundCommand(Shard& shard, RefundOperation* operation, bool remembered)
    : ScriptCommand(shard), operation_(operation), remembered_(remembered) {
  for (const Charge& charge : operation->charges) {
    buckets_.push_back(shard.BucketOf(*charge.rule, charge.key));
  }
  // A reservation; its moment may be ahead.
  if (operation->grant_time_ns != 0 || KnownAsBooked()) DecideHere();
}

bool RefundCommand::BuildScript(const FencingToken& term, std::vector<std::string>* words) {
  *words = shard_.ScriptWords(Script::kRefund, buckets_, term);
  words->push_back(absl::StrCat(operation_->receipt_id));
  return true;
}

bool RefundCommand::Handle(const Reply& reply) {
  ReplyNumbers numbers(reply);
  numbers.NextTime();
  bool any_open = false;
  std::vector<uint64_t> given(buckets_.size(), 0);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const bool open = numbers.Next() == 1;
    const int64_t a = numbers.Next();
    const int64_t b = numbers.Next();
    if (!open) continue;
    any_open = true;
    const algorithm::Parameters& parameters = buckets_[i].rule->rule->parameters;
    given[i] = parameters.kind == Kind::kTokenBucket
                   ? TicksOf(parameters.token_bucket, a, b) / parameters.token_bucket.unit_ticks
                   : static_cast<uint64_t>(a);
  }
  if (!numbers.Good()) return false;
  std::copy(given.begin(), given.end(), operation_->refunded);
  if (remembered_) {
    shard_.AnswerRefund(operation_, any_open);
  } else {
    Answer(RefundOutcome::kRefunded);
  }
  return true;
}

void RefundCommand::DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) {
  open_ = Refund(*operation_, open, now_ns);
}

void RefundCommand::AnswerOpen() {
  if (remembered_) {
    shard_.AnswerRefund(operation_, open_);
  } else {
    Answer(RefundOutcome::kRefunded);
  }
}

bool RefundCommand::Stale(size_t, const std::shared_ptr<const RuleEntry>&) {
  Answer(RefundOutcome::kStaleRule);
  return false;
}

void RefundCommand::Answer(RefundOutcome outcome) {
  operation_->outcome = outcome;
  operation_->Done();
}

void RefundCommand::AnswerUnavailable() { Answer(RefundOutcome::kUnavailable); }

}  // namespace sluice::store::redis
