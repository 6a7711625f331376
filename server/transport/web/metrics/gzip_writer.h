// GzipWriter: compresses bytes that come in pieces.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_GZIP_WRITER_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_GZIP_WRITER_H_

#include <zlib.h>

#include <string>
#include <string_view>

namespace sluice::metrics {

// Not thread-safe.
class GzipWriter {
 public:
  // `enabled` false: makes nothing.
  explicit GzipWriter(bool enabled);
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;

  void Write(std::string_view bytes) { Deflate(bytes, Z_NO_FLUSH); }
  // The whole file. Call it once, last.
  std::string Finish();

 private:
  void Deflate(std::string_view bytes, int flush);

  bool enabled_ = false;
  z_stream stream_{};
  std::string out_;
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_GZIP_WRITER_H_
