// HpackDecoder: decodes the header blocks that one peer sends (RFC 7541), and gives each field its
// meaning.
//
// The user's HpackInterpreter computes the meaning of a field: which header it is, whether it is
// valid, a small parsed value. The decoder keeps it with the field's entry in its tables, so a
// block that refers to the entry is not parsed again. Nor are literals that each block repeats.
//
// Not thread-safe; does no I/O.
#ifndef SLUICE_COMMON_HTTP2_HPACK_DECODER_H_
#define SLUICE_COMMON_HTTP2_HPACK_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "common/bounds.h"
#include "common/http2/hpack_memo.h"
#include "common/http2/hpack_static_table.h"
#include "common/http2/hpack_table.h"

namespace sluice::http2 {

// Why a block cannot be decoded. Each ends the connection with COMPRESSION_ERROR.
enum class HpackError : uint8_t {
  kNone,
  kTruncated,           // the block ends within a field
  kIntegerTooLarge,     // more than 32 bits
  kIndexOutOfRange,     // no such entry
  kBadHuffman,          // EOS, or padding that is too long or not all ones
  kSizeUpdateTooLarge,  // above kHpackTableBytes: our SETTINGS leave the table's size as it is
  kSizeUpdateLate,      // behind a field, or a third one
  kTooMuchInserted,     // behind the fields that are used
};
// For logs and GOAWAY; a constant.
std::string_view HpackErrorText(HpackError error);

// Names and values of one field together: a larger field has more than any header list may have.
inline constexpr size_t kMaxHpackFieldBytes = common::bounds::kMaxHeaderListBytes;

struct HpackField {
  std::string_view name;
  std::string_view value;
  uint64_t meaning = 0;
  // What it counts in a header list: name, value and 32. A field of which name and value have more
  // than kMaxHpackFieldBytes is not decoded: only `bytes` is set, and is above that bound.
  uint32_t bytes = 0;
};

// Thread-safe, if the implementation is: decoders of several threads may share one.
class HpackInterpreter {
 public:
  virtual ~HpackInterpreter() = default;
  // Depends on its arguments alone, since the result is kept: a deadline or a token's verdict is
  // not a meaning. Called once for each entry of a table and for each literal that enters none.
  // `like`: the meaning of an entry with the same name; 0: not known.
  virtual uint64_t Interpret(std::string_view name, std::string_view value,
                             uint64_t like) const = 0;
};

// An interpreter, and the static table with the meanings that it gives. Immutable; shared by all
// decoders of one role.
class HpackVocabulary {
 public:
  // REQUIRES: the interpreter outlives the vocabulary.
  explicit HpackVocabulary(const HpackInterpreter& interpreter);

  const HpackInterpreter& interpreter() const { return interpreter_; }
  // REQUIRES: 1 <= index <= kHpackStaticFields.
  const HpackField& field(uint32_t index) const { return fields_[index]; }

 private:
  const HpackInterpreter& interpreter_;
  HpackField fields_[kHpackStaticFields + 1];
};

class HpackDecoder {
 public:
  // REQUIRES: the vocabulary outlives the decoder.
  explicit HpackDecoder(const HpackVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  // Decodes a whole block, and calls `bool visit(const HpackField&)` for each field. The field is
  // valid only within the call. If `visit` returns false, the rest of the block is decoded for the
  // table alone, as far as it inserts little: two bytes can insert, and thereby copy, a name of
  // 4 KB. After an error the decoder cannot be used.
  template <typename Visit>
  HpackError Decode(absl::Span<const uint8_t> bytes, Visit&& visit) {
    Block block(bytes);
    if (!TakeSizeUpdates(block)) return block.error;
    while (block.at != block.end) {
      const HpackField* const field = Next(block);
      if (field == nullptr) return block.error;
      if (!visit(*field)) return Skip(block);
    }
    return HpackError::kNone;
  }

  const HpackTable& table() const { return table_; }
  // Bytes on the heap.
  size_t memory() const { return table_.memory() + memo_.memory(); }

 private:
  // A block that is being decoded.
  struct Block {
    explicit Block(absl::Span<const uint8_t> bytes)
        : at(bytes.data()), end(bytes.data() + bytes.size()) {}
    bool Fail(HpackError why) {
      error = why;
      return false;
    }

    const uint8_t* at;
    const uint8_t* const end;
    HpackError error = HpackError::kNone;
    bool skipping = false;  // the fields are not used
    size_t literals = 0;    // that came so far
    HpackField field;
    char decoded[kMaxHpackFieldBytes];  // strings that were Huffman-coded; not initialized
  };
  // A string of a literal.
  struct Text {
    std::string_view bytes;
    bool too_large = false;  // `bytes` is empty
  };

  // The next field; null after an error. REQUIRES: block.at != block.end.
  const HpackField* Next(Block& block) {
    const uint8_t first = *block.at;
    if (first < 0x80) return NextLiteral(block);
    uint32_t index = first & 0x7f;
    ++block.at;
    if (index == 0x7f && !ReadInteger(block, &index)) return nullptr;
    return Indexed(block, index);
  }
  const HpackField* Indexed(Block& block, uint32_t index) {
    if (index - 1 < kHpackStaticFields) return &vocabulary_.field(index);
    const uint32_t position = index - 1 - kHpackStaticFields;
    if (position >= table_.count()) {  // 0, too: it wraps around
      block.Fail(HpackError::kIndexOutOfRange);
      return nullptr;
    }
    SetField(block.field, table_.entry(position));
    return &block.field;
  }
  void SetField(HpackField& field, const HpackTable::Entry& entry) const {
    field.name = table_.Name(entry);
    field.value = table_.Value(entry);
    field.meaning = entry.meaning;
    field.bytes = kHpackFieldOverhead + entry.name_size + entry.value_size;
  }

  const HpackField* NextLiteral(Block& block);
  // Sets block.field. `place`: how many literals came before it in the block.
  bool DecodeLiteral(Block& block, size_t place);
  bool TakeSizeUpdates(Block& block);
  HpackError Skip(Block& block);
  // Completes an integer of which the prefix, all ones, is read and is in *value.
  static bool ReadInteger(Block& block, uint32_t* value);
  // `used`: bytes of block.decoded that hold the field's name.
  static bool ReadString(Block& block, size_t used, Text* text);

  const HpackVocabulary& vocabulary_;
  HpackTable table_;
  HpackMemo memo_;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HPACK_DECODER_H_
