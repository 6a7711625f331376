// DamageBytes: from a message, bytes that are nearly one.
#ifndef SLUICE_TESTS_SUPPORT_DAMAGED_BYTES_H_
#define SLUICE_TESTS_SUPPORT_DAMAGED_BYTES_H_

#include <cstddef>
#include <random>
#include <string>

namespace sluice::testing {

// Changes, removes or inserts up to three times; often nothing.
inline void DamageBytes(std::mt19937& random, std::string* bytes) {
  for (size_t n = random() % 4; n > 0 && !bytes->empty(); --n) {
    const size_t at = random() % bytes->size();
    switch (random() % 3) {
      case 0:
        (*bytes)[at] = static_cast<char>(random());
        break;
      case 1:
        bytes->erase(at, 1 + random() % 3);
        break;
      default:
        bytes->insert(at, 1, static_cast<char>(random()));
    }
  }
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_DAMAGED_BYTES_H_
