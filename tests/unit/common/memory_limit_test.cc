#include "common/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

constexpr int64_t kMiB = 1 << 20;

class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() { Write("/proc/meminfo", "MemTotal:        4096000 kB\nMemFree: 1 kB\n"); }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_ = ::testing::TempDir() + "memory_limit_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MemoryLimitTest, IsTheMachinesMemoryWithoutCgroups) {
  EXPECT_EQ(MachineMemory(root_), 4000 * kMiB);
}

TEST_F(MemoryLimitTest, IsTheLeastOfTheCgroupsOfVersion2) {
  Write("/proc/self/cgroup", "0::/pods/one\n");
  Write("/sys/fs/cgroup/pods/one/memory.max", "max\n");
  Write("/sys/fs/cgroup/pods/memory.max", "2147483648\n");
  EXPECT_EQ(MachineMemory(root_), 2048 * kMiB);
}

TEST_F(MemoryLimitTest, ReadsTheContainersOwnGroupAtTheMountsRoot) {
  Write("/proc/self/cgroup", "0::/not/visible/here\n");
  Write("/sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(MachineMemory(root_), 1024 * kMiB);
}

TEST_F(MemoryLimitTest, ReadsTheMemoryControllerOfVersion1) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/a\n9:memory:/a\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(MachineMemory(root_), 512 * kMiB);
}

TEST(ResidentBytesTest, GrowsWithTouchedMemory) {
  const int64_t before = ResidentBytes();
  EXPECT_GT(before, kMiB);
  const std::vector<char> touched(64 * kMiB, 1);
  EXPECT_GE(ResidentBytes() - before, 60 * kMiB);
  EXPECT_EQ(touched.back(), 1);
}

}  // namespace
}  // namespace sluice::common
