#include "server/store/redis/commands/bucket_operation.h"

#include "absl/strings/str_cat.h"
#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/remembered_grant.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {

std::vector<std::string> BucketOperation::KeyWords(Script script, const FencingToken& token) const {
  std::vector<std::string> words = {"EVALSHA", TextOf(script).sha,
                                    absl::StrCat(3 * buckets_.size() + once_keys_.size() + 1)};
  for (const Bucket& bucket : buckets_) {
    words.insert(words.end(), bucket.keys.begin(), bucket.keys.end());
  }
  for (const OnceKey& id : once_keys_) words.push_back(id.key);
  words.push_back(token.WordFor(buckets_[0]));
  return words;
}

std::string BucketOperation::OnceKeyOf(const RequestId& id) const {
  const std::string_view tag = context_.router().Splits()
                                   ? std::string_view(TagOfSlot(SlotOf(buckets_[0].keys[0])))
                                   : std::string_view();
  return redis::OnceKeyOf(context_.settings().name_space, tag, id);
}

std::vector<std::string> BucketOperation::ScriptWords(Script script,
                                                      const FencingToken& token) const {
  std::vector<std::string> words = KeyWords(script, token);
  words.push_back(context_.settings().TimeArgument(token));
  words.push_back(absl::StrCat(buckets_.size()));
  for (const Bucket& bucket : buckets_) {
    const RuleEntry& entry = *bucket.rule;
    AppendBucket(entry.rule->parameters, entry.encoded_parameters, entry.writer, entry.rule->shadow,
                 token.FloorOf(*entry.rule), &words);
  }
  return words;
}

void BucketOperation::DecideHereIfBooked() {
  for (const Bucket& bucket : buckets_) {
    if (algorithm::IsConcurrency(bucket.rule->rule->parameters) ||
        context_.open_buckets().Has(bucket.keys[0])) {
      command_.DecideHere();
    }
  }
}

}  // namespace sluice::store::redis
