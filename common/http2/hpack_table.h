// HpackTable: the dynamic table of an HPACK decoder (RFC 7541, 2.3.2 and 4), with a meaning for
// each entry.
//
// Names and values stand one behind the other in one piece of memory, the oldest first, so evicting
// an entry frees nothing and moves nothing. When the memory's end is reached, the live part moves
// to its begin. Memory is allocated as the table fills; once it is large enough, inserting
// allocates nothing.
//
// Not thread-safe.
#ifndef SLUICE_COMMON_HTTP2_HPACK_TABLE_H_
#define SLUICE_COMMON_HTTP2_HPACK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice::http2 {

// The size of a dynamic table before any SETTINGS_HEADER_TABLE_SIZE, and the most that either role
// uses. A gRPC connection repeats fewer than 20 fields of some 60 bytes.
inline constexpr uint32_t kHpackTableBytes = 4096;
// What an entry, and a field of a header list, counts besides its name and value.
inline constexpr uint32_t kHpackFieldOverhead = 32;

class HpackTable {
 public:
  struct Entry {
    uint32_t at;  // of the name, which the value follows
    uint16_t name_size;
    uint16_t value_size;
    uint64_t meaning;
  };

  HpackTable() = default;
  ~HpackTable();
  HpackTable(const HpackTable&) = delete;
  HpackTable& operator=(const HpackTable&) = delete;

  // The newest entry has position 0. REQUIRES: position < count().
  const Entry& entry(uint32_t position) const {
    return entries_[(inserted_ - 1 - position) & (entry_capacity_ - 1)];
  }
  uint32_t count() const { return count_; }
  // Views are valid until the next Insert.
  std::string_view Name(const Entry& entry) const {
    return {text_ + static_cast<uint32_t>(entry.at - text_base_), entry.name_size};
  }
  std::string_view Value(const Entry& entry) const {
    return {text_ + static_cast<uint32_t>(entry.at - text_base_) + entry.name_size,
            entry.value_size};
  }

  // As RFC 7541 counts: names, values and 32 bytes for each entry.
  uint32_t bytes() const { return bytes_; }
  uint32_t limit() const { return limit_; }
  // Evicts what does not fit. REQUIRES: limit <= kHpackTableBytes.
  void SetLimit(uint32_t limit) {
    limit_ = limit;
    EvictTo(limit);
  }

  void Clear() { EvictTo(0); }

  // Inserts a copy and returns true. A field that is larger than the limit empties the table
  // instead. `name` may be a view of an entry's name.
  bool Insert(std::string_view name, std::string_view value, uint64_t meaning);

  // Bytes on the heap.
  size_t memory() const { return entry_capacity_ * sizeof(Entry) + text_capacity_; }

 private:
  void EvictTo(uint32_t bytes);
  void GrowEntries();
  void MakeRoom(size_t size);

  Entry* entries_ = nullptr;  // a ring
  char* text_ = nullptr;
  uint32_t entry_capacity_ = 0;  // a power of two, or 0
  uint32_t text_capacity_ = 0;
  // Positions in the text count from the table's start and wrap around, so that moving the text
  // changes text_base_ alone.
  uint32_t text_base_ = 0;   // the position of text_[0]
  uint32_t text_begin_ = 0;  // of the oldest entry
  uint32_t text_end_ = 0;
  uint32_t inserted_ = 0;  // entries ever inserted
  uint32_t count_ = 0;
  uint32_t bytes_ = 0;
  uint32_t limit_ = kHpackTableBytes;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HPACK_TABLE_H_
