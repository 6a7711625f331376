#include "client/cli/json.h"

#include <cmath>
#include <cstdio>

#include "common/json_string.h"

namespace sluice::cli {

Json& Json::Value(double number) {
  if (!std::isfinite(number)) return Raw("null");
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", number);
  return Raw(text);
}

void Json::Quote(std::string_view text) { common::AppendJsonString(text, &text_); }

}  // namespace sluice::cli
