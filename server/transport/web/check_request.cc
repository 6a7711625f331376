#include "server/transport/web/check_request.h"

#include <charconv>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"

namespace sluice::web {
namespace {

using common::errors::Invalid;
using common::errors::Shown;

enum Parameter : unsigned {
  kLimit = 1 << 0,
  kKey = 1 << 1,
  kPermits = 1 << 2,
  kDenyStatus = 1 << 3,
  kXRateLimit = 1 << 4,
  kBody = 1 << 5,
};

using common::bounds::kMaxKeyParts;

template <typename Number>
bool ReadNumber(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

absl::Status ReadPermits(std::string_view name, std::string_view value, uint64_t* permits) {
  if (ReadNumber(value, permits)) return absl::OkStatus();
  return Invalid(name, "\"", Shown(value), "\" is no number of permits; write 1 or more");
}

absl::Status ReadDenyStatus(std::string_view name, std::string_view value, int* status) {
  if (ReadNumber(value, status) && *status >= 400 && *status <= 599) return absl::OkStatus();
  return Invalid(name, "\"", Shown(value), "\" is no status of an error; write 400 to 599");
}

absl::Status ReadSwitch(std::string_view name, std::string_view value, bool* on) {
  *on = value == "1";
  if (*on || value == "0") return absl::OkStatus();
  return Invalid(name, "\"", Shown(value), "\"; write 0 or 1");
}

}  // namespace

absl::Status CheckRequest::Read(const http1::Request& request) {
  limit_ = key_ = {};
  permits_ = 1;
  deny_status_ = 429;
  x_ratelimit_ = body_ = false;
  seen_ = 0;
  key_parts_ = 0;
  joined_.Clear();
  for (size_t i = 0; i < request.parameters(); ++i) {
    const absl::Status read = ReadParameter(request, request.parameter(i));
    if (!read.ok()) return read;
  }
  if (const absl::Status read = ReadHeaders(request); !read.ok()) return read;
  if ((seen_ & kLimit) == 0) {
    return Invalid("limit",
                   "not given; write /v1/check?limit=NAME, or send the header Sluice-Limit");
  }
  if (key_parts_ > 1) {
    key_ = {reinterpret_cast<const char*>(joined_.data()), joined_.size()};
  }
  return absl::OkStatus();
}

absl::Status CheckRequest::ReadParameter(const http1::Request& request, http1::Field parameter) {
  const auto [name, value] = parameter;
  if (name == "key") {
    seen_ |= kKey;
    return AddKey(value);
  }
  if (name == "key_header") {
    seen_ |= kKey;
    return AddHeaderAsKey(request, value);
  }
  const auto once = [&, name = name](Parameter which) {
    if ((seen_ & which) != 0) return Invalid(name, "given twice; give it once");
    seen_ |= which;
    return absl::OkStatus();
  };
  absl::Status status;
  if (name == "limit") {
    status = once(kLimit);
    limit_ = value;
  } else if (name == "permits") {
    if (status = once(kPermits); status.ok()) status = ReadPermits(name, value, &permits_);
  } else if (name == "deny_status") {
    if (status = once(kDenyStatus); status.ok())
      status = ReadDenyStatus(name, value, &deny_status_);
  } else if (name == "x_ratelimit") {
    if (status = once(kXRateLimit); status.ok()) status = ReadSwitch(name, value, &x_ratelimit_);
  } else if (name == "body") {
    if (status = once(kBody); status.ok()) status = ReadSwitch(name, value, &body_);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Shown(name),
                     "\": no such parameter; there are limit, key, key_header, permits, "
                     "deny_status, x_ratelimit and body"));
  }
  return status;
}

absl::Status CheckRequest::ReadHeaders(const http1::Request& request) {
  constexpr std::string_view kPrefix = "sluice-";
  const unsigned in_query = seen_;
  for (size_t i = 0; i < request.headers(); ++i) {
    const auto [name, value] = request.header(i);
    if (name.size() < kPrefix.size() || name.substr(0, kPrefix.size()) != kPrefix) continue;
    const std::string_view what = name.substr(kPrefix.size());
    const unsigned which = what == "limit"         ? kLimit
                           : what == "key"         ? kKey
                           : what == "permits"     ? kPermits
                           : what == "deny-status" ? unsigned{kDenyStatus}
                                                   : 0U;
    if ((in_query & which) != 0 || which == 0) continue;
    if (which != kKey && (seen_ & which) != 0) return Invalid(name, "given twice; give it once");
    seen_ |= which;
    absl::Status status;
    if (which == kLimit) limit_ = value;
    if (which == kKey) status = AddKey(value);
    if (which == kPermits) status = ReadPermits(name, value, &permits_);
    if (which == kDenyStatus) status = ReadDenyStatus(name, value, &deny_status_);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckRequest::AddHeaderAsKey(const http1::Request& request, std::string_view header) {
  // Names of headers have no case, and those of the request are in lower case.
  const auto is_header = [header](std::string_view name) {
    return absl::EqualsIgnoreCase(common::ToAbsl(name), common::ToAbsl(header));
  };
  std::string_view value;
  bool found = false;
  for (size_t i = 0; i < request.headers(); ++i) {
    const http1::Field field = request.header(i);
    if (!is_header(field.name)) continue;
    // The server behind the gateway may use another one than we.
    if (found) return Invalid("key_header", "the header \"", Shown(header), "\" was sent twice");
    found = true;
    value = field.value;
  }
  // A header that was not sent is an empty part: the number of parts must not depend on the caller.
  return AddKey(value);
}

absl::Status CheckRequest::AddKey(std::string_view part) {
  if (++key_parts_ > kMaxKeyParts) {
    return Invalid("key", "more than ", kMaxKeyParts, " parts; join some of them");
  }
  if (key_parts_ == 1) {
    key_ = part;
    return absl::OkStatus();
  }
  constexpr size_t kMostBytes = common::bounds::kMaxKeyBytes;
  const auto append = [this](std::string_view text) {
    for (const char c : text) {
      if (joined_.size() > kMostBytes) return;
      if (c == '%') {
        joined_.Append(std::string_view("%25"));
      } else if (c == ',') {
        joined_.Append(std::string_view("%2C"));
      } else {
        joined_.Append(&c, 1);
      }
    }
  };
  if (key_parts_ == 2) append(key_);
  joined_.Append(std::string_view(","));
  append(part);
  if (joined_.size() > kMostBytes) {
    return Invalid("key", "more than ", kMostBytes, " bytes with its parts joined");
  }
  return absl::OkStatus();
}

}  // namespace sluice::web
