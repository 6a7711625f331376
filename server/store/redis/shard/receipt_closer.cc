#include "server/store/redis/shard/receipt_closer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {
namespace {

// Most receipts closed by one script.
constexpr size_t kMost = 256;

}  // namespace

void ReceiptCloser::Close(absl::Span<const Bucket> buckets, uint64_t receipt_id) {
  std::vector<std::string> keys;
  for (const Bucket& bucket : buckets) {
    keys.insert(keys.end(), bucket.keys.begin(), bucket.keys.end());
  }
  const std::string name = absl::StrJoin(keys, "\n");
  Queue& queue = queues_[name];
  queue.keys = std::move(keys);
  queue.ids.push_back(absl::StrCat(receipt_id));
  if (!queue.in_flight) Send(name);
}

void ReceiptCloser::Send(const std::string& name) {
  Queue& queue = queues_[name];
  queue.in_flight = true;
  std::vector<std::string> words = {"EVALSHA", TextOf(Script::kCloseReceipts).sha,
                                    absl::StrCat(queue.keys.size())};
  words.insert(words.end(), queue.keys.begin(), queue.keys.end());
  const size_t count = std::min(queue.ids.size(), kMost);
  words.insert(words.end(), queue.ids.begin(), queue.ids.begin() + static_cast<ptrdiff_t>(count));
  queue.ids.erase(queue.ids.begin(), queue.ids.begin() + static_cast<ptrdiff_t>(count));
  const std::string key = queue.keys[0];
  RawCommand::Start(context_, key, std::move(words),
                    [this, name](const Reply*) { OnAnswer(name); });
}

void ReceiptCloser::OnAnswer(const std::string& name) {
  Queue& queue = queues_[name];
  queue.in_flight = false;
  if (queue.ids.empty()) {
    queues_.erase(name);
  } else {
    Send(name);
  }
}

}  // namespace sluice::store::redis
