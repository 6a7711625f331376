#include "common/http2/hpack_decoder.h"

#include <algorithm>
#include <limits>

#include "common/http2/hpack_huffman.h"

namespace sluice::http2 {
namespace {

constexpr uint8_t kIndexedBit = 0x80;
constexpr uint8_t kIndexingBit = 0x40;
constexpr uint8_t kSizeUpdateBit = 0x20;
constexpr uint8_t kNeverIndexedBit = 0x10;
constexpr uint8_t kHuffmanBit = 0x80;

// Bytes of the fields that a block inserts after those that are used: more than a list may have.
constexpr size_t kMaxSkippedInserts = 4 * common::bounds::kMaxHeaderListBytes;

constexpr uint32_t FieldBytes(size_t name_and_value) {
  return static_cast<uint32_t>(name_and_value + kHpackFieldOverhead);
}

}  // namespace

std::string_view HpackErrorText(HpackError error) {
  switch (error) {
    case HpackError::kNone:
      return "no error";
    case HpackError::kTruncated:
      return "the header block ends within a field";
    case HpackError::kIntegerTooLarge:
      return "an integer in the header block has more than 32 bits";
    case HpackError::kIndexOutOfRange:
      return "the header block refers to an entry that the table does not have";
    case HpackError::kBadHuffman:
      return "a Huffman code in the header block has EOS or wrong padding";
    case HpackError::kSizeUpdateTooLarge:
      return "a table size update exceeds SETTINGS_HEADER_TABLE_SIZE";
    case HpackError::kSizeUpdateLate:
      return "a table size update follows a field or two other updates";
    case HpackError::kTooMuchInserted:
      return "a header block that is not used inserts too much into the table";
  }
  return "unknown";
}

HpackVocabulary::HpackVocabulary(const HpackInterpreter& interpreter) : interpreter_(interpreter) {
  for (uint32_t index = 1; index <= kHpackStaticFields; ++index) {
    const auto& [name, value] = kHpackStaticTable[index];
    const uint64_t like = name == fields_[index - 1].name ? fields_[index - 1].meaning : 0;
    fields_[index] = {name, value, interpreter.Interpret(name, value, like),
                      static_cast<uint32_t>(name.size() + value.size() + kHpackFieldOverhead)};
  }
}

bool HpackDecoder::ReadInteger(Block& block, uint32_t* value) {
  // Five bytes have 35 bits.
  uint64_t sum = *value;
  for (int shift = 0; shift < 35; shift += 7) {
    if (block.at == block.end) return block.Fail(HpackError::kTruncated);
    const uint8_t byte = *block.at++;
    sum += uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) {
      if (sum > std::numeric_limits<uint32_t>::max()) break;
      *value = static_cast<uint32_t>(sum);
      return true;
    }
  }
  return block.Fail(HpackError::kIntegerTooLarge);
}

bool HpackDecoder::ReadString(Block& block, size_t used, Text* text) {
  if (block.at == block.end) return block.Fail(HpackError::kTruncated);
  const uint8_t first = *block.at++;
  uint32_t size = first & 0x7f;
  if (size == 0x7f && !ReadInteger(block, &size)) return false;
  if (size > static_cast<size_t>(block.end - block.at)) return block.Fail(HpackError::kTruncated);
  const absl::Span<const uint8_t> code(block.at, size);
  block.at += size;
  if ((first & kHuffmanBit) == 0) {
    text->too_large = size > kMaxHpackFieldBytes;
    if (!text->too_large) text->bytes = {reinterpret_cast<const char*>(code.data()), size};
    return true;
  }
  size_t decoded = 0;
  switch (HuffmanDecode(code, block.decoded + used, sizeof(block.decoded) - used, &decoded)) {
    case HuffmanResult::kDone:
      text->bytes = {block.decoded + used, decoded};
      return true;
    case HuffmanResult::kTooLarge:
      text->too_large = true;
      return true;
    case HuffmanResult::kBad:
      break;
  }
  return block.Fail(HpackError::kBadHuffman);
}

const HpackField* HpackDecoder::NextLiteral(Block& block) {
  const bool indexing = (*block.at & kIndexingBit) != 0;
  const size_t place = block.literals++;
  HpackField& field = block.field;
  const HpackMemo::Literal* known = nullptr;
  if (place < HpackMemo::kPlaces)
    known = memo_.Find(place, absl::MakeConstSpan(block.at, block.end));
  if (known != nullptr) {
    block.at += known->code_size;
    field = {known->name, known->value, known->meaning,
             FieldBytes(known->name.size() + known->value.size())};
  } else if (!DecodeLiteral(block, place)) {
    return nullptr;
  }
  if (!indexing) return &field;
  if (field.bytes > FieldBytes(kMaxHpackFieldBytes)) {
    table_.Clear();  // it is larger than any table, too
  } else if (table_.Insert(field.name, field.value, field.meaning)) {
    SetField(field, table_.entry(0));
  }
  return &field;
}

bool HpackDecoder::DecodeLiteral(Block& block, size_t place) {
  const uint8_t* const begin = block.at++;
  const bool indexing = (*begin & kIndexingBit) != 0;
  if (!indexing && (*begin & kSizeUpdateBit) != 0) return block.Fail(HpackError::kSizeUpdateLate);
  const uint32_t prefix = indexing ? 0x3f : 0x0f;
  uint32_t index = *begin & prefix;
  if (index == prefix && !ReadInteger(block, &index)) return false;

  HpackField& field = block.field;
  Text name;
  uint64_t like = 0;
  size_t used = 0;
  if (index == 0) {
    if (!ReadString(block, 0, &name)) return false;
    if (name.bytes.data() == block.decoded) used = name.bytes.size();
  } else {
    const HpackField* const entry = Indexed(block, index);
    if (entry == nullptr) return false;
    name.bytes = entry->name;
    like = entry->meaning;
  }
  Text value;
  if (!ReadString(block, used, &value)) return false;
  const size_t size = name.bytes.size() + value.bytes.size();
  if (name.too_large || value.too_large || size > kMaxHpackFieldBytes) {
    field = {"", "", 0, FieldBytes(kMaxHpackFieldBytes + 1)};
    return true;
  }
  field = {name.bytes, value.bytes, 0, FieldBytes(size)};
  if (block.skipping && !indexing) return true;
  field.meaning = vocabulary_.interpreter().Interpret(field.name, field.value, like);
  // A literal that must not be indexed is a secret, which we keep no longer than needed.
  const bool secret = !indexing && (*begin & kNeverIndexedBit) != 0;
  if (!secret && index <= kHpackStaticFields && place < HpackMemo::kPlaces) {
    memo_.Keep(place, absl::MakeConstSpan(begin, block.at), index, field.name, field.value,
               field.meaning);
  }
  return true;
}

bool HpackDecoder::TakeSizeUpdates(Block& block) {
  constexpr int kMaxUpdates = 2;  // the least size in between, and the last (RFC 7541, 4.2)
  for (int updates = 0; block.at != block.end; ++updates) {
    const uint8_t first = *block.at;
    if ((first & 0xe0) != kSizeUpdateBit) break;
    if (updates == kMaxUpdates) return block.Fail(HpackError::kSizeUpdateLate);
    ++block.at;
    uint32_t size = first & 0x1f;
    if (size == 0x1f && !ReadInteger(block, &size)) return false;
    if (size > kHpackTableBytes) return block.Fail(HpackError::kSizeUpdateTooLarge);
    table_.SetLimit(size);
  }
  return true;
}

HpackError HpackDecoder::Skip(Block& block) {
  block.skipping = true;
  size_t inserted = 0;
  while (block.at != block.end) {
    const bool inserts = (*block.at & (kIndexedBit | kIndexingBit)) == kIndexingBit;
    const HpackField* const field = Next(block);
    if (field == nullptr) return block.error;
    if (inserts) inserted += field->bytes;
    if (inserted > kMaxSkippedInserts) return HpackError::kTooMuchInserted;
  }
  return HpackError::kNone;
}

}  // namespace sluice::http2
