#include "server/state/saved_bucket.h"

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::state {
namespace {

using algorithm::BucketImage;
using algorithm::Parameters;

void Write(uint64_t value, FieldWriter* to) { to->Number(value); }
void Write(uint32_t value, FieldWriter* to) { to->Number(value); }
void Write(int64_t value, FieldWriter* to) { to->Signed(value); }

void Read(FieldReader* from, uint64_t* value) { *value = from->Number(); }
void Read(FieldReader* from, uint32_t* value) {
  *value = static_cast<uint32_t>(from->NumberUpTo(std::numeric_limits<uint32_t>::max()));
}
void Read(FieldReader* from, int64_t* value) { *value = from->Signed(); }

// What the ticks, quanta and sub-windows of a bucket's state mean.
uint64_t UnitOf(const Parameters& parameters) {
  return VisitOwn(parameters, [](const auto& own) { return own.Unit(); });
}

void WriteWindow(const algorithm::OpenWindow& window, FieldWriter* to) {
  to->Number(window.used ? 1 : 0);
  if (!window.used) return;
  to->Signed(window.index);
  to->Signed(window.opened_ns);
  to->Signed(window.ends_ns);
  to->Number(window.count);
  to->Signed(window.later_index);
  to->Number(window.later_count);
  to->Number(window.serial);
}

void ReadWindow(FieldReader* from, algorithm::OpenWindow* window) {
  window->used = from->Flag();
  if (!window->used) return;
  window->index = from->Signed();
  window->opened_ns = from->Signed();
  window->ends_ns = from->Signed();
  window->count = from->Number();
  window->later_index = from->Signed();
  window->later_count = from->Number();
  window->serial = from->Number();
}

template <typename Entry, typename Write>
void WriteAll(const std::vector<Entry>& entries, FieldWriter* to, Write write) {
  to->Number(entries.size());
  for (const Entry& entry : entries) write(entry);
}

template <typename Entry, typename Read>
std::vector<Entry> ReadAll(FieldReader* from, Read read) {
  std::vector<Entry> entries(from->Count());
  for (Entry& entry : entries) read(&entry);
  return entries;
}

}  // namespace

void WriteParameters(const Parameters& parameters, FieldWriter* to) {
  to->Number(static_cast<uint64_t>(parameters.kind));
  to->Number(UnitOf(parameters));
  VisitOwn(parameters, [to](const auto& own) {
    std::apply([to](auto... given) { (Write(given, to), ...); }, own.Given(own));
  });
}

Parameters ReadParameters(FieldReader* from) {
  Parameters given;
  given.kind = from->EnumUpTo(algorithm::kLastKind);
  const uint64_t unit = from->Number();
  VisitOwn(given, [from](auto& own) {
    std::apply([from](auto&... each) { (Read(from, &each), ...); }, own.Given(own));
  });
  const absl::StatusOr<Parameters> made = algorithm::Remade(given);
  if (made.ok() && UnitOf(*made) == unit) return *made;
  from->Fail();
  return Parameters();
}

void WriteImage(const BucketImage& image, FieldWriter* to) {
  WriteWindow(image, to);
  to->Number(image.tat);
  uint64_t before = 0;
  WriteAll(image.counts, to, [&](const BucketImage::Count& count) {
    to->Number(count.when - before);
    to->Number(count.permits);
    before = count.when;
  });
  to->Signed(image.seen_ns);
  to->Number(image.last);
  WriteAll(image.holds, to, [&](const algorithm::Hold& hold) {
    to->Signed(hold.end_ns);
    to->Number(hold.id);
    to->Number(hold.permits);
  });
  WriteAll(image.receipts, to, [&](const BucketImage::Receipt& receipt) {
    to->Number(receipt.id);
    to->Number(receipt.cost_or_when);
    to->Number(receipt.shortfall_or_permits);
  });
  WriteAll(image.estimates, to, [&](const algorithm::Estimate& estimate) {
    to->Number(estimate.id);
    to->Number(estimate.asked);
    to->Number(estimate.actual);
    to->Number(estimate.changed);
    to->Signed(estimate.end_ns);
    to->Number(estimate.within_ns);
    to->Number(static_cast<uint64_t>(estimate.state));
  });
  WriteAll(image.bookings, to, [&](const algorithm::Booking& booking) {
    to->Signed(booking.grant_time_ns);
    to->Number(booking.permits);
    to->Number(booking.id);
    to->Number(booking.set);
  });
  if (image.bookings.empty()) return;
  to->Signed(image.latest_ns);
  to->Signed(image.wall_ahead_ns);
}

BucketImage ReadImage(FieldReader* from) {
  BucketImage image;
  ReadWindow(from, &image);
  image.tat = from->NumberUpTo(algorithm::kMaxTat);
  uint64_t before = 0;
  image.counts = ReadAll<BucketImage::Count>(from, [&](BucketImage::Count* count) {
    count->when = before + from->Number();
    if (count->when < before) from->Fail();
    count->permits = from->Number();
    before = count->when;
  });
  image.seen_ns = from->Signed();
  image.last = from->Number();
  image.holds = ReadAll<algorithm::Hold>(from, [&](algorithm::Hold* hold) {
    hold->end_ns = from->Signed();
    hold->id = from->Number();
    hold->permits = from->Number();
  });
  image.receipts = ReadAll<BucketImage::Receipt>(from, [&](BucketImage::Receipt* receipt) {
    receipt->id = from->Number();
    receipt->cost_or_when = from->Number();
    receipt->shortfall_or_permits = from->Number();
  });
  image.estimates = ReadAll<algorithm::Estimate>(from, [&](algorithm::Estimate* estimate) {
    estimate->id = from->Number();
    estimate->asked = from->Number();
    estimate->actual = from->Number();
    estimate->changed = from->Number();
    estimate->end_ns = from->Signed();
    estimate->within_ns = from->NumberUpTo((uint64_t{1} << 56) - 1) & ((uint64_t{1} << 56) - 1);
    estimate->state = from->EnumUpTo(algorithm::Estimate::State::kRefunded);
  });
  image.bookings = ReadAll<algorithm::Booking>(from, [&](algorithm::Booking* booking) {
    booking->grant_time_ns = from->Signed();
    booking->permits = from->Number();
    booking->id = from->Number();
    booking->set = from->Number();
  });
  if (image.bookings.empty()) return image;
  image.latest_ns = from->Signed();
  image.wall_ahead_ns = from->Signed();
  return image;
}

}  // namespace sluice::state
