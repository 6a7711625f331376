// A grant that is remembered under its request id (store/once.h), as Redis holds it:
//
//   key    NAMESPACE:once:ID; in a Cluster NAMESPACE:once:{TAG}ID, with a tag of the buckets' slot
//   value  FINGERPRINT RECEIPT GRANT_TIME: in hex, the id of the receipt (0: none; 2^64 - 1: it was
//          refunded), nanoseconds of the server's time (0: granted for now); if it was forced and
//          permits were forgiven one word more, what each charge counted, separated by commas
//
// Pure; thread-safe.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_REMEMBERED_GRANT_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_REMEMBERED_GRANT_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "server/store/once.h"

namespace sluice::store::redis {

// `tag`: empty if the server is no Cluster.
inline std::string OnceKeyOf(std::string_view name_space, std::string_view tag,
                             const RequestId& id) {
  return absl::StrCat(common::ToAbsl(name_space), ":once:", tag.empty() ? "" : "{",
                      common::ToAbsl(tag), tag.empty() ? "" : "}",
                      absl::BytesToHexString(common::ToAbsl(id.bytes())));
}

inline std::string FingerprintWord(uint64_t fingerprint) {
  return absl::StrCat(absl::Hex(fingerprint, absl::kZeroPad16));
}

inline std::string FormatGrant(const RememberedGrant& grant) {
  return absl::StrCat(FingerprintWord(grant.fingerprint), " ", grant.receipt_id, " ",
                      grant.grant_time_ns, grant.counted.empty() ? "" : " ",
                      absl::StrJoin(grant.counted, ","));
}

// nullopt: the value is not of this form.
inline std::optional<RememberedGrant> ParseGrant(std::string_view value) {
  const std::vector<absl::string_view> words = absl::StrSplit(common::ToAbsl(value), ' ');
  RememberedGrant grant;
  if (words.size() < 3 || words.size() > 4 || !absl::SimpleHexAtoi(words[0], &grant.fingerprint) ||
      !absl::SimpleAtoi(words[1], &grant.receipt_id) ||
      !absl::SimpleAtoi(words[2], &grant.grant_time_ns)) {
    return std::nullopt;
  }
  if (words.size() == 3) return grant;
  for (const absl::string_view counted : absl::StrSplit(words[3], ',')) {
    if (!absl::SimpleAtoi(counted, &grant.counted.emplace_back())) return std::nullopt;
  }
  return grant;
}

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_REMEMBERED_GRANT_H_
