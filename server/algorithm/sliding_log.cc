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

constexpr size_t kMaxVarintBytes = 10;

// A vector that doubles would waste up to half of what the encoding saves.
void Grow(std::vector<uint8_t>* bytes, size_t by) {
  const size_t needed = bytes->size() + by;
  if (needed <= bytes->capacity()) return;
  bytes->reserve(needed + needed / 8 + 8);
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

template <typename Visit>
void SlidingLogState::ForEachRun(Visit visit) const {
  if (total_ == 0) return;
  const uint8_t* in = bytes_.data() + head_;
  const uint8_t* const end = bytes_.data() + bytes_.size();
  uint64_t quantum = first_quantum_;
  while (in < end) {
    const uint64_t count = DecodeVarint(&in);
    const uint64_t distance = DecodeVarint(&in);
    if (!visit(quantum, count)) return;
    quantum += distance;
  }
  visit(last_quantum_, last_count_);
}

void SlidingLogState::Clear() {
  // A log that has run empty gives its memory back, unless it is a few bytes.
  if (bytes_.capacity() > 64) {
    std::vector<uint8_t>().swap(bytes_);
  } else {
    bytes_.clear();
  }
  head_ = 0;
  total_ = 0;
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
  const uint8_t* in = bytes_.data() + head_;
  const uint8_t* const end = bytes_.data() + bytes_.size();
  while (in < end && ExpiryNs(parameters, first_quantum_) <= seen_ns_) {
    total_ -= DecodeVarint(&in);
    first_quantum_ += DecodeVarint(&in);
  }
  head_ = static_cast<size_t>(in - bytes_.data());
  if (total_ == 0) {
    Clear();
    return;
  }
  // Moving what is left costs as much as was dropped since the last time: amortized, nothing.
  if (head_ > 16 && head_ > (bytes_.size() - head_) / 4) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
    if (bytes_.capacity() > 64 && bytes_.capacity() > 2 * bytes_.size()) bytes_.shrink_to_fit();
  }
}

void SlidingLogState::AppendLast(uint64_t distance) {
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
  uint64_t counted = total_;
  ForEachRun([&](uint64_t quantum, uint64_t count) {
    if (ExpiryNs(parameters, quantum) > now) return false;
    counted -= count;
    return true;
  });
  return counted;
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
  uint64_t counted = total_;
  int64_t earliest = ClampNow(now_ns);
  const int64_t now = Effective(now_ns);
  // At `now`, expired runs do not count; beyond it, each expiry frees a run.
  ForEachRun([&](uint64_t quantum, uint64_t count) {
    const int64_t expiry = ExpiryNs(parameters, quantum);
    if (expiry > now) {
      if (Fits(counted, permits, capacity)) return false;
      earliest = expiry;
    }
    counted -= count;
    return true;
  });
  return earliest;
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
    const uint8_t* const begin = bytes_.data();
    const uint8_t* in = begin + head_;
    const uint8_t* const end = begin + bytes_.size();
    uint64_t at = first_quantum_;
    while (in < end && at <= quantum) {
      const auto run_begin = in - begin;
      const uint64_t count = DecodeVarint(&in);
      const auto count_end = in - begin;
      const uint64_t distance = DecodeVarint(&in);
      if (at == quantum) {
        removed = std::min(permits, count);
        uint8_t fewer[kMaxVarintBytes];
        const size_t size = EncodeVarint(count - removed, fewer);  // never longer
        const auto unused = bytes_.begin() + run_begin + static_cast<std::ptrdiff_t>(size);
        std::copy(fewer, fewer + size, bytes_.begin() + run_begin);
        bytes_.erase(unused, bytes_.begin() + count_end);
        break;
      }
      at += distance;
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

void SlidingLogState::ToImage(BucketImage* image) const {
  image->seen_ns = seen_ns_;
  ForEachRun([&](uint64_t quantum, uint64_t count) {
    image->counts.push_back({quantum, count});
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
