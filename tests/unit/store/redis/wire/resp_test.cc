#include "server/store/redis/wire/resp.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::store::redis {
namespace {

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(RespTest, WritesWordsOfAnyBytes) {
  std::string out;
  AppendCommand({"SET", std::string("a\0b", 3), ""}, &out);
  EXPECT_EQ(out, std::string("*3\r\n$3\r\nSET\r\n$3\r\na\0b\r\n$0\r\n\r\n", 28));
}

TEST(RespTest, ReadsRepliesThatComeByteByByte) {
  const std::string text =
      ":7\r\n+OK\r\n-NOSCRIPT No "
      "matching\r\n$-1\r\n*3\r\n:1\r\n*2\r\n$2\r\nab\r\n:-1\r\n$0\r\n\r\n";
  ReplyReader reader;
  std::vector<Reply> replies;
  for (const char c : text) {
    reader.Feed(Bytes(std::string(1, c)));
    Reply reply;
    for (;;) {
      const auto next = reader.Next(&reply);
      ASSERT_TRUE(next.ok()) << next.status();
      if (!*next) break;
      replies.push_back(reply);
    }
  }
  ASSERT_EQ(replies.size(), 5u);
  EXPECT_EQ(replies[0].integer, 7);
  EXPECT_EQ(replies[1].text, "OK");
  EXPECT_TRUE(replies[2].HasCode("NOSCRIPT"));
  EXPECT_FALSE(replies[2].HasCode("NO"));
  EXPECT_EQ(replies[3].type, Reply::Type::kNil);
  ASSERT_EQ(replies[4].elements.size(), 3u);
  EXPECT_EQ(replies[4].elements[1].elements[0].text, "ab");
  EXPECT_EQ(replies[4].elements[1].elements[1].integer, -1);
}

TEST(RespTest, RejectsOtherProtocols) {
  ReplyReader reader;
  reader.Feed(Bytes("HTTP/1.1 400 Bad Request\r\n"));
  Reply reply;
  EXPECT_FALSE(reader.Next(&reply).ok());
}

TEST(RespTest, RejectsRepliesWithTooManyElements) {
  ReplyReader reader;
  reader.Feed(Bytes("*1000000000\r\n"));
  Reply reply;
  EXPECT_FALSE(reader.Next(&reply).ok());
}

TEST(RespTest, RejectsAStringWithoutEnd) {
  ReplyReader reader;
  reader.Feed(Bytes("$500000000\r\n"));
  const std::string chunk(size_t{1} << 20, 'x');
  Reply reply;
  int chunks = 0;
  for (; chunks < 100; ++chunks) {
    reader.Feed(Bytes(chunk));
    if (!reader.Next(&reply).ok()) break;
  }
  EXPECT_LT(chunks, 40);
}

}  // namespace
}  // namespace sluice::store::redis
