// HpackMemo: the last literals of a connection and what they mean, by their place in a block.
//
// Some peers send the same literals in each block and do not index them: nghttp2 a path, HAProxy
// nearly all. The bytes of a literal with a name of its own, or of the static table, say everything
// about it, so the same bytes need not be decoded and interpreted again.
//
// Not thread-safe.
#ifndef SLUICE_COMMON_HTTP2_HPACK_MEMO_H_
#define SLUICE_COMMON_HTTP2_HPACK_MEMO_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/types/span.h"
#include "common/http2/hpack_static_table.h"

namespace sluice::http2 {

class HpackMemo {
 public:
  // Literals of a block that are kept.
  static constexpr size_t kPlaces = 8;

  struct Literal {
    std::string_view name;
    std::string_view value;
    uint64_t meaning;
    size_t code_size;
    char bytes[144];  // its code, and the name and the value
  };

  // The literal that `code` begins with, if the same one stood at this place before; else null.
  // Valid until the next Keep. REQUIRES: place < kPlaces.
  const Literal* Find(size_t place, absl::Span<const uint8_t> code) const {
    const Literal* const last = literals_[place].get();
    if (last == nullptr || code.size() < last->code_size ||
        std::memcmp(code.data(), last->bytes, last->code_size) != 0) {
      return nullptr;
    }
    return last;
  }
  // Keeps a literal, unless it is long. `code`: all its bytes. `static_name`: the index of its
  // name; 0: the name is in `code`. REQUIRES: place < kPlaces.
  void Keep(size_t place, absl::Span<const uint8_t> code, uint32_t static_name,
            std::string_view name, std::string_view value, uint64_t meaning);

  // Bytes on the heap.
  size_t memory() const;

 private:
  std::unique_ptr<Literal> literals_[kPlaces];
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HPACK_MEMO_H_
