#include "client/cli/json.h"

#include <cmath>
#include <cstdio>

namespace sluice::cli {

Json& Json::Value(double number) {
  if (!std::isfinite(number)) return Raw("null");
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", number);
  return Raw(text);
}

void Json::Quote(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        text_ += "\\\"";
        break;
      case '\\':
        text_ += "\\\\";
        break;
      case '\n':
        text_ += "\\n";
        break;
      case '\r':
        text_ += "\\r";
        break;
      case '\t':
        text_ += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          char escaped[8];
          std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
          text_ += escaped;
        } else {
          text_ += c;
        }
    }
  }
  text_ += '"';
}

}  // namespace sluice::cli
