#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/bounds.h"
#include "server/config/load.h"
#include "tests/unit/config/temp_dir.h"

namespace sluice::config {
namespace {

using ::testing::HasSubstr;

TEST(LoadFileTest, ReturnsTheLimitsAndTheHashOfTheContent) {
  TempDir dir;
  dir.Write("limits.yaml", "limits: []\n");
  const auto file = LoadFile(dir.Path("limits.yaml"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->specs.empty());
  // printf 'limits: []\n' | sha256sum
  EXPECT_EQ(file->version, "9f0243c1c912e7e5cd76697ada1d8aeedb987ad6155f63839a2ea0d600f1af71");
}

TEST(LoadFileTest, AcceptsTheExampleFile) {
  const auto file = LoadFile(SLUICE_SOURCE_DIR "/deploy/limits.example.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_GE(file->specs.size(), 5u);
}

TEST(LoadFileTest, NamesTheFileInErrors) {
  TempDir dir;
  dir.Write("limits.yaml", "limits: [{name: a, rate: 5}]\n");
  const std::string path = dir.Path("limits.yaml");
  EXPECT_EQ(std::string(LoadFile(path).status().message()),
            path +
                ":1:26: limits[0].rate: \"5\": say permits per period, e.g. 5/s, 500/250ms or "
                "10000/24h");
}

TEST(LoadFileTest, RejectsADirectory) {
  TempDir dir;
  const auto status = LoadFile(dir.Path(".")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), dir.Path(".") + ": is a directory; name a file in it");
}

TEST(LoadFileTest, ReportsAMissingFile) {
  TempDir dir;
  const auto status = LoadFile(dir.Path("none.yaml")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()), dir.Path("none.yaml") + ": No such file or directory");
}

TEST(LoadFileTest, RejectsAHugeFileByItsSize) {
  TempDir dir;
  dir.Write("limits.yaml", "limits: []\n");
  std::filesystem::resize_file(dir.Path("limits.yaml"), 100'000'000);
  const auto status = LoadFile(dir.Path("limits.yaml")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            dir.Path("limits.yaml") + ": has 100000000 bytes; at most 8388608 bytes are allowed");
}

TEST(LoadFileTest, DoesNotBlockOnAFifo) {
  TempDir dir;
  ASSERT_EQ(mkfifo(dir.Path("limits.yaml").c_str(), 0600), 0);
  const auto status = LoadFile(dir.Path("limits.yaml")).status();
  EXPECT_EQ(std::string(status.message()), dir.Path("limits.yaml") + ": is not a regular file");
}

TEST(LoadFileTest, ReportsAnUnreadableFile) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  TempDir dir;
  dir.Write("limits.yaml", "limits: []\n");
  ASSERT_EQ(chmod(dir.Path("limits.yaml").c_str(), 0), 0);
  EXPECT_EQ(LoadFile(dir.Path("limits.yaml")).status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace sluice::config
