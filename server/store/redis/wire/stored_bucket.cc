#include "server/store/redis/wire/stored_bucket.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "server/algorithm/wide.h"

namespace sluice::store::redis {
namespace {

using algorithm::Kind;
using algorithm::Parameters;
using algorithm::Uint128;
using common::ToAbsl;

// A log's moments are whole quanta.
uint64_t QuantumOf(const algorithm::SlidingLog& parameters, int64_t at_ns) {
  return static_cast<uint64_t>(at_ns / parameters.quantum_ns);
}
TimePair PairOfQuantum(const algorithm::SlidingLog& parameters, uint64_t quantum) {
  return PairOfNs(static_cast<int64_t>(quantum) * parameters.quantum_ns);
}

// The two numbers of a receipt (BucketImage::Receipt) as pairs, and back. `when`: of the first.
TimePair PairOfReceipt(const Parameters& parameters, uint64_t number, bool when) {
  if (parameters.kind == Kind::kTokenBucket) return PairOfTicks(parameters.token_bucket, number);
  if (parameters.kind == Kind::kSlidingLog && when) {
    return PairOfQuantum(parameters.sliding_log, number);
  }
  return {static_cast<int64_t>(number), 0};
}
uint64_t NumberOfReceipt(const Parameters& parameters, TimePair pair, bool when) {
  if (parameters.kind == Kind::kTokenBucket) {
    return TicksOf(parameters.token_bucket, pair.us, pair.parts);
  }
  if (parameters.kind == Kind::kSlidingLog && when) {
    return QuantumOf(parameters.sliding_log, NsOf(pair.us, pair.parts));
  }
  return static_cast<uint64_t>(pair.us);
}

absl::Status ParseReceipts(const Parameters& parameters, absl::string_view text,
                           std::vector<algorithm::BucketImage::Receipt>* receipts) {
  for (const absl::string_view one : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(one, ',');
    algorithm::BucketImage::Receipt& receipt = receipts->emplace_back();
    TimePair first, second;
    if (words.size() != 5 || !ParseAll(words, 0, {&receipt.id}) ||
        !ParseAll(words, 1, {&first.us, &first.parts, &second.us, &second.parts})) {
      return NotOurs("receipts", text);
    }
    receipt.cost_or_when = NumberOfReceipt(parameters, first, /*when=*/true);
    receipt.shortfall_or_permits = NumberOfReceipt(parameters, second, /*when=*/false);
  }
  return absl::OkStatus();
}

std::string FormatReceipts(const StoredBucket& bucket) {
  const std::vector<algorithm::BucketImage::Receipt>& receipts = bucket.image.receipts;
  std::string text;
  const size_t closed = receipts.size() - std::min(receipts.size(), kMaxReceiptsInRedis);
  for (size_t i = closed; i < receipts.size(); ++i) {
    const auto& [id, when, permits] = receipts[i];
    const TimePair first = PairOfReceipt(bucket.parameters, when, /*when=*/true);
    const TimePair second = PairOfReceipt(bucket.parameters, permits, /*when=*/false);
    absl::StrAppend(&text, id, ",", first.us, ",", first.parts, ",");
    absl::StrAppend(&text, second.us, ",", second.parts, ";");
  }
  return text;
}

// Rounds towards the past.
std::string PairText(TimePair pair) { return absl::StrCat(pair.us, " ", pair.parts); }

}  // namespace

absl::StatusOr<StoredBucket> ParseBucket(std::string_view state, absl::Span<const std::string> runs,
                                         std::string_view receipts, int64_t now_ns) {
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(state), ' ');
  if (words.size() < 4) return NotOurs("state", ToAbsl(state));
  auto parameters = ParseParameters(common::ToStd(words[0]));
  if (!parameters.ok()) return parameters.status();
  StoredBucket bucket;
  bucket.parameters = *parameters;
  bucket.writer = std::string(words[1]);
  algorithm::BucketImage& image = bucket.image;
  bool good = false;
  switch (parameters->kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters->token_bucket;
      int64_t us, ticks;
      uint64_t flag, expiry_s;
      // Behind the flag there may be two words (acquire_token_buckets.lua); an earlier version
      // wrote the first alone.
      good = ParseAll(words, 2, {&us, &ticks}) &&
             (words.size() == 5 || (words.size() <= 7 && ParseAll(words, 4, {&flag, &expiry_s})));
      if (!good) break;
      const TimePair now = PairOfNs(now_ns);
      const algorithm::Int128 lacking =
          static_cast<algorithm::Int128>(us - now.us) * PartsPerUs(p) + ticks -
          (now.parts << p.shift);
      image.tat = static_cast<uint64_t>(std::clamp<algorithm::Int128>(
          lacking, 0, static_cast<algorithm::Int128>(algorithm::kMaxTat)));
      break;
    }
    case Kind::kSlidingLog: {
      const algorithm::SlidingLog& p = parameters->sliding_log;
      uint64_t total, last_permits;
      int64_t last_us, last_ns, seen_us, seen_ns;
      good = words.size() == 9 && ParseAll(words, 2, {&total}) &&
             ParseAll(words, 3, {&last_us, &last_ns}) && ParseAll(words, 5, {&last_permits}) &&
             ParseAll(words, 6, {&seen_us, &seen_ns});
      for (size_t i = 0; good && i < runs.size(); ++i) {
        const std::vector<absl::string_view> run = absl::StrSplit(runs[i], ' ');
        int64_t us, ns;
        uint64_t permits;
        good = run.size() == 3 && ParseAll(run, 0, {&us, &ns}) && ParseAll(run, 2, {&permits});
        if (good) image.counts.push_back({QuantumOf(p, NsOf(us, ns)), permits});
      }
      if (!good) break;
      if (total != 0) image.counts.push_back({QuantumOf(p, NsOf(last_us, last_ns)), last_permits});
      image.seen_ns = NsOf(seen_us, seen_ns);
      break;
    }
    case Kind::kSlidingWindow:
      good = words.size() == 5 && ParseAll(words, 2, {&image.last});
      if (!good || words[3] == "-") break;
      for (const absl::string_view one : absl::StrSplit(words[3], ',', absl::SkipEmpty())) {
        const std::vector<absl::string_view> parts = absl::StrSplit(one, ':');
        uint64_t index, permits;
        good = good && parts.size() == 2 && ParseAll(parts, 0, {&index, &permits});
        if (good) image.counts.push_back({index, permits});
      }
      break;
    case Kind::kFixedWindow: {
      int64_t opened_us, opened_ns, ends_us, ends_ns;
      good = words.size() == 10 && ParseAll(words, 2, {&image.index}) &&
             ParseAll(words, 3, {&opened_us, &opened_ns, &ends_us, &ends_ns}) &&
             ParseAll(words, 7, {&image.count, &image.serial});
      if (!good) break;
      image.used = true;
      image.opened_ns = NsOf(opened_us, opened_ns);
      image.ends_ns = NsOf(ends_us, ends_ns);
      break;
    }
    case Kind::kConcurrency:
      break;  // scripts have no form for it
  }
  if (!good) return NotOurs("state", ToAbsl(state));
  if (absl::Status status = ParseReceipts(*parameters, ToAbsl(receipts), &image.receipts);
      !status.ok()) {
    return status;
  }
  return bucket;
}

std::vector<std::string> FormatFullBucket() { return {"1", "", ""}; }

std::vector<std::string> FormatBucket(const StoredBucket& bucket, int64_t now_ns) {
  const Parameters& parameters = bucket.parameters;
  const algorithm::BucketImage& image = bucket.image;
  std::string state = absl::StrCat(EncodeParameters(parameters), " ", bucket.writer);
  std::vector<std::string> runs;
  algorithm::Int128 ttl_ns = 0;
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      const auto parts = static_cast<Uint128>(PartsPerUs(p));
      const Uint128 tat = (static_cast<Uint128>(now_ns) << p.shift) + image.tat;
      absl::StrAppend(&state, " ", static_cast<uint64_t>(tat / parts), " ",
                      static_cast<uint64_t>(tat % parts));
      ttl_ns = static_cast<algorithm::Int128>(image.tat >> p.shift);
      break;
    }
    case Kind::kSlidingLog: {
      const algorithm::SlidingLog& p = parameters.sliding_log;
      uint64_t total = 0;
      for (const auto& [quantum, permits] : image.counts) {
        total += CappedCount(permits);
        runs.push_back(
            absl::StrCat(PairText(PairOfQuantum(p, quantum)), " ", CappedCount(permits)));
      }
      // The last run is part of the state.
      const std::string last = runs.back();
      runs.pop_back();
      absl::StrAppend(&state, " ", total, " ", last, " ", PairText(PairOfNs(image.seen_ns)));
      const auto last_ns = static_cast<int64_t>(image.counts.back().when) * p.quantum_ns;
      ttl_ns = static_cast<algorithm::Int128>(std::max(last_ns, image.seen_ns)) + p.rate.period_ns -
               now_ns;
      break;
    }
    case Kind::kSlidingWindow:
      absl::StrAppend(&state, " ", image.last, " ");
      for (const auto& [index, permits] : image.counts) {
        absl::StrAppend(&state, index, ":", CappedCount(permits), ",");
      }
      ttl_ns = static_cast<algorithm::Int128>(parameters.sliding_window.rate.period_ns) * 2;
      break;
    case Kind::kFixedWindow:
      absl::StrAppend(&state, " ", image.index, " ", PairText(PairOfNs(image.opened_ns)), " ",
                      PairText(PairOfNs(image.ends_ns)), " ", CappedCount(image.count), " ",
                      image.serial);
      ttl_ns = static_cast<algorithm::Int128>(std::max(image.ends_ns, now_ns)) +
               parameters.fixed_window.rate.period_ns - now_ns;
      break;
    case Kind::kConcurrency:
      break;
  }
  std::string receipts = FormatReceipts(bucket);
  absl::StrAppend(&state, receipts.empty() ? " 0" : " 1");
  constexpr int64_t kNsPerMs = 1'000'000;
  std::vector<std::string> formatted = {absl::StrCat(static_cast<int64_t>(ttl_ns / kNsPerMs + 2)),
                                        std::move(state), std::move(receipts)};
  formatted.insert(formatted.end(), runs.begin(), runs.end());
  return formatted;
}

}  // namespace sluice::store::redis
