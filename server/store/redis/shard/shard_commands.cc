// What the commands of a Shard need of it.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "server/store/redis/redis_store.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {
namespace {

// For so long a second refund is told that it is one; later, that the receipt has expired.
constexpr char kUsedReceiptSeconds[] = "600";

}  // namespace

int64_t Shard::TestNowNs() const {
  const common::Clock* const clock = store_.options_.test_time;
  return clock == nullptr ? -1 : clock->NowNs();
}

std::string Shard::TimeArgument() const { return has_test_time() ? TestTime(TestNowNs()) : ""; }

bool Shard::has_test_time() const { return store_.options_.test_time != nullptr; }

std::vector<std::string> Shard::ScriptWords(Script script, absl::Span<const Bucket> buckets,
                                            const FencingToken& term) const {
  std::vector<std::string> words = {"EVALSHA", TextOf(script).sha,
                                    absl::StrCat(3 * buckets.size() + 1)};
  for (const Bucket& bucket : buckets) {
    words.insert(words.end(), bucket.keys.begin(), bucket.keys.end());
  }
  words.push_back(term.WordFor(buckets[0]));
  words.push_back(TimeArgument());
  words.push_back(absl::StrCat(buckets.size()));
  for (const Bucket& bucket : buckets) {
    const RuleEntry& entry = *bucket.rule;
    AppendBucket(entry.rule->parameters, entry.encoded_parameters, entry.writer, entry.rule->shadow,
                 term.floor_us, &words);
  }
  return words;
}

uint64_t Shard::NewReceipt() {
  return store_.next_receipt_.fetch_add(1, std::memory_order_relaxed);
}

void Shard::AnswerRefund(RefundOperation* operation, bool open) {
  const auto answer = [operation](RefundOutcome outcome) {
    operation->outcome = outcome;
    operation->Done();
  };
  if (!open && store_.used_receipts_.Contains(operation->receipt_id)) {
    return answer(RefundOutcome::kAlreadyRefunded);
  }
  std::string key = absl::StrCat(store_.options_.name_space, ":used:", operation->receipt_id);
  if (!open) {
    // By another node, or by one that was here before?
    return Begin(Call{key, {"EXISTS", key}, [answer](const Reply* reply) {
                        const bool used = reply != nullptr && reply->integer == 1;
                        answer(used ? RefundOutcome::kAlreadyRefunded : RefundOutcome::kExpired);
                      }});
  }
  store_.used_receipts_.Add(operation->receipt_id);
  // Answered once the others can know, whether or not that came about: the permits are given back.
  Begin(Call{key, {"SET", key, "1", "EX", kUsedReceiptSeconds}, [answer](const Reply*) {
               answer(RefundOutcome::kRefunded);
             }});
}

void Shard::LogError(std::string_view event, std::string_view what) {
  if (store_.log_ == nullptr) return;
  store_.log_->Warning(
      event, {{"error", common::ToAbsl(what)}, {"store", store_.options_.url.ToString()}});
}

uint64_t Shard::NewBooking(int64_t now_ns, uint64_t after) {
  return store_.NewBooking(now_ns, after);
}

std::string Shard::NewVersion() {
  return absl::StrCat(absl::Hex(store_.next_receipt_.fetch_add(1, std::memory_order_relaxed)));
}

void Shard::AdjustTtl(std::string* ttl_ms) const {
  if (store_.options_.test_time != nullptr) *ttl_ms = "3600000";
}

std::shared_ptr<const RuleEntry> Shard::NewerThan(const RuleEntry& entry,
                                                  std::string_view writer) const {
  const std::vector<absl::string_view> words = absl::StrSplit(common::ToAbsl(writer), '.');
  uint32_t rule_id = 0;
  if (words.size() != 2 || words[0] != store_.instance_ || !absl::SimpleAtoi(words[1], &rule_id) ||
      rule_id <= entry.rule->id) {
    return nullptr;
  }
  return store_.Find(rule_id);
}

void Shard::TakesOver(const Bucket& bucket, std::string_view writer,
                      const algorithm::Parameters& from) {
  if (writer.substr(0, writer.find('.')) == store_.instance_) return;
  const Rule& rule = *bucket.rule->rule;
  store_.config_mismatch_.TakesOver(rule.limit_name, bucket.keys[0], Describe(rule.parameters),
                                    Describe(from));
}

void Shard::Foreign(const Bucket& bucket, const absl::Status& why) {
  counters_.errors.Add();
  LogError("redis_foreign_key", absl::StrCat(bucket.keys[0], ": ", why.message()));
}

Mismatch Shard::Judge(absl::Span<const Bucket> buckets, int64_t floor_us, const Reply& reply) {
  Mismatch mismatch;
  mismatch.bucket = static_cast<size_t>(reply.elements[1].integer);
  if (mismatch.bucket >= buckets.size()) return mismatch;
  const Bucket& bucket = buckets[mismatch.bucket];
  const int64_t now_ns = reply.elements[2].integer * 1000 + reply.elements[3].integer;
  const std::string& state = reply.elements[4].text;
  const std::string& receipts = reply.elements[6].text;
  std::vector<std::string> runs;
  for (const Reply& run : reply.elements[5].elements) runs.push_back(run.text);
  const algorithm::Parameters& to = bucket.rule->rule->parameters;
  absl::StatusOr<OpenBucket> stored = OpenBucket::Read(to, state, receipts, runs, now_ns);
  if (!stored.ok()) {
    Foreign(bucket, stored.status());
    return mismatch;
  }
  mismatch.newer = NewerThan(*bucket.rule, stored->writer());
  if (mismatch.newer != nullptr) {
    mismatch.what = Mismatch::What::kStale;
    return mismatch;
  }
  if (bucket.rule->encoded_parameters == EncodeParameters(stored->parameters()))
    return mismatch;  // of another program
  TakesOver(bucket, stored->writer(), stored->parameters());
  stored->ApplyFloor(floor_us);
  stored->Convert(to, now_ns);
  std::vector<std::string> formatted = stored->Format(bucket.rule->writer, "", now_ns);
  formatted.erase(formatted.begin() + 3);  // convert.lua takes all that follows as runs
  AdjustTtl(&formatted[0]);
  mismatch.what = Mismatch::What::kConvert;
  mismatch.convert_words = {"EVALSHA",
                            TextOf(Script::kConvert).sha,
                            "4",
                            bucket.keys[0],
                            bucket.keys[1],
                            bucket.keys[2],
                            "",  // the fence's, when it is sent
                            state,
                            receipts};
  mismatch.convert_words.insert(mismatch.convert_words.end(), formatted.begin(), formatted.end());
  return mismatch;
}

}  // namespace sluice::store::redis
