#include "common/http2/hpack_encoder.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/http2/hpack_huffman.h"

namespace sluice::http2 {
namespace {

// The bits that a representation begins with, and the size of the integer behind them.
struct Prefix {
  uint8_t bits;
  int size;
};
constexpr Prefix kIndexing = {0x40, 6};
constexpr Prefix kNotIndexed = {0x00, 4};
constexpr Prefix kNeverIndexed = {0x10, 4};
constexpr Prefix kSizeUpdate = {0x20, 5};
constexpr Prefix kPlain = {0x00, 7};
constexpr Prefix kHuffman = {0x80, 7};

uint8_t* WriteInteger(Prefix prefix, size_t value, uint8_t* out) {
  const size_t full = (size_t{1} << prefix.size) - 1;
  if (value < full) {
    *out++ = static_cast<uint8_t>(prefix.bits | value);
    return out;
  }
  *out++ = static_cast<uint8_t>(prefix.bits | full);
  for (value -= full; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
  *out++ = static_cast<uint8_t>(value);
  return out;
}

// Without a Huffman code: decoding it costs the peer more than a few bytes do.
uint8_t* WritePlain(std::string_view text, uint8_t* out) {
  out = WriteInteger(kPlain, text.size(), out);
  if (!text.empty()) std::memcpy(out, text.data(), text.size());
  return out + text.size();
}

// The shorter of the text and its code.
void AppendShorter(std::string_view text, std::string* to) {
  const size_t code_size = HuffmanCodeSize(text);
  const bool huffman = code_size < text.size();
  uint8_t length[6];
  const uint8_t* const end = huffman ? WriteInteger(kHuffman, code_size, length)
                                     : WriteInteger(kPlain, text.size(), length);
  to->append(reinterpret_cast<const char*>(length), end - length);
  if (!huffman) {
    to->append(text);
    return;
  }
  const size_t at = to->size();
  to->resize(at + code_size);
  HuffmanEncode(text, reinterpret_cast<uint8_t*>(to->data() + at));
}

// The first field of the static table with this name; 0: none.
uint32_t StaticName(std::string_view name) {
  for (uint32_t index = 1; index <= kHpackStaticFields; ++index) {
    if (kHpackStaticTable[index].name == name) return index;
  }
  return 0;
}

uint32_t StaticField(std::string_view name, std::string_view value) {
  for (uint32_t index = 1; index <= kHpackStaticFields; ++index) {
    if (kHpackStaticTable[index].name == name && kHpackStaticTable[index].value == value) {
      return index;
    }
  }
  return 0;
}

uint32_t NextId() {
  static std::atomic<uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

HpackConstant::HpackConstant(std::string_view name, std::string_view value)
    : id_(NextId()),
      static_index_(StaticField(name, value)),
      static_name_(StaticName(name)),
      name_(name),
      entry_bytes_(static_cast<uint32_t>(name.size() + value.size() + kHpackFieldOverhead)) {
  if (static_name_ == 0) AppendShorter(name, &literal_);
  AppendShorter(value, &literal_);
}

void HpackEncoder::SetPeerTableBytes(uint32_t bytes) {
  limit_ = std::min(bytes, kHpackTableBytes);
  lowest_ = std::min(lowest_, limit_);
  update_due_ = lowest_ != announced_ || limit_ != announced_;
  EvictTo(lowest_);
}

uint8_t* HpackEncoder::WriteSizeUpdates(uint8_t* out) {
  if (lowest_ != limit_ && lowest_ != announced_) out = WriteInteger(kSizeUpdate, lowest_, out);
  out = WriteInteger(kSizeUpdate, limit_, out);
  announced_ = lowest_ = limit_;
  update_due_ = false;
  return out;
}

uint8_t* HpackEncoder::AppendNew(const HpackConstant& field, uint8_t* out) {
  const bool enters = Insert(field.id_, field.entry_bytes_);
  out = WriteInteger(enters ? kIndexing : kNotIndexed, field.static_name_, out);
  return std::copy(field.literal_.begin(), field.literal_.end(), out);
}

uint8_t* HpackEncoder::AppendWithNameOf(const HpackConstant& field, std::string_view value,
                                        uint8_t* out) {
  uint32_t name = field.static_name_ != 0 ? field.static_name_ : IndexOf(field);
  const bool enters =
      name == 0 && Insert(field.id_, field.name_.size() + value.size() + kHpackFieldOverhead);
  out = WriteInteger(enters ? kIndexing : kNotIndexed, name, out);
  if (name == 0) out = WritePlain(field.name_, out);
  return WritePlain(value, out);
}

uint8_t* HpackEncoder::AppendLiteral(std::string_view name, std::string_view value,
                                     HpackSecrecy secrecy, uint8_t* out) {
  const uint32_t index = StaticName(name);
  out = WriteInteger(secrecy == HpackSecrecy::kSecret ? kNeverIndexed : kNotIndexed, index, out);
  if (index == 0) out = WritePlain(name, out);
  return WritePlain(value, out);
}

bool HpackEncoder::Insert(uint32_t id, size_t entry_bytes) {
  if (entry_bytes > limit_) return false;
  const size_t kept = limit_ - entry_bytes;
  if (bytes_ <= kept && count_ == kMaxEntries) return false;
  EvictTo(kept);
  const uint32_t at = inserted_++ % kMaxEntries;
  ids_[at] = id;
  entry_bytes_[at] = static_cast<uint16_t>(entry_bytes);
  bytes_ += static_cast<uint32_t>(entry_bytes);
  ++count_;
  return true;
}

void HpackEncoder::EvictTo(size_t bytes) {
  while (bytes_ > bytes) bytes_ -= entry_bytes_[(inserted_ - count_--) % kMaxEntries];
}

}  // namespace sluice::http2
