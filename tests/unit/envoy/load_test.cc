// Configurations that are refused, with file, line, column and what to write; and those that are
// accepted as envoyproxy/ratelimit accepts them.
#include "server/envoy/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "server/envoy/overrides.h"
#include "tests/unit/envoy/bad_configurations.h"
#include "tests/unit/envoy/trees.h"

namespace sluice::envoy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class BadConfigurationTest : public ::testing::TestWithParam<BadConfiguration> {};

TEST_P(BadConfigurationTest, IsRefusedWithItsPlaceAndAdvice) {
  LoadedTree loaded;
  absl::Status status = AddText(GetParam().text, "f.yaml", &loaded);
  if (status.ok()) status = Check(loaded.tree, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Cases, BadConfigurationTest, ::testing::ValuesIn(kBadConfigurations),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(LoadTest, ReadsEveryField) {
  const LoadedTree loaded = TreeOf({R"(
domain: d
descriptors:
  - key: k
    value: v*
    shadow_mode: yes
    quota_mode: on
    detailed_metric: true
    value_to_metric: TRUE
    share_threshold: true
    metadata: {a: {b: [1, -2, 1.5, x, "1", true, ~]}}
    rate_limit:
      unit: MONTH
      requests_per_unit: 1_000
      name: n
      replaces: [{name: r}]
    descriptors:
      - key: 8080
        value: 404
        rate_limit: {unlimited: true}
)"});
  EXPECT_THAT(loaded.warnings, IsEmpty());
  const Descriptor& one = loaded.tree.domains.at(0).descriptors.at(0);
  EXPECT_EQ(one.key, "k");
  EXPECT_EQ(one.value, "v*");
  EXPECT_TRUE(one.shadow_mode && one.quota_mode && one.detailed_metric && one.value_to_metric &&
              one.share_threshold);
  EXPECT_EQ(one.rate_limit->unit, Unit::kMonth);
  EXPECT_EQ(one.rate_limit->requests_per_unit, 1000u);
  EXPECT_EQ(one.rate_limit->name, "n");
  EXPECT_EQ(one.rate_limit->replaces.at(0).first, "r");
  EXPECT_EQ(PlaceText(loaded.tree, one.place), "f.yaml:4:5");
  EXPECT_EQ(one.descriptors.at(0).key, "8080");
  EXPECT_EQ(one.descriptors.at(0).value, "404");
  EXPECT_TRUE(one.descriptors.at(0).rate_limit->unlimited);
  ASSERT_EQ(one.metadata.size(), 1u);
  const auto& [name, value] = one.metadata[0].second.fields.at(0);
  EXPECT_EQ(name, "b");
  using ValueKind = MetadataValue::Kind;
  std::vector<ValueKind> kinds;
  for (const MetadataValue& item : value.list) kinds.push_back(item.kind);
  EXPECT_THAT(kinds,
              ElementsAre(ValueKind::kNumber, ValueKind::kNumber, ValueKind::kNumber,
                          ValueKind::kText, ValueKind::kText, ValueKind::kBool, ValueKind::kNull));
  EXPECT_EQ(value.list[1].number, -2);
}

TEST(LoadTest, AcceptsAliasesAndMergeKeys) {
  const LoadedTree loaded = TreeOf({R"(
domain: d
descriptors:
  - key: a
    rate_limit: &common {unit: minute, requests_per_unit: 5}
  - key: b
    rate_limit: *common
  - key: c
    rate_limit: {<<: *common, requests_per_unit: 7}
)"});
  const auto& descriptors = loaded.tree.domains[0].descriptors;
  EXPECT_EQ(descriptors[1].rate_limit->requests_per_unit, 5u);
  EXPECT_EQ(descriptors[2].rate_limit->requests_per_unit, 7u);
  EXPECT_EQ(descriptors[2].rate_limit->unit, Unit::kMinute);
}

TEST(LoadTest, BoundsWhatAliasesComeTo) {
  std::string text = "domain: d\nx0: &x0 [a, a, a, a, a, a, a, a, a, a]\n";
  for (int i = 1; i < 12; ++i) {
    text += "x" + std::to_string(i) + ": &x" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j)
      text += std::string(j > 0 ? ", " : "") + "*x" + std::to_string(i - 1);
    text += "]\n";
  }
  LoadedTree loaded;
  EXPECT_THAT(std::string(AddText(text, "f.yaml", &loaded).message()),
              ::testing::HasSubstr("the aliases up to here come to more than 1000000 nodes"));
}

TEST(LoadTest, WarnsOfAFieldWithoutEffect) {
  const LoadedTree loaded = TreeOf(
      {"domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, shadow_mode: true }\n"});
  EXPECT_THAT(loaded.warnings,
              ElementsAre("f.yaml:4:30: descriptors[0].rate_limit: \"shadow_mode\": has no effect "
                          "here; there are unit, requests_per_unit, unlimited, name and replaces"));
}

TEST(LoadTest, DomainsOfTwoFilesAreRefusedOrMerged) {
  LoadedTree loaded;
  ASSERT_TRUE(AddText("domain: d\ndescriptors: [{key: a}]\n", "a.yaml", &loaded).ok());
  ASSERT_TRUE(AddText("domain: d\ndescriptors: [{key: b}]\n", "b.yaml", &loaded).ok());
  EXPECT_EQ(Check(loaded.tree, {}).message(),
            "b.yaml:1:9: domain: \"d\": is also in a.yaml; keep one, or merge them "
            "(MERGE_DOMAIN_CONFIG, --ratelimit_merge_domains)");
  EXPECT_TRUE(Check(loaded.tree, {.merge_domains = true}).ok());
  ASSERT_TRUE(AddText("domain: d\ndescriptors: [{key: a}]\n", "c.yaml", &loaded).ok());
  EXPECT_EQ(Check(loaded.tree, {.merge_domains = true}).message(),
            "c.yaml:2:15: \"a\": this key and value are defined twice, first at a.yaml:2:15; keep "
            "one");
}

TEST(LoadTest, TellsItsFormatFromALimitsFile) {
  EXPECT_TRUE(LooksLikeEnvoy("domain: d\n"));
  EXPECT_TRUE(LooksLikeEnvoy("descriptors: []\n"));
  EXPECT_FALSE(LooksLikeEnvoy("limits: []\n"));
  EXPECT_FALSE(LooksLikeEnvoy("- a\n"));
}

class LoadPathTest : public ::testing::Test {
 protected:
  LoadPathTest() { std::filesystem::create_directories(folder_); }
  ~LoadPathTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& name, const std::string& domain) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "domain: " << domain << "\n";
  }
  std::vector<std::string> Domains(bool ignore_dot_files = true) {
    const auto loaded = LoadPath(folder_, ignore_dot_files);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    std::vector<std::string> names;
    if (!loaded.ok()) return names;
    version_ = loaded->version;
    for (const Domain& domain : loaded->tree.domains) names.push_back(domain.name);
    return names;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      ("envoy_load_" + std::to_string(getpid()) + "_" +
       ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::string version_;
};

TEST_F(LoadPathTest, ReadsEveryFileInTheOrderOfNames) {
  Write("b", "second");
  Write("a.yaml", "first");
  Write("c/x.txt", "third");
  EXPECT_THAT(Domains(), ElementsAre("first", "second", "third"));
  const std::string before = version_;
  Write("b", "other");
  EXPECT_THAT(Domains(), ElementsAre("first", "other", "third"));
  EXPECT_NE(version_, before);
}

TEST_F(LoadPathTest, LeavesOutDotFilesIfTold) {
  Write("a", "first");
  Write(".b", "second");
  EXPECT_THAT(Domains(true), ElementsAre("first"));
  EXPECT_THAT(Domains(false), ElementsAre("second", "first"));
}

// A volume of Kubernetes: the files are symlinks through ..data.
TEST_F(LoadPathTest, ReadsAKubernetesVolumeOnce) {
  Write("..2026_01/a.yaml", "first");
  std::filesystem::create_directory_symlink("..2026_01", folder_ / "..data");
  std::filesystem::create_symlink("..data/a.yaml", folder_ / "a.yaml");
  EXPECT_THAT(Domains(true), ElementsAre("first"));
  EXPECT_THAT(Domains(false), ElementsAre("first"));
}

TEST_F(LoadPathTest, AnEmptyFolderHasNoDomains) { EXPECT_THAT(Domains(), IsEmpty()); }

TEST_F(LoadPathTest, SaysThatThePathIsMissing) {
  EXPECT_EQ(LoadPath(folder_ / "none", true).status().code(), absl::StatusCode::kNotFound);
}

TEST(OverridesTest, LimitsPrecedeDomains) {
  const auto overrides = ParseOverrides(R"(
domains:
  edge: {mode: exact, algorithm: sliding_window}
limits:
  per-user: {mode: exact, all_or_none: true}
  edge//path: {mode: compatible, on_store_failure: allow}
)",
                                        "o.yaml", {});
  ASSERT_TRUE(overrides.ok()) << overrides.status();
  EXPECT_EQ(overrides->Of("other", "", "other//x"), Counting());
  EXPECT_EQ(overrides->Of("edge", "", "edge//x"),
            (Counting{CountMode::kExact, ExactAlgorithm::kSlidingWindow, false}));
  EXPECT_EQ(overrides->Of("edge", "per-user", "edge//x"),
            (Counting{CountMode::kExact, ExactAlgorithm::kTokenBucket, true}));
  EXPECT_EQ(overrides->Of("edge", "per-user", "edge//path"),
            (Counting{.on_store_failure = limits::OnStoreFailure::kAllow}));
}

TEST(OverridesTest, RefusesWhatHasNoEffect) {
  const auto error = [](std::string_view text) {
    return std::string(ParseOverrides(text, "o.yaml", {}).status().message());
  };
  EXPECT_EQ(error("domain: {}\n"),
            "o.yaml:1:1: \"domain\": no field has that name; there are domains and limits");
  EXPECT_EQ(error("domains: [a]\n"),
            "o.yaml:1:10: domains: say a map of names, e.g. edge: { mode: exact }");
  EXPECT_EQ(error("domains: { d: { mode: both } }\n"),
            "o.yaml:1:23: domains[\"d\"].mode: \"both\": say compatible or exact");
  EXPECT_EQ(error("domains: { d: { mode: exact, algorithm: gcra } }\n"),
            "o.yaml:1:41: domains[\"d\"].algorithm: \"gcra\": say token_bucket or sliding_window");
  EXPECT_EQ(error("limits: { l: { all_or_none: true } }\n"),
            "o.yaml:1:16: limits[\"l\"]: \"all_or_none\": has no effect in mode: compatible; say "
            "mode: exact");
  EXPECT_EQ(error("limits: { l: { burst: 5 } }\n"),
            "o.yaml:1:16: limits[\"l\"]: \"burst\": no field has that name; there are mode, "
            "algorithm, all_or_none and on_store_failure");
  EXPECT_EQ(
      error("limits: { l: { on_store_failure: split } }\n"),
      "o.yaml:1:34: limits[\"l\"].on_store_failure: \"split\": needs mode: exact; say deny or "
      "allow, or mode: exact");
}

}  // namespace
}  // namespace sluice::envoy
