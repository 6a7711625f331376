#include "server/transport/rpc/gzip.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

GzipInflater::~GzipInflater() {
  if (ready_) inflateEnd(&stream_);
}

absl::Status GzipInflater::Inflate(absl::Span<const uint8_t> compressed, size_t max_bytes,
                                   Buffer* out) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  const int started = ready_ ? inflateReset(&stream_) : inflateInit2(&stream_, kGzipOnly);
  if (started != Z_OK) return absl::ResourceExhaustedError("no memory to decompress");
  ready_ = true;
  stream_.next_in = const_cast<uint8_t*>(compressed.data());
  stream_.avail_in = static_cast<uInt>(compressed.size());
  size_t total = 0;
  while (true) {
    // Room for one byte above the bound shows whether the message is larger than the bound.
    const size_t room = std::min<size_t>(max_bytes + 1 - total, 16 << 10);
    stream_.next_out = out->Reserve(room);
    stream_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    const size_t made = room - stream_.avail_out;
    out->Commit(made);
    total += made;
    if (total > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the decompressed message has more than ", max_bytes, " bytes"));
    }
    if (result == Z_STREAM_END) break;
    if (result != Z_OK || (made == 0 && stream_.avail_in == 0)) {
      return absl::InternalError("the message is not valid gzip");
    }
  }
  if (stream_.avail_in != 0) {
    return absl::InternalError("bytes follow the end of the message's gzip stream");
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport
