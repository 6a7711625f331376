// FreeList: a loop's calls that have ended, with their buffers, for the calls to come.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_FREE_LIST_H_
#define SLUICE_SERVER_TRANSPORT_PORT_FREE_LIST_H_

#include <cstddef>

#include "common/intrusive_list.h"

namespace sluice::transport {

// Not thread-safe. T has Recycle(), which makes it as new, memory(), its bytes, and
// common::ListLink<T, Tag>.
template <typename T, typename Tag>
class FreeList {
 public:
  FreeList() = default;
  ~FreeList() {
    while (!free_.empty()) delete &free_.PopFront();
  }
  FreeList(const FreeList&) = delete;
  FreeList& operator=(const FreeList&) = delete;

  // As new. Give it back with Recycle.
  T& New() {
    if (free_.empty()) return *new T();
    T& one = free_.PopFront();
    bytes_ -= one.memory();
    return one;
  }

  // `lasted`: it was in use for long. Around it, memory of other calls has been freed; to keep it
  // would keep their pages.
  void Recycle(T& one, bool lasted = false) {
    one.Recycle();
    if (lasted || bytes_ + one.memory() > kMaxBytes) {
      delete &one;
      return;
    }
    bytes_ += one.memory();
    free_.PushFront(one);
  }

 private:
  // Of hundreds of small calls. The memory of a burst of calls is given back.
  static constexpr size_t kMaxBytes = size_t{512} << 10;

  common::IntrusiveList<T, Tag> free_;
  size_t bytes_ = 0;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_FREE_LIST_H_
