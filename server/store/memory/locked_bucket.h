// LockedBucket: one bucket of an operation that locks its buckets. Private to the memory store.
//
// It has the functions that decide.h requires. They change a copy of the record's word, and the
// state that the word may point to; other threads see the changes when Unlock has written the word
// back. Not thread-safe. Times are of common::Clock::NowNs().
#ifndef SLUICE_SERVER_STORE_MEMORY_LOCKED_BUCKET_H_
#define SLUICE_SERVER_STORE_MEMORY_LOCKED_BUCKET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/bounds.h"
#include "server/algorithm/bucket_state.h"
#include "server/algorithm/token_bucket.h"
#include "server/store/memory/bucket_index.h"
#include "server/store/memory/record.h"
#include "server/store/store.h"

namespace sluice::store::memory {

// The level of a bucket that does not exist.
inline BucketLevel NewLevel(const BucketIndex& index, const Rule& rule, algorithm::Moment at) {
  return index.NewState(rule).LevelAt(rule.parameters, at);
}

class LockedBucket {
 public:
  // Locks nothing yet.
  LockedBucket(BucketIndex& index, const Rule& rule, std::string_view key)
      : index_(&index), rule_(&rule), key_(key), hash_(index.Hash(rule, key)) {}

  const Rule& rule() const { return *rule_; }
  std::string_view key() const { return key_; }
  uint64_t hash() const { return hash_; }
  Record* record() const { return record_; }
  void set_record(Record* record) { record_ = record; }
  // There is no bucket: none was found, or there was no room for one. Or there is one that may not
  // grow, and the operation would make it grow.
  bool missing() const { return record_ == nullptr || no_room_; }

  // False: the record is dead. REQUIRES: !missing().
  bool Lock() { return record_->Lock(&word_, index_->lock_yields()); }
  // Unlocks a bucket that was not changed.
  void Abandon() {
    if (!missing()) record_->Unlock(word_);
  }

  // Decisions are not dated before this moment; see BucketIndex::NotBefore.
  int64_t NotBeforeNs() const {
    const int64_t of_index_ns = index_->NotBefore(hash_);
    return bookings() == 0 ? of_index_ns : std::max(of_index_ns, state().NotBeforeNs());
  }
  // Call it first, with the moment of the operation. Turns bookings up to that moment into takes,
  // at most *folds of them, which it lowers; after a change of limits, it first converts as many.
  // False: more of them are left; unlock it.
  bool Open(algorithm::Moment at, size_t* folds) {
    wall_ahead_ns_ = at.wall_ns - at.now_ns;
    if (parameters().kind != algorithm::Kind::kTokenBucket) index_->SetNotBefore(hash_, at.now_ns);
    forgets_ = !missing() && !Record::IsPlain(word_) && state().HasOldEstimates(at.now_ns);
    const size_t before = bookings();
    if (before == 0) return true;
    const bool converting = state().converting();
    receipts_evicted_ += ToChange().Fold(parameters(), at, *folds);
    *folds -= converting ? *folds : before - bookings();
    return missing() || Record::IsPlain(word_) || !state().HasDue(at.now_ns);
  }
  // What a decision on it takes beside its searches, in steps as algorithm::SearchBudget counts
  // them. REQUIRES: locked.
  size_t DecisionSteps() const {
    constexpr size_t kAnyBucket = 75;
    constexpr size_t kKeyBytesPerStep = 4;
    constexpr size_t kBookingsPerStep = 64;
    constexpr size_t kHoldsPerStep = 256;
    constexpr size_t kForgetSteps = 1000;
    const algorithm::ConcurrencyState* const held = missing() ? nullptr : slots();
    return kAnyBucket + key_.size() / kKeyBytesPerStep + bookings() / kBookingsPerStep +
           (held == nullptr ? 0 : held->holds().size() / kHoldsPerStep) +
           (forgets_ ? kForgetSteps : 0) +
           VisitOwn(parameters(), [](const auto& own) { return own.DecisionSteps(); });
  }
  // To be called before an acquisition is decided, which may open a receipt. If its state would
  // grow and there is no room, the bucket counts as missing. `maker`: whose operation it is.
  void RefuseToGrow(bool want_receipt, int64_t now_ns, const BucketMaker& maker) {
    maker_ = maker;
    const bool grows = want_receipt || parameters().kind == algorithm::Kind::kSlidingLog;
    no_room_ = grows && !missing() && (Full() || HoldsFull(now_ns));
  }
  // Publishes the new word. A token bucket without open receipts and bookings becomes a plain word
  // again. Returns how many receipts were closed to make room for newer ones.
  size_t Unlock(int64_t now_ns) {
    if (record_ == nullptr) return 0;
    if (!Record::IsPlain(word_)) {
      BucketIndex::Counts after;
      bool plain = false;
      if (state().kind() == algorithm::Kind::kTokenBucket && state().bookings() == 0) {
        algorithm::BucketState& state = ToChange();
        state.CloseWorthless(parameters(), At(now_ns), algorithm::BucketState::Forget::kSome);
        plain = state.IsPlainTokenBucket();
        if (plain) {
          word_ = Record::WordOf(state.tat());
          delete &state;
        }
      }
      if (!plain && changed_) after = BucketIndex::CountsOf(state());
      if (changed_) index_->Recount(*rule_, record_->maker(), before_, after);
    }
    // It may be locked once more, and is plain then.
    changed_ = false;
    before_ = {};
    record_->Unlock(word_);
    return std::exchange(receipts_evicted_, 0);
  }

  bool CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const {
    if (!Record::IsPlain(word_)) return state().CanTake(parameters(), permits, At(now_ns), set);
    uint64_t tat = Record::TatOf(word_);
    return algorithm::TryTake(token(), permits, algorithm::ToTicks(token(), now_ns), &tat);
  }
  void Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t set) {
    if (Record::IsPlain(word_) && receipt_id == 0) {
      uint64_t tat = Record::TatOf(word_);
      algorithm::TryTake(token(), permits, algorithm::ToTicks(token(), now_ns), &tat);
      word_ = Record::WordOf(tat);
      return;
    }
    bool evicted = false;
    ToChange().TryTake(parameters(), permits, At(now_ns), receipt_id, &evicted, set);
    if (evicted) ++receipts_evicted_;
  }
  uint64_t Force(uint64_t permits, uint64_t max_owed, int64_t now_ns, uint64_t receipt_id) {
    if (Record::IsPlain(word_) && receipt_id == 0) {
      uint64_t tat = Record::TatOf(word_);
      const uint64_t counted =
          algorithm::Force(token(), permits, max_owed, algorithm::ToTicks(token(), now_ns),
                           algorithm::kMaxTat, &tat);
      word_ = Record::WordOf(tat);
      return permits - counted / token().unit_ticks;
    }
    bool evicted = false;
    const uint64_t forgiven =
        ToChange().Force(parameters(), permits, max_owed, At(now_ns), receipt_id, &evicted);
    if (evicted) ++receipts_evicted_;
    return forgiven;
  }
  void GiveBack(uint64_t permits, int64_t now_ns) {
    ToChange().GiveBack(parameters(), permits, At(now_ns));
  }
  int64_t EarliestNs(uint64_t permits, int64_t now_ns, uint64_t set, int64_t from_ns,
                     SearchBudget* budget) const {
    if (!Record::IsPlain(word_)) {
      return state().EarliestNs(parameters(), permits, At(now_ns), set, from_ns, budget);
    }
    return algorithm::EarliestNs(token(), permits, Record::TatOf(word_), std::max(now_ns, from_ns));
  }
  algorithm::Level LevelAt(int64_t now_ns, SearchBudget* budget = nullptr) const {
    if (record_ == nullptr) return NewLevel(*index_, *rule_, At(now_ns));
    if (!Record::IsPlain(word_)) return state().LevelAt(parameters(), At(now_ns), budget);
    return algorithm::LevelAt(token(), Record::TatOf(word_), now_ns);
  }
  // REQUIRES: locked, and not missing.
  algorithm::Refundable RefundableAt(int64_t now_ns) const {
    if (Record::IsPlain(word_)) return {};
    return state().RefundableAt(parameters(), At(now_ns));
  }
  size_t receipt_places() const { return Record::IsPlain(word_) ? 0 : state().receipt_places(); }
  std::optional<uint64_t> Refund(uint64_t receipt_id, int64_t now_ns) {
    if (Record::IsPlain(word_)) return std::nullopt;
    return ToChange().Refund(parameters(), receipt_id, At(now_ns));
  }
  std::optional<int64_t> HeldUntilNs(uint64_t receipt_id, int64_t now_ns) const {
    if (Record::IsPlain(word_)) return std::nullopt;
    return state().HeldUntilNs(receipt_id, At(now_ns));
  }
  std::optional<int64_t> RenewHold(uint64_t receipt_id, int64_t now_ns) {
    if (Record::IsPlain(word_)) return std::nullopt;
    return ToChange().RenewHold(parameters(), receipt_id, At(now_ns));
  }
  // Null: these are no slots. REQUIRES: locked, and not missing.
  const algorithm::ConcurrencyState* slots() const {
    return Record::IsPlain(word_) ? nullptr : state().slots();
  }
  bool HasRoomForEstimate(int64_t now_ns) {
    if (Full()) return false;
    return Record::IsPlain(word_) || ToChange().HasRoomForEstimate(At(now_ns));
  }
  void BeginEstimate(uint64_t receipt_id, uint64_t permits, int64_t grant_time_ns,
                     int64_t within_ns) {
    ToChange().BeginEstimate(receipt_id, permits, grant_time_ns, within_ns);
  }
  std::optional<algorithm::Estimate> FindEstimate(uint64_t receipt_id) const {
    if (missing() || Record::IsPlain(word_)) return std::nullopt;
    const algorithm::Estimate* const found = state().FindEstimate(receipt_id);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  uint64_t Settle(uint64_t receipt_id, const algorithm::BucketState::Settlement& settlement,
                  int64_t now_ns) {
    return ToChange().Settle(parameters(), receipt_id, settlement, At(now_ns));
  }
  void CloseReceipt(uint64_t receipt_id) {
    if (!Record::IsPlain(word_)) ToChange().CloseReceipt(receipt_id);
  }
  void Book(const algorithm::Booking& booking, int64_t now_ns) {
    ToChange().Book(parameters(), booking, At(now_ns));
  }
  bool CancelBooking(int64_t grant_time_ns, uint64_t id) {
    return MayHaveBooked() && ToChange().CancelBooking(parameters(), grant_time_ns, id);
  }
  bool FindBooking(int64_t grant_time_ns, uint64_t id, algorithm::Booking* booking,
                   int64_t* previous_ns) const {
    return MayHaveBooked() && state().FindBooking(grant_time_ns, id, booking, previous_ns);
  }
  void ForEachBooking(absl::FunctionRef<void(const algorithm::Booking&)> visit) const {
    if (bookings() != 0) state().ForEachBooking(visit);
  }
  // As full as a bucket that does not exist.
  void Reset(int64_t now_ns) {
    if (Record::IsPlain(word_)) {
      const uint64_t new_tat =
          index_->empty_since().has_value() ? index_->NewState(*rule_).tat() : 0;
      word_ = Record::WordOf(std::max(algorithm::ToTicks(token(), now_ns), new_tat));
    } else {
      index_->FreeHoldsLater(&ToChange());
      state().Reset(parameters(), At(now_ns));
      const bool new_is_full =
          !index_->lost_data() || index_->NewState(*rule_).IsFull(parameters(), At(now_ns));
      if (!new_is_full) index_->Exhaust(*rule_, &state());
    }
  }

  size_t bookings() const { return missing() || Record::IsPlain(word_) ? 0 : state().bookings(); }
  // Whether this bucket, its limit or the store has the most bookings that it may have, or there is
  // no room for more. `more`: bookings that are to be counted beside its own.
  bool BookingsFull(size_t more = 0) const {
    // The totals do not know yet what has changed since the bucket was locked.
    const uint64_t since = more + (changed_ ? bookings() - before_.bookings : 0);
    return bookings() + more >= common::bounds::kMaxBookingsPerBucket ||
           index_->bookings_of_limit(*rule_) + since >= index_->bookings_left(since) || Full();
  }
  // REQUIRES: bookings() != 0.
  int64_t NextGrantTimeNs() const { return state().NextGrantTimeNs(); }
  int64_t LastGrantTimeNs() const { return state().LastGrantTimeNs(); }

 private:
  // Whether the operation should not let the bucket grow.
  bool Full() const { return index_->Full(*rule_, maker_); }

  // Whether these are slots that have as many holds as they may have. REQUIRES: not missing.
  bool HoldsFull(int64_t now_ns) {
    constexpr size_t kRemovedAtOnce = 1024;  // about 0.1 ms
    const auto full = [this] {
      return slots() != nullptr && slots()->holds().size() >= common::bounds::kMaxHoldsPerBucket;
    };
    if (!full()) return false;
    // Some may have ended.
    ToChange().Fold(parameters(), At(now_ns), kRemovedAtOnce);
    return full();
  }
  bool MayHaveBooked() const {
    return bookings() != 0 || (!missing() && !Record::IsPlain(word_) && state().slots() != nullptr);
  }
  const algorithm::Parameters& parameters() const { return rule_->parameters; }
  const algorithm::TokenBucket& token() const { return rule_->parameters.token_bucket; }
  algorithm::Moment At(int64_t now_ns) const { return {now_ns, now_ns + wall_ahead_ns_}; }
  // REQUIRES: the word is not plain.
  algorithm::BucketState& state() const { return *Record::StateOf(word_); }
  // The state, made of a plain word if need be. Unlock counts what has changed.
  algorithm::BucketState& ToChange() {
    if (Record::IsPlain(word_)) {
      word_ = Record::WordOf(
          new algorithm::BucketState(algorithm::BucketState::FromTat(Record::TatOf(word_))));
    } else if (!changed_) {
      before_ = BucketIndex::CountsOf(state());
    }
    changed_ = true;
    return state();
  }

  BucketIndex* index_;
  const Rule* rule_;
  std::string_view key_;
  uint64_t hash_;
  Record* record_ = nullptr;
  uint64_t word_ = Record::kPlain;  // as it was locked, then as it is to become
  int64_t wall_ahead_ns_ = 0;       // wall clock minus NowNs(); read for fixed_window only
  size_t receipts_evicted_ = 0;
  bool no_room_ = false;
  bool forgets_ = false;  // its estimates are old, and are removed some at a time
  BucketMaker maker_;     // of the operation
  bool changed_ = false;  // the state may differ from what the index counts:
  BucketIndex::Counts before_;
};

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_LOCKED_BUCKET_H_
