// CallPool: keeps the objects that calls use, so that a call in steady state allocates nothing.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_CALL_POOL_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_CALL_POOL_H_

#include <cstddef>
#include <utility>

namespace sluice::transport {

// What is in a CallPool derives from it, and has memory(): its bytes, with sizeof.
template <typename T>
struct Pooled {
  T* next = nullptr;
  size_t bytes = 0;  // while it is in the pool

 private:
  friend T;
  Pooled() = default;
};

// Of one loop; not thread-safe. Reuses the last object first, which is still in the cache. Keeps at
// most kMaxKeptBytes.
template <typename T>
class CallPool {
 public:
  CallPool() = default;
  ~CallPool() {
    while (free_ != nullptr) delete std::exchange(free_, free_->next);
  }
  CallPool(const CallPool&) = delete;
  CallPool& operator=(const CallPool&) = delete;

  T& Take() {
    if (free_ == nullptr) return *new T();
    kept_bytes_ -= free_->bytes;
    return *std::exchange(free_, free_->next);
  }
  // `drop`: do not keep it. It lasted (FreeList::Recycle), or its memory is worth more than the
  // time to allocate it again.
  void Give(T& item, bool drop = false) {
    item.bytes = item.memory();
    if (drop || kept_bytes_ + item.bytes > kMaxKeptBytes) {
      delete &item;
      return;
    }
    kept_bytes_ += item.bytes;
    item.next = free_;
    free_ = &item;
  }

 private:
  // Room for the largest usual batch, 4096 acquisitions with one charge each, or for hundreds of
  // single ones.
  static constexpr size_t kMaxKeptBytes = size_t{3} << 19;

  T* free_ = nullptr;
  size_t kept_bytes_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_CALL_POOL_H_
