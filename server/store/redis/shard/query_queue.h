// QueryQueue: the queries of one event loop that wait to be sent to Redis.
//
// A query asks for hundreds of buckets, and each is a command. If all were sent at once, the
// acquisitions of other callers would wait behind them. So only kMost buckets of all queries are
// asked for at a time. Queries take turns, one bucket each: a small one does not wait until large
// ones are done.
#ifndef SLUICE_SERVER_STORE_REDIS_SHARD_QUERY_QUEUE_H_
#define SLUICE_SERVER_STORE_REDIS_SHARD_QUERY_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/store/store.h"

namespace sluice::store::redis {

// Belongs to its loop.
class QueryQueue {
 public:
  // About a millisecond of Redis' time.
  static constexpr size_t kMost = 64;

  // Fills the item, now or later, then calls `answered` once. Not sent after deadline_ns.
  using Ask = absl::AnyInvocable<void(QueryItem& item, int64_t deadline_ns,
                                      absl::AnyInvocable<void()> answered)>;

  explicit QueryQueue(Ask ask) : ask_(std::move(ask)) {}

  void Begin(QueryOperation* operation);
  // The loop is at its end: what is not asked for yet is answered as unavailable, from now on too.
  void End();

 private:
  struct Entry {
    QueryOperation* operation;
    size_t begun = 0;       // items
    size_t unanswered = 0;  // of these
    bool all_begun() const { return begun == operation->items.size(); }
  };

  void Serve();
  static void OnAnswered(Entry& entry);

  Ask ask_;
  std::deque<std::shared_ptr<Entry>> waiting_;  // in the order of their turns
  size_t asked_ = 0;                            // items, of all queries
  bool serving_ = false;
  bool ended_ = false;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_SHARD_QUERY_QUEUE_H_
