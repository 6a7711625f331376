// Json: writes a JSON document, one value after the other, and adds the commas.
#ifndef SLUICE_CLIENT_CLI_JSON_H_
#define SLUICE_CLIENT_CLI_JSON_H_

#include <chrono>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

class Json {
 public:
  Json& Open(char bracket) {  // '{' or '['
    Separate();
    text_ += bracket;
    first_ = true;
    closers_.push_back(bracket == '{' ? '}' : ']');
    return *this;
  }
  Json& Close() {
    text_ += closers_.back();
    closers_.pop_back();
    first_ = false;
    return *this;
  }
  Json& Name(std::string_view name) {
    Separate();
    Quote(name);
    text_ += ':';
    first_ = true;
    return *this;
  }

  Json& Value(std::string_view text) {
    Separate();
    Quote(text);
    return *this;
  }
  Json& Value(const char* text) { return Value(std::string_view(text)); }
  Json& Value(const std::string& text) { return Value(std::string_view(text)); }
  Json& Value(bool yes) { return Raw(yes ? "true" : "false"); }
  template <std::integral T>
  Json& Value(T number) {
    return Raw(std::to_string(number));
  }
  Json& Value(double number);
  Json& Value(std::chrono::nanoseconds time) { return Value(static_cast<int64_t>(time.count())); }

  template <typename T>
  Json& Field(std::string_view name, const T& value) {
    return Name(name).Value(value);
  }

  const std::string& text() const { return text_; }

 private:
  void Separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  Json& Raw(std::string_view text) {
    Separate();
    text_ += text;
    return *this;
  }
  void Quote(std::string_view text);

  std::string text_;
  std::vector<char> closers_;
  bool first_ = true;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_JSON_H_
