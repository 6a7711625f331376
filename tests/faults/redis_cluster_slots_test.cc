// The hash slots that a node computes, against those of redis-server.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "server/store/redis/wire/hash_slot.h"
#include "server/store/redis/wire/key_names.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {
namespace {

TEST(RedisClusterSlotsTest, MatchThoseOfRedis) {
  RedisServer server({"--cluster-enabled", "yes"});
  RedisCalls calls(server);
  const auto by_redis = [&](const std::string& key) {
    return calls.Call({"CLUSTER", "KEYSLOT", key}).integer;
  };
  std::minstd_rand random(1);
  const std::string letters("{}:a\0\xff", 6);
  for (int i = 0; i < 2000; ++i) {
    std::string key(random() / 7 % 12, ' ');
    for (char& c : key) c = letters[random() / 7 % letters.size()];
    ASSERT_EQ(store::redis::SlotOf(key), by_redis(key)) << key;
    for (const std::string& name : store::redis::KeysOf("sluice", "api", key)) {
      ASSERT_EQ(store::redis::SlotOf(name), by_redis(name)) << name;
    }
  }
}

TEST(RedisClusterSlotsTest, EverySlotHasTag) {
  for (size_t slot = 0; slot < store::redis::kSlots; ++slot) {
    const std::string& tag = store::redis::TagOfSlot(static_cast<uint16_t>(slot));
    ASSERT_EQ(store::redis::SlotOf("name:{" + tag + "}:more"), slot);
  }
}

}  // namespace
}  // namespace sluice::testing
