#include "server/store/redis/wire/open_bucket.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/bounds.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::store::redis {
namespace {

using algorithm::Booking;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStartNs = 1'780'000'000 * kSecond;

// The keys of one bucket with bookings, as exchange.lua keeps them.
class Keys {
 public:
  // Takes what Format returned. Returns how many chunks were written.
  size_t Write(const std::vector<std::string>& words) {
    size_t at = 1;
    state_ = words.at(at++);
    at += 1;
    const auto count = [&] {
      size_t number = 0;
      EXPECT_TRUE(absl::SimpleAtoi(words.at(at++), &number));
      return number;
    };
    at += count();
    for (size_t left = count(); left > 0; --left) EXPECT_EQ(hash_.erase(words.at(at++)), 1u);
    const size_t fields = count();
    for (size_t i = 0; i < fields; i += 2) {
      const std::string& name = words.at(at++);
      hash_[name] = words.at(at++);
    }
    if (fields == 0) hash_.clear();
    return fields == 0 ? 0 : fields / 2 - 2;
  }

  absl::StatusOr<OpenBucket> Read(const algorithm::Parameters& parameters, int64_t now_ns,
                                  std::optional<OpenBucket> known) {
    const StoredBookings stored = known.has_value() ? known->stored() : StoredBookings();
    std::vector<std::string> runs;
    std::string past;
    if (state_ != stored.state) {
      past = hash_["past"];
      const std::string& names = hash_["chunks"];
      runs.push_back(names);
      for (const absl::string_view name : absl::StrSplit(names, ' ', absl::SkipEmpty())) {
        uint64_t generation = 0;
        EXPECT_TRUE(absl::SimpleAtoi(name.substr(0, name.find('.')), &generation));
        if (generation > stored.generation) runs.push_back(hash_.at(std::string(name)));
      }
    }
    read_ = runs.empty() ? 0 : runs.size() - 1;
    absl::StatusOr<OpenBucket> bucket =
        OpenBucket::Begin(parameters, state_, past, runs, now_ns, std::move(known));
    if (!bucket.ok()) return bucket;
    for (pieces_ = 1;; ++pieces_) {
      size_t most = most_loaded_;
      const absl::StatusOr<bool> loaded = bucket->Load(&most);
      if (!loaded.ok()) return loaded.status();
      if (*loaded) return bucket;
    }
  }

  // Bookings and runs that each piece of a reading loads, about; and pieces of the last one.
  void set_most_loaded(size_t most) { most_loaded_ = most; }
  size_t pieces() const { return pieces_; }

  // Chunks that the last read returned.
  size_t read() const { return read_; }
  size_t chunks() const { return hash_.size() - 2; }
  const std::string& past() const { return hash_.at("past"); }
  bool empty() const { return state_.empty(); }

 private:
  std::string state_;
  std::map<std::string, std::string> hash_;
  size_t read_ = 0;
  size_t most_loaded_ = std::numeric_limits<size_t>::max();
  size_t pieces_ = 0;
};

std::vector<Booking> BookingsOf(const OpenBucket& bucket) {
  std::vector<Booking> bookings;
  bucket.ForEachBooking([&](const Booking& booking) { bookings.push_back(booking); });
  return bookings;
}

void ExpectSame(const OpenBucket& a, const OpenBucket& b, int64_t now_ns) {
  const std::vector<Booking> of_a = BookingsOf(a);
  const std::vector<Booking> of_b = BookingsOf(b);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (size_t i = 0; i < of_a.size(); ++i) {
    ASSERT_EQ(of_a[i].grant_time_ns, of_b[i].grant_time_ns);
    ASSERT_EQ(of_a[i].permits, of_b[i].permits);
    ASSERT_EQ(of_a[i].id, of_b[i].id);
    ASSERT_EQ(of_a[i].set, of_b[i].set);
  }
  EXPECT_EQ(a.LevelAt(now_ns).remaining, b.LevelAt(now_ns).remaining);
  EXPECT_EQ(a.LevelAt(now_ns).reset_after_ns, b.LevelAt(now_ns).reset_after_ns);
  for (const uint64_t permits : {1, 3, 20}) {
    ASSERT_EQ(a.EarliestNs(permits, now_ns, /*set=*/9, now_ns),
              b.EarliestNs(permits, now_ns, /*set=*/9, now_ns));
  }
}

// A bucket, and what Redis has of it.
class OpenBucketTest : public ::testing::TestWithParam<algorithm::Parameters> {
 protected:
  OpenBucketTest() : bucket_(*OpenBucket::Read(GetParam(), "", "", {}, kStartNs)) {}

  void Book(uint64_t permits, uint64_t set) {
    const int64_t at_ns = bucket_.EarliestNs(permits, now_ns_, set, now_ns_ + 1);
    if (at_ns == algorithm::kNeverNs) return;
    bucket_.Book({at_ns, permits, ++id_, set}, now_ns_);
    given_.push_back({at_ns, permits, id_, set});
  }
  void Cancel(size_t i) {
    bucket_.CancelBooking(given_[i].grant_time_ns, given_[i].id);
    given_.erase(given_.begin() + static_cast<ptrdiff_t>(i));
  }
  size_t Write() {
    const size_t written =
        keys_.Write(bucket_.Format("w.1", absl::StrCat("v", ++version_), now_ns_));
    bucket_.Written("w.1");
    return written;
  }
  size_t Random(size_t below) { return random_() % below; }

  std::mt19937_64 random_{1};
  OpenBucket bucket_;
  Keys keys_;
  std::vector<Booking> given_;
  int64_t now_ns_ = kStartNs;
  uint64_t id_ = 0;
  uint64_t version_ = 0;
};

TEST_P(OpenBucketTest, ReaderWithOldKnowledgeGetsSameBucketFromLaterChunks) {
  std::optional<OpenBucket> known;
  for (int step = 0; step < 1500; ++step) {
    switch (Random(8)) {
      case 0:
        now_ns_ += static_cast<int64_t>(Random(static_cast<size_t>(2 * kSecond)));
        now_ns_ = BeginAt(absl::MakeSpan(&bucket_, 1), now_ns_);
        std::erase_if(given_, [&](const Booking& one) { return one.grant_time_ns <= now_ns_; });
        break;
      case 1:
        bucket_.Take(1, now_ns_, /*receipt_id=*/Random(2) * 1'000'000 + step, /*set=*/9);
        break;
      case 2:
      case 3:
        for (size_t left = Random(20); left > 0 && !given_.empty(); --left) {
          Cancel(Random(given_.size()));
        }
        break;
      default:
        for (size_t left = Random(40); left > 0; --left) Book(1 + Random(3), Random(5));
    }
    if (bucket_.bookings() == 0) Book(1, 0);
    if (Random(3) == 0 && step > 0) continue;
    Write();
    std::optional<OpenBucket> reader = known;
    if (reader.has_value() && Random(2) == 0) {
      // It decided something that was not written.
      std::vector<Booking> of_reader = BookingsOf(*reader);
      const int64_t reads_ns = BeginAt(absl::MakeSpan(&*reader, 1), now_ns_);
      for (const Booking& one : of_reader) {
        if (Random(of_reader.size()) < 4) reader->CancelBooking(one.grant_time_ns, one.id);
      }
      for (size_t left = Random(4); left > 0; --left) {
        const int64_t at_ns = reader->EarliestNs(1, reads_ns, /*set=*/2, reads_ns + 1);
        reader->Book({at_ns, 1, 5'000'000 + Random(1'000'000'000), 2}, reads_ns);
      }
    }
    keys_.set_most_loaded(Random(2) == 0 ? 1 + Random(300) : std::numeric_limits<size_t>::max());
    absl::StatusOr<OpenBucket> read = keys_.Read(GetParam(), now_ns_, std::move(reader));
    ASSERT_TRUE(read.ok()) << read.status();
    BeginAt(absl::MakeSpan(&*read, 1), now_ns_);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(bucket_, *read, now_ns_)) << "step " << step;
    if (Random(3) == 0) known = *std::move(read);
  }
  EXPECT_GT(bucket_.bookings(), 500u);
}

TEST_P(OpenBucketTest, ChangeWritesOnlyItsChunks) {
  for (int i = 0; i < 5000; ++i) Book(1, 1);
  Write();
  const OpenBucket known = bucket_;
  Book(1, 1);
  EXPECT_EQ(Write(), 1u);
  Cancel(2500);
  EXPECT_EQ(Write(), 1u);
  ASSERT_TRUE(keys_.Read(GetParam(), now_ns_, known).ok());
  EXPECT_EQ(keys_.read(), 2u);
  Cancel(2500);
  EXPECT_EQ(Write(), 1u);
  ASSERT_TRUE(keys_.Read(GetParam(), now_ns_, known).ok());
  EXPECT_EQ(keys_.read(), 2u);
  ASSERT_TRUE(keys_.Read(GetParam(), now_ns_, bucket_).ok());
  EXPECT_EQ(keys_.read(), 0u);
}

TEST_P(OpenBucketTest, ManyBookingsAreLoadedAndFoldedInPieces) {
  for (int i = 0; i < 5000; ++i) Book(1, 1);
  Write();
  keys_.set_most_loaded(1000);
  absl::StatusOr<OpenBucket> read = keys_.Read(GetParam(), now_ns_, std::nullopt);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_GE(keys_.pieces(), 5u);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(bucket_, *read, now_ns_));
  now_ns_ = given_[3000].grant_time_ns;
  for (size_t left = 10'000;;) {
    size_t most = 100;
    const size_t before = read->bookings();
    const bool folded = read->FoldSome(now_ns_, &most);
    ASSERT_EQ(before - read->bookings(), 100 - most);
    if (folded) break;
    ASSERT_EQ(most, 0u);
    ASSERT_GT(--left, 0u);
  }
  bucket_.Fold(now_ns_);
  EXPECT_LT(bucket_.bookings(), 2000u);
  ExpectSame(bucket_, *read, now_ns_);
}

TEST_P(OpenBucketTest, ScatteredBookingsDoNotKeepMoreChunks) {
  for (int i = 0; i < 10000; ++i) Book(1, 1);
  Write();
  while (given_.size() > 100) Cancel(Random(given_.size()));
  Write();
  EXPECT_LE(keys_.chunks(), 5u);
}

TEST_P(OpenBucketTest, ReaderThatLacksChunkReadsAgain) {
  for (int i = 0; i < 300; ++i) Book(1, 1);
  Write();
  // Two writings of one generation, as when a failover loses the first.
  OpenBucket lost = bucket_;
  Cancel(10);
  Write();
  lost.Take(1, now_ns_ + kSecond, /*receipt_id=*/0, /*set=*/9);
  lost.CancelBooking(given_.back().grant_time_ns, given_.back().id);
  lost.Format("w.1", "lost", now_ns_);
  lost.Written("w.1");
  EXPECT_EQ(lost.stored().generation, bucket_.stored().generation);
  EXPECT_TRUE(absl::IsNotFound(keys_.Read(GetParam(), now_ns_, lost).status()));
  EXPECT_TRUE(keys_.Read(GetParam(), now_ns_, std::nullopt).ok());
}

INSTANTIATE_TEST_SUITE_P(Algorithms, OpenBucketTest,
                         ::testing::Values(*algorithm::MakeTokenBucket({10, kSecond}, 20, 0),
                                           *algorithm::MakeSlidingLog({20, kSecond}),
                                           *algorithm::MakeSlidingWindow({20, kSecond}, 10),
                                           *algorithm::MakeFixedWindow({20, kSecond}, 0)));

// ---- Slots that callers wait for ----

class SlotTicketsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLife = kSecond / 2;

  static QueuePlace PlaceOf(uint64_t node, int64_t number) {
    return {.node = node, .number = number, .ticket_for_ns = kLife};
  }
  void Write() {
    words_ = bucket_.Format("w.1", absl::StrCat("v", ++version_), now_ns_);
    keys_.Write(words_);
    bucket_.Written("w.1");
  }
  OpenBucket Read(std::optional<OpenBucket> known = std::nullopt) {
    absl::StatusOr<OpenBucket> read = keys_.Read(slots_, now_ns_, std::move(known));
    EXPECT_TRUE(read.ok()) << read.status();
    return *std::move(read);
  }

  const algorithm::Parameters slots_ = *algorithm::MakeConcurrency(4, 60 * kSecond);
  OpenBucket bucket_ = *OpenBucket::Read(slots_, "", "", {}, kStartNs);
  Keys keys_;
  std::vector<std::string> words_;
  int64_t now_ns_ = kStartNs;
  uint64_t version_ = 0;
};

TEST_F(SlotTicketsTest, AreReadAsTheyWereWritten) {
  bucket_.Take(3, now_ns_, /*receipt_id=*/1, /*set=*/0);
  Write();
  const OpenBucket known = bucket_;
  bucket_.LeaveTicket(PlaceOf(7, now_ns_), 2, now_ns_);
  bucket_.LeaveTicket(PlaceOf(8, now_ns_ + 5), 1, now_ns_);
  ASSERT_TRUE(bucket_.changed());
  Write();
  for (const bool knows : {false, true}) {
    OpenBucket read = Read(knows ? std::optional(known) : std::nullopt);
    EXPECT_EQ(read.stored().tickets.size(), 2u);
    EXPECT_EQ(read.LevelAt(now_ns_).remaining, 1);
    EXPECT_TRUE(read.IsBehind(nullptr, 1, now_ns_));
    const QueuePlace second = PlaceOf(8, now_ns_ + 5);
    EXPECT_TRUE(read.IsBehind(&second, 1, now_ns_));
    const QueuePlace first = PlaceOf(7, now_ns_);
    EXPECT_FALSE(read.IsBehind(&first, 1, now_ns_));
    read.DropTicket(first, {}, now_ns_);
    EXPECT_FALSE(read.IsBehind(&second, 1, now_ns_));
    EXPECT_TRUE(read.changed());
  }
}

TEST_F(SlotTicketsTest, LaterCallerIsServedIfThereIsRoomForBoth) {
  const QueuePlace first = PlaceOf(7, now_ns_);
  const QueuePlace second = PlaceOf(8, now_ns_ + 5);
  bucket_.LeaveTicket(first, 2, now_ns_);
  EXPECT_FALSE(bucket_.IsBehind(&second, 2, now_ns_));
  EXPECT_TRUE(bucket_.IsBehind(&second, 3, now_ns_));
  EXPECT_TRUE(bucket_.IsBehind(nullptr, 1, now_ns_)) << "a caller that does not wait";
}

TEST_F(SlotTicketsTest, StayWithoutHoldsUntilTheyEnd) {
  bucket_.Take(4, now_ns_, /*receipt_id=*/1, /*set=*/0);
  bucket_.LeaveTicket(PlaceOf(7, now_ns_), 4, now_ns_);
  Write();
  ASSERT_EQ(bucket_.Refund(1, now_ns_), 4u);
  Write();
  EXPECT_EQ(keys_.chunks(), 0u);
  EXPECT_EQ(words_[0], "502") << "milliseconds to live";
  OpenBucket read = Read();
  EXPECT_TRUE(read.exists());
  EXPECT_EQ(read.LevelAt(now_ns_).remaining, 4);
  EXPECT_TRUE(read.IsBehind(nullptr, 1, now_ns_));
  EXPECT_FALSE(read.IsBehind(nullptr, 1, now_ns_ + kLife));
  // The caller is served, and another comes for the place.
  const QueuePlace served = PlaceOf(7, now_ns_);
  bucket_.Take(4, now_ns_, /*receipt_id=*/2, /*set=*/0);
  bucket_.DropTicket(served, {now_ns_ + 3, 1}, now_ns_);
  Write();
  EXPECT_EQ(Read().stored().tickets, (std::vector<Ticket>{{now_ns_ + 3, 7, 1, now_ns_ + kLife}}));
  // Nothing is left of those that have ended.
  now_ns_ += kLife;
  ASSERT_EQ(bucket_.Refund(2, now_ns_), 4u);
  Write();
  EXPECT_TRUE(keys_.empty());
}

TEST_F(SlotTicketsTest, EndWithTheSlots) {
  bucket_.LeaveTicket(PlaceOf(7, now_ns_), 4, now_ns_);
  OpenBucket converted = bucket_;
  converted.Convert(*algorithm::MakeConcurrency(8, kSecond), now_ns_);
  EXPECT_TRUE(converted.IsBehind(nullptr, 1, now_ns_));
  converted.Convert(*algorithm::MakeTokenBucket({10, kSecond}, 20, 0), now_ns_);
  EXPECT_FALSE(converted.IsBehind(nullptr, 1, now_ns_));
  bucket_.Reset(now_ns_);
  EXPECT_FALSE(bucket_.IsBehind(nullptr, 1, now_ns_));
}

TEST_F(SlotTicketsTest, AreBoundedInBytes) {
  bucket_.Take(1, now_ns_, /*receipt_id=*/1, /*set=*/0);
  Write();
  const size_t without = keys_.past().size();
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const auto number = static_cast<int64_t>(random());
    const QueuePlace place = {.node = random(), .number = number, .ticket_for_ns = kSecond};
    bucket_.LeaveTicket(place, random(), now_ns_ + i);
  }
  Write();
  constexpr size_t kMost = common::bounds::kMaxTicketsPerBucketInRedis;
  EXPECT_EQ(Read().stored().tickets.size(), kMost);
  EXPECT_LE(keys_.past().size(), without + 1 + 40 * kMost);
}

TEST_F(SlotTicketsTest, DamagedOnesAreRefused) {
  const auto encoded = [](const algorithm::Parameters& parameters, std::vector<Ticket> tickets) {
    StoredBookings stored;
    stored.tickets = std::move(tickets);
    return EncodePast(parameters, {}, 0, stored, nullptr);
  };
  const std::vector<Ticket> tickets = {{1, 1, 1, kStartNs}, {2, 2, 2, kStartNs}};
  const std::string good = encoded(slots_, tickets);
  int64_t origin_ns = 0;
  StoredBookings read;
  ASSERT_TRUE(DecodePast(slots_, good, &origin_ns, &read).has_value());
  EXPECT_EQ(read.tickets, tickets);
  const auto refused = [&](std::vector<Ticket> bad) {
    return !DecodePast(slots_, encoded(slots_, std::move(bad)), &origin_ns, &read).has_value();
  };
  EXPECT_TRUE(refused({{2, 2, 2, kStartNs}, {1, 1, 1, kStartNs}})) << "not in order";
  std::vector<Ticket> many;
  for (uint64_t i = 0; i <= common::bounds::kMaxTicketsPerBucketInRedis; ++i) {
    many.push_back({static_cast<int64_t>(i), i, 1, kStartNs});
  }
  EXPECT_TRUE(refused(many));
  for (size_t size = good.size() - 1; size > good.size() - 10; --size) {
    EXPECT_FALSE(DecodePast(slots_, good.substr(0, size), &origin_ns, &read).has_value()) << size;
  }
  // Other algorithms have none.
  const algorithm::Parameters tokens = *algorithm::MakeTokenBucket({10, kSecond}, 20, 0);
  EXPECT_FALSE(DecodePast(tokens, encoded(tokens, tickets), &origin_ns, &read).has_value());
}

// ---- Estimates ----

TEST(OpenBucketEstimatesTest, ThoseThatEndOneByOneLeaveFewChunks) {
  const algorithm::Parameters tokens =
      *algorithm::MakeTokenBucket({1'000'000, kSecond}, 1'000'000, 0);
  OpenBucket bucket = *OpenBucket::Read(tokens, "", "", {}, kStartNs);
  Keys keys;
  int64_t now_ns = kStartNs;
  uint64_t version = 0;
  const auto write = [&] {
    keys.Write(bucket.Format("w.1", absl::StrCat("v", ++version), now_ns));
    bucket.Written("w.1");
  };
  constexpr uint64_t kEstimates = 10'000;
  const auto is_long = [](uint64_t id) { return id % 100 == 0; };
  for (uint64_t id = 1; id <= kEstimates; ++id) {
    bucket.Take(1, now_ns, id, /*set=*/0);
    bucket.BeginEstimate(id, 1, now_ns, is_long(id) ? 20 * 3600 * kSecond : kSecond);
    if (id % 50 == 0) write();
  }
  EXPECT_EQ(keys.chunks(), (kEstimates + 127) / 128);
  now_ns += 1000 * kSecond;
  // Each looks at a few of them.
  for (uint64_t i = 0; i < 2 * kEstimates / 64; ++i) {
    ASSERT_TRUE(bucket.HasRoomForEstimate(now_ns));
    bucket.Take(1, now_ns, /*receipt_id=*/0, /*set=*/0);
    write();
  }
  EXPECT_EQ(bucket.estimates(), kEstimates / 100);
  EXPECT_LE(keys.chunks(), 6u);
  const absl::StatusOr<OpenBucket> read = keys.Read(tokens, now_ns, std::nullopt);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->estimates(), kEstimates / 100);
  for (uint64_t id = 1; id <= kEstimates; ++id) {
    ASSERT_EQ(read->FindEstimate(id).has_value(), is_long(id)) << id;
  }
}

TEST(OpenBucketEstimatesTest, ClockThatIsSetBackGivesNothingBack) {
  const algorithm::Parameters tokens = *algorithm::MakeTokenBucket({10, kSecond}, 100, 0);
  std::vector<OpenBucket> taken;
  taken.push_back(*OpenBucket::Read(tokens, "", "", {}, kStartNs));
  taken[0].Take(100, kStartNs, /*receipt_id=*/1, /*set=*/0);
  taken[0].BeginEstimate(1, 100, kStartNs, kSecond);
  Keys keys;
  keys.Write(taken[0].Format("w.1", "v1", kStartNs));
  // Another node, which sees an earlier time.
  const int64_t clock_ns = kStartNs - kSecond / 2;
  std::vector<OpenBucket> open;
  open.push_back(*keys.Read(tokens, clock_ns, std::nullopt));
  const int64_t now_ns = BeginAt(absl::MakeSpan(open), clock_ns);
  open[0].Settle(1, {.actual = 100, .share = 100}, now_ns);
  keys.Write(open[0].Format("w.1", "v2", now_ns));
  const absl::StatusOr<OpenBucket> read = keys.Read(tokens, kStartNs, std::nullopt);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->LevelAt(kStartNs).remaining, 0);
}

TEST(OpenBucketEstimatesTest, EachChangeWritesAtMostTenBytesForEachReceipt) {
  const algorithm::Parameters tokens =
      *algorithm::MakeTokenBucket({1'000'000, kSecond}, 1'000'000, 0);
  OpenBucket bucket = *OpenBucket::Read(tokens, "", "", {}, kStartNs);
  uint64_t id = 0;
  while (bucket.HasRoomForEstimate(kStartNs)) {
    bucket.Take(1, kStartNs, ++id, /*set=*/0);
    bucket.BeginEstimate(id, 1, kStartNs, 3600 * kSecond);
  }
  EXPECT_EQ(id, common::bounds::kMaxEstimatesPerBucketInRedis);
  Keys keys;
  keys.Write(bucket.Format("w.1", "v1", kStartNs));
  EXPECT_LE(keys.past().size(), 10 * id + 100);
}

TEST(OpenBucketFloorTest, IsNotPartOfTheBucket) {
  const algorithm::Parameters tokens = *algorithm::MakeTokenBucket({10, kSecond}, 100, 0);
  OpenBucket bucket = *OpenBucket::Read(tokens, "", "", {}, kStartNs);
  bucket.Take(50, kStartNs, /*receipt_id=*/1, /*set=*/0);
  bucket.Book({kStartNs + 3600 * kSecond, 1, /*id=*/2, /*set=*/0}, kStartNs);
  Keys keys;
  keys.Write(bucket.Format("w.1", "v1", kStartNs));
  bucket.Written("w.1");
  bucket.ApplyFloor((kStartNs + 600 * kSecond) / 1000);
  EXPECT_TRUE(bucket.floored());
  EXPECT_FALSE(bucket.CanTake(1, kStartNs, /*set=*/0));
  // As the node reads it after the floor was lifted.
  const absl::StatusOr<OpenBucket> read = keys.Read(tokens, kStartNs, std::move(bucket));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->floored());
  EXPECT_EQ(read->LevelAt(kStartNs).remaining, 50);
  EXPECT_EQ(read->RefundableAt(kStartNs).receipts, 1u);
}

// ---- Logs with many runs ----

constexpr int64_t kMs = 1'000'000;

class LongLogTest : public ::testing::Test {
 protected:
  void Take(uint64_t permits, uint64_t receipt_id = 0) {
    bucket_.Take(permits, now_ns_, receipt_id, /*set=*/0);
  }
  size_t Write() {
    words_ = bucket_.Format("w.1", absl::StrCat("v", ++version_), now_ns_);
    const size_t written = keys_.Write(words_);
    bucket_.Written("w.1");
    return written;
  }
  bool ForScripts() const { return !IsBooked(words_[1]); }
  void ExpectReadAsItIs() {
    const absl::StatusOr<OpenBucket> read = keys_.Read(log_, now_ns_, std::nullopt);
    ASSERT_TRUE(read.ok()) << read.status();
    for (const int64_t later_ns : {int64_t{0}, 100 * kMs, 10 * kSecond, 70 * kSecond}) {
      ExpectSame(bucket_, *read, now_ns_ + later_ns);
    }
  }

  // A run for each millisecond in which permits are taken.
  const algorithm::Parameters log_ = *algorithm::MakeSlidingLog({20'000, 65'536 * kMs});
  OpenBucket bucket_ = *OpenBucket::Read(log_, "", "", {}, kStartNs);
  Keys keys_;
  std::vector<std::string> words_;
  int64_t now_ns_ = kStartNs;
  uint64_t version_ = 0;
};

TEST_F(LongLogTest, WritesOnlyChunksThatChanged) {
  for (int i = 0; i < 6000; ++i, now_ns_ += kMs) Take(1, i % 100 == 0 ? 1000 + i : 0);
  EXPECT_EQ(Write(), 24u) << "of 256 runs";
  ExpectReadAsItIs();
  Take(1);
  EXPECT_EQ(Write(), 1u);
  ExpectReadAsItIs();
  EXPECT_EQ(bucket_.Refund(1300, now_ns_), 1u);
  EXPECT_EQ(Write(), 2u);
  ExpectReadAsItIs();
  // A booking behind all of them.
  const int64_t at_ns = bucket_.EarliestNs(20'000, now_ns_, 1, now_ns_ + 1);
  bucket_.Book({at_ns, 20'000, 77, 1}, now_ns_);
  EXPECT_EQ(Write(), 2u);
  ExpectReadAsItIs();
  EXPECT_TRUE(bucket_.CancelBooking(at_ns, 77));
  EXPECT_EQ(Write(), 1u);
  EXPECT_FALSE(ForScripts());
  // The first runs expire.
  now_ns_ = kStartNs + (65'536 + 1000) * kMs;
  Take(1);
  EXPECT_EQ(Write(), 1u);
  EXPECT_EQ(keys_.chunks(), 21u);
  ExpectReadAsItIs();
  now_ns_ += 1500 * kMs;
  Take(1);
  EXPECT_EQ(Write(), 0u);
  EXPECT_TRUE(ForScripts());
}

TEST_F(LongLogTest, IsReadAsItWasWrittenAfterAnyHistory) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t most) { return random() % most; };
  uint64_t id = 0;
  std::vector<Booking> booked;
  int rounds = 0;
  for (int round = 0; round < 60; ++round) {
    for (uint64_t i = 20 + below(300); i > 0; --i) {
      now_ns_ += static_cast<int64_t>(1 + below(12)) * kMs;
      now_ns_ = BeginAt(absl::MakeSpan(&bucket_, 1), now_ns_);
      const uint64_t permits = 1 + below(3);
      if (below(20) == 0) {
        const int64_t at_ns = bucket_.EarliestNs(permits + 500, now_ns_, 1, now_ns_ + 1);
        bucket_.Book({at_ns, permits + 500, ++id, 1}, now_ns_);
        booked.push_back({at_ns, permits + 500, id, 1});
      } else if (below(20) == 0 && !booked.empty()) {
        const size_t which = below(booked.size());
        bucket_.CancelBooking(booked[which].grant_time_ns, booked[which].id);
        booked.erase(booked.begin() + static_cast<ptrdiff_t>(which));
      } else if (below(10) == 0 && id > 0) {
        bucket_.Refund(1 + below(id), now_ns_);
      } else if (bucket_.CanTake(permits, now_ns_, 0)) {
        Take(permits, below(5) == 0 ? ++id : 0);
      }
    }
    if (round == 30) bucket_.Reset(now_ns_);
    if (round == 40) bucket_.Convert(*algorithm::MakeSlidingLog({20'000, 60 * kSecond}), now_ns_);
    if (round == 45) bucket_.Convert(log_, now_ns_);
    Write();
    if (ForScripts()) continue;
    ++rounds;
    ExpectReadAsItIs();
  }
  EXPECT_GT(rounds, 20);
}

}  // namespace
}  // namespace sluice::store::redis
