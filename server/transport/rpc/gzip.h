// GzipInflater: bounded decompression of gzip messages (RFC 1952).
#ifndef SLUICE_SERVER_TRANSPORT_RPC_GZIP_H_
#define SLUICE_SERVER_TRANSPORT_RPC_GZIP_H_

#include <zlib.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/transport/http2/buffer.h"

namespace sluice::transport {

// Reusable; allocates its window (about 40 KB) at the first use and keeps it. Not thread-safe.
class GzipInflater {
 public:
  GzipInflater() = default;
  ~GzipInflater();
  GzipInflater(const GzipInflater&) = delete;
  GzipInflater& operator=(const GzipInflater&) = delete;

  // Appends the decompressed bytes. INTERNAL: `compressed` is not one complete gzip stream.
  // RESOURCE_EXHAUSTED: the result is larger than max_bytes; decompression stopped there.
  absl::Status Inflate(absl::Span<const uint8_t> compressed, size_t max_bytes, Buffer* out);

 private:
  z_stream stream_{};
  bool ready_ = false;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_GZIP_H_
