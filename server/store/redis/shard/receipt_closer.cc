#include "server/store/redis/shard/receipt_closer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"

namespace sluice::store::redis {
namespace {

// By one script.
constexpr size_t kMost = 256;

}  // namespace

void ReceiptCloser::Close(absl::Span<const Bucket> buckets, uint64_t receipt_id) {
  std::vector<std::string> keys;
  for (const Bucket& bucket : buckets) {
    keys.insert(keys.end(), bucket.keys.begin(), bucket.keys.end());
  }
  const std::string name = absl::StrJoin(keys, "\n");
  Line& line = lines_[name];
  line.keys = std::move(keys);
  line.ids.push_back(absl::StrCat(receipt_id));
  if (!line.in_flight) Send(name);
}

void ReceiptCloser::Send(const std::string& name) {
  Line& line = lines_[name];
  line.in_flight = true;
  std::vector<std::string> words = {"EVALSHA", TextOf(Script::kClose).sha,
                                    absl::StrCat(line.keys.size())};
  words.insert(words.end(), line.keys.begin(), line.keys.end());
  const size_t count = std::min(line.ids.size(), kMost);
  words.insert(words.end(), line.ids.begin(), line.ids.begin() + static_cast<ptrdiff_t>(count));
  line.ids.erase(line.ids.begin(), line.ids.begin() + static_cast<ptrdiff_t>(count));
  const std::string key = line.keys[0];
  shard_.Start(Call{key, std::move(words), [this, name](const Reply*) { OnAnswer(name); }});
}

void ReceiptCloser::OnAnswer(const std::string& name) {
  Line& line = lines_[name];
  line.in_flight = false;
  if (line.ids.empty()) {
    lines_.erase(name);
  } else {
    Send(name);
  }
}

}  // namespace sluice::store::redis
