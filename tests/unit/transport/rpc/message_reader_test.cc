#include "server/transport/rpc/message_reader.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace sluice::transport
