#include "common/http2/request_rules.h"

#include <optional>
#include <string_view>

namespace sluice::http2 {

// Finds the meaning of a request's field.
class RequestInterpreter final : public HpackInterpreter {
 public:
  uint64_t Interpret(std::string_view name, std::string_view value, uint64_t like) const override {
    const HeaderName header = RecognizeHeader(name, like);
    const auto meaning = [header](uint16_t seen, bool valid) {
      return static_cast<uint64_t>(header) | (valid ? 0 : kMalformed) |
             static_cast<uint64_t>(seen) << kSeenShift;
    };
    switch (header) {
      case HeaderName::kMethod:
        return meaning(Rules::kMethod | (value == "CONNECT"   ? Rules::kConnect
                                         : value == "OPTIONS" ? Rules::kOptions
                                                              : 0),
                       IsMethod(value));
      case HeaderName::kScheme:
        return meaning(Rules::kScheme | (IsHttpScheme(value) ? Rules::kHttp : 0), IsScheme(value));
      case HeaderName::kPath:
        return meaning(Rules::kPath | (value.substr(0, 1) == "/" ? Rules::kSlashPath
                                       : value == "*"            ? Rules::kStarPath
                                                                 : 0),
                       IsPath(value));
      case HeaderName::kAuthority:
        return meaning(Rules::kAuthority, IsAuthority(value));
      case HeaderName::kHost:
        return meaning(Rules::kRegular | Rules::kHost, IsAuthority(value));
      case HeaderName::kTe:
        return meaning(Rules::kRegular, IsTe(value));
      case HeaderName::kStatus:
      case HeaderName::kForbidden:
        return meaning(Rules::kRegular, false);
      default:
        return meaning(Rules::kRegular, IsHeaderValue(value));
    }
  }

 private:
  using Rules = RequestRules;
};

const HpackVocabulary& RequestVocabulary() {
  static const RequestInterpreter interpreter;
  static const HpackVocabulary vocabulary(interpreter);
  return vocabulary;
}

bool RequestRules::TakeContentLength(const HpackField& field) {
  // Trailers must not have it (RFC 9110, 6.5.1).
  if (content_length_ != kNoContentLength || (seen_ & kTrailers) != 0) return false;
  const std::optional<int64_t> bytes = ParseContentLength(field.value);
  if (!bytes.has_value()) return false;
  content_length_ = *bytes;
  return true;
}

bool RequestRules::Complete(bool end) const {
  if ((seen_ & kTrailers) != 0) return end;
  if ((seen_ & kConnect) != 0) return (seen_ & (kScheme | kPath | kAuthority)) == kAuthority;
  constexpr uint16_t kAll = kMethod | kScheme | kPath;
  if ((seen_ & kAll) != kAll || (seen_ & (kAuthority | kHost)) == 0) return false;
  if ((seen_ & kHttp) == 0 || (seen_ & kSlashPath) != 0) return true;
  return (seen_ & (kOptions | kStarPath)) == (kOptions | kStarPath);
}

}  // namespace sluice::http2
