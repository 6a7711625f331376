// TakeoverTest: servers that take over from each other.
#ifndef SLUICE_TESTS_INTEGRATION_SERVER_TAKEOVER_TEST_H_
#define SLUICE_TESTS_INTEGRATION_SERVER_TAKEOVER_TEST_H_

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/server/server_test.h"

namespace sluice::testing {

// No permit comes back while a test runs.
inline constexpr char kTakeoverLimits[] = R"(
limits:
  - { name: huge, rate: 1/30m, burst: 1000000 }
  - { name: daily, rate: 100/24h, algorithm: sliding_log }
  - { name: slots, algorithm: concurrency, permits: 2, hold_for: 10m }
  - { name: paced, rate: 1/10m, max_wait: 1h }
  - { name: held, rate: 500/s, burst: 1, max_wait: 1h }
)";

class TakeoverTest : public ServerTest {
 protected:
  ~TakeoverTest() override {
    server_.reset();
    unlink(socket().c_str());
    unlink(files_.Path("data.sock").c_str());
    std::error_code ignored;
    std::filesystem::remove_all(files_.Path("state"), ignored);
  }

  std::string socket() const { return files_.Path("takeover"); }
  std::vector<std::string> Flags(std::vector<std::string> more = {}) const {
    more.push_back("--takeover=" + socket());
    return more;
  }
  std::unique_ptr<ServerProcess> StartNew(std::vector<std::string> more = {},
                                          bool in_background = false) {
    return std::make_unique<ServerProcess>(ServerProcess::Options{.limits = kTakeoverLimits,
                                                                  .flags = Flags(std::move(more)),
                                                                  .may_fail = true,
                                                                  .in_background = in_background});
  }
  void StartFirst(std::vector<std::string> more = {}) {
    server_.reset();  // else the first server takes over from one of an earlier round
    Start({.limits = kTakeoverLimits, .flags = Flags(std::move(more))});
    ASSERT_TRUE(server_->ready()) << server_->log();
  }
  // A new server takes over; the old one ends.
  void TakeOver(std::vector<std::string> more = {}) {
    const std::string address = server_->data_address();
    std::unique_ptr<ServerProcess> next = StartNew(std::move(more));
    ASSERT_TRUE(next->ready()) << next->log() << "\n---\n" << server_->log();
    EXPECT_EQ(next->data_address(), address);
    EXPECT_EQ(server_->WaitForExit(), 0) << server_->log();
    UseServer(std::move(next));
  }
  void UseServer(std::unique_ptr<ServerProcess> next) {
    server_ = std::move(next);
    data_ = v1::RateLimiter::NewStub(server_->DataChannel());
    admin_ = v1::LimitAdmin::NewStub(server_->AdminChannel());
  }
  // A new server is refused, and the first one goes on. Returns its exit code.
  int FailsWith(std::vector<std::string> flags, const std::string& text,
                const std::string& limits = kTakeoverLimits) {
    ServerProcess next({.limits = limits, .flags = std::move(flags), .may_fail = true});
    EXPECT_FALSE(next.ready());
    const int code = next.WaitForExit();
    EXPECT_THAT(next.log(), ::testing::HasSubstr(text));
    EXPECT_TRUE(Granted("huge", "served")) << "the first server still serves";
    return code;
  }

  TestFiles files_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_INTEGRATION_SERVER_TAKEOVER_TEST_H_
