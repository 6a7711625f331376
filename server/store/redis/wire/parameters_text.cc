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
  const auto per = [](const algorithm::Rate& rate) {
    return absl::StrCat(rate.permits, " per ",
                        absl::FormatDuration(absl::Nanoseconds(rate.period_ns)));
  };
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      return absl::StrCat("token_bucket ", per(p.rate), ", burst ", p.burst,
                          p.debt > 0 ? absl::StrCat(", debt ", p.debt) : "");
    }
    case Kind::kSlidingLog:
      return absl::StrCat("sliding_log ", per(parameters.sliding_log.rate));
    case Kind::kSlidingWindow: {
      const algorithm::SlidingWindow& p = parameters.sliding_window;
      return absl::StrCat("sliding_window ", per(p.rate), " in ", p.sub_windows, " parts");
    }
    case Kind::kFixedWindow: {
      const algorithm::FixedWindow& p = parameters.fixed_window;
      return absl::StrCat("fixed_window ", per(p.rate), ", offset ",
                          absl::FormatDuration(absl::Nanoseconds(p.utc_offset_ns)));
    }
  }
  return "";
}

std::string EncodeParameters(const Parameters& parameters) {
  switch (parameters.kind) {
    case Kind::kTokenBucket: {
      const algorithm::TokenBucket& p = parameters.token_bucket;
      return absl::StrCat("t:", p.rate.permits, ":", p.rate.period_ns, ":", p.burst, ":", p.debt);
    }
    case Kind::kSlidingLog: {
      const algorithm::Rate& rate = parameters.sliding_log.rate;
      return absl::StrCat("l:", rate.permits, ":", rate.period_ns);
    }
    case Kind::kSlidingWindow: {
      const algorithm::SlidingWindow& p = parameters.sliding_window;
      return absl::StrCat("w:", p.rate.permits, ":", p.rate.period_ns, ":", p.sub_windows);
    }
    case Kind::kFixedWindow: {
      const algorithm::FixedWindow& p = parameters.fixed_window;
      return absl::StrCat("f:", p.rate.permits, ":", p.rate.period_ns, ":", p.utc_offset_ns);
    }
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
