// WireReader and WireWriter: protobuf's wire format without message objects and without its
// library, for the messages of the data plane. The reader accepts the same bytes as protobuf's own
// parser, except that it does not check UTF-8.
#ifndef SLUICE_COMMON_PROTOBUF_WIRE_H_
#define SLUICE_COMMON_PROTOBUF_WIRE_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/base/attributes.h"
#include "absl/types/span.h"

namespace sluice::common {

// Iterates over the fields of one message. Not thread-safe; the bytes outlive it and its views.
//
//   WireReader reader(bytes);
//   while (reader.Next()) switch (reader.field()) { case 1: if (reader.ReadBytes(&name)) ...; }
//   if (!reader.ok()) ...
class WireReader {
 public:
  explicit WireReader(absl::Span<const uint8_t> bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  explicit WireReader(std::string_view bytes)
      : WireReader(absl::Span<const uint8_t>(reinterpret_cast<const uint8_t*>(bytes.data()),
                                             bytes.size())) {}

  // Goes to the next field; skips the value of the current one if it was not read. Returns false at
  // the end, or if not ok().
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool Next() {
    if (unread_) Skip();
    if (!ok_ || at_ == end_) return false;
    if (!Tag()) return false;
    if (type() == kEndGroup) return Fail();
    unread_ = true;
    return true;
  }
  uint32_t field() const { return tag_ >> 3; }

  // Read the field's value. Return false if it has another type (an unknown field, which Next
  // skips), or if its encoding is invalid (not ok()).
  bool ReadVarint(uint64_t* value) {
    if (type() != kVarint) return false;
    unread_ = false;
    return Varint(value);
  }
  bool ReadBytes(std::string_view* value) {
    if (type() != kBytes) return false;
    unread_ = false;
    uint64_t size = 0;
    if (!Varint(&size)) return false;
    if (size > static_cast<uint64_t>(end_ - at_)) return Fail();
    *value = {reinterpret_cast<const char*>(at_), static_cast<size_t>(size)};
    at_ += size;
    return true;
  }

  // Returns false if the bytes are not a message.
  bool ok() const { return ok_; }

  // Bytes that were not read.
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  // The fields after the current one, whose value is skipped if it was not read. Empty if not ok().
  std::string_view Rest() {
    if (unread_) Skip();
    return {reinterpret_cast<const char*>(at_), ok_ ? left() : 0};
  }
  // Drops whole fields from the front of Rest(). REQUIRES: bytes <= Rest().size().
  void Advance(size_t bytes) { at_ += bytes; }

 private:
  enum Type : uint32_t { kVarint, kFixed64, kBytes, kStartGroup, kEndGroup, kFixed32 };

  Type type() const { return static_cast<Type>(tag_ & 7); }
  bool Fail() {
    ok_ = false;
    unread_ = false;
    return false;
  }

  // Reads a field's number and type: at most five bytes, of which protobuf drops the bits above 32.
  bool Tag() {
    uint32_t tag = 0;
    for (int i = 0;; ++i) {
      if (i == 5 || at_ == end_) return Fail();
      const uint8_t byte = *at_++;
      tag |= static_cast<uint32_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) break;
    }
    if ((tag >> 3) == 0 || (tag & 7) > 5) return Fail();
    tag_ = tag;
    return true;
  }

  bool Varint(uint64_t* value) {
    if (at_ < end_ && *at_ < 0x80) {
      *value = *at_++;
      return true;
    }
    uint64_t result = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) return Fail();
      const uint8_t byte = *at_++;
      result |= shift < 64 ? static_cast<uint64_t>(byte & 0x7f) << shift : 0;
      if (byte < 0x80) {
        *value = result;
        return true;
      }
    }
    return Fail();
  }

  // Returns the end of the field's value at `at`; null: its encoding is invalid. Apart from Next
  // and without `this`, so that a reader stays small and in registers.
  [[gnu::noinline]] static const uint8_t* EndOfValue(const uint8_t* at, size_t left, uint32_t tag) {
    WireReader value({at, left});
    value.tag_ = tag;
    const bool ok = value.type() == kStartGroup ? value.SkipGroup() : value.SkipScalar();
    return ok ? value.at_ : nullptr;
  }
  void Skip() {
    const uint8_t* const end = EndOfValue(at_, left(), tag_);
    unread_ = false;
    ok_ = end != nullptr;
    if (ok_) at_ = end;
  }

  // A field that is no group.
  bool SkipScalar() {
    uint64_t value = 0;
    switch (type()) {
      case kVarint:
        return Varint(&value);
      case kFixed64:
        return SkipBytes(8);
      case kBytes:
        return Varint(&value) && SkipBytes(value);
      case kFixed32:
        return SkipBytes(4);
      default:
        return Fail();
    }
  }

  bool SkipBytes(uint64_t size) {
    if (size > left()) return Fail();
    at_ += size;
    return true;
  }

  // A group has no length: finding its end means to read all of it. So its size and, as in
  // protobuf, its depth are bounded.
  bool SkipGroup() {
    constexpr size_t kMaxBytes = 64 << 10;
    constexpr int kMaxDepth = 100;
    uint32_t open[kMaxDepth];  // field numbers of the groups that have not ended
    int depth = 0;
    open[depth++] = field();
    end_ = at_ + std::min(left(), kMaxBytes);
    while (depth > 0) {
      if (at_ == end_ || !Tag()) return Fail();
      if (type() == kStartGroup) {
        if (depth == kMaxDepth) return Fail();
        open[depth++] = field();
      } else if (type() == kEndGroup) {
        if (field() != open[--depth]) return Fail();
      } else if (!SkipScalar()) {
        return false;
      }
    }
    return true;
  }

  const uint8_t* at_;
  const uint8_t* end_;
  uint32_t tag_ = 0;
  bool unread_ = false;
  bool ok_ = true;
};

// Reads the message's field 1 if it is there; other fields are unknown ones. Returns false if the
// bytes are not a message.
inline bool ReadFirstField(absl::Span<const uint8_t> bytes, std::string_view* value) {
  WireReader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == 1) reader.ReadBytes(value);
  }
  return reader.ok();
}

// Writes the value and returns its end. Needs room for kMaxVarintBytes for any value: it writes
// eight bytes at once.
inline constexpr size_t kMaxVarintBytes = 10;
inline uint8_t* PutVarint(uint8_t* at, uint64_t value) {
  if (value < 0x80) {
    *at = static_cast<uint8_t>(value);
    return at + 1;
  }
  if (value >> 56 != 0) {
    for (; value >= 0x80; value >>= 7) *at++ = static_cast<uint8_t>(value | 0x80);
    *at = static_cast<uint8_t>(value);
    return at + 1;
  }
  // Spreads eight groups of 7 bits over eight bytes: first halves, then quarters, then single
  // groups.
  uint64_t x = value;
  x = (x & 0x000000000fffffff) | (x & 0x00fffffff0000000) << 4;
  x = (x & 0x00003fff00003fff) | (x & 0x0fffc0000fffc000) << 2;
  x = (x & 0x007f007f007f007f) | (x & 0x3f803f803f803f80) << 1;
  // The index of the last byte: the index of the highest bit, at most 55, divided by 7.
  const uint32_t last = (63 - static_cast<uint32_t>(std::countl_zero(value))) * 37 >> 8;
  x |= 0x8080808080808080 & ((uint64_t{1} << (8 * last)) - 1);
  if constexpr (std::endian::native == std::endian::big) x = __builtin_bswap64(x);
  std::memcpy(at, &x, 8);
  return at + last + 1;
}

// Appends fields to memory whose size the caller has ensured. The caller leaves out fields with
// proto3's default value.
class WireWriter {
 public:
  // The most bytes of a varint field, and of a nested message in addition to its content.
  static constexpr size_t kFieldBytes = 16;

  explicit WireWriter(uint8_t* at) : at_(at) {}

  uint8_t* at() const { return at_; }

  void Varint(uint32_t field, uint64_t value) {
    Put(field << 3);
    Put(value);
  }
  static uint64_t ZigZag(int64_t value) {
    return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
  }
  // Needs value.size() in addition to kFieldBytes.
  void Bytes(uint32_t field, std::string_view value) {
    Put(field << 3 | 2);
    Put(value.size());
    if (!value.empty()) std::memcpy(at_, value.data(), value.size());
    at_ += value.size();
  }

  // A nested message: the bytes written between Begin and End are its content.
  uint8_t* BeginMessage(uint32_t field) {
    Put(field << 3 | 2);
    return ++at_;  // leaves a byte for its length
  }
  void EndMessage(uint8_t* content) {
    const size_t size = static_cast<size_t>(at_ - content);
    if (size < 0x80) {
      content[-1] = static_cast<uint8_t>(size);
    } else {
      at_ = EndLongMessage(content, size);
    }
  }
  // The same for content of fewer than 128 bytes.
  void EndShortMessage(uint8_t* content) { content[-1] = static_cast<uint8_t>(at_ - content); }

 private:
  // Moves the content to make room for a longer length. Returns the message's end.
  static uint8_t* EndLongMessage(uint8_t* content, size_t size) {
    uint8_t length[kFieldBytes];
    WireWriter longer(length);
    longer.Put(size);
    const size_t bytes = static_cast<size_t>(longer.at_ - length);
    std::memmove(content + bytes - 1, content, size);
    std::memcpy(content - 1, length, bytes);
    return content + size + bytes - 1;
  }

  void Put(uint64_t value) { at_ = PutVarint(at_, value); }

  uint8_t* at_;
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_PROTOBUF_WIRE_H_
