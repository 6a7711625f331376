#include "server/transport/http2/frame_scanner.h"

#include <nghttp2/nghttp2.h>

#include <string>

#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream_id, std::string_view payload = "") {
  std::string out;
  for (const int shift : {16, 8, 0}) out.push_back(static_cast<char>(payload.size() >> shift));
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(stream_id >> shift));
  out.append(payload);
  return out;
}

class FrameScannerTest : public ::testing::Test {
 protected:
  FrameScannerTest() { Scan(std::string(24, 'p')); }

  FrameScanner::Verdict Scan(const std::string& bytes) {
    return scanner_.Scan({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, now_ns_);
  }
  // How many of them pass.
  int CountUntilRefused(const std::string& frame, int most) {
    FrameScanner scanner(now_ns_);
    const std::string preface(24, 'p');
    scanner.Scan({reinterpret_cast<const uint8_t*>(preface.data()), preface.size()}, now_ns_);
    for (int i = 0; i < most; ++i) {
      if (scanner.Scan({reinterpret_cast<const uint8_t*>(frame.data()), frame.size()}, now_ns_)
              .error != 0) {
        return i;
      }
    }
    return most;
  }

  int64_t now_ns_ = 1000 * kSecond;
  FrameScanner scanner_{now_ns_};
};

TEST_F(FrameScannerTest, ParsesFramesHoweverInputIsSplit) {
  const std::string bytes = Frame(NGHTTP2_SETTINGS, 0, 0, "123456") +
                            Frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, "abc") +
                            Frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, "hello");
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    FrameScanner scanner(now_ns_);
    scanner.Scan({reinterpret_cast<const uint8_t*>(bytes.data()), 0}, now_ns_);
    const std::string all = std::string(24, 'p') + bytes;
    for (size_t at = 0; at < all.size(); at += piece) {
      const size_t n = std::min(piece, all.size() - at);
      const auto verdict =
          scanner.Scan({reinterpret_cast<const uint8_t*>(all.data()) + at, n}, now_ns_);
      ASSERT_EQ(verdict.error, 0u);
      ASSERT_EQ(verdict.pass, n);
    }
    EXPECT_EQ(scanner.frames(), 3u);
    EXPECT_TRUE(scanner.greeted());
    EXPECT_FALSE(scanner.mid_frame());
  }
}

TEST_F(FrameScannerTest, AcceptsAnyFirstStreamId) {
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 4, 13, "x")).error, 0u);
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 4, 15, "x")).error, 0u);
}

TEST_F(FrameScannerTest, RefusesHeadersOnASkippedStreamId) {
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 4, 5, "x")).error, 0u);
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 4, 3, "x")).error, uint32_t{NGHTTP2_PROTOCOL_ERROR});
}

TEST_F(FrameScannerTest, RefusesDataOnAStreamThatThePeerClosed) {
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 5, 1, "x")).error, 0u);
  scanner_.StreamClosedByPeer(1);
  EXPECT_EQ(Scan(Frame(NGHTTP2_DATA, 0, 1, "x")).error, uint32_t{NGHTTP2_STREAM_CLOSED});
}

TEST_F(FrameScannerTest, RefusesHeadersOnAStreamThatThePeerClosed) {
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 5, 1, "x")).error, 0u);
  scanner_.StreamClosedByPeer(1);
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 4, 1, "x")).error, uint32_t{NGHTTP2_STREAM_CLOSED});
}

TEST_F(FrameScannerTest, AcceptsFramesOnAStreamThatTheServerReset) {
  EXPECT_EQ(Scan(Frame(NGHTTP2_HEADERS, 4, 1, "x")).error, 0u);
  EXPECT_EQ(Scan(Frame(NGHTTP2_DATA, 0, 1, "more")).error, 0u);
}

TEST_F(FrameScannerTest, StopsScanningAfterAReset) {
  Scan(Frame(NGHTTP2_HEADERS, 4, 1, "x"));
  const std::string reset = Frame(NGHTTP2_RST_STREAM, 0, 1, "1234");
  const std::string bytes = reset + Frame(NGHTTP2_DATA, 0, 1, "x");
  EXPECT_EQ(Scan(bytes).pass, reset.size());
  scanner_.StreamClosedByPeer(1);
  EXPECT_EQ(Scan(bytes.substr(reset.size())).error, uint32_t{NGHTTP2_STREAM_CLOSED});
}

TEST_F(FrameScannerTest, RefusesEachKindOfFlood) {
  EXPECT_LE(CountUntilRefused(Frame(NGHTTP2_PING, 0, 0, "12345678"), 10'000), 20);
  EXPECT_LE(CountUntilRefused(Frame(NGHTTP2_SETTINGS, 0, 0), 10'000), 64);
  EXPECT_LE(CountUntilRefused(Frame(NGHTTP2_PRIORITY, 0, 1, "12345"), 10'000), 512);
  EXPECT_LE(CountUntilRefused(Frame(NGHTTP2_WINDOW_UPDATE, 0, 0, "1234"), 10'000), 1024);
  EXPECT_LE(CountUntilRefused(Frame(NGHTTP2_DATA, 0, 1), 10'000), 256);
  EXPECT_LE(CountUntilRefused(Frame(0x42, 0, 0, "x"), 10'000), 256);
  EXPECT_LE(CountUntilRefused(Frame(NGHTTP2_CONTINUATION, 0, 1, "x"), 10'000), 8);
}

TEST_F(FrameScannerTest, AcceptsSlowPings) {
  for (int i = 0; i < 1000; ++i) {
    now_ns_ += 10 * kSecond;
    ASSERT_EQ(Scan(Frame(NGHTTP2_PING, 0, 0, "12345678")).error, 0u) << i;
  }
}

TEST_F(FrameScannerTest, AcceptsPingsThatFollowData) {
  for (int i = 0; i < 10'000; ++i) {
    scanner_.SentUseful();
    ASSERT_EQ(Scan(Frame(NGHTTP2_PING, 0, 0, "12345678")).error, 0u) << i;
  }
}

TEST_F(FrameScannerTest, RefusesImmediateResetsButNotLateOnes) {
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(scanner_.StreamResetByPeer(false, now_ns_));
  int passed = 0;
  while (scanner_.StreamResetByPeer(true, now_ns_)) ++passed;
  EXPECT_LE(passed, 4000);
}

TEST_F(FrameScannerTest, FinishedCallsRefillTheResetBudget) {
  for (int i = 0; i < 100'000; ++i) {
    scanner_.CallFinished();
    ASSERT_TRUE(scanner_.StreamResetByPeer(true, now_ns_));
  }
}

}  // namespace
}  // namespace sluice::transport
