// The Huffman code of HPACK (RFC 7541, 5.2 and appendix B).
#ifndef SLUICE_COMMON_HTTP2_HPACK_HUFFMAN_H_
#define SLUICE_COMMON_HTTP2_HPACK_HUFFMAN_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/types/span.h"

namespace sluice::http2 {

enum class HuffmanResult : uint8_t {
  kDone,
  kBad,       // EOS, or padding that is longer than 7 bits or not all ones
  kTooLarge,  // the text has more than `room` bytes; the rest of the code was not checked
};

// Decodes into `out`, which has `room` bytes; *size: those written.
HuffmanResult HuffmanDecode(absl::Span<const uint8_t> code, char* out, size_t room, size_t* size);

// Bytes of a text's code.
size_t HuffmanCodeSize(std::string_view text);
// Writes the code and returns its end. REQUIRES: room for HuffmanCodeSize(text) bytes.
uint8_t* HuffmanEncode(std::string_view text, uint8_t* out);

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HPACK_HUFFMAN_H_
