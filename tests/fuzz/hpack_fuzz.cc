// Fuzzes HPACK: header blocks of one connection into our decoder and into nghttp2's inflater.
//
// The input is a sequence of blocks, each behind two bytes: its size, and how many of its fields
// are wanted (0: all).
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "tests/support/hpack_oracle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  sluice::testing::HpackPair pair;
  while (rest.size() >= 2 && pair.error() == sluice::http2::HpackError::kNone) {
    const auto block_size = static_cast<uint8_t>(rest[0]);
    const auto wanted = static_cast<uint8_t>(rest[1]);
    const std::string_view block = rest.substr(2, block_size);
    rest.remove_prefix(2 + block.size());
    const std::string difference = pair.Compare(block, wanted == 0 ? SIZE_MAX : wanted);
    if (difference.empty()) continue;
    std::fprintf(stderr, "%s\n", difference.c_str());
    __builtin_trap();
  }
  return 0;
}
