// GzipInflater: bounded decompression of gzip messages (RFC 1952).
#ifndef SLUICE_SERVER_TRANSPORT_RPC_GZIP_H_
#define SLUICE_SERVER_TRANSPORT_RPC_GZIP_H_

#include <zlib.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/transport/http2/buffer.h"

namespace sluice::transport {

// Reusable; keeps its window (some 40 KB) from the first use on. Not thread-safe.
class GzipInflater {
 public:
  GzipInflater() = default;
  ~GzipInflater();
  GzipInflater(const GzipInflater&) = delete;
  GzipInflater& operator=(const GzipInflater&) = delete;

  // Appends what `compressed` unfolds to. INTERNAL: it is not one whole gzip stream.
  // RESOURCE_EXHAUSTED: more than max_bytes; no more than that was unfolded.
  absl::Status Inflate(absl::Span<const uint8_t> compressed, size_t max_bytes, Buffer* out);

 private:
  z_stream stream_{};
  bool ready_ = false;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_GZIP_H_
