// What LeakSanitizer has to be told of this store. It knows pointers by their plain values, in
// memory that it looks into; a bucket's state hangs on a word with a flag in it, in pages that the
// store maps itself, and would be taken for lost.
#ifndef SLUICE_SERVER_STORE_MEMORY_LEAK_CHECK_H_
#define SLUICE_SERVER_STORE_MEMORY_LEAK_CHECK_H_

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLUICE_LEAK_CHECK 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_LEAK_CHECK 1
#endif

#ifdef SLUICE_LEAK_CHECK
#include <sanitizer/lsan_interface.h>
#endif

namespace sluice::store::memory {

// `object`, and what only it points to, is not lost. Nothing where there is no sanitizer.
inline void IsReferredTo([[maybe_unused]] const void* object) {
#ifdef SLUICE_LEAK_CHECK
  __lsan_ignore_object(object);
#endif
}

}  // namespace sluice::store::memory

#endif  // SLUICE_SERVER_STORE_MEMORY_LEAK_CHECK_H_
