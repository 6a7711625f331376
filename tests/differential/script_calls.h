// Runs the Redis store's scripts on a redis-server that the test program starts.
#ifndef SLUICE_TESTS_DIFFERENTIAL_SCRIPT_CALLS_H_
#define SLUICE_TESTS_DIFFERENTIAL_SCRIPT_CALLS_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/redis/scripts/scripts.h"
#include "tests/support/redis_server.h"

namespace sluice::testing {

class Scripts {
 public:
  static Scripts& Get() {
    static Scripts& scripts = *new Scripts;
    return scripts;
  }

  RedisValue Run(store::redis::Script script, const std::vector<std::string>& keys,
                 const std::vector<std::string>& arguments, const std::string& fence = "fence") {
    std::vector<std::string> words = {"EVALSHA", store::redis::TextOf(script).sha,
                                      absl::StrCat(keys.size() + 1)};
    words.insert(words.end(), keys.begin(), keys.end());
    words.push_back(fence);
    words.insert(words.end(), arguments.begin(), arguments.end());
    return calls_.Call(words);
  }
  RedisValue Call(const std::vector<std::string>& words) { return calls_.Call(words); }
  void Stop() { server_.Kill(); }

 private:
  Scripts() : calls_(server_) {
    for (size_t i = 0; i < store::redis::kScripts; ++i) {
      const store::redis::ScriptText& text =
          store::redis::TextOf(static_cast<store::redis::Script>(i));
      const RedisValue loaded = calls_.Call({"SCRIPT", "LOAD", text.text});
      if (loaded.text != text.sha) {
        ADD_FAILURE() << "script " << i << ": " << loaded.text << ", not " << text.sha;
        std::abort();
      }
    }
    // APPEND gives the encoding that the scripts compare (server/store/redis/fencing/fence.h).
    calls_.Call({"SET", "fence", "m"});
    calls_.Call({"APPEND", "fence", "m"});
  }

  RedisServer server_;
  RedisCalls calls_;
};

// Stops the server, since Scripts is never destroyed.
class StopRedis final : public ::testing::Environment {
 public:
  void TearDown() override { Scripts::Get().Stop(); }
};
inline const ::testing::Environment* const stop_redis =
    ::testing::AddGlobalTestEnvironment(new StopRedis);

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_DIFFERENTIAL_SCRIPT_CALLS_H_
