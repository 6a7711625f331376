#ifndef SLUICE_COMMON_JSON_STRING_H_
#define SLUICE_COMMON_JSON_STRING_H_

#include <string>
#include <string_view>

namespace sluice::common {

// Appends `text` as a JSON string, with quotes. Bytes that are not UTF-8 become U+FFFD. Pure;
// thread-safe.
void AppendJsonString(std::string_view text, std::string* out);

}  // namespace sluice::common

#endif  // SLUICE_COMMON_JSON_STRING_H_
