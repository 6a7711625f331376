#include "server/store/redis/shard/batch_turns.h"

#include <algorithm>
#include <vector>

namespace sluice::store::redis {
namespace {

// A look for late batches visits all that wait: thousands, in up to 100 microseconds. So after each
// look there is a pause, and a batch may be answered this much later.
constexpr int64_t kPauseNs = 1'000'000;

}  // namespace

void BatchTurns::Begin(AcquireOperation* operation) {
  PendingAcquire* const pending = acquires_.Begin(operation, /*receipt_id=*/0);
  pending->batch = true;
  waiting_.push_back({pending, operation->acquisitions});
  waiting_acquisitions_ += operation->acquisitions.size();
  deadlines_.Await(std::max(operation->deadline_ns, look_from_ns_));
  Serve();
}

void BatchTurns::End() {
  ended_ = true;
  Serve();
}

// An answer may come at once, and begin another batch: the loop that runs already goes on.
void BatchTurns::Serve() {
  if (std::exchange(serving_, true)) return;
  while (!waiting_.empty() && Room() > 0) {
    Batch batch = waiting_.front();
    waiting_.pop_front();
    // With no other batch there is nothing to take turns with.
    const size_t most = waiting_.empty() ? Room() : std::min(kPiece, Room());
    const absl::Span<Acquisition> piece = batch.left.first(std::min(most, batch.left.size()));
    batch.left.remove_prefix(piece.size());
    waiting_acquisitions_ -= piece.size();
    if (!batch.left.empty()) waiting_.push_back(batch);
    started_ += piece.size();
    // The last answer completes the operation, which may be gone then.
    for (Acquisition& acquisition : piece) start_(acquires_.Add(batch.pending, acquisition));
  }
  serving_ = false;
}

void BatchTurns::AnswerLate(int64_t now_ns) {
  int64_t next_ns = kNoDeadline;
  std::vector<Batch> late;
  std::erase_if(waiting_, [&](const Batch& batch) {
    if (batch.pending->deadline_ns >= now_ns) {
      next_ns = std::min(next_ns, batch.pending->deadline_ns);
      return false;
    }
    late.push_back(batch);
    waiting_acquisitions_ -= batch.left.size();
    return true;
  });
  look_from_ns_ = now_ns + kPauseNs;
  deadlines_.Await(std::max(next_ns, look_from_ns_));
  for (const Batch& batch : late) {
    for (Acquisition& acquisition : batch.left) {
      Caller caller = acquires_.Add(batch.pending, acquisition);
      ++started_;
      acquisition.now_ns = now_ns;
      acquires_.Answer(caller, Outcome::kDeadlineExceeded);
    }
  }
}

}  // namespace sluice::store::redis
