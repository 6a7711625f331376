#include "common/http2/hpack_memo.h"

namespace sluice::http2 {
namespace {

// Copies `text` to `*to`, behind which the next one goes.
std::string_view Copy(std::string_view text, char** to) {
  if (!text.empty()) std::memcpy(*to, text.data(), text.size());
  const std::string_view copy(*to, text.size());
  *to += text.size();
  return copy;
}

}  // namespace

void HpackMemo::Keep(size_t place, absl::Span<const uint8_t> code, uint32_t static_name,
                     std::string_view name, std::string_view value, uint64_t meaning) {
  if (static_name != 0) name = kHpackStaticTable[static_name].name;
  if (code.size() + name.size() + value.size() > sizeof(Literal::bytes)) return;
  std::unique_ptr<Literal>& literal = literals_[place];
  if (literal == nullptr) literal = std::make_unique<Literal>();
  char* to = literal->bytes;
  literal->code_size = code.size();
  Copy({reinterpret_cast<const char*>(code.data()), code.size()}, &to);
  literal->name = static_name != 0 ? name : Copy(name, &to);
  literal->value = Copy(value, &to);
  literal->meaning = meaning;
}

size_t HpackMemo::memory() const {
  size_t bytes = 0;
  for (const auto& literal : literals_) bytes += literal == nullptr ? 0 : sizeof(Literal);
  return bytes;
}

}  // namespace sluice::http2
