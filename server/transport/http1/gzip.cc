#include "server/transport/http1/gzip.h"

#include <zlib.h>

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/strings.h"

namespace sluice::http1 {

bool AcceptsGzip(const Request& request) {
  const auto accepted = request.header("accept-encoding");
  if (!accepted.has_value()) return false;
  for (absl::string_view one : absl::StrSplit(common::ToAbsl(*accepted), ',')) {
    one = absl::StripAsciiWhitespace(one);
    const size_t semicolon = one.find(';');
    if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(one.substr(0, semicolon)), "gzip")) {
      continue;
    }
    // "gzip;q=0" means never.
    if (semicolon == one.npos) return true;
    const absl::string_view weight = absl::StripAsciiWhitespace(one.substr(semicolon + 1));
    return weight.find_first_of("123456789") != weight.npos;
  }
  return false;
}

std::string Gzip(std::string_view bytes, int level) {
  constexpr int kGzip = 16 + MAX_WBITS;
  constexpr int kDefaultMemory = 8;
  z_stream stream{};
  if (deflateInit2(&stream, level, Z_DEFLATED, kGzip, kDefaultMemory, Z_DEFAULT_STRATEGY) != Z_OK) {
    return {};
  }
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<uint8_t*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<uint8_t*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(result == Z_STREAM_END ? stream.total_out : 0);
  deflateEnd(&stream);
  return out;
}

void CompressFor(const Request& request, Answer* answer) {
  constexpr size_t kWorthwhileBytes = 4 << 10;
  constexpr size_t kMostBytes = size_t{1} << 30;
  if (answer->body.size() < kWorthwhileBytes || answer->body.size() > kMostBytes) return;
  answer->headers.emplace_back("vary", "accept-encoding");
  if (!AcceptsGzip(request)) return;
  std::string compressed = Gzip(answer->body.view(), 1);
  if (compressed.empty() || compressed.size() >= answer->body.size()) return;
  answer->headers.emplace_back("content-encoding", "gzip");
  answer->body = SharedBytes::Of(std::move(compressed));
}

}  // namespace sluice::http1
