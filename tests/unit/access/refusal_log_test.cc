#include "server/access/refusal_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "tests/unit/config/temp_dir.h"

namespace sluice::access {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class RefusalLogTest : public ::testing::Test {
 protected:
  RefusalLogTest() { dir_.Write("audit", ""); }
  ~RefusalLogTest() override { close(null_); }

  static AuditRecord Refused() {
    AuditRecord record;
    record.peer = "10.0.0.1:4711";
    record.call = "PutLimit";
    record.outcome = absl::UnauthenticatedError("no client has this token");
    return record;
  }
  void Advance(int64_t by_ns) {
    clock_.Advance(by_ns);
    for (int i = 0; i < 3; ++i) loop_->RunOnce(0);
  }
  std::vector<std::string> Lines() {
    std::ifstream file(dir_.Path("audit"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  const config::TempDir dir_;
  common::FakeClock clock_;
  const int null_ = open("/dev/null", O_WRONLY);
  common::Log log_{clock_, common::LogLevel::kError, null_};
  std::unique_ptr<net::EventLoop> loop_{std::move(net::EventLoop::Create(clock_)).value()};
  std::unique_ptr<AuditLog> audit_{std::move(AuditLog::Open(dir_.Path("audit"), clock_)).value()};
  RefusalLog refusals_{log_, audit_.get(), *loop_};
};

TEST_F(RefusalLogTest, WritesARefusalOnTheBackgroundLoop) {
  refusals_.Add(Refused());
  EXPECT_THAT(Lines(), SizeIs(0)) << "the thread of the call does not wait for the disk";
  Advance(0);
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(
      Lines()[0],
      HasSubstr("\"client\":null,\"actor\":null,\"peer\":\"10.0.0.1:4711\",\"call\":\"PutLimit\","
                "\"request\":null,\"before\":null,\"after\":null,"
                "\"outcome\":\"UNAUTHENTICATED\",\"error\":\"no client has this token\""));
}

TEST_F(RefusalLogTest, BoundsTheLinesOfASecondAndSaysHowManyWereLeftOut) {
  for (int i = 0; i < 30; ++i) refusals_.Add(Refused());
  Advance(0);
  EXPECT_THAT(Lines(), SizeIs(RefusalLog::kLinesPerSecond));
  Advance(2'000'000'000);
  ASSERT_THAT(Lines(), SizeIs(RefusalLog::kLinesPerSecond + 1));
  EXPECT_THAT(Lines().back(), HasSubstr("\"call\":\"refusals_left_out\""));
  EXPECT_THAT(Lines().back(), HasSubstr("20 refused calls were not written"));
  refusals_.Add(Refused());
  Advance(2'000'000'000);
  EXPECT_THAT(Lines(), SizeIs(RefusalLog::kLinesPerSecond + 2)) << "none was left out since";
}

TEST_F(RefusalLogTest, BoundsTheLinesThatWaitForTheDisk) {
  // The loop does not come to them.
  for (int second = 0; second < 30; ++second) {
    for (int i = 0; i < RefusalLog::kLinesPerSecond; ++i) refusals_.Add(Refused());
    clock_.Advance(1'000'000'000);
  }
  Advance(0);
  EXPECT_THAT(Lines(), SizeIs(RefusalLog::kMostWaiting));
  Advance(2'000'000'000);
  EXPECT_THAT(Lines().back(), HasSubstr("200 refused calls were not written"));
}

}  // namespace
}  // namespace sluice::access
