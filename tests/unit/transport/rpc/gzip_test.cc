#include "tests/support/gzip.h"

#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "server/transport/rpc/message_reader.h"

namespace sluice::transport {
namespace {

using ::sluice::testing::Gzip;

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
    const std::string moved = bytes;
    done = *inflater.Inflate(
        absl::Span<const uint8_t>(reinterpret_cast<const uint8_t*>(moved.data()), moved.size()),
        text.size(), 1000, &out);
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

TEST(GzipInflaterTest, BlocksAndHeadersThatHoldNothingTakeStepsToo) {
  const std::string header("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", 10);
  std::string blocks = header;
  for (int i = 0; i < 10'000; ++i) blocks.append("\0\0\0\xff\xff", 5);
  std::string name = header + std::string(100'000, 'n') + '\0';
  name[3] = 8;  // it has a name
  for (std::string& bytes : {std::ref(blocks), std::ref(name)}) {
    bytes.append("\1\0\0\xff\xff", 5).append(8, '\0');  // the last block, CRC and length
    GzipInflater inflater;
    Buffer out;
    size_t steps = 0;
    size_t parts = 0;
    absl::StatusOr<bool> done = false;
    while (done.ok() && !*done) {
      done = inflater.Inflate({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                              /*max_bytes=*/1000, /*step_bytes=*/4096, &out);
      const size_t of_step = inflater.TakeParts();
      EXPECT_LE(of_step, 17u);
      parts += of_step;
      ++steps;
    }
    EXPECT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(out.size(), 0u);
    EXPECT_GE(parts, &bytes == &blocks ? 10'000u : 97u);
    EXPECT_GE(steps, parts / 17);
  }
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
