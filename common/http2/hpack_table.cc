#include "common/http2/hpack_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sluice::http2 {
namespace {

constexpr uint32_t kMinEntries = 8;
constexpr uint32_t kMinTextBytes = 256;
// A quarter more than a full table, so that text seldom moves.
constexpr uint32_t kMaxTextBytes = kHpackTableBytes + kHpackTableBytes / 4;

template <typename T>
T* Allocate(size_t count) {
  auto* const memory = static_cast<T*>(std::malloc(count * sizeof(T)));
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

HpackTable::~HpackTable() {
  std::free(entries_);
  std::free(text_);
}

bool HpackTable::Insert(std::string_view name, std::string_view value, uint64_t meaning) {
  const size_t size = name.size() + value.size();
  if (size + kHpackFieldOverhead > limit_) {
    Clear();
    return false;
  }
  const auto entry_bytes = static_cast<uint32_t>(size + kHpackFieldOverhead);
  // Evicting leaves the text in place, also that of an entry that `name` is from.
  if (bytes_ + entry_bytes > limit_) EvictTo(limit_ - entry_bytes);
  char saved[kHpackTableBytes];
  if (text_end_ - text_base_ + size > text_capacity_) {
    if (!name.empty()) std::memcpy(saved, name.data(), name.size());
    name = {saved, name.size()};
    MakeRoom(size);
  }
  if (count_ == entry_capacity_) GrowEntries();

  char* const to = text_ + static_cast<uint32_t>(text_end_ - text_base_);
  if (!name.empty()) std::memcpy(to, name.data(), name.size());
  if (!value.empty()) std::memcpy(to + name.size(), value.data(), value.size());
  entries_[inserted_ & (entry_capacity_ - 1)] = {text_end_, static_cast<uint16_t>(name.size()),
                                                 static_cast<uint16_t>(value.size()), meaning};
  text_end_ += static_cast<uint32_t>(size);
  bytes_ += entry_bytes;
  ++inserted_;
  ++count_;
  return true;
}

void HpackTable::EvictTo(uint32_t bytes) {
  while (bytes_ > bytes) {
    const Entry& oldest = entry(count_ - 1);
    const uint32_t size = oldest.name_size + oldest.value_size;
    text_begin_ = oldest.at + size;
    bytes_ -= size + kHpackFieldOverhead;
    --count_;
  }
}

void HpackTable::GrowEntries() {
  const uint32_t capacity = std::max(kMinEntries, entry_capacity_ * 2);
  auto* const larger = Allocate<Entry>(capacity);
  for (uint32_t back = 1; back <= count_; ++back) {
    larger[(inserted_ - back) & (capacity - 1)] = entry(back - 1);
  }
  std::free(entries_);
  entries_ = larger;
  entry_capacity_ = capacity;
}

// Makes the text's end have room for `size` bytes. Where the live text would leave less than a
// quarter of the memory free, takes twice the memory.
void HpackTable::MakeRoom(size_t size) {
  const uint32_t used = text_end_ - text_begin_;
  char* const live = text_ + static_cast<uint32_t>(text_begin_ - text_base_);
  const size_t needed = used + size;
  if (text_capacity_ == kMaxTextBytes || needed <= text_capacity_ - text_capacity_ / 4) {
    std::memmove(text_, live, used);
  } else {
    uint32_t capacity = std::max(kMinTextBytes, text_capacity_ * 2);
    while (capacity - capacity / 4 < needed) capacity *= 2;
    capacity = std::min(capacity, kMaxTextBytes);
    auto* const larger = Allocate<char>(capacity);
    if (used > 0) std::memcpy(larger, live, used);
    std::free(text_);
    text_ = larger;
    text_capacity_ = capacity;
  }
  text_base_ = text_begin_;
}

}  // namespace sluice::http2
