// StreamTable: the open streams of a connection by their ids.
#ifndef SLUICE_COMMON_HTTP2_STREAM_TABLE_H_
#define SLUICE_COMMON_HTTP2_STREAM_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice::http2 {

class Stream;

// An open-addressed hash table. Open ids are mostly near each other: the hash spreads them evenly,
// so that most stand alone. The peer chooses the ids, but does not know kSeed. Not thread-safe;
// owns no stream.
class StreamTable {
 public:
  size_t size() const { return size_; }
  size_t memory() const { return slots_ == nullptr ? 0 : (mask_ + 1) * sizeof(Slot); }

  // Null: not in the table.
  Stream* Find(int32_t id) const {
    if (size_ == 0) return nullptr;
    for (size_t at = Home(id);; at = Next(at)) {
      if (slots_[at].id == id) return slots_[at].stream;
      if (slots_[at].id == 0) return nullptr;
    }
  }
  // REQUIRES: id > 0, and not in the table.
  void Insert(int32_t id, Stream& stream);
  // REQUIRES: in the table.
  void Remove(int32_t id);

  // Calls visit(stream) for each. `visit` must not change the table.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    if (size_ == 0) return;
    for (size_t at = 0; at <= mask_; ++at) {
      if (slots_[at].id != 0) visit(*slots_[at].stream);
    }
  }

 private:
  struct Slot {
    int32_t id = 0;  // 0: free
    Stream* stream = nullptr;
  };
  static constexpr int kFewSlotBits = 4;
  static constexpr uint32_t kGoldenRatio = 2654435769;  // of 2^32
  static const uint32_t kSeed;                          // random, of this process

  size_t Home(int32_t id) const {
    return ((static_cast<uint32_t>(id) ^ kSeed) * kGoldenRatio) >> shift_;
  }
  size_t Next(size_t at) const { return (at + 1) & mask_; }
  // Makes room for 2^bits entries.
  void Resize(int bits);

  std::unique_ptr<Slot[]> slots_;
  size_t mask_ = 0;
  int shift_ = 0;  // what leaves the bits of the hash that count
  size_t size_ = 0;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_STREAM_TABLE_H_
