#include "server/envoy/configuration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "server/envoy/load.h"
#include "server/envoy/matcher.h"
#include "tests/unit/limits/recording_store.h"

namespace sluice::envoy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string File(const std::string& domain, int requests) {
  return "domain: " + domain +
         "\ndescriptors:\n  - key: k\n    rate_limit: { unit: minute, "
         "requests_per_unit: " +
         std::to_string(requests) + " }\n";
}

class ConfigurationTest : public ::testing::Test {
 protected:
  ConfigurationTest() { std::filesystem::create_directories(folder_ / "config"); }
  ~ConfigurationTest() override { std::filesystem::remove_all(folder_); }

  static void Write(const std::filesystem::path& path, const std::string& text) {
    const std::filesystem::path next = path.string() + ".next";
    std::ofstream(next) << text;
    std::filesystem::rename(next, path);
  }
  std::filesystem::path Path(const std::string& name) const { return folder_ / "config" / name; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const auto table = registry_.Current();
    for (const limits::Limit* limit : table->limits()) names.emplace_back(limit->name());
    return names;
  }
  // What a request of domain "a" finds.
  uint64_t Permits() const {
    const auto table = registry_.Current();
    const Matcher* matcher = MatcherOf(*table);
    if (matcher == nullptr || matcher->FindDomain("a") == nullptr) return 0;
    BucketKey key;
    const std::vector<Entry> entries = {{"k", "v"}};
    const MatchedLimit* match = Matcher::Find(*matcher->FindDomain("a"), entries, &key);
    const limits::Limit* limit = match == nullptr ? nullptr : LimitOf(*table, *match);
    return limit == nullptr ? 0 : limit->spec().rate.permits;
  }
  // Waits for a thread that watches files.
  template <typename Condition>
  static bool Await(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      ("envoy_configuration_" + std::to_string(getpid()) + "_" +
       ::testing::UnitTest::GetInstance()->current_test_info()->name());
  common::SystemClock clock_;
  common::Log log_{clock_, common::LogLevel::kError, STDERR_FILENO};
  limits::RecordingStore store_;
  limits::LimitRegistry registry_{&store_};
};

TEST_F(ConfigurationTest, ABadFileLeavesTheConfigurationInForce) {
  Write(Path("a.yaml"), File("a", 5));
  Configuration configuration({.path = folder_ / "config"}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  EXPECT_THAT(Names(), ElementsAre("a//k"));
  EXPECT_EQ(Permits(), 5u);
  const std::string version = configuration.Status().version;

  Write(Path("b.yaml"), "domain: b\ndescriptors: [{ key: '' }]\n");
  const absl::Status refused = configuration.Reload();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("b.yaml:2:15: key: is missing or empty"));
  EXPECT_EQ(Permits(), 5u);
  limits::FileStatus status = configuration.Status();
  EXPECT_EQ(status.last_error, refused.message());
  EXPECT_EQ(status.version, version);
  EXPECT_EQ(status.reloads, 1u);
  EXPECT_EQ(status.failed_reloads, 1u);

  Write(Path("b.yaml"), File("b", 6));
  ASSERT_TRUE(configuration.Reload().ok());
  status = configuration.Status();
  EXPECT_EQ(status.last_error, "");
  EXPECT_EQ(status.reloads, 2u);
  EXPECT_THAT(Names(), ElementsAre("a//k", "b//k"));
}

TEST_F(ConfigurationTest, TheSameFilesChangeNothing) {
  Write(Path("a.yaml"), File("a", 5));
  Configuration configuration({.path = folder_ / "config"}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  const auto table = registry_.Current();
  ASSERT_TRUE(configuration.Reload().ok());
  EXPECT_EQ(registry_.Current(), table);
  EXPECT_EQ(configuration.Status().reloads, 1u);
}

TEST_F(ConfigurationTest, OverridesChangeHowLimitsCount) {
  Write(Path("a.yaml"), File("a", 5));
  const std::filesystem::path overrides = folder_ / "overrides.yaml";
  Write(overrides, "domains: { a: { mode: exact } }\n");
  Configuration configuration({.path = folder_ / "config", .overrides = overrides}, registry_,
                              clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  EXPECT_EQ(registry_.Current()->Find("a//k")->spec().algorithm, algorithm::Kind::kTokenBucket);
  Write(overrides, "domains: { a: { mode: compatible } }\n");
  ASSERT_TRUE(configuration.Reload().ok());
  EXPECT_EQ(registry_.Current()->Find("a//k")->spec().algorithm, algorithm::Kind::kFixedWindow);
  Write(overrides, "domains: { a: { mode: none } }\n");
  EXPECT_THAT(std::string(configuration.Reload().message()),
              HasSubstr("overrides.yaml:1:23: domains[\"a\"].mode: \"none\""));
  EXPECT_EQ(registry_.Current()->Find("a//k")->spec().algorithm, algorithm::Kind::kFixedWindow);
}

TEST_F(ConfigurationTest, ATreeThatIsAppliedReplacesTheOneBefore) {
  Configuration configuration({}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  LoadedTree one, two, bad;
  ASSERT_TRUE(AddText(File("a", 1), "xds:a", &one).ok());
  ASSERT_TRUE(AddText(File("a", 2), "xds:a", &two).ok());
  ASSERT_TRUE(AddText("domain: ''\n", "xds:b", &bad).ok());
  ASSERT_TRUE(configuration.Apply({one.tree, "1", "one"}).ok());
  EXPECT_EQ(Permits(), 1u);
  EXPECT_FALSE(configuration.Apply({bad.tree, "2", "bad"}).ok());
  EXPECT_EQ(Permits(), 1u);
  ASSERT_TRUE(configuration.Apply({two.tree, "3", "two"}).ok());
  EXPECT_EQ(Permits(), 2u);
  EXPECT_EQ(configuration.Status().version, "3");
}

TEST_F(ConfigurationTest, ADeletedLimitCountsAsUnmatched) {
  Write(Path("a.yaml"), File("a", 5));
  Configuration configuration({.path = folder_ / "config"}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  ASSERT_TRUE(registry_.Delete("a//k").ok());
  EXPECT_EQ(Permits(), 0u);
}

TEST_F(ConfigurationTest, ReloadsWhenAFileOfTheFolderChanges) {
  Write(Path("a.yaml"), File("a", 1));
  Configuration configuration({.path = folder_ / "config"}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  configuration.Watch();
  Write(Path("a.yaml"), File("a", 2));
  EXPECT_TRUE(Await([&] { return Permits() == 2; }));
  Write(Path("b.yaml"), File("b", 1));
  EXPECT_TRUE(Await([&] { return Names().size() == 2; }));
  std::filesystem::remove(Path("b.yaml"));
  EXPECT_TRUE(Await([&] { return Names().size() == 1; }));
  // In a folder of its own, written in place.
  std::filesystem::create_directory(Path("more"));
  std::ofstream(Path("more") / "c.yaml") << File("c", 1);
  EXPECT_TRUE(Await([&] { return Names().size() == 2; }));
  std::ofstream(Path("more") / "c.yaml") << File("d", 1);
  EXPECT_TRUE(Await([&] { return Names() == std::vector<std::string>{"a//k", "d//k"}; }));
}

TEST_F(ConfigurationTest, ReloadsWhenKubernetesSwapsTheVolume) {
  const auto version = [&](const std::string& name, int requests) {
    std::filesystem::create_directories(Path(name));
    Write(Path(name) / "a.yaml", File("a", requests));
    std::filesystem::create_directory_symlink(name, Path("..data_tmp"));
    std::filesystem::rename(Path("..data_tmp"), Path("..data"));
  };
  version("..1", 1);
  std::filesystem::create_symlink("..data/a.yaml", Path("a.yaml"));
  Configuration configuration({.path = folder_ / "config"}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  EXPECT_EQ(Permits(), 1u);
  configuration.Watch();
  for (int i = 2; i < 5; ++i) {
    version(".." + std::to_string(i), i);
    std::filesystem::remove_all(Path(".." + std::to_string(i - 1)));
    EXPECT_TRUE(Await([&] { return Permits() == static_cast<uint64_t>(i); }));
  }
}

TEST_F(ConfigurationTest, ReloadsWhenTheFolderIsSwappedBySymlink) {
  for (const char* name : {"one", "two"}) std::filesystem::create_directories(folder_ / name);
  Write(folder_ / "one" / "a.yaml", File("a", 1));
  Write(folder_ / "two" / "a.yaml", File("a", 2));
  std::filesystem::create_directory_symlink("one", folder_ / "current");
  Configuration configuration({.path = folder_ / "current"}, registry_, clock_, log_);
  ASSERT_TRUE(configuration.Start().ok());
  configuration.Watch();
  std::filesystem::create_directory_symlink("two", folder_ / "next");
  std::filesystem::rename(folder_ / "next", folder_ / "current");
  EXPECT_TRUE(Await([&] { return Permits() == 2; }));
}

// A request that takes one table sees the descriptors and the limits of one configuration.
TEST_F(ConfigurationTest, ARequestSeesOneConfiguration) {
  Configuration configuration({}, registry_, clock_, log_);
  LoadedTree trees[2];
  // The same limits in another order, with other numbers.
  ASSERT_TRUE(AddText("domain: a\ndescriptors:\n"
                      "  - { key: x, rate_limit: { unit: day, requests_per_unit: 1 } }\n"
                      "  - { key: y, rate_limit: { unit: day, requests_per_unit: 2 } }\n",
                      "f", &trees[0])
                  .ok());
  ASSERT_TRUE(AddText("domain: a\ndescriptors:\n"
                      "  - { key: y, rate_limit: { unit: day, requests_per_unit: 3 } }\n"
                      "  - { key: x, rate_limit: { unit: day, requests_per_unit: 4 } }\n",
                      "f", &trees[1])
                  .ok());
  ASSERT_TRUE(configuration.Apply({trees[0].tree, "0", "0"}).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    const std::vector<Entry> entries = {{"x", "v"}};
    while (!stop.load()) {
      const limits::LimitTable& table = *registry_.Local();
      BucketKey key;
      const MatchedLimit* match = Matcher::Find(*MatcherOf(table)->FindDomain("a"), entries, &key);
      const limits::Limit* limit = LimitOf(table, *match);
      if (limit->name() != "a//x" || limit->spec().rate.permits != match->requests_per_unit) {
        ++torn;
      }
    }
  });
  for (int i = 1; i < 200; ++i) {
    ASSERT_TRUE(configuration.Apply({trees[i % 2].tree, "", std::to_string(i)}).ok());
  }
  stop = true;
  reader.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace sluice::envoy
