#include "server/transport/web/metrics/gzip_writer.h"

#include <utility>

namespace sluice::metrics {
namespace {

constexpr int kWindowBits = 15;
constexpr int kGzip = 16;
// Makes a tenth of these texts, for a quarter of what serializing them costs; level 6 takes twice
// as long, for a tenth less.
constexpr int kLevel = 1;
constexpr int kMemoryLevel = 8;

}  // namespace

GzipWriter::GzipWriter(bool enabled) {
  // The only failure is malloc's, which ends the process elsewhere too.
  enabled_ = enabled && deflateInit2(&stream_, kLevel, Z_DEFLATED, kWindowBits + kGzip,
                                     kMemoryLevel, Z_DEFAULT_STRATEGY) == Z_OK;
}

GzipWriter::~GzipWriter() {
  if (enabled_) deflateEnd(&stream_);
}

std::string GzipWriter::Finish() {
  Deflate({}, Z_FINISH);
  return std::move(out_);
}

void GzipWriter::Deflate(std::string_view bytes, int flush) {
  if (!enabled_) return;
  // zlib does not write there.
  stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream_.avail_in = static_cast<uInt>(bytes.size());
  do {
    char part[16 << 10];
    stream_.next_out = reinterpret_cast<Bytef*>(part);
    stream_.avail_out = sizeof(part);
    deflate(&stream_, flush);
    out_.append(part, sizeof(part) - stream_.avail_out);
  } while (stream_.avail_out == 0);
}

}  // namespace sluice::metrics
