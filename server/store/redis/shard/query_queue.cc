#include "server/store/redis/shard/query_queue.h"

namespace sluice::store::redis {

void QueryQueue::Begin(QueryOperation* operation) {
  if (operation->items.empty()) return operation->Done();
  waiting_.push_back(std::make_shared<Entry>(Entry{.operation = operation}));
  Serve();
}

void QueryQueue::End() {
  ended_ = true;
  Serve();
}

// An answer may come at once, and begin another query: the loop that runs already goes on.
void QueryQueue::Serve() {
  if (std::exchange(serving_, true)) return;
  while (!waiting_.empty() && (ended_ || asked_ < kMost)) {
    std::shared_ptr<Entry> entry = std::move(waiting_.front());
    waiting_.pop_front();
    QueryItem& item = entry->operation->items[entry->begun++];
    item = {.rule = item.rule, .key = item.key};
    ++entry->unanswered;
    if (!entry->all_begun()) waiting_.push_back(entry);
    if (ended_) {
      item.unavailable = true;
      item.source = Source::kStoreUnavailable;
      OnAnswered(*entry);
      continue;
    }
    ++asked_;
    ask_(item, entry->operation->deadline_ns, [this, entry] {
      --asked_;
      OnAnswered(*entry);
      Serve();
    });
  }
  serving_ = false;
}

void QueryQueue::OnAnswered(Entry& entry) {
  if (--entry.unanswered == 0 && entry.all_begun()) entry.operation->Done();
}

}  // namespace sluice::store::redis
