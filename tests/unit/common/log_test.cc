#include "common/log.h"

#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::common {
namespace {

class LogTest : public testing::Test {
 protected:
  LogTest() { EXPECT_EQ(pipe(pipe_), 0); }
  ~LogTest() override {
    close(pipe_[0]);
    close(pipe_[1]);
  }
  std::string Read() {
    char buffer[65536];
    const ssize_t n = read(pipe_[0], buffer, sizeof(buffer));
    return std::string(buffer, n > 0 ? n : 0);
  }
  FakeClock clock_;
  int pipe_[2];
};

TEST_F(LogTest, WritesOneLinePerEvent) {
  Log log(clock_, LogLevel::kInfo, pipe_[1]);
  log.Info("reload", {{"version", "9f3c"}, {"limits", 12}});
  EXPECT_EQ(Read(),
            "time=2023-11-14T22:13:20.000Z level=info event=reload version=9f3c limits=12\n");
}

TEST_F(LogTest, QuotesValuesThatCouldForgeALine) {
  Log log(clock_, LogLevel::kInfo, pipe_[1]);
  log.Error("refused", {{"key", "a\nlevel=info \"b\""}, {"empty", ""}});
  EXPECT_THAT(Read(),
              testing::HasSubstr("event=refused key=\"a\\nlevel=info \\\"b\\\"\" empty=\"\"\n"));
}

TEST_F(LogTest, SkipsEventsBelowItsLevel) {
  Log log(clock_, LogLevel::kWarning, pipe_[1]);
  log.Info("quiet", {});
  log.Warning("loud", {});
  EXPECT_THAT(Read(), testing::AllOf(testing::HasSubstr("event=loud"),
                                     testing::Not(testing::HasSubstr("quiet"))));
}

TEST_F(LogTest, LimitsLinesPerSecondAndReportsSuppressedOnes) {
  Log log(clock_, LogLevel::kInfo, pipe_[1]);
  for (uint32_t i = 0; i < Log::kLinesPerSecond + 7; ++i) log.Info("flood", {});
  log.Info("other", {});
  Read();
  EXPECT_EQ(log.suppressed(), 7u);
  clock_.Advance(1'000'000'000);
  log.Info("flood", {});
  EXPECT_THAT(Read(), testing::HasSubstr("event=flood suppressed=7\n"));
}

}  // namespace
}  // namespace sluice::common
