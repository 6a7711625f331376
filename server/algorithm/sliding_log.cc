#include "server/algorithm/sliding_log.h"

#include <algorithm>

#include "server/algorithm/make_parameters.h"
#include "server/algorithm/wide.h"

namespace sluice::algorithm {
namespace {

// Base 128, least significant first, the high bit set on all bytes but the last.
size_t EncodeVarint(uint64_t value, uint8_t* out) {
  size_t size = 0;
  while (value >= 0x80) {
    out[size++] = static_cast<uint8_t>(value | 0x80);
    value >>= 7;
  }
  out[size++] = static_cast<uint8_t>(value);
  return size;
}

uint64_t DecodeVarint(const uint8_t** in) {
  uint64_t value = *(*in)++;
  if (value < 0x80) return value;
  value &= 0x7f;
  for (int shift = 7;; shift += 7) {
    const uint64_t byte = *(*in)++;
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

// In exactly that many bytes. REQUIRES: it takes no more.
void EncodePadded(uint64_t value, size_t size, uint8_t* out) {
  for (; size > 1; --size, value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
  *out = static_cast<uint8_t>(value);
}

constexpr size_t kMaxVarintBytes = 10;
// Decoding that much takes half a microsecond; a checkpoint takes a twentieth of it.
constexpr size_t kBytesPerCheckpoint = 512;

// A vector that doubles would waste up to half of what the encoding saves.
template <typename Element>
void Grow(std::vector<Element>* elements, size_t by) {
  const size_t needed = elements->size() + by;
  if (needed <= elements->capacity()) return;
  elements->reserve(needed + needed / 8 + 8 / sizeof(Element));
}

uint64_t QuantumAt(const SlidingLog& parameters, int64_t now_ns) {
  const int64_t quantum = now_ns / parameters.quantum_ns;
  return static_cast<uint64_t>(quantum) + (quantum * parameters.quantum_ns != now_ns ? 1 : 0);
}

// The first nanosecond at which what was written down at `quantum` no longer counts.
int64_t ExpiryNs(const SlidingLog& parameters, uint64_t quantum) {
  return static_cast<int64_t>(quantum) * parameters.quantum_ns + parameters.rate.period_ns;
}

}  // namespace

int64_t SlidingLogState::Effective(int64_t now_ns) const {
  return std::max(ClampNow(now_ns), seen_ns_);
}

template <typename IsBefore>
SlidingLogState::Checkpoint SlidingLogState::Seek(IsBefore is_before) const {
  const auto after = std::partition_point(checkpoints_.begin(), checkpoints_.end(), is_before);
  return after == checkpoints_.begin() ? Checkpoint{head_, first_quantum_, dropped_} : after[-1];
}

template <typename Visit>
void SlidingLogState::ForEachRunFrom(Checkpoint run, Visit visit) const {
  const uint8_t* in = bytes_.data() + run.offset;
  const uint8_t* const end = bytes_.data() + bytes_.size();
  while (in < end) {
    const uint64_t count = DecodeVarint(&in);
    const uint64_t distance = DecodeVarint(&in);
    if (!visit(run.quantum, count)) return;
    run.quantum += distance;
  }
  visit(last_quantum_, last_count_);
}

SlidingLogState::Checkpoint SlidingLogState::FirstCounted(const SlidingLog& parameters,
                                                          int64_t now_ns) const {
  const auto expired = [&](uint64_t quantum) { return ExpiryNs(parameters, quantum) <= now_ns; };
  Checkpoint run = Seek([&](const Checkpoint& checkpoint) { return expired(checkpoint.quantum); });
  const uint8_t* in = bytes_.data() + run.offset;
  const uint8_t* const end = bytes_.data() + bytes_.size();
  while (in < end && expired(run.quantum)) {
    run.before += DecodeVarint(&in);
    run.quantum += DecodeVarint(&in);
  }
  run.offset = static_cast<size_t>(in - bytes_.data());
  return run;
}

void SlidingLogState::Clear() {
  // A log that has run empty gives its memory back, unless it is a few bytes.
  if (bytes_.capacity() > 64) {
    std::vector<uint8_t>().swap(bytes_);
  } else {
    bytes_.clear();
  }
  std::vector<Checkpoint>().swap(checkpoints_);
  head_ = 0;
  total_ = dropped_ = 0;
  last_count_ = 0;
  first_quantum_ = last_quantum_ = 0;
}

void SlidingLogState::Advance(const SlidingLog& parameters, int64_t now_ns) {
  seen_ns_ = Effective(now_ns);
  if (total_ == 0) return;
  if (ExpiryNs(parameters, last_quantum_) <= seen_ns_) {
    Clear();
    return;
  }
  if (ExpiryNs(parameters, first_quantum_) > seen_ns_) return;
  const Checkpoint first = FirstCounted(parameters, seen_ns_);
  head_ = first.offset;
  first_quantum_ = first.quantum;
  total_ -= first.before - dropped_;
  dropped_ = first.before;
  if (total_ == 0) {
    Clear();
    return;
  }
  checkpoints_.erase(checkpoints_.begin(),
                     std::ranges::upper_bound(checkpoints_, head_, {}, &Checkpoint::offset));
  // Moving what is left costs as much as was dropped since the last time: amortized, nothing.
  if (head_ > 16 && head_ > (bytes_.size() - head_) / 4) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
    for (Checkpoint& checkpoint : checkpoints_) checkpoint.offset -= head_;
    head_ = 0;
    if (bytes_.capacity() > 64 && bytes_.capacity() > 2 * bytes_.size()) bytes_.shrink_to_fit();
  }
}

void SlidingLogState::AppendLast(uint64_t distance) {
  const size_t since = checkpoints_.empty() ? head_ : checkpoints_.back().offset;
  if (bytes_.size() - since >= kBytesPerCheckpoint) {
    Grow(&checkpoints_, 1);
    checkpoints_.push_back({bytes_.size(), last_quantum_, dropped_ + total_ - last_count_});
  }
  uint8_t run[2 * kMaxVarintBytes];
  size_t size = EncodeVarint(last_count_, run);
  size += EncodeVarint(distance, run + size);
  Grow(&bytes_, size);
  bytes_.insert(bytes_.end(), run, run + size);
}

void SlidingLogState::Append(uint64_t quantum, uint64_t permits) {
  if (permits == 0) return;
  if (total_ == 0) {
    first_quantum_ = last_quantum_ = quantum;
    last_count_ = permits;
  } else if (quantum <= last_quantum_) {
    last_count_ += permits;
  } else {
    AppendLast(quantum - last_quantum_);
    last_quantum_ = quantum;
    last_count_ = permits;
  }
  total_ += permits;
}

uint64_t SlidingLogState::Counted(const SlidingLog& parameters, int64_t now_ns) const {
  const int64_t now = Effective(now_ns);
  if (total_ == 0 || ExpiryNs(parameters, last_quantum_) <= now) return 0;
  if (ExpiryNs(parameters, first_quantum_) > now) return total_;
  return total_ - (FirstCounted(parameters, now).before - dropped_);
}

uint64_t SlidingLogState::WhenFor(const SlidingLog& parameters, int64_t now_ns) const {
  const uint64_t quantum = QuantumAt(parameters, Effective(now_ns));
  return total_ != 0 ? std::max(quantum, last_quantum_) : quantum;
}

int64_t SlidingLogState::UntilNs(const SlidingLog& parameters, uint64_t quantum, int64_t) {
  return SaturateToInt64(static_cast<Uint128>(quantum) *
                             static_cast<uint64_t>(parameters.quantum_ns) +
                         static_cast<uint64_t>(parameters.rate.period_ns));
}

uint64_t SlidingLogState::Add(const SlidingLog& parameters, uint64_t permits, int64_t now_ns) {
  Advance(parameters, now_ns);
  const uint64_t quantum = WhenFor(parameters, now_ns);
  Append(quantum, permits);
  return quantum;
}

int64_t SlidingLogState::EarliestNs(const SlidingLog& parameters, uint64_t permits,
                                    int64_t now_ns) const {
  const uint64_t capacity = parameters.rate.permits;
  if (permits > capacity) return kNeverNs;
  if (Fits(Counted(parameters, now_ns), permits, capacity)) return ClampNow(now_ns);
  // So many must have expired, the oldest first.
  const uint64_t expired = total_ - (capacity - permits);
  uint64_t last = last_quantum_;
  if (expired <= total_ - last_count_) {
    const Checkpoint run =
        Seek([&](const Checkpoint& checkpoint) { return checkpoint.before - dropped_ < expired; });
    uint64_t sum = run.before - dropped_;
    ForEachRunFrom(run, [&](uint64_t quantum, uint64_t count) {
      last = quantum;
      sum += count;
      return sum < expired;
    });
  }
  return ExpiryNs(parameters, last);
}

bool SlidingLogState::Counts(const SlidingLog& parameters, uint64_t quantum, int64_t now_ns) const {
  return total_ != 0 && ExpiryNs(parameters, quantum) > Effective(now_ns);
}

uint64_t SlidingLogState::Refund(const SlidingLog& parameters, uint64_t quantum, uint64_t permits,
                                 int64_t now_ns) {
  Advance(parameters, now_ns);
  if (total_ == 0 || quantum < first_quantum_ || ExpiryNs(parameters, quantum) <= seen_ns_) {
    return 0;
  }
  uint64_t removed = 0;
  if (quantum == last_quantum_) {
    // A last run of nothing may stay: it is dropped when its time comes.
    removed = std::min(permits, last_count_);
    last_count_ -= removed;
  } else {
    const Checkpoint run =
        Seek([&](const Checkpoint& checkpoint) { return checkpoint.quantum <= quantum; });
    const uint8_t* in = bytes_.data() + run.offset;
    const uint8_t* const end = bytes_.data() + bytes_.size();
    for (uint64_t at = run.quantum; in < end && at <= quantum;) {
      const auto offset = static_cast<size_t>(in - bytes_.data());
      const uint64_t count = DecodeVarint(&in);
      const auto count_bytes = static_cast<size_t>(in - bytes_.data()) - offset;
      if (at == quantum) {
        removed = std::min(permits, count);
        EncodePadded(count - removed, count_bytes, bytes_.data() + offset);
        for (Checkpoint& later : checkpoints_) {
          if (later.offset > offset) later.before -= removed;
        }
        break;
      }
      at += DecodeVarint(&in);
    }
  }
  total_ -= removed;
  if (total_ == 0) Clear();
  return removed;
}

uint64_t SlidingLogState::ConvertWhen(const SlidingLog& from, const SlidingLog& to,
                                      uint64_t quantum, int64_t) {
  if (from.quantum_ns == to.quantum_ns) return quantum;
  return static_cast<uint64_t>(CeilDiv(static_cast<Uint128>(quantum) * from.quantum_ns,
                                       static_cast<Uint128>(to.quantum_ns)));
}

SlidingLogState SlidingLogState::ConvertTo(const SlidingLog& from, const SlidingLog& to,
                                           int64_t now_ns) const {
  SlidingLogState converted;
  if (from.quantum_ns == to.quantum_ns && from.rate.period_ns == to.rate.period_ns) {
    converted = *this;
    converted.Advance(to, now_ns);
    return converted;
  }
  converted.seen_ns_ = Effective(now_ns);
  ForEachRun([&](uint64_t quantum, uint64_t count) {
    // What no longer counts for a shorter old period does not come back under a longer one.
    if (ExpiryNs(from, quantum) > converted.seen_ns_) {
      converted.Append(ConvertWhen(from, to, quantum, now_ns), count);
    }
    return true;
  });
  converted.Advance(to, now_ns);
  return converted;
}

void SlidingLogState::ToImage(BucketImage* image, uint64_t from) const {
  image->seen_ns = seen_ns_;
  if (total_ == 0) return;
  const auto is_before = [&](const Checkpoint& checkpoint) { return checkpoint.quantum <= from; };
  ForEachRunFrom(Seek(is_before), [&](uint64_t quantum, uint64_t count) {
    if (quantum >= from) image->counts.push_back({quantum, count});
    return true;
  });
}

SlidingLogState SlidingLogState::FromImage(const SlidingLog&, const BucketImage& image) {
  SlidingLogState log;
  log.seen_ns_ = image.seen_ns;
  // Runs of nothing, which refunds leave, too.
  for (size_t i = 0; i < image.counts.size(); ++i) {
    const auto& [quantum, permits] = image.counts[i];
    if (i == 0) {
      log.first_quantum_ = quantum;
    } else {
      log.AppendLast(quantum - log.last_quantum_);
    }
    log.last_quantum_ = quantum;
    log.last_count_ = permits;
    log.total_ += permits;
  }
  if (log.total_ == 0) log.Clear();
  return log;
}

size_t SlidingLogState::MaxMemoryBytes(const SlidingLog& parameters) {
  const uint64_t runs = std::min<uint64_t>(parameters.rate.permits, kQuantaPerPeriod + 1);
  // Many runs cannot all be far from each other or have many permits: on average, a run's count and
  // distance take at most one byte more than the average count and distance.
  uint8_t unused[kMaxVarintBytes];
  const size_t per_run = EncodeVarint(parameters.rate.permits / runs, unused) +
                         EncodeVarint(kQuantaPerPeriod / runs, unused) + 2;
  // A quarter more: what Grow leaves free, what Advance has not moved yet, and the checkpoints.
  return runs * per_run * 5 / 4 + 64;
}

size_t SlidingLogState::runs() const {
  size_t runs = 0;
  ForEachRun([&](uint64_t, uint64_t) {
    ++runs;
    return true;
  });
  return runs;
}

absl::StatusOr<Parameters> MakeSlidingLog(Rate rate) {
  if (absl::Status status = CheckRate(rate); !status.ok()) return status;
  Parameters parameters;
  parameters.kind = Kind::kSlidingLog;
  parameters.sliding_log.rate = rate;
  parameters.sliding_log.quantum_ns = (rate.period_ns + kQuantaPerPeriod - 1) / kQuantaPerPeriod;
  return parameters;
}

absl::StatusOr<Parameters> WithRate(const SlidingLog&, Rate rate) { return MakeSlidingLog(rate); }

}  // namespace sluice::algorithm
