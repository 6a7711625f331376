#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace {

TEST(QuickstartTest, ReportsMissingServer) {
  // No server listens on port 1.
  const int status = std::system((std::string(SLUICE_QUICKSTART) + " 127.0.0.1:1").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(QuickstartTest, RefusesInvalidAddress) {
  const int status = std::system((std::string(SLUICE_QUICKSTART) + " nowhere").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
