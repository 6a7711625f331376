// Protobuf's wire format, read and written by hand: for the few messages of the fast path, whose
// fields go straight from a request's bytes to the use cases and back, with no message objects in
// between. Takes and refuses what protobuf's own parser does (but for UTF-8, which is the
// reader's affair).
#ifndef SLUICE_SERVER_TRANSPORT_H2_PROTOBUF_WIRE_H_
#define SLUICE_SERVER_TRANSPORT_H2_PROTOBUF_WIRE_H_

#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/types/span.h"
#include "server/transport/h2/buffer.h"

namespace sluice::transport::h2 {

enum class WireType : uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kGroup = 3,
  kGroupEnd = 4,
  kFixed32 = 5
};

// Walks over the fields of one message. Not thread-safe; the bytes outlive it and its views.
//
//   WireReader reader(bytes);
//   while (reader.Next()) switch (reader.field()) { case 1: if (reader.Bytes(&name)) ...; }
//   if (!reader.ok()) ...
class WireReader {
 public:
  explicit WireReader(absl::Span<const uint8_t> bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  explicit WireReader(std::string_view bytes)
      : WireReader(absl::Span<const uint8_t>(reinterpret_cast<const uint8_t*>(bytes.data()),
                                             bytes.size())) {}

  // The next field; what was not read of the last one is skipped. False: the end, or not ok().
  bool Next() {
    if (unread_) Skip(kMaxDepth);
    if (!ok_ || at_ == end_) return false;
    uint64_t tag = 0;
    if (!Varint(&tag)) return false;
    if (tag > UINT32_MAX || (tag >> 3) == 0 || (tag & 7) > 5) return Fail();
    field_ = static_cast<uint32_t>(tag >> 3);
    type_ = static_cast<WireType>(tag & 7);
    if (type_ == WireType::kGroupEnd) return Fail();
    unread_ = true;
    return true;
  }
  uint32_t field() const { return field_; }
  WireType type() const { return type_; }

  // The field's value. False: it is of another type (an unknown field, which Next skips), or its
  // encoding is broken (not ok()).
  bool ReadVarint(uint64_t* value) {
    if (type_ != WireType::kVarint) return false;
    unread_ = false;
    return Varint(value);
  }
  bool ReadBytes(std::string_view* value) {
    if (type_ != WireType::kBytes) return false;
    unread_ = false;
    uint64_t size = 0;
    if (!Varint(&size)) return false;
    if (size > static_cast<uint64_t>(end_ - at_)) return Fail();
    *value = {reinterpret_cast<const char*>(at_), static_cast<size_t>(size)};
    at_ += size;
    return true;
  }

  // False: the bytes are no message.
  bool ok() const { return ok_; }

 private:
  // As protobuf's.
  static constexpr int kMaxDepth = 100;

  bool Fail() {
    ok_ = false;
    unread_ = false;
    return false;
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

  void Skip(int depth) {
    unread_ = false;
    uint64_t value = 0;
    switch (type_) {
      case WireType::kVarint:
        Varint(&value);
        return;
      case WireType::kFixed64:
        Drop(8);
        return;
      case WireType::kFixed32:
        Drop(4);
        return;
      case WireType::kBytes:
        if (Varint(&value)) Drop(value);
        return;
      case WireType::kGroup:
        SkipGroup(field_, depth);
        return;
      case WireType::kGroupEnd:
        Fail();
        return;
    }
  }

  void SkipGroup(uint32_t group, int depth) {
    if (depth == 0) {
      Fail();
      return;
    }
    while (ok_) {
      if (at_ == end_) {
        Fail();
        return;
      }
      uint64_t tag = 0;
      if (!Varint(&tag)) return;
      if (tag > UINT32_MAX || (tag >> 3) == 0 || (tag & 7) > 5) {
        Fail();
        return;
      }
      field_ = static_cast<uint32_t>(tag >> 3);
      type_ = static_cast<WireType>(tag & 7);
      if (type_ == WireType::kGroupEnd) {
        if (field_ != group) Fail();
        return;
      }
      Skip(depth - 1);
    }
  }

  void Drop(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) {
      Fail();
    } else {
      at_ += bytes;
    }
  }

  const uint8_t* at_;
  const uint8_t* const end_;
  uint32_t field_ = 0;
  WireType type_ = WireType::kVarint;
  bool unread_ = false;
  bool ok_ = true;
};

// Appends fields to a Buffer. Fields with proto3's default are the caller's to leave out.
class WireWriter {
 public:
  explicit WireWriter(Buffer* out) : out_(out) {}

  void Varint(uint32_t field, uint64_t value) {
    uint8_t* const start = out_->Reserve(15);
    uint8_t* at = Put(start, field << 3);
    at = Put(at, value);
    out_->Commit(static_cast<size_t>(at - start));
  }
  static uint64_t ZigZag(int64_t value) {
    return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
  }
  void Bytes(uint32_t field, std::string_view value) {
    uint8_t* const start = out_->Reserve(10 + value.size());
    uint8_t* at = Put(start, field << 3 | 2);
    at = Put(at, value.size());
    if (!value.empty()) std::memcpy(at, value.data(), value.size());
    out_->Commit(static_cast<size_t>(at - start) + value.size());
  }

  // A message within: what is appended between the two is its content. `mark` is for EndMessage.
  size_t BeginMessage(uint32_t field) {
    uint8_t* const start = out_->Reserve(6);
    uint8_t* const at = Put(start, field << 3 | 2);
    *at = 0;
    out_->Commit(static_cast<size_t>(at - start) + 1);
    return out_->size();
  }
  void EndMessage(size_t mark) {
    const size_t size = out_->size() - mark;
    if (size < 0x80) {  // one byte was left for it
      out_->data()[mark - 1] = static_cast<uint8_t>(size);
      return;
    }
    uint8_t length[10];
    const size_t bytes = static_cast<size_t>(Put(length, size) - length);
    out_->Reserve(bytes - 1);
    uint8_t* const content = out_->data() + mark;
    std::memmove(content + bytes - 1, content, size);
    std::memcpy(content - 1, length, bytes);
    out_->Commit(bytes - 1);
  }

 private:
  static uint8_t* Put(uint8_t* at, uint64_t value) {
    while (value >= 0x80) {
      *at++ = static_cast<uint8_t>(value | 0x80);
      value >>= 7;
    }
    *at++ = static_cast<uint8_t>(value);
    return at;
  }

  Buffer* const out_;
};

}  // namespace sluice::transport::h2

#endif  // SLUICE_SERVER_TRANSPORT_H2_PROTOBUF_WIRE_H_
