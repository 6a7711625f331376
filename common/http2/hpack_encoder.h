// HpackEncoder: encodes the header blocks that are sent to one peer (RFC 7541).
//
// Only constant fields enter the peer's table: what repeats on a connection is known beforehand,
// and the table then needs neither hashes nor copies. A constant that is in the table costs a byte
// and a few nanoseconds. All other fields are literals, so blocks of literals alone do not depend
// on the encoder and may be encoded at any time.
//
// Not thread-safe; does no I/O. Functions that write take a pointer to enough room and return the
// end of what they wrote.
#ifndef SLUICE_COMMON_HTTP2_HPACK_ENCODER_H_
#define SLUICE_COMMON_HTTP2_HPACK_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/http2/hpack_static_table.h"
#include "common/http2/hpack_table.h"

namespace sluice::http2 {

// A field that repeats, prepared for encoders of all connections. Immutable and thread-safe.
class HpackConstant {
 public:
  // Copies both. `name` is in lower case.
  HpackConstant(std::string_view name, std::string_view value);

  // Room that it needs in a block, at most.
  size_t bound() const { return kMaxIndexBytes + literal_.size(); }

 private:
  friend class HpackEncoder;
  static constexpr size_t kMaxIndexBytes = 3;

  uint32_t id_;            // no other constant of the process has it, unless it is a copy
  uint32_t static_index_;  // of the field in the static table; 0: it is not there
  uint32_t static_name_;   // of a field with its name; 0: none
  std::string name_;
  uint32_t entry_bytes_;  // what it counts in a table
  std::string literal_;   // the literal, without its first byte and the index of the name
};

enum class HpackSecrecy : uint8_t {
  kPublic,
  kSecret,  // never indexed (RFC 7541, 7.1.3), neither by the peer nor by proxies
};

class HpackEncoder {
 public:
  // Room that Begin needs, at most.
  static constexpr size_t kBeginBound = 6;

  // The peer's SETTINGS_HEADER_TABLE_SIZE, when its SETTINGS arrive.
  void SetPeerTableBytes(uint32_t bytes);

  // Call at the start of each block, also of one that consists of literals: writes the size updates
  // that are due.
  uint8_t* Begin(uint8_t* out) { return update_due_ ? WriteSizeUpdates(out) : out; }

  // Room: field.bound().
  uint8_t* Append(const HpackConstant& field, uint8_t* out) {
    if (field.static_index_ != 0) {
      *out = static_cast<uint8_t>(0x80 | field.static_index_);
      return out + 1;
    }
    const uint32_t index = IndexOf(field);
    if (index == 0) return AppendNew(field, out);
    *out = static_cast<uint8_t>(0x80 | index);
    return out + 1;
  }

  // A field with the name of `field` and a value that seldom repeats. The first one enters the
  // table in the place of `field`; later ones refer to its name. `field` is used for nothing else.
  // Room: LiteralBound(name, value).
  uint8_t* AppendWithNameOf(const HpackConstant& field, std::string_view value, uint8_t* out);

  // A literal that does not enter the table.
  static uint8_t* AppendLiteral(std::string_view name, std::string_view value, HpackSecrecy secrecy,
                                uint8_t* out);
  static constexpr size_t LiteralBound(std::string_view name, std::string_view value) {
    return name.size() + value.size() + kLiteralOverhead;
  }

  // Entries in the peer's table, and the bytes that they count there.
  uint32_t count() const { return count_; }
  uint32_t table_bytes() const { return bytes_; }

 private:
  // The first byte, and two lengths of at most six bytes.
  static constexpr size_t kLiteralOverhead = 13;
  // Constants beyond these are sent as literals until others were evicted. So few have indices of
  // one byte.
  static constexpr uint32_t kMaxEntries = 32;

  // 0: not in the table.
  uint32_t IndexOf(const HpackConstant& field) const {
    for (uint32_t position = 0; position < count_; ++position) {
      if (ids_[(inserted_ - 1 - position) % kMaxEntries] == field.id_) {
        return kHpackStaticFields + 1 + position;
      }
    }
    return 0;
  }
  uint8_t* WriteSizeUpdates(uint8_t* out);
  uint8_t* AppendNew(const HpackConstant& field, uint8_t* out);
  // Makes an entry of the peer's table, as the peer does. Returns false if the field is not to
  // enter it.
  bool Insert(uint32_t id, size_t entry_bytes);
  void EvictTo(size_t bytes);

  uint32_t limit_ = kHpackTableBytes;
  uint32_t announced_ = kHpackTableBytes;  // the limit that the peer was told
  uint32_t lowest_ = kHpackTableBytes;     // the least limit since the last block
  bool update_due_ = false;

  // The peer's table: a ring of entries.
  uint32_t inserted_ = 0;  // entries ever inserted
  uint32_t count_ = 0;
  uint32_t bytes_ = 0;
  uint32_t ids_[kMaxEntries];
  uint16_t entry_bytes_[kMaxEntries];
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HPACK_ENCODER_H_
