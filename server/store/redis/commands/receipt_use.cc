#include "server/store/redis/commands/receipt_use.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/redis/commands/command.h"

namespace sluice::store::redis {
namespace {

// Each value with its time. Refunds are rare; slots are settled at the rate of the calls, so they
// are kept only for as long as a caller may repeat a lost call.
constexpr char kRefundedText[] = "1";
constexpr char kRefundedSeconds[] = "600";
constexpr char kSettledText[] = "2";
constexpr char kSettledSeconds[] = "60";

std::string KeyOf(const CommandContext& context, uint64_t receipt_id) {
  return absl::StrCat(context.settings().name_space, ":used:", receipt_id);
}

}  // namespace

void WriteReceiptUse(CommandContext& context, uint64_t receipt_id, ReceiptUse use,
                     absl::AnyInvocable<void()> done) {
  const std::string key = KeyOf(context, receipt_id);
  const bool settled = use == ReceiptUse::kSettled;
  RawCommand::Start(context, key,
                    {"SET", key, settled ? kSettledText : kRefundedText, "EX",
                     settled ? kSettledSeconds : kRefundedSeconds},
                    [done = std::move(done)](const Reply*) mutable { done(); });
}

void ReadReceiptUse(CommandContext& context, uint64_t receipt_id,
                    absl::AnyInvocable<void(ReceiptUse)> done) {
  const std::string key = KeyOf(context, receipt_id);
  RawCommand::Start(context, key, {"GET", key},
                    [done = std::move(done)](const Reply* reply) mutable {
                      const bool known = reply != nullptr && reply->type == Reply::Type::kString;
                      done(!known                        ? ReceiptUse::kNone
                           : reply->text == kSettledText ? ReceiptUse::kSettled
                                                         : ReceiptUse::kRefunded);
                    });
}

}  // namespace sluice::store::redis
