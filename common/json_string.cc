#include "common/json_string.h"

#include <cstddef>

#include "common/utf8.h"

namespace sluice::common {

void AppendJsonString(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    size_t size = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    if (size > text.size() || !IsUtf8(text.substr(0, size))) {
      out->append("\xEF\xBF\xBD");
      text.remove_prefix(1);
      continue;
    }
    if (byte == '"' || byte == '\\') {
      out->push_back('\\');
      out->push_back(text[0]);
    } else if (byte < 0x20 || byte == 0x7F) {
      out->append("\\u00");
      out->push_back(kHex[byte >> 4]);
      out->push_back(kHex[byte & 15]);
    } else {
      out->append(text.substr(0, size));
    }
    text.remove_prefix(size);
  }
  out->push_back('"');
}

}  // namespace sluice::common
