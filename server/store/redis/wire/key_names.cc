#include "server/store/redis/wire/key_names.h"

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/wire/hash_slot.h"

namespace sluice::store::redis {

using common::ToAbsl;

std::array<std::string, 3> KeysOf(std::string_view name_space, std::string_view limit,
                                  std::string_view key, std::string_view limit_tag) {
  std::array<std::string, 3> keys;
  const std::string_view tag = limit_tag.empty() ? HashTagOf(key) : limit_tag;
  if (tag.empty()) {
    keys[0] = absl::StrCat(ToAbsl(name_space), ":{", limit.size(), ":", ToAbsl(limit), ":",
                           ToAbsl(key), "}");
  } else {
    keys[0] = absl::StrCat(ToAbsl(name_space), ":{", ToAbsl(tag), "}", limit.size(), ":",
                           ToAbsl(limit), ":", ToAbsl(key), ";");
  }
  keys[1] = absl::StrCat(keys[0], ":runs");
  keys[2] = absl::StrCat(keys[0], ":receipts");
  return keys;
}

}  // namespace sluice::store::redis
