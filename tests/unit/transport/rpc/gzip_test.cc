#include <string>

#include "gtest/gtest.h"
#include "server/transport/rpc/message_reader.h"

namespace sluice::transport {
namespace {

std::string Gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

absl::Status Decompress(GzipInflater& inflater, const std::string& bytes, size_t max, Buffer* out) {
  const absl::StatusOr<bool> done =
      inflater.Inflate({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, max,
                       /*step_bytes=*/1 << 30, out);
  EXPECT_TRUE(!done.ok() || *done);
  return done.status();
}

TEST(GzipInflaterTest, DecompressesSeveralMessages) {
  GzipInflater inflater;
  for (const size_t size : {0, 1, 100, 16384, 100'000}) {
    const std::string text(size, 'x');
    Buffer out;
    ASSERT_TRUE(Decompress(inflater, Gzip(text), size, &out).ok()) << size;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()), text);
  }
}

TEST(GzipInflaterTest, DecompressesInStepsAndForgetsAMessageThatIsCancelled) {
  GzipInflater inflater;
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i);
  const std::string bytes = Gzip(text);
  const absl::Span<const uint8_t> compressed(reinterpret_cast<const uint8_t*>(bytes.data()),
                                             bytes.size());
  Buffer out;
  EXPECT_FALSE(*inflater.Inflate(compressed, text.size(), 1000, &out));
  EXPECT_TRUE(inflater.running());
  inflater.Cancel();
  out.Clear();
  size_t steps = 0;
  bool done = false;
  while (!done) {
    const size_t before = out.size();
    done = *inflater.Inflate(compressed, text.size(), 1000, &out);
    EXPECT_LE(out.size() - before, 2000u);
    ++steps;
  }
  EXPECT_GE(steps, text.size() / 2000);
  EXPECT_FALSE(inflater.running());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()), text);
}

TEST(GzipInflaterTest, StopsAtTheBound) {
  GzipInflater inflater;
  Buffer out;
  const absl::Status status = Decompress(inflater, Gzip(std::string(10'000'000, 'x')), 1000, &out);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(out.size(), 1001u);
}

TEST(GzipInflaterTest, RefusesAnythingButOneCompleteStream) {
  GzipInflater inflater;
  const std::string good = Gzip("hello");
  for (const std::string& bad : {std::string(), std::string("hello"),
                                 good.substr(0, good.size() - 1), good + "x", good.substr(1)}) {
    Buffer out;
    EXPECT_EQ(Decompress(inflater, bad, 1000, &out).code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace sluice::transport
