#include "server/store/redis/wire/parameters_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/algorithm/make_parameters.h"

namespace sluice::store::redis {

using algorithm::Kind;
using algorithm::Parameters;
using common::ToAbsl;

absl::Status NotOurs(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " \"", ToAbsl(common::errors::Shown(common::ToStd(text))),
                   "\": not written by this program; is the name space shared with another?"));
}

std::string Describe(const Parameters& parameters) {
  if (IsConcurrency(parameters)) {
    return absl::StrCat(
        "concurrency ", parameters.concurrency.permits, ", hold_for ",
        absl::FormatDuration(absl::Nanoseconds(parameters.concurrency.hold_for_ns)));
  }
  const algorithm::Rate& rate = RateOf(parameters);
  std::string text = absl::StrCat(ToAbsl(KindName(parameters.kind)), " ", rate.permits, " per ",
                                  absl::FormatDuration(absl::Nanoseconds(rate.period_ns)));
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      absl::StrAppend(&text, ", burst ", p.burst);
      if (p.debt > 0) absl::StrAppend(&text, ", debt ", p.debt);
      break;
    }
    case Kind::kSlidingLog:
      break;
    case Kind::kSlidingWindow:
      absl::StrAppend(&text, " in ", parameters.sliding_window.sub_windows, " parts");
      break;
    case Kind::kFixedWindow:
      absl::StrAppend(
          &text, ", offset ",
          absl::FormatDuration(absl::Nanoseconds(parameters.fixed_window.utc_offset_ns)));
      break;
    case Kind::kConcurrency:
      break;
  }
  return text;
}

std::string EncodeParameters(const Parameters& parameters) {
  if (IsConcurrency(parameters)) {
    return absl::StrCat("c:", parameters.concurrency.permits, ":",
                        parameters.concurrency.hold_for_ns);
  }
  const algorithm::Rate& rate = RateOf(parameters);
  const auto encode = [&](const char* letter, const auto&... own) {
    std::string text = absl::StrCat(letter, ":", rate.permits, ":", rate.period_ns);
    (absl::StrAppend(&text, ":", own), ...);
    return text;
  };
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      return encode("t", parameters.token_bucket.burst, parameters.token_bucket.debt);
    case Kind::kSlidingLog:
      return encode("l");
    case Kind::kSlidingWindow:
      return encode("w", parameters.sliding_window.sub_windows);
    case Kind::kFixedWindow:
      return encode("f", parameters.fixed_window.utc_offset_ns);
    case Kind::kConcurrency:
      break;
  }
  return "";
}

absl::StatusOr<Parameters> ParseParameters(std::string_view encoded_parameters) {
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(encoded_parameters), ':');
  algorithm::Rate rate;
  if (words.size() < 3 || !absl::SimpleAtoi(words[1], &rate.permits) ||
      !absl::SimpleAtoi(words[2], &rate.period_ns)) {
    return NotOurs("parameters", ToAbsl(encoded_parameters));
  }
  if (words[0] == "t" && words.size() == 5) {
    uint64_t burst, debt;
    if (ParseAll(words, 3, {&burst, &debt})) return algorithm::MakeTokenBucket(rate, burst, debt);
  } else if (words[0] == "c" && words.size() == 3) {
    return algorithm::MakeConcurrency(rate.permits, rate.period_ns);
  } else if (words[0] == "l" && words.size() == 3) {
    return algorithm::MakeSlidingLog(rate);
  } else if (words[0] == "w" && words.size() == 4) {
    uint32_t sub_windows;
    if (ParseAll(words, 3, {&sub_windows})) return algorithm::MakeSlidingWindow(rate, sub_windows);
  } else if (words[0] == "f" && words.size() == 4) {
    int64_t utc_offset_ns;
    if (ParseAll(words, 3, {&utc_offset_ns})) {
      return algorithm::MakeFixedWindow(rate, utc_offset_ns);
    }
  }
  return NotOurs("parameters", ToAbsl(encoded_parameters));
}

}  // namespace sluice::store::redis
