// The bytes of booked buckets: variable-length integers; of each booking only the difference to the
// one before. Bookings made together at an even rate are one entry, however many; a booking of its
// own takes about 10 bytes.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/bounds.h"
#include "server/algorithm/token_bucket.h"
#include "server/store/redis/wire/open_bucket.h"

namespace sluice::store::redis {
namespace {

using algorithm::Booking;
using algorithm::BucketImage;
using algorithm::Estimate;
using algorithm::Kind;
using algorithm::Parameters;

constexpr uint8_t kFormat = 4;

class Writer {
 public:
  void Put(uint64_t value) {
    if (bytes_.size() - size_ < kMostBytes) bytes_.resize(2 * bytes_.size() + kMostBytes);
    char* at = bytes_.data() + size_;
    while (value >= 0x80) {
      *at++ = static_cast<char>(value | 0x80);
      value >>= 7;
    }
    *at++ = static_cast<char>(value);
    size_ = static_cast<size_t>(at - bytes_.data());
  }
  // Small if near to zero, also below it.
  void PutSigned(int64_t value) {
    Put(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  // From a number to one that is near.
  void PutStep(uint64_t from, uint64_t to) { PutSigned(static_cast<int64_t>(to - from)); }
  std::string Take() {
    bytes_.resize(size_);
    return std::move(bytes_);
  }
  void Append(const Writer& rest) {
    bytes_.resize(size_);
    bytes_.append(rest.bytes_, 0, rest.size_);
    size_ = bytes_.size();
  }

 private:
  static constexpr size_t kMostBytes = 10;  // of a number

  // Longer than what is written: growing it byte by byte would take most of the time.
  std::string bytes_ = std::string(256, '\0');
  size_t size_ = 0;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  uint64_t Get() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) break;
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;
    return 0;
  }
  int64_t GetSigned() {
    const uint64_t value = Get();
    return static_cast<int64_t>(value >> 1 ^ -(value & 1));
  }
  uint64_t GetStep(uint64_t from) { return from + static_cast<uint64_t>(GetSigned()); }
  // A number of entries, each of which takes at least one byte.
  size_t GetCount() {
    const uint64_t count = Get();
    if (count > bytes_.size() - at_) good_ = false;
    return good_ ? static_cast<size_t>(count) : 0;
  }
  bool good() const { return good_; }
  bool at_end() const { return good_ && at_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  bool good_ = true;
};

void PutCounts(absl::Span<const BucketImage::Count> counts, Writer* out) {
  out->Put(counts.size());
  uint64_t before = 0;
  for (const BucketImage::Count& count : counts) {
    out->PutStep(before, count.when);
    out->Put(count.permits);
    before = count.when;
  }
}

// Appends them.
void GetCounts(Reader* in, std::vector<BucketImage::Count>* counts) {
  uint64_t before = 0;
  for (size_t left = in->GetCount(); left > 0; --left) {
    const uint64_t when = in->GetStep(before);
    counts->push_back({when, in->Get()});
    before = when;
  }
}

void PutTickets(absl::Span<const Ticket> tickets, Writer* out) {
  out->Put(tickets.size());
  Ticket before;
  for (const Ticket& ticket : tickets) {
    out->PutStep(static_cast<uint64_t>(before.number), static_cast<uint64_t>(ticket.number));
    out->Put(ticket.node);
    out->Put(ticket.permits);
    out->PutStep(static_cast<uint64_t>(before.until_ns), static_cast<uint64_t>(ticket.until_ns));
    before = ticket;
  }
}

// False: they are not in order, or too many.
bool GetTickets(Reader* in, std::vector<Ticket>* tickets) {
  const size_t count = in->GetCount();
  if (count > common::bounds::kMaxTicketsPerBucketInRedis) return false;
  Ticket before;
  for (size_t i = 0; i < count && in->good(); ++i) {
    Ticket ticket;
    ticket.number = static_cast<int64_t>(in->GetStep(static_cast<uint64_t>(before.number)));
    ticket.node = in->Get();
    ticket.permits = in->Get();
    ticket.until_ns = static_cast<int64_t>(in->GetStep(static_cast<uint64_t>(before.until_ns)));
    if (i > 0 && !(before < ticket)) return false;
    tickets->push_back(ticket);
    before = ticket;
  }
  return in->good();
}

// The difference between a booking and the one before it.
struct Step {
  uint64_t moment = 0;
  uint64_t permits = 0;
  uint64_t id = 0;
  uint64_t set = 0;
  friend bool operator==(const Step&, const Step&) = default;
};

}  // namespace

std::string EncodeBookings(absl::Span<const Booking> bookings) {
  Writer out;
  std::vector<uint64_t> sets;
  absl::flat_hash_map<uint64_t, size_t> places;  // in sets
  uint64_t last_set = 0;
  size_t last_place = 0;
  Writer written;
  size_t steps = 0;
  Step step;
  uint64_t in_a_row = 0;  // of `step`
  const auto put = [&] {
    if (in_a_row == 0) return;
    ++steps;
    written.Put(in_a_row);
    written.Put(step.moment);
    written.Put(step.permits);
    written.PutSigned(static_cast<int64_t>(step.id));
    written.Put(step.set);
  };
  int64_t before_ns = 0;
  uint64_t id_before = 0;
  for (const Booking& booking : bookings) {
    if (sets.empty() || booking.set != last_set) {
      const auto [place, unknown] = places.try_emplace(booking.set, sets.size());
      if (unknown) sets.push_back(booking.set);
      last_set = booking.set;
      last_place = place->second;
    }
    const Step next = {static_cast<uint64_t>(booking.grant_time_ns - before_ns), booking.permits,
                       booking.id - id_before, last_place};
    before_ns = booking.grant_time_ns;
    id_before = booking.id;
    if (in_a_row > 0 && next == step) {
      ++in_a_row;
      continue;
    }
    put();
    step = next;
    in_a_row = 1;
  }
  put();
  out.Put(sets.size());
  for (const uint64_t set : sets) out.Put(set);
  out.Put(steps);
  out.Append(written);
  return out.Take();
}

bool DecodeBookings(std::string_view bytes, std::vector<Booking>* bookings) {
  Reader in(bytes);
  std::vector<uint64_t> sets(in.GetCount());
  for (uint64_t& set : sets) set = in.Get();
  uint64_t id = 0;
  int64_t grant_time_ns = 0;
  for (size_t steps = in.GetCount(); steps > 0 && in.good(); --steps) {
    const uint64_t count = in.Get();
    Step step;
    step.moment = in.Get();
    step.permits = in.Get();
    step.id = static_cast<uint64_t>(in.GetSigned());
    step.set = in.Get();
    if (!in.good() || step.set >= sets.size() || count > kMaxBookingsInRedis - bookings->size()) {
      return false;
    }
    for (uint64_t i = 0; i < count; ++i) {
      grant_time_ns = static_cast<int64_t>(static_cast<uint64_t>(grant_time_ns) + step.moment);
      id += step.id;
      bookings->push_back({grant_time_ns, step.permits, id, sets[step.set]});
    }
  }
  return in.at_end();
}

std::string EncodeRuns(absl::Span<const BucketImage::Count> runs) {
  Writer out;
  PutCounts(runs, &out);
  return out.Take();
}

bool DecodeRuns(std::string_view bytes, std::vector<BucketImage::Count>* runs) {
  Reader in(bytes);
  const size_t before = runs->size();
  GetCounts(&in, runs);
  return in.at_end() && runs->size() > before;
}

std::string EncodeEstimates(absl::Span<const Estimate> estimates, int64_t origin_ns) {
  Writer out;
  out.Put(estimates.size());
  uint64_t id_before = 0;
  int64_t end_before_ns = 0;
  uint64_t within_before = 0;
  for (const Estimate& estimate : estimates) {
    const int64_t end_ns = estimate.end_ns + origin_ns;
    out.PutStep(id_before, estimate.id);
    out.Put(static_cast<uint64_t>(estimate.state));
    out.Put(estimate.asked);
    out.PutSigned(end_ns - end_before_ns);
    out.PutStep(within_before, estimate.within_ns);
    id_before = estimate.id;
    end_before_ns = end_ns;
    within_before = estimate.within_ns;
    if (estimate.state == Estimate::State::kOpen) continue;
    out.Put(estimate.actual);
    out.Put(estimate.changed);
  }
  return out.Take();
}

bool DecodeEstimates(std::string_view bytes, std::vector<Estimate>* estimates) {
  Reader in(bytes);
  const size_t before = estimates->size();
  Estimate last;
  uint64_t within_ns = 0;
  for (size_t left = in.GetCount(); left > 0 && in.good(); --left) {
    Estimate one;
    one.id = in.GetStep(last.id);
    const uint64_t state = in.Get();
    if (one.id <= last.id || state > static_cast<uint64_t>(Estimate::State::kRefunded)) {
      return false;
    }
    one.state = static_cast<Estimate::State>(state);
    one.asked = in.Get();
    one.end_ns = static_cast<int64_t>(static_cast<uint64_t>(last.end_ns) +
                                      static_cast<uint64_t>(in.GetSigned()));
    within_ns = in.GetStep(within_ns);
    if (within_ns > static_cast<uint64_t>(common::bounds::kMaxSettleWithinNs)) return false;
    one.within_ns = within_ns;
    if (one.state != Estimate::State::kOpen) {
      one.actual = in.Get();
      one.changed = in.Get();
    }
    estimates->push_back(one);
    last = one;
  }
  return in.at_end() && estimates->size() > before;
}

std::string EncodePast(const Parameters& parameters, const BucketImage& image, int64_t origin_ns,
                       const StoredBookings& stored, const algorithm::Estimates* estimates) {
  Writer out;
  out.Put(kFormat);
  out.Put(stored.generation);
  out.Put(stored.run_chunks);
  out.Put(stored.estimate_chunks);
  out.PutSigned(image.latest_ns + origin_ns);
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      // What it lacks; the TAT of a full bucket may be any time in the past.
      out.Put(algorithm::ShortfallTicks(
          image.tat, algorithm::ToTicks(parameters.token_bucket, image.latest_ns)));
      break;
    case Kind::kSlidingLog:
      out.PutSigned(image.seen_ns);
      break;
    case Kind::kSlidingWindow:
      out.Put(image.last);
      PutCounts(image.counts, &out);
      break;
    case Kind::kFixedWindow:
      out.Put(image.used ? 1 : 0);
      out.PutSigned(image.index);
      out.PutSigned(image.opened_ns);
      out.PutSigned(image.ends_ns);
      out.Put(image.count);
      out.Put(image.serial);
      break;
    case Kind::kConcurrency:
      break;  // its holds are in chunks
  }
  std::vector<uint64_t> of_estimates;
  if (estimates != nullptr) {
    estimates->ForEach([&](const Estimate& one) { of_estimates.push_back(one.id); });
  }
  // Most receipts are in the order of their ids, as estimates are.
  auto next = of_estimates.begin();
  const auto counts = [&](const BucketImage::Receipt& receipt) {
    if (next == of_estimates.end() || *next != receipt.id) {
      next = std::lower_bound(of_estimates.begin(), of_estimates.end(), receipt.id);
      if (next == of_estimates.end() || *next != receipt.id) return true;
    }
    ++next;
    return false;
  };
  const auto counted =
      static_cast<size_t>(std::count_if(image.receipts.begin(), image.receipts.end(), counts));
  const size_t to_close = counted - std::min(counted, kMaxReceiptsInRedis);
  size_t left = to_close;
  out.Put(image.receipts.size() - to_close);
  BucketImage::Receipt before;
  for (const BucketImage::Receipt& receipt : image.receipts) {
    if (left > 0 && counts(receipt)) {
      --left;
      continue;
    }
    out.PutStep(before.id, receipt.id);
    out.PutStep(before.cost_or_when, receipt.cost_or_when);
    out.PutStep(before.shortfall_or_permits, receipt.shortfall_or_permits);
    before = receipt;
  }
  if (!stored.tickets.empty()) PutTickets(stored.tickets, &out);
  return out.Take();
}

std::optional<BucketImage> DecodePast(const Parameters& parameters, std::string_view bytes,
                                      int64_t* origin_ns, StoredBookings* stored) {
  Reader in(bytes);
  BucketImage image;
  bool good = in.Get() == kFormat;
  stored->generation = in.Get();
  stored->run_chunks = static_cast<size_t>(in.Get());
  stored->estimate_chunks = static_cast<size_t>(in.Get());
  const int64_t latest_ns = in.GetSigned();
  const bool tokens = parameters.kind == Kind::kTokenBucket;
  *origin_ns = tokens ? latest_ns : 0;
  image.latest_ns = latest_ns - *origin_ns;
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      image.tat = in.Get();
      good = good && image.tat <= algorithm::kMaxTat;
      break;
    case Kind::kSlidingLog:
      image.seen_ns = in.GetSigned();
      break;
    case Kind::kSlidingWindow:
      image.last = in.Get();
      GetCounts(&in, &image.counts);
      break;
    case Kind::kFixedWindow:
      image.used = in.Get() != 0;
      image.index = in.GetSigned();
      image.opened_ns = in.GetSigned();
      image.ends_ns = in.GetSigned();
      image.count = in.Get();
      image.serial = in.Get();
      break;
    case Kind::kConcurrency:
      break;
  }
  image.receipts.resize(in.GetCount());
  BucketImage::Receipt before;
  for (BucketImage::Receipt& receipt : image.receipts) {
    receipt.id = in.GetStep(before.id);
    receipt.cost_or_when = in.GetStep(before.cost_or_when);
    receipt.shortfall_or_permits = in.GetStep(before.shortfall_or_permits);
    before = receipt;
  }
  stored->tickets.clear();
  // Only slots have them, and only while callers wait.
  if (IsConcurrency(parameters) && good && in.good() && !in.at_end()) {
    good = GetTickets(&in, &stored->tickets);
  }
  if (!good || !in.at_end()) return std::nullopt;
  return image;
}

}  // namespace sluice::store::redis
