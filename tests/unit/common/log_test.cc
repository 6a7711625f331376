#include "common/log.h"

#include <fcntl.h>
#include <sys/socket.h>
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

// Fills a descriptor to the last byte.
void Fill(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  const std::string page(4096, 'x');
  while (write(fd, page.data(), page.size()) > 0) {
  }
  while (write(fd, "x", 1) > 0) {
  }
  fcntl(fd, F_SETFL, flags);
}

TEST_F(LogTest, DropsLinesWhileNobodyReadsAndCountsThem) {
  Log log(clock_, LogLevel::kInfo, pipe_[1]);
  Fill(pipe_[1]);
  for (int i = 0; i < 5; ++i) log.Info("first", {});
  log.Info("second", {});
  EXPECT_EQ(log.suppressed(), 6u);
  Read();
  log.Info("third", {});
  EXPECT_THAT(Read(), testing::EndsWith("event=third dropped=6\n"));
  log.Info("fourth", {});
  EXPECT_THAT(Read(), testing::EndsWith("event=fourth\n"));
  // Other programs that share the pipe block as before.
  EXPECT_EQ(fcntl(pipe_[1], F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(LogTest, DropsLinesWhileTheReaderOfASocketIsBehind) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  Log log(clock_, LogLevel::kInfo, sockets[1]);
  Fill(sockets[1]);
  log.Info("lost", {});
  EXPECT_EQ(log.suppressed(), 1u);
  char buffer[65536];
  while (recv(sockets[0], buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
  }
  log.Info("found", {});
  const ssize_t n = recv(sockets[0], buffer, sizeof(buffer), MSG_DONTWAIT);
  ASSERT_GT(n, 0);
  EXPECT_THAT(std::string(buffer, n), testing::EndsWith("event=found dropped=1\n"));
  close(sockets[0]);
  close(sockets[1]);
}

TEST_F(LogTest, CutsLinesThatAPipeWouldSplit) {
  Log log(clock_, LogLevel::kInfo, pipe_[1]);
  log.Info("long", {{"value", std::string(100'000, 'v')}});
  const std::string line = Read();
  EXPECT_EQ(line.size(), Log::kMaxLineBytes);
  EXPECT_EQ(line.back(), '\n');
}

}  // namespace
}  // namespace sluice::common
