#include "server/transport/rpc/message_reader.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tests/support/gzip.h"

namespace sluice::transport {
namespace {

std::string Framed(std::string_view message, char first = 0) {
  std::string out(1, first);
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(message.size() >> shift));
  return out.append(message);
}

constexpr size_t kStepBytes = 4 << 10;

class MessageReaderTest : public ::testing::Test {
 protected:
  MessageReaderTest() { reader_.Begin(MessageReader::Encoding::kIdentity, 10); }

  void Append(std::string_view bytes) {
    reader_.Append({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  }
  // The next message; "-" if it is not complete.
  std::string Next() {
    const auto step = reader_.Next(decompressor_, kStepBytes);
    if (!step.ok()) return "error";
    if (step->state != MessageReader::Step::State::kMessage) return "-";
    return {step->message.begin(), step->message.end()};
  }

  MessageReader reader_;
  Decompressor decompressor_;
};

TEST_F(MessageReaderTest, TakesMessagesHoweverTheyArrive) {
  Append(Framed("one") + Framed("") + Framed("three").substr(0, 4));
  EXPECT_EQ(Next(), "one");
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(Next(), "-");
  Append(Framed("three").substr(4, 3));
  EXPECT_EQ(Next(), "-");
  Append(Framed("three").substr(7));
  EXPECT_EQ(Next(), "three");
  EXPECT_EQ(reader_.size(), 0u);
}

TEST_F(MessageReaderTest, RefusesMessageAboveTheBoundByItsPrefix) {
  Append(Framed("0123456789"));
  EXPECT_EQ(Next(), "0123456789");
  Append(Framed("0123456789x").substr(0, 5));
  EXPECT_EQ(reader_.CheckSingle().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reader_.Next(decompressor_, kStepBytes).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(MessageReaderTest, RefusesInvalidPrefixes) {
  for (const char first : {1, 2}) {  // 1: compressed, without an encoding
    reader_.Clear(0);
    Append(Framed("x", first));
    EXPECT_EQ(reader_.CheckSingle().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(Next(), "error");
  }
}

TEST_F(MessageReaderTest, SingleMessageMustBeCompleteAndAlone) {
  const auto code = [this] {
    return reader_.TakeSingle(decompressor_, kStepBytes).status().code();
  };
  EXPECT_EQ(code(), absl::StatusCode::kUnimplemented);
  Append(Framed("one").substr(0, 7));
  EXPECT_TRUE(reader_.CheckSingle().ok());
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  Append(Framed("one").substr(7));
  ASSERT_TRUE(reader_.CheckSingle().ok());
  const auto step = reader_.TakeSingle(decompressor_, kStepBytes);
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(std::string(step->message.begin(), step->message.end()), "one");
  Append("x");
  EXPECT_EQ(reader_.CheckSingle().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(MessageReaderTest, KeepMovesTheMessageOrWhatFollowsIt) {
  reader_.Begin(MessageReader::Encoding::kGzip, 100);
  const std::string large(100, 'l');
  Append(Framed("first") + Framed(large) + Framed(testing::Gzip("zipped"), 1) + "\x01");
  Buffer kept;
  const auto keep_next = [&] {
    const auto step = reader_.Next(decompressor_, kStepBytes);
    const MessageReader::Message message = reader_.Keep(step->message, &kept);
    reader_.Trim(0);
    EXPECT_GE(kept.capacity(), message.size());
    return std::pair(std::string(message.begin(), message.end()),
                     message.data() == step->message.data());
  };
  EXPECT_EQ(keep_next(), std::pair(std::string("first"), false));
  EXPECT_EQ(keep_next(), std::pair(large, true));
  EXPECT_EQ(keep_next(), std::pair(std::string("zipped"), false));
  EXPECT_EQ(reader_.size(), 1u);
  reader_.Clear(0);
  Append(Framed("alone"));
  EXPECT_EQ(keep_next(), std::pair(std::string("alone"), true));
}

// The header of gzip may have a file name of any length.
TEST_F(MessageReaderTest, SmallMessageOfLargeGzipKeepsLittleMemory) {
  std::string gzip = testing::Gzip("small");
  gzip[3] = 8;
  gzip.insert(10, std::string(100'000, 'n') + '\0');
  reader_.Begin(MessageReader::Encoding::kGzip, 200'000);
  Append(Framed(gzip, 1));
  auto step = reader_.TakeSingle(decompressor_, kStepBytes);
  EXPECT_EQ(step->state, MessageReader::Step::State::kUnfinished);
  while (step.ok() && step->state == MessageReader::Step::State::kUnfinished) {
    step = reader_.TakeSingle(decompressor_, kStepBytes);
  }
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(std::string(step->message.begin(), step->message.end()), "small");
  EXPECT_LE(reader_.capacity(), size_t{4} << 10);
}

}  // namespace
}  // namespace sluice::transport
