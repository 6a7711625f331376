#include "server/config/reloader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "common/clock.h"
#include "tests/unit/config/temp_dir.h"
#include "tests/unit/limits/recording_store.h"

namespace sluice::config {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class ReloaderTest : public ::testing::Test {
 protected:
  uint64_t Permits(std::string_view name) {
    const limits::Limit* limit = registry_.Local()->Find(name);
    return limit == nullptr ? 0 : limit->rule().parameters.token_bucket.rate.permits;
  }
  void Put(std::string name, uint64_t permits) {
    limits::LimitSpec spec;
    spec.name = std::move(name);
    spec.rate = {permits, 1'000'000'000};
    ASSERT_TRUE(registry_.Put(std::move(spec)).ok());
  }

  TempDir dir_;
  common::FakeClock clock_{1, 1000};
  limits::RecordingStore store_;
  limits::LimitRegistry registry_{&store_};
  Reloader reloader_{dir_.Path("limits.yaml"), &registry_, &clock_};
};

TEST_F(ReloaderTest, StatusIsEmptyBeforeTheFirstLoad) {
  const limits::FileStatus status = reloader_.Status();
  EXPECT_EQ(status.version, "");
  EXPECT_EQ(status.active_since_wall_ns, 0);
  EXPECT_EQ(status.path, dir_.Path("limits.yaml"));
  EXPECT_EQ(status.reloads, 0u);
  EXPECT_EQ(registry_.Current()->limits().size(), 0u);
}

TEST_F(ReloaderTest, AppliesTheFile) {
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 5/s}, {name: b, rate: 6/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  EXPECT_EQ(Permits("a"), 5u);
  const limits::FileStatus status = reloader_.Status();
  EXPECT_EQ(status.version.size(), 64u);
  EXPECT_EQ(status.active_since_wall_ns, 1000);
  EXPECT_EQ(status.reloads, 1u);
  EXPECT_EQ(status.failed_reloads, 0u);
  EXPECT_EQ(registry_.Current()->limits().size(), 2u);
  EXPECT_EQ(registry_.Current()->admin_changes(), 0u);
}

TEST_F(ReloaderTest, ABadFileKeepsTheActiveLimits) {
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 5/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  const std::string version = reloader_.Status().version;

  clock_.Advance(50);
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 6/s}, {name: b, rate: 0/s}]");
  EXPECT_EQ(reloader_.ReloadNow().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Permits("a"), 5u);
  limits::FileStatus status = reloader_.Status();
  EXPECT_EQ(status.version, version);
  EXPECT_EQ(status.active_since_wall_ns, 1000);
  EXPECT_THAT(status.last_error, HasSubstr("limits.yaml:1:48: limits[1].rate: \"0/s\""));
  EXPECT_EQ(status.last_error_at_wall_ns, 1050);
  EXPECT_EQ(status.reloads, 1u);
  EXPECT_EQ(status.failed_reloads, 1u);

  // A missing file is bad too.
  clock_.Advance(50);
  std::filesystem::remove(dir_.Path("limits.yaml"));
  EXPECT_EQ(reloader_.ReloadNow().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Permits("a"), 5u);
  EXPECT_THAT(reloader_.Status().last_error, EndsWith("No such file or directory"));

  clock_.Advance(50);
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 7/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  EXPECT_EQ(Permits("a"), 7u);
  status = reloader_.Status();
  EXPECT_EQ(status.last_error, "");
  EXPECT_EQ(status.active_since_wall_ns, 1150);
  EXPECT_EQ(status.reloads, 2u);
  EXPECT_EQ(status.failed_reloads, 2u);
}

TEST_F(ReloaderTest, TheSameContentKeepsAdminChanges) {
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 5/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  Put("a", 50);
  Put("mine", 1);
  clock_.Advance(50);
  // A bad version, then the same bytes as before.
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 5/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  EXPECT_EQ(Permits("a"), 50u);
  dir_.Write("limits.yaml", "nonsense");
  EXPECT_FALSE(reloader_.ReloadNow().ok());
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 5/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  EXPECT_EQ(Permits("a"), 50u);
  limits::FileStatus status = reloader_.Status();
  EXPECT_EQ(status.reloads, 1u);
  EXPECT_EQ(status.active_since_wall_ns, 1000);
  EXPECT_EQ(registry_.Current()->admin_changes(), 2u);
  EXPECT_EQ(status.last_error, "");

  // A comment is a change.
  dir_.Write("limits.yaml", "limits: [{name: a, rate: 5/s}] # again");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  EXPECT_EQ(Permits("a"), 5u);
  EXPECT_EQ(Permits("mine"), 1u);
  EXPECT_EQ(registry_.Current()->admin_changes(), 1u);
}

TEST_F(ReloaderTest, ReportsAFileThatContradictsAdminLimits) {
  dir_.Write("limits.yaml", "limits: [{name: overall, rate: 5/s}]");
  ASSERT_TRUE(reloader_.ReloadNow().ok());
  limits::LimitSpec spec;
  spec.name = "mine";
  spec.charges = {"overall"};
  ASSERT_TRUE(registry_.Put(spec).ok());
  dir_.Write("limits.yaml", "limits: []");
  EXPECT_EQ(reloader_.ReloadNow().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reloader_.Status().last_error,
            dir_.Path("limits.yaml") +
                ": limits: \"mine\", which was put by the admin, charges \"overall\", which this "
                "file does not have; keep it in the file, or change or delete \"mine\" first");
  EXPECT_EQ(registry_.Current()->limits().size(), 2u);
}

}  // namespace
}  // namespace sluice::config
