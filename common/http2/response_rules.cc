#include "common/http2/response_rules.h"

#include <optional>
#include <string_view>

namespace sluice::http2 {
namespace {

// A number of at most `most_digits` digits.
std::optional<uint32_t> ParseDigits(std::string_view value, size_t most_digits) {
  if (value.empty() || value.size() > most_digits) return std::nullopt;
  uint32_t number = 0;
  for (const char c : value) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<uint32_t>(c - '0');
  }
  return number;
}

// Finds the meaning of a response's field.
class ResponseInterpreter final : public HpackInterpreter {
 public:
  uint64_t Interpret(std::string_view name, std::string_view value, uint64_t like) const override {
    const HeaderName header = RecognizeHeader(name, like);
    const auto meaning = [header](bool valid, uint32_t number = 0) {
      // The bit tells the meaning of an unknown name from 0.
      return static_cast<uint64_t>(header) | (valid ? 0 : kMalformed) | uint64_t{1} << kSeenShift |
             static_cast<uint64_t>(number) << 32;
    };
    switch (header) {
      case HeaderName::kStatus: {
        const std::optional<uint32_t> status = ParseDigits(value, 3);
        // HTTP/2 has no 101 (RFC 9113, 8.6).
        return meaning(status.value_or(0) >= 100 && status != 101, status.value_or(0));
      }
      case HeaderName::kTe:
        return meaning(IsTe(value));
      case HeaderName::kMethod:
      case HeaderName::kScheme:
      case HeaderName::kPath:
      case HeaderName::kAuthority:
      case HeaderName::kForbidden:
        return meaning(false);
      case HeaderName::kGrpcStatus:
        return meaning(IsHeaderValue(value), ParseDigits(value, 2).value_or(kNoNumber));
      default:
        return meaning(IsHeaderValue(value));
    }
  }
};

}  // namespace

const HpackVocabulary& ResponseVocabulary() {
  static const ResponseInterpreter interpreter;
  static const HpackVocabulary vocabulary(interpreter);
  return vocabulary;
}

bool ResponseRules::TakeStatus(const HpackField& field) {
  if (trailers_ || status_ != 0) return false;
  status_ = ValueOf(field);
  return true;
}

bool ResponseRules::TakeContentLength(const HpackField& field) {
  if (content_length_ != kNoContentLength || trailers_ || skips()) return false;
  const std::optional<int64_t> bytes = ParseContentLength(field.value);
  if (!bytes.has_value()) return false;
  content_length_ = *bytes;
  return status_ != 204 || *bytes == 0;
}

}  // namespace sluice::http2
