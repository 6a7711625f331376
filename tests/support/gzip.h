// Gzip: what a peer that compresses its messages sends.
#ifndef SLUICE_TESTS_SUPPORT_GZIP_H_
#define SLUICE_TESTS_SUPPORT_GZIP_H_

#include <zlib.h>

#include <string>

#include "gtest/gtest.h"

namespace sluice::testing {

inline std::string Gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(
      deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
      Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_GZIP_H_
