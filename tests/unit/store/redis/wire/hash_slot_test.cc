#include "server/store/redis/wire/hash_slot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/store/redis/wire/key_names.h"

namespace sluice::store::redis {
namespace {

using ::testing::HasSubstr;

Reply Integer(int64_t value) {
  Reply reply;
  reply.type = Reply::Type::kInteger;
  reply.integer = value;
  return reply;
}
Reply Text(const std::string& text) {
  Reply reply;
  reply.type = Reply::Type::kString;
  reply.text = text;
  return reply;
}
Reply Error(const std::string& text) {
  Reply reply = Text(text);
  reply.type = Reply::Type::kError;
  return reply;
}
Reply Array(std::vector<Reply> elements) {
  Reply reply;
  reply.type = Reply::Type::kArray;
  reply.elements = std::move(elements);
  return reply;
}
Reply Range(int64_t first, int64_t last, const std::string& host, int64_t port) {
  return Array({Integer(first), Integer(last),
                Array({Text(host), Integer(port), Text("an-id"), Array({})}),
                Array({Text("replica"), Integer(9), Text("its-id"), Array({})})});
}

net::Address Asked() { return net::Address::Parse("seed:7000").value(); }

std::string OwnerOf(const SlotMap& map, uint16_t slot) {
  const uint16_t place = map.OwnerOf(slot);
  return place == SlotMap::kNoOwner ? "" : map.primaries()[place].ToString();
}

TEST(HashSlotTest, IsTheCrcOfTheKey) {
  // The check value of CRC-16/XMODEM.
  EXPECT_EQ(SlotOf("123456789"), 0x31C3);
  EXPECT_EQ(SlotOf(""), 0);
  EXPECT_EQ(SlotOf("foo"), 12182);
}

TEST(HashSlotTest, DependsOnTheHashTagAlone) {
  EXPECT_EQ(SlotOf("{user1000}.following"), SlotOf("user1000"));
  EXPECT_EQ(SlotOf("a{x}b{y}"), SlotOf("x"));
  EXPECT_EQ(SlotOf("foo{{bar}}zap"), SlotOf("{bar"));
  EXPECT_EQ(HashTagOf("foo{}{bar}"), "");  // nothing between the first ones: the whole key
  EXPECT_NE(SlotOf("foo{}{bar}"), SlotOf("bar"));
  EXPECT_EQ(HashTagOf("}{"), "");
  EXPECT_EQ(HashTagOf("{open"), "");
}

TEST(HashSlotTest, IsTheSameForAllKeysOfABucket) {
  // Also where the caller's key looks like a tag, or like the end of one.
  for (const char* key :
       {"", "a", "{", "}", "{}", "}{", "a}b", "{42}", "x{42}y{43}", "{{42}}", "{}{a}", "}{42}"}) {
    const std::array<std::string, 3> keys = KeysOf("sluice", "api", key);
    EXPECT_EQ(SlotOf(keys[0]), SlotOf(keys[1])) << key;
    EXPECT_EQ(SlotOf(keys[0]), SlotOf(keys[2])) << key;
  }
}

TEST(HashSlotTest, IsTheSameForAllLimitsOfAKeyWithATag) {
  EXPECT_EQ(SlotOf(KeysOf("sluice", "api", "{42}")[0]), SlotOf("42"));
  EXPECT_EQ(SlotOf(KeysOf("sluice", "upload", "user:{42}:file")[0]), SlotOf("42"));
  EXPECT_EQ(SlotOf(KeysOf("other", "upload", "{{42}}")[0]), SlotOf("{42"));
  EXPECT_NE(SlotOf(KeysOf("sluice", "api", "42")[0]), SlotOf(KeysOf("sluice", "upload", "42")[0]));
}

TEST(HashSlotTest, BucketsNeverShareAKeyName) {
  // All short keys of the characters that names are made of, under limits that look like parts.
  std::set<std::string> names;
  size_t buckets = 0;
  const std::string letters = "{}:;1a";
  for (const char* limit : {"a", "1", "a:1", "1:a", "a:1:a"}) {
    for (size_t length = 0; length <= 5; ++length) {
      size_t all = 1;
      for (size_t i = 0; i < length; ++i) all *= letters.size();
      for (size_t n = 0; n < all; ++n) {
        std::string key;
        for (size_t rest = n; key.size() < length; rest /= letters.size()) {
          key += letters[rest % letters.size()];
        }
        for (std::string& name : KeysOf("s", limit, key)) names.insert(std::move(name));
        ++buckets;
      }
    }
  }
  EXPECT_EQ(names.size(), 3 * buckets);
}

TEST(SlotMapTest, ReadsTheOwnersOfSlots) {
  const auto map =
      SlotMap::FromReply(Array({Range(0, 99, "10.0.0.1", 6379), Range(100, 16000, "::1", 6380),
                                Range(16001, 16001, "10.0.0.1", 6379)}),
                         Asked());
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(OwnerOf(*map, 0), "10.0.0.1:6379");
  EXPECT_EQ(OwnerOf(*map, 99), "10.0.0.1:6379");
  EXPECT_EQ(OwnerOf(*map, 100), "[::1]:6380");
  EXPECT_EQ(OwnerOf(*map, 16001), "10.0.0.1:6379");
  EXPECT_EQ(OwnerOf(*map, 16002), "");
  EXPECT_EQ(map->primaries().size(), 2u);
  EXPECT_EQ(map->served(), 16002u);
}

TEST(SlotMapTest, TakesAServerWithoutNameForTheOneThatWasAsked) {
  for (const char* unnamed : {"", "?"}) {
    const auto map = SlotMap::FromReply(Array({Range(0, 1, unnamed, 7001)}), Asked());
    ASSERT_TRUE(map.ok());
    EXPECT_EQ(OwnerOf(*map, 1), "seed:7001");
  }
}

TEST(SlotMapTest, MovesASlot) {
  auto map = SlotMap::FromReply(Array({Range(0, 16383, "a", 1)}), Asked()).value();
  map.Move(7, net::Address::Parse("b:2").value());
  EXPECT_EQ(OwnerOf(map, 7), "b:2");
  EXPECT_EQ(OwnerOf(map, 8), "a:1");
}

TEST(SlotMapTest, RejectsOtherReplies) {
  EXPECT_FALSE(SlotMap::FromReply(Text("OK"), Asked()).ok());
  EXPECT_FALSE(SlotMap::FromReply(Array({Integer(1)}), Asked()).ok());
  EXPECT_FALSE(SlotMap::FromReply(Array({Range(5, 16384, "a", 1)}), Asked()).ok());
  EXPECT_FALSE(SlotMap::FromReply(Array({Range(5, 4, "a", 1)}), Asked()).ok());
  EXPECT_FALSE(SlotMap::FromReply(Array({Range(0, 1, "a", 70000)}), Asked()).ok());
}

TEST(RedirectTest, ReadsMovedAndAsk) {
  const auto moved = RedirectOf(Error("MOVED 3999 127.0.0.1:6381"), Asked());
  ASSERT_TRUE(moved.has_value());
  EXPECT_FALSE(moved->ask);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->to.ToString(), "127.0.0.1:6381");
  const auto ask = RedirectOf(Error("ASK 1 ::1:6381"), Asked());
  ASSERT_TRUE(ask.has_value());
  EXPECT_TRUE(ask->ask);
  EXPECT_EQ(ask->to.ToString(), "[::1]:6381");
  EXPECT_EQ(RedirectOf(Error("MOVED 1 :6381"), Asked())->to.ToString(), "seed:6381");
}

TEST(RedirectTest, IgnoresOtherErrors) {
  for (const char* text : {"ERR no", "MOVED", "MOVED 16384 a:1", "MOVED 1 a", "MOVED 1 a:0",
                           "ASK x a:1", "MOVEDX 1 a:1", "TRYAGAIN later"}) {
    EXPECT_FALSE(RedirectOf(Error(text), Asked()).has_value()) << text;
  }
  EXPECT_FALSE(RedirectOf(Text("MOVED 1 a:1"), Asked()).has_value());
}

}  // namespace
}  // namespace sluice::store::redis
