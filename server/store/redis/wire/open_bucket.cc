#include "server/store/redis/wire/open_bucket.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"

namespace sluice::store::redis {
namespace {

using algorithm::Booking;
using algorithm::BucketImage;
using algorithm::BucketState;
using algorithm::Kind;
using algorithm::Parameters;
using common::ToAbsl;

constexpr int64_t kNsPerMs = 1'000'000;

}  // namespace

Parameters Countable(const Parameters& parameters) {
  Parameters countable = parameters;
  if (countable.kind != Kind::kTokenBucket) {
    VisitMember(countable.kind, [&](auto member) {
      uint64_t& permits = (countable.*member).rate.permits;
      permits = std::min(permits, kMaxCounted);
    });
  }
  return countable;
}

bool IsBooked(std::string_view state) {
  // Parameters and writer are one word each.
  const size_t first = state.find(' ');
  if (first == std::string_view::npos) return false;
  const size_t second = state.find(' ', first + 1);
  return second != std::string_view::npos && state.size() > second + 1 && state[second + 1] == '@';
}

absl::StatusOr<OpenBucket> OpenBucket::Read(const Parameters& parameters, std::string_view state,
                                            std::string_view receipts,
                                            absl::Span<const std::string> runs, int64_t now_ns) {
  const int64_t origin_ns = parameters.kind == Kind::kTokenBucket ? now_ns : 0;
  if (state.empty()) {
    return OpenBucket(parameters, BucketState(parameters), origin_ns);
  }
  if (!IsBooked(state)) {
    absl::StatusOr<StoredBucket> stored = ParseBucket(state, runs, receipts, now_ns);
    if (!stored.ok()) return stored.status();
    OpenBucket bucket(stored->parameters, BucketState::FromImage(stored->parameters, stored->image),
                      stored->parameters.kind == Kind::kTokenBucket ? now_ns : 0);
    bucket.writer_ = std::move(stored->writer);
    bucket.exists_ = true;
    return bucket;
  }
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(state), ' ');
  absl::StatusOr<Parameters> booked = ParseParameters(common::ToStd(words[0]));
  if (!booked.ok()) return booked.status();
  int64_t booked_origin_ns = 0;
  absl::StatusOr<BucketImage> image = DecodeBooked(*booked, receipts, &booked_origin_ns);
  if (!image.ok()) return image.status();
  OpenBucket bucket(*booked, BucketState::FromImage(Countable(*booked), *image), booked_origin_ns);
  bucket.writer_ = std::string(words[1]);
  bucket.exists_ = true;
  return bucket;
}

void OpenBucket::Convert(const Parameters& to, int64_t now_ns) {
  now_ns = std::max(now_ns, NotBeforeNs());
  Fold(now_ns);
  changed_ = true;
  named_ = to;
  const Parameters countable = Countable(to);
  int64_t origin_ns = origin_ns_;
  if (countable.kind != parameters_.kind) {
    origin_ns = countable.kind == Kind::kTokenBucket ? now_ns : 0;
  }
  state_.Convert(parameters_, countable, At(now_ns), origin_ns_ - origin_ns);
  origin_ns_ = origin_ns;
  parameters_ = countable;
}

void OpenBucket::ApplyFloor(int64_t floor_us) {
  closed_until_ns_ = UsedUpUntilNs(parameters_, floor_us);
  if (floor_us == 0 || parameters_.kind != Kind::kTokenBucket) return;
  const algorithm::TokenBucket& p = parameters_.token_bucket;
  const algorithm::Int128 tat =
      ((static_cast<algorithm::Int128>(floor_us) * 1000 - origin_ns_) << p.shift) + p.burst_ticks +
      p.debt_ticks;
  if (tat <= 0) return;
  BucketImage image = state_.ToImage();
  if (tat <= image.tat) return;
  image.tat = static_cast<uint64_t>(std::min<algorithm::Int128>(tat, algorithm::kMaxTat));
  // How full the bucket was since then is not known, so receipts are worth nothing.
  image.receipts.clear();
  state_ = BucketState::FromImage(parameters_, image);
}

int64_t OpenBucket::NotBeforeNs() const {
  return bookings() == 0 ? std::numeric_limits<int64_t>::min() : Absolute(state_.NotBeforeNs());
}

void OpenBucket::Fold(int64_t now_ns) {
  if (bookings() == 0) return;
  state_.Fold(parameters_, At(now_ns));
  // Scripts can use it again.
  if (bookings() == 0) changed_ = true;
}

bool OpenBucket::CanTake(uint64_t permits, int64_t now_ns, uint64_t set) const {
  return now_ns >= closed_until_ns_ && state_.CanTake(parameters_, permits, At(now_ns), set);
}

void OpenBucket::Take(uint64_t permits, int64_t now_ns, uint64_t receipt_id, uint64_t set) {
  state_.TryTake(parameters_, permits, At(now_ns), receipt_id, nullptr, set);
  changed_ = true;
}

int64_t OpenBucket::EarliestNs(uint64_t permits, int64_t now_ns, uint64_t set, int64_t from_ns,
                               algorithm::SearchBudget* budget) const {
  from_ns = std::max(from_ns, closed_until_ns_);
  return Absolute(
      state_.EarliestNs(parameters_, permits, At(now_ns), set, from_ns - origin_ns_, budget));
}

void OpenBucket::Book(const Booking& booking, int64_t now_ns) {
  Booking local = booking;
  local.grant_time_ns -= origin_ns_;
  state_.Book(parameters_, local, At(now_ns));
  changed_ = true;
}

bool OpenBucket::CancelBooking(int64_t grant_time_ns, uint64_t id) {
  if (!state_.CancelBooking(parameters_, grant_time_ns - origin_ns_, id)) return false;
  changed_ = true;
  return true;
}

bool OpenBucket::FindBooking(int64_t grant_time_ns, uint64_t id, Booking* booking,
                             int64_t* previous_ns) const {
  if (!state_.FindBooking(grant_time_ns - origin_ns_, id, booking, previous_ns)) return false;
  booking->grant_time_ns += origin_ns_;
  if (*previous_ns != std::numeric_limits<int64_t>::min()) *previous_ns += origin_ns_;
  return true;
}

std::optional<uint64_t> OpenBucket::Refund(uint64_t receipt_id, int64_t now_ns) {
  const std::optional<uint64_t> given = state_.Refund(parameters_, receipt_id, At(now_ns));
  if (given.has_value()) changed_ = true;
  return given;
}

void OpenBucket::Reset(int64_t now_ns) {
  state_.Reset(parameters_, At(now_ns));
  changed_ = true;
}

algorithm::Level OpenBucket::LevelAt(int64_t now_ns, algorithm::SearchBudget* budget) const {
  algorithm::Level level = state_.LevelAt(parameters_, At(now_ns), budget);
  CloseLevel(closed_until_ns_ - now_ns, &level);
  return level;
}

uint64_t OpenBucket::LastBookingId() const {
  uint64_t last = 0;
  for (const Booking& booking : state_.ToImage().bookings) last = std::max(last, booking.id);
  return last;
}

void OpenBucket::ForEachBooking(absl::FunctionRef<void(const algorithm::Booking&)> visit) const {
  state_.ForEachBooking([&](const Booking& booking) {
    Booking absolute = booking;
    absolute.grant_time_ns += origin_ns_;
    visit(absolute);
  });
}

int64_t OpenBucket::NextGrantTimeNs() const { return Absolute(state_.NextGrantTimeNs()); }
int64_t OpenBucket::LastGrantTimeNs() const { return Absolute(state_.LastGrantTimeNs()); }

std::vector<std::string> OpenBucket::Format(std::string_view writer, std::string_view version,
                                            int64_t now_ns) const {
  BucketImage image = state_.ToImage();
  if (image.bookings.empty()) {
    const bool full = state_.LevelAt(parameters_, At(now_ns)).reset_after_ns == 0;
    if (parameters_.kind == Kind::kTokenBucket) {
      image.tat = algorithm::ShortfallTicks(
          image.tat, algorithm::ToTicks(parameters_.token_bucket, now_ns - origin_ns_));
    }
    std::vector<std::string> words =
        full ? FormatFullBucket()
             : FormatBucket({named_, std::string(writer), std::move(image)}, now_ns);
    words.insert(words.begin() + 3, absl::StrCat(words.size() - 3));
    return words;
  }
  // Until it is full again after its last booking, and a period more if the clock is set back.
  const int64_t ttl_ms =
      LevelAt(now_ns).reset_after_ns / kNsPerMs + algorithm::WindowNs(parameters_) / kNsPerMs + 2;
  return {absl::StrCat(ttl_ms),
          absl::StrCat(EncodeParameters(named_), " ", ToAbsl(writer), " @", ToAbsl(version)),
          EncodeBooked(parameters_, image, origin_ns_), "0"};
}

int64_t BeginAt(absl::Span<OpenBucket> buckets, int64_t now_ns) {
  for (const OpenBucket& bucket : buckets) now_ns = std::max(now_ns, bucket.NotBeforeNs());
  for (OpenBucket& bucket : buckets) bucket.Fold(now_ns);
  return now_ns;
}

uint64_t LastBooking(absl::Span<const OpenBucket> buckets) {
  uint64_t last = 0;
  for (const OpenBucket& bucket : buckets) last = std::max(last, bucket.LastBookingId());
  return last;
}

}  // namespace sluice::store::redis
