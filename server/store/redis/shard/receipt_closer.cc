#include "server/store/redis/shard/receipt_closer.h"

#include <algorithm>
#include <iterator>
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

void ReceiptCloser::Close(absl::Span<const Bucket> buckets, uint64_t receipt_id, Done done) {
  std::vector<std::string> keys;
  for (const Bucket& bucket : buckets) {
    keys.insert(keys.end(), bucket.keys.begin(), bucket.keys.end());
  }
  const std::string name = absl::StrJoin(keys, "\n");
  Queue& queue = queues_[name];
  queue.keys = std::move(keys);
  queue.receipts.push_back({receipt_id, std::move(done)});
  if (!queue.in_flight) Send(name);
}

void ReceiptCloser::Send(const std::string& name) {
  Queue& queue = queues_[name];
  queue.in_flight = true;
  std::vector<std::string> words = {"EVALSHA", TextOf(Script::kCloseReceipts).sha,
                                    absl::StrCat(queue.keys.size())};
  words.insert(words.end(), queue.keys.begin(), queue.keys.end());
  const auto end =
      queue.receipts.begin() + static_cast<ptrdiff_t>(std::min(queue.receipts.size(), kMost));
  std::vector<Receipt> sent(std::make_move_iterator(queue.receipts.begin()),
                            std::make_move_iterator(end));
  queue.receipts.erase(queue.receipts.begin(), end);
  for (const Receipt& receipt : sent) words.push_back(absl::StrCat(receipt.id));
  const std::string key = queue.keys[0];
  RawCommand::Start(context_, key, std::move(words),
                    [this, name, sent = std::move(sent)](const Reply*) mutable {
                      OnAnswer(name);
                      for (Receipt& receipt : sent) receipt.done();
                    });
}

void ReceiptCloser::OnAnswer(const std::string& name) {
  Queue& queue = queues_[name];
  queue.in_flight = false;
  if (queue.receipts.empty()) {
    queues_.erase(name);
  } else {
    Send(name);
  }
}

}  // namespace sluice::store::redis
