// What OpenBucket writes: Format.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/algorithm/sliding_log.h"
#include "server/store/redis/wire/open_bucket.h"

namespace sluice::store::redis {

using algorithm::Booking;
using algorithm::BucketImage;
using algorithm::Kind;
using common::ToAbsl;

void OpenBucket::AddChunk(std::string_view version, std::string bytes, uint64_t first,
                          std::vector<std::string>* fields) {
  StoredBookings::Chunk chunk = {
      absl::StrCat(next_.generation, ".", ToAbsl(version), ".", next_.chunks.size()),
      std::move(bytes), first};
  fields->insert(fields->end(), {chunk.name, chunk.bytes});
  next_.chunks.push_back(std::make_shared<StoredBookings::Chunk>(std::move(chunk)));
}

bool OpenBucket::HasManyRuns(int64_t now_ns) const {
  if (parameters_.kind != Kind::kSlidingLog) return false;
  const auto counts = [&](uint64_t quantum) {
    return algorithm::SlidingLogState::UntilNs(parameters_.sliding_log, quantum, 0) > now_ns;
  };
  // All but the last are full, as far as their runs have not expired.
  size_t full = 0;
  for (size_t c = 0; c + 1 < stored_.run_chunks && !runs_changed_; ++c) {
    full += counts(stored_.chunks[c]->first) ? 1 : 0;
  }
  if (full * kRunsPerChunk > kMostRunsForScripts) return true;
  size_t runs = 0;
  for (const BucketImage::Count& run : state_.ToImage(/*with_bookings=*/false).counts) {
    runs += counts(run.when) ? 1 : 0;
  }
  return runs > kMostRunsForScripts;
}

BucketImage OpenBucket::FormatRuns(std::string_view version, int64_t now_ns,
                                   std::vector<std::string>* fields,
                                   std::vector<std::string>* gone) {
  const auto begin = stored_.chunks.begin();
  const auto end = begin + static_cast<ptrdiff_t>(stored_.run_chunks);
  if (IsConcurrency(parameters_)) return {};
  if (parameters_.kind != Kind::kSlidingLog) {
    for (auto old = begin; old != end; ++old) gone->push_back((*old)->name);
    return state_.ToImage(/*with_bookings=*/false);
  }
  uint64_t from = 0;  // of the runs that are not written yet
  for (auto old = begin; old != end; ++old) {
    const bool last = old + 1 == end;
    const uint64_t until = last ? 0 : old[1]->first;
    const bool expired =
        !last && algorithm::SlidingLogState::UntilNs(parameters_.sliding_log, until, 0) <= now_ns;
    const auto refunded = [&](uint64_t at) { return at >= (*old)->first && at < until; };
    if (last || runs_changed_ || expired) {
      gone->push_back((*old)->name);
      if (last && !runs_changed_) from = (*old)->first;
    } else if (std::none_of(refunded_.begin(), refunded_.end(), refunded)) {
      next_.chunks.push_back(*old);
    } else {
      gone->push_back((*old)->name);
      std::vector<BucketImage::Count> runs =
          state_.ToImage(/*with_bookings=*/false, (*old)->first).counts;
      std::erase_if(runs, [&](const BucketImage::Count& run) { return run.when >= until; });
      if (!runs.empty()) AddChunk(version, EncodeRuns(runs), runs[0].when, fields);
    }
  }
  BucketImage image = state_.ToImage(/*with_bookings=*/false, from);
  for (auto left = absl::MakeConstSpan(image.counts); !left.empty();) {
    const auto runs = left.first(std::min(left.size(), kRunsPerChunk));
    AddChunk(version, EncodeRuns(runs), runs[0].when, fields);
    left.remove_prefix(runs.size());
  }
  return image;
}

void OpenBucket::FormatEstimates(std::string_view version, std::vector<std::string>* fields,
                                 std::vector<std::string>* gone) {
  const auto begin = stored_.chunks.begin() + static_cast<ptrdiff_t>(stored_.run_chunks);
  const auto end = begin + static_cast<ptrdiff_t>(stored_.estimate_chunks);
  const size_t before = next_.chunks.size();
  const auto write = [&](uint64_t first, uint64_t until) {
    std::vector<algorithm::Estimate> some;
    const auto flush = [&] {
      if (some.empty()) return;
      AddChunk(version, EncodeEstimates(some, origin_ns_), some[0].id, fields);
      some.clear();
    };
    if (state_.estimates() == nullptr) return;
    state_.estimates()->ForEach(
        [&](const algorithm::Estimate& one) {
          some.push_back(one);
          if (some.size() == kMostEstimates) flush();
        },
        first, until);
    flush();
  };
  // Old chunks whose estimates are kept as they are, or written again together.
  struct Range {
    uint64_t first = 0;
    uint64_t until = std::numeric_limits<uint64_t>::max();
    std::vector<std::shared_ptr<const StoredBookings::Chunk>> old;
    bool changed = true;
  };
  const auto count = [&](const Range& range) {
    size_t number = 0;
    if (state_.estimates() == nullptr) return number;
    state_.estimates()->ForEach([&](const algorithm::Estimate&) { ++number; }, range.first,
                                range.until);
    return number;
  };
  std::vector<Range> ranges;
  // Each chunk has the ids up to the next one's first.
  for (auto old = begin; old != end; ++old) {
    Range range;
    if (old != begin) range.first = (*old)->first;
    if (old + 1 != end) range.until = old[1]->first;
    range.old = {*old};
    range.changed = state_.estimates() == nullptr ||
                    std::any_of(changed_estimates_.begin(), changed_estimates_.end(),
                                [&](uint64_t id) { return id >= range.first && id < range.until; });
    // Small neighbours become one, so that few chunks are left of estimates that end one by one.
    if (!ranges.empty() && (range.changed || ranges.back().changed) &&
        count(ranges.back()) + count(range) <= kMostEstimates / 2) {
      ranges.back().until = range.until;
      ranges.back().old.push_back(*old);
      ranges.back().changed = true;
    } else {
      ranges.push_back(std::move(range));
    }
  }
  if (ranges.empty()) ranges.emplace_back();
  for (const Range& range : ranges) {
    if (!range.changed) {
      next_.chunks.push_back(range.old[0]);
      continue;
    }
    for (const auto& old : range.old) gone->push_back(old->name);
    write(range.first, range.until);
  }
  next_.estimate_chunks = next_.chunks.size() - before;
}

int64_t OpenBucket::TtlMs(int64_t now_ns) const {
  int64_t until_ns = LevelAt(now_ns).reset_after_ns;
  if (estimates() != 0) {
    until_ns = std::max(until_ns, Absolute(state_.estimates()->kept_until_ns()) - now_ns);
  }
  until_ns = std::max(until_ns, tickets_.LastUntilNs() - now_ns);
  // Tickets alone are of no use to a clock that was set back.
  constexpr int64_t kNsPerMs = 1'000'000;
  const int64_t more_ns =
      slots() != nullptr && entries() == 0 ? 0 : algorithm::WindowNs(parameters_);
  return until_ns / kNsPerMs + more_ns / kNsPerMs + 2;
}

std::vector<std::string> OpenBucket::Format(std::string_view writer, std::string_view version,
                                            int64_t now_ns) {
  next_ = {};
  // Forgets estimates that are not kept any more.
  if (estimates() != 0) state_.CloseWorthless(parameters_, At(now_ns));
  const bool awaited = tickets_.AnyAt(now_ns);
  if (entries() == 0 && estimates() == 0 && !awaited && !HasManyRuns(now_ns)) {
    BucketImage image = state_.ToImage();
    const bool full =
        IsConcurrency(parameters_) || state_.LevelAt(parameters_, At(now_ns)).reset_after_ns == 0;
    if (parameters_.kind == Kind::kTokenBucket) {
      image.tat = algorithm::ShortfallTicks(
          image.tat, algorithm::ToTicks(parameters_.token_bucket, now_ns - origin_ns_));
    }
    std::vector<std::string> words =
        full ? FormatFullBucket()
             : FormatBucket({named_, std::string(writer), std::move(image)}, now_ns);
    words.insert(words.begin() + 3, absl::StrCat(words.size() - 3));
    words.insert(words.end(), {"0", "0"});
    return words;
  }
  next_.state = absl::StrCat(EncodeParameters(named_), " ", ToAbsl(writer), " @", ToAbsl(version));
  next_.generation = stored_.generation + 1;
  std::vector<std::string> gone;
  std::vector<std::string> fields;
  BucketImage image = FormatRuns(version, now_ns, &fields, &gone);
  next_.run_chunks = next_.chunks.size();
  FormatEstimates(version, &fields, &gone);
  // Without bookings the past is that of now.
  if (bookings() == 0) image.latest_ns = now_ns - origin_ns_;
  if (awaited) next_.tickets = tickets_.tickets();
  next_.past = EncodePast(parameters_, image, origin_ns_, next_, state_.estimates());
  // Chunks stay in order.
  auto old = stored_.chunks.begin() + static_cast<ptrdiff_t>(stored_.booking_chunks_at());
  size_t skip = 0;
  std::vector<Booking> bookings;
  for (const Part& part : parts_) {
    if (part.chunk != nullptr) {
      for (; *old != part.chunk; ++old) gone.push_back((*old)->name);
      ++old;
      next_.chunks.push_back(part.chunk);
    } else {
      bookings.clear();
      ForEachEntry([&](const Booking& booking) { bookings.push_back(booking); }, skip, part.size);
      AddChunk(version, EncodeBookings(bookings), 0, &fields);
    }
    skip += part.size;
  }
  for (; old != stored_.chunks.end(); ++old) gone.push_back((*old)->name);
  std::string names;
  for (const auto& chunk : next_.chunks) {
    absl::StrAppend(&names, names.empty() ? "" : " ", chunk->name);
  }
  fields.insert(fields.end(), {"past", next_.past, "chunks", std::move(names)});
  std::vector<std::string> words = {absl::StrCat(TtlMs(now_ns)), next_.state, "", "0",
                                    absl::StrCat(gone.size())};
  words.insert(words.end(), gone.begin(), gone.end());
  words.push_back(absl::StrCat(fields.size()));
  std::move(fields.begin(), fields.end(), std::back_inserter(words));
  return words;
}

}  // namespace sluice::store::redis
