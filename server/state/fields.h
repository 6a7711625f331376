// FieldWriter and FieldReader: numbers and texts as the bytes of a state file.
//
// Numbers are varints (7 bits a byte, the lowest first), signed ones in zigzag. Texts have their
// length before them.
#ifndef SLUICE_SERVER_STATE_FIELDS_H_
#define SLUICE_SERVER_STATE_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace sluice::state {

// Appends to a string that it does not own. Not thread-safe.
class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : out_(*out) {}

  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }
  void Signed(int64_t value) {
    Number(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  void Text(std::string_view text) {
    Number(text.size());
    out_.append(text);
  }
  // 0 if it is absent, else 1 and the number.
  template <typename Integer>
  void Optional(const std::optional<Integer>& value) {
    Number(value.has_value() ? 1 : 0);
    if (!value.has_value()) return;
    if constexpr (std::is_signed_v<Integer>) {
      Signed(*value);
    } else {
      Number(*value);
    }
  }

 private:
  std::string& out_;
};

// Reads what FieldWriter wrote. After bytes that it cannot read, ok() is false, and all that is
// read is 0 or empty. Not thread-safe. Texts are views of the bytes.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  uint64_t Number() {
    uint64_t value = 0;
    for (size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<uint8_t>(rest_[i]);
      if (i == 9 && byte > 1) break;
      value |= uint64_t{byte & 0x7Fu} << (7 * i);
      if (byte < 0x80) {
        rest_.remove_prefix(i + 1);
        return value;
      }
    }
    return Fail();
  }
  // A number that is at most `most`.
  uint64_t NumberUpTo(uint64_t most) {
    const uint64_t value = Number();
    return value <= most ? value : Fail();
  }
  template <typename Enum>
  Enum EnumUpTo(Enum last) {
    return static_cast<Enum>(NumberUpTo(static_cast<uint64_t>(last)));
  }
  bool Flag() { return NumberUpTo(1) != 0; }
  int64_t Signed() {
    const uint64_t value = Number();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  std::string_view Text() {
    const uint64_t size = NumberUpTo(rest_.size());
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(text.size());
    return text;
  }
  // The number of entries that follow. Each takes at least one byte, so a number that does not fit
  // is found before room is made for it.
  size_t Count() { return NumberUpTo(rest_.size()); }
  template <typename Integer>
  std::optional<Integer> Optional() {
    if (!Flag()) return std::nullopt;
    if constexpr (std::is_signed_v<Integer>) {
      return static_cast<Integer>(Signed());
    } else {
      return static_cast<Integer>(Number());
    }
  }

  // Call it when a value that was read is invalid. Returns 0.
  uint64_t Fail() {
    ok_ = false;
    rest_ = {};
    return 0;
  }

  // What was not read yet.
  std::string_view rest() const { return rest_; }
  // Leaves the rest unread.
  void Skip() { rest_ = {}; }

  bool ok() const { return ok_; }
  // Whether all was read, and could be.
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_FIELDS_H_
