// RequestMetadata: the headers of a request that its handler may read. Keeps its memory when it is
// cleared, so that a reused one does not allocate.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_REQUEST_METADATA_H_
#define SLUICE_SERVER_TRANSPORT_RPC_REQUEST_METADATA_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/transport/http2/buffer.h"

namespace sluice::transport {

// Not thread-safe.
class RequestMetadata {
 public:
  void Add(std::string_view name, std::string_view value) {
    entries_.push_back({static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(name.size()),
                        static_cast<uint32_t>(value.size())});
    bytes_.Append(name);
    bytes_.Append(value);
  }

  // The first value of that name.
  std::optional<std::string_view> Find(std::string_view name) const {
    const auto* const bytes = reinterpret_cast<const char*>(bytes_.data());
    for (const Entry& entry : entries_) {
      const char* const at = bytes + entry.begin;
      if (std::string_view(at, entry.name_size) == name) {
        return std::string_view(at + entry.name_size, entry.value_size);
      }
    }
    return std::nullopt;
  }

  // Keeps at most `keep` bytes of memory for names and values.
  void Clear(size_t keep) {
    entries_.clear();
    bytes_.Clear(keep);
  }
  size_t capacity() const { return bytes_.capacity(); }

 private:
  struct Entry {
    uint32_t begin;  // of the name; the value follows it
    uint32_t name_size;
    uint32_t value_size;
  };

  std::vector<Entry> entries_;
  Buffer bytes_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_REQUEST_METADATA_H_
