#include "server/store/redis/wire/parameters_text.h"

#include <iterator>
#include <tuple>

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

namespace {

// In the order of Kind.
constexpr std::string_view kLetters = "tlwfc";
static_assert(kLetters.size() == std::size(algorithm::kKinds));

}  // namespace

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

char LetterOf(Kind kind) { return kLetters[static_cast<size_t>(kind)]; }

std::string EncodeParameters(const Parameters& parameters) {
  std::string text(1, LetterOf(parameters.kind));
  VisitOwn(parameters, [&](const auto& own) {
    std::apply([&](auto... given) { (absl::StrAppend(&text, ":", given), ...); }, own.Given(own));
  });
  return text;
}

absl::StatusOr<Parameters> ParseParameters(std::string_view encoded_parameters) {
  const std::vector<absl::string_view> words = absl::StrSplit(ToAbsl(encoded_parameters), ':');
  const size_t kind = words[0].size() == 1 ? kLetters.find(words[0][0]) : kLetters.npos;
  if (kind == kLetters.npos) return NotOurs("parameters", ToAbsl(encoded_parameters));
  Parameters given;
  given.kind = algorithm::kKinds[kind];
  const bool good = VisitOwn(given, [&](auto& own) {
    return std::apply(
        [&](auto&... each) {
          if (words.size() != 1 + sizeof...(each)) return false;
          size_t word = 0;
          return (absl::SimpleAtoi(words[++word], &each) && ...);
        },
        own.Given(own));
  });
  if (!good) return NotOurs("parameters", ToAbsl(encoded_parameters));
  return algorithm::Remade(given);
}

}  // namespace sluice::store::redis
