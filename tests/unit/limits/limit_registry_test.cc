#include "server/limits/limit_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/bounds.h"
#include "tests/unit/limits/recording_store.h"

namespace sluice::limits {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecondNs = 1'000'000'000;

LimitSpec Spec(std::string name, uint64_t permits = 10, std::vector<std::string> charges = {}) {
  LimitSpec spec;
  spec.name = std::move(name);
  spec.rate = {permits, kSecondNs};
  spec.charges = std::move(charges);
  return spec;
}

LimitSpec FileSpec(std::string name, uint64_t permits = 10, std::vector<std::string> charges = {}) {
  LimitSpec spec = Spec(name, permits, std::move(charges));
  spec.defined_at = "limits.yaml:" + std::to_string(name.size());
  return spec;
}

LimitSpec Until(int64_t ends_at_ns, LimitSpec spec) {
  spec.ends_at_ns = ends_at_ns;
  return spec;
}

class LimitRegistryTest : public ::testing::Test {
 protected:
  const Limit* Find(std::string_view name) {
    table_ = registry_.Current();
    return table_->Find(name);
  }
  uint64_t Permits(std::string_view name) {
    const Limit* limit = Find(name);
    return limit == nullptr ? 0 : limit->rule().parameters.token_bucket.rate.permits;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    table_ = registry_.Current();
    for (const Limit* limit : table_->limits()) names.emplace_back(limit->name());
    return names;
  }
  void Apply(std::vector<LimitSpec> specs, std::string version) {
    const auto applied = registry_.ApplyFile(std::move(specs), std::move(version));
    ASSERT_TRUE(applied.ok()) << applied.status();
    ASSERT_TRUE(*applied);
  }
  void Put(LimitSpec spec) {
    const auto put = registry_.Put(std::move(spec));
    ASSERT_TRUE(put.ok()) << put.status();
  }

  RecordingStore store_;
  LimitRegistry registry_{&store_};
  std::shared_ptr<const LimitTable> table_;
};

TEST_F(LimitRegistryTest, StartsEmpty) {
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(Find("api"), nullptr);
  EXPECT_EQ(registry_.Local()->file_version(), "");
  EXPECT_EQ(registry_.Local()->serial(), 1u);
}

TEST_F(LimitRegistryTest, RulesHaveMaxWaitAndMinKeysWithDefaults) {
  LimitSpec b = FileSpec("b");
  b.max_wait_ns = 2 * kSecondNs;
  b.min_keys = 0;
  b.keys.push_back({"k", {}, 5, {}});
  Apply({FileSpec("a"), b}, "v1");
  EXPECT_EQ(Find("a")->rule().max_wait_ns, 3600 * kSecondNs);
  EXPECT_EQ(Find("a")->rule().min_keys, std::nullopt);
  EXPECT_EQ(Find("b")->RuleFor("k").max_wait_ns, 2 * kSecondNs);
  EXPECT_EQ(Find("b")->RuleFor("k").min_keys, 0u);
  const size_t rules = store_.rules().size();
  b.direct = false;
  Apply({FileSpec("a"), b}, "v2");
  EXPECT_FALSE(Find("b")->spec().direct);
  EXPECT_EQ(store_.rules().size(), rules) << "the store has nothing to do with it";
  b.max_wait_ns = kSecondNs;
  Apply({FileSpec("a"), b}, "v3");
  EXPECT_EQ(Find("b")->RuleFor("k").max_wait_ns, kSecondNs);
}

TEST_F(LimitRegistryTest, RefusesMinKeysThatDoNotFitInTheStore) {
  LimitSpec small = FileSpec("small");
  small.min_keys = 10;  // 100 bytes each
  LimitSpec large = FileSpec("large");
  large.algorithm = algorithm::Kind::kSlidingLog;
  large.min_keys = 4;  // 1000 bytes each
  Apply({small, large}, "v1");
  store_.reservable_bytes = 5000;
  Apply({small, large, FileSpec("unset")}, "v2");
  large.min_keys = 5;
  EXPECT_EQ(registry_.ApplyFile({small, large}, "v3").status().message(),
            "limit \"large\" (limits.yaml:5): min_keys: \"5\": a key takes up to 1000 bytes, and "
            "all limits together reserve at most 5000 bytes; say at most 4");
  EXPECT_EQ(registry_.Current()->file_version(), "v2");
  small.min_keys = 11;
  EXPECT_EQ(registry_.Put(small).status().message(),
            "limit.min_keys: \"11\": a key takes up to 100 bytes, and all limits together reserve "
            "at most 5000 bytes; say at most 10");
  small.min_keys = 9;
  Put(small);
}

TEST_F(LimitRegistryTest, AppliesTheLimitsOfAFile) {
  Apply({FileSpec("b", 2, {"a"}), FileSpec("a", 1)}, "v1");
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  const Limit* b = Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_THAT(b->parents(), ElementsAre(Find("a")));
  EXPECT_EQ(b->spec().origin, Origin::kFile);
  EXPECT_EQ(b->spec().defined_at, "limits.yaml:1");
  EXPECT_EQ(b->rule().limit_name, "b");
  EXPECT_NE(b->rule().id, 0u);
  EXPECT_EQ(table_->file_version(), "v1");
  EXPECT_EQ(Find("nobody"), nullptr);
}

TEST_F(LimitRegistryTest, RegistersEveryRuleWithTheStore) {
  LimitSpec spec = FileSpec("a");
  spec.keys.push_back({"vip", algorithm::Rate{100, kSecondNs}, {}, {}});
  Apply({spec}, "v1");
  EXPECT_EQ(store_.rules().size(), 2u);
  EXPECT_TRUE(store_.Has(Find("a")->rule()));
  EXPECT_TRUE(store_.Has(Find("a")->RuleFor("vip")));
}

TEST_F(LimitRegistryTest, ABadFileChangesNothing) {
  Apply({FileSpec("a", 1)}, "v1");
  const auto before = registry_.Current();
  const size_t rules = store_.rules().size();
  LimitSpec bad = FileSpec("b");
  bad.burst = 0;
  const auto applied = registry_.ApplyFile({FileSpec("a", 2), bad}, "v2");
  EXPECT_EQ(applied.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(applied.status().message(),
            "limits[1].burst: \"0\": without debt grants nothing; say at least 1, or add debt to "
            "pace evenly");
  EXPECT_EQ(registry_.Current(), before);
  EXPECT_EQ(store_.rules().size(), rules);
}

TEST_F(LimitRegistryTest, RejectsDuplicateNamesInAFile) {
  EXPECT_EQ(
      registry_.ApplyFile({FileSpec("a"), FileSpec("b"), FileSpec("a")}, "v1").status().message(),
      "limits[2].name: \"a\": is already the name of limits[0] in line 1; give each limit a name "
      "of its own");
}

TEST_F(LimitRegistryTest, TheSameVersionChangesNothing) {
  Apply({FileSpec("a", 1)}, "v1");
  Put(Spec("a", 5));
  const auto before = registry_.Current();
  const auto applied = registry_.ApplyFile({FileSpec("a", 1)}, "v1");
  ASSERT_TRUE(applied.ok());
  EXPECT_FALSE(*applied);
  EXPECT_EQ(registry_.Current(), before);
  EXPECT_EQ(Permits("a"), 5u);
}

// Identity of rules.

TEST_F(LimitRegistryTest, KeepsTheRulesOfLimitsThatDidNotChange) {
  LimitSpec a = FileSpec("a", 1);
  a.keys.push_back({"vip", algorithm::Rate{100, kSecondNs}, {}, {}});
  Apply({a, FileSpec("b", 2)}, "v1");
  const store::Rule* own = &Find("a")->rule();
  const store::Rule* vip = &Find("a")->RuleFor("vip");
  const store::Rule* b = &Find("b")->rule();

  a.defined_at = "limits.yaml:77";
  a.charges = {"b"};
  Apply({FileSpec("b", 3), a}, "v2");
  EXPECT_EQ(&Find("a")->rule(), own);
  EXPECT_EQ(&Find("a")->RuleFor("vip"), vip);
  EXPECT_EQ(Find("a")->spec().defined_at, "limits.yaml:77");
  EXPECT_NE(&Find("b")->rule(), b);
  EXPECT_GT(Find("b")->rule().id, 3u);
  EXPECT_EQ(Find("b")->limit_id(), b->limit_id);
}

TEST_F(LimitRegistryTest, WritingADefaultExplicitlyChangesNoRule) {
  Apply({FileSpec("a", 7)}, "v1");
  const store::Rule* own = &Find("a")->rule();
  LimitSpec a = FileSpec("a", 7);
  a.burst = 7;
  a.debt = 0;
  Apply({a}, "v2");
  EXPECT_EQ(&Find("a")->rule(), own);
  EXPECT_EQ(Find("a")->spec().burst, 7u);
}

TEST_F(LimitRegistryTest, AChangedModeMakesANewRule) {
  LimitSpec a = FileSpec("a");
  Apply({a}, "v1");
  const store::Rule before = Find("a")->rule();
  a.mode = Mode::kShadow;
  Apply({a}, "v2");
  EXPECT_TRUE(Find("a")->rule().shadow);
  EXPECT_GT(Find("a")->rule().id, before.id);
}

TEST_F(LimitRegistryTest, AChangedMaxOwedMakesANewRule) {
  LimitSpec a = FileSpec("a");
  Apply({a}, "v1");
  const store::Rule before = Find("a")->rule();
  a.max_owed = 7;
  Apply({a}, "v2");
  EXPECT_EQ(Find("a")->rule().max_owed, 7u);
  EXPECT_GT(Find("a")->rule().id, before.id);
}

TEST_F(LimitRegistryTest, AnAddedOverrideIsNewerThanTheLimitsOwnRule) {
  LimitSpec a = FileSpec("a");
  Apply({a}, "v1");
  const store::Rule* own = &Find("a")->rule();
  a.keys.push_back({"vip", {}, 3, {}});
  Apply({a}, "v2");
  EXPECT_EQ(&Find("a")->rule(), own);
  EXPECT_EQ(&Find("a")->RuleFor("other"), own);
  EXPECT_GT(Find("a")->RuleFor("vip").id, own->id);
  EXPECT_EQ(Find("a")->RuleFor("vip").limit_id, own->limit_id);
}

TEST_F(LimitRegistryTest, ARemovedOverrideMakesTheLimitsOwnRuleNewer) {
  LimitSpec a = FileSpec("a");
  a.keys.push_back({"vip", {}, 3, {}});
  a.keys.push_back({"vap", {}, 4, {}});
  Apply({a}, "v1");
  const uint32_t vip = Find("a")->RuleFor("vip").id;
  const store::Rule* vap = &Find("a")->RuleFor("vap");
  a.keys.erase(a.keys.begin());
  Apply({a}, "v2");
  // Else the bucket of "vip" would refuse the limit's rule as older than its own for ever.
  EXPECT_GT(Find("a")->RuleFor("vip").id, vip);
  EXPECT_EQ(&Find("a")->RuleFor("vap"), vap);
}

TEST_F(LimitRegistryTest, AnAddedOverrideIsNewerThanAChangedOwnRule) {
  LimitSpec a = FileSpec("a");
  Apply({a}, "v1");
  a.rate.permits = 20;
  a.keys.push_back({"vip", {}, 3, {}});
  Apply({a}, "v2");
  EXPECT_GT(Find("a")->RuleFor("vip").id, Find("a")->rule().id);
}

TEST_F(LimitRegistryTest, AReaddedLimitHasItsIdAndANewerRule) {
  Apply({FileSpec("a"), FileSpec("b")}, "v1");
  const store::Rule before = Find("a")->rule();
  Apply({FileSpec("b"), FileSpec("c")}, "v2");
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_NE(Find("c")->limit_id(), before.limit_id);
  Apply({FileSpec("a")}, "v3");
  EXPECT_EQ(Find("a")->limit_id(), before.limit_id);
  EXPECT_GT(Find("a")->rule().id, before.id);
  EXPECT_EQ(table_->limit_id_end(), 3u);
}

TEST_F(LimitRegistryTest, RestoringEarlierParametersMakesANewRule) {
  Apply({FileSpec("a", 1)}, "v1");
  Apply({FileSpec("a", 2)}, "v2");
  const uint32_t second = Find("a")->rule().id;
  Apply({FileSpec("a", 1)}, "v1");
  EXPECT_GT(Find("a")->rule().id, second);
}

// Precedence of file and admin.

TEST_F(LimitRegistryTest, PutOverTheFileLastsUntilTheFileChanges) {
  Apply({FileSpec("a", 1)}, "v1");
  const auto put = registry_.Put(Spec("a", 5));
  ASSERT_TRUE(put.ok());
  EXPECT_TRUE(put->replaced);
  EXPECT_EQ(put->limit->spec().origin, Origin::kAdminOverFile);
  EXPECT_EQ(put->limit->spec().defined_at, "limits.yaml:1");
  EXPECT_EQ(put->limit, put->table->Find("a"));
  EXPECT_EQ(Permits("a"), 5u);
  EXPECT_EQ(table_->admin_changes(), 1u);

  Apply({FileSpec("a", 1), FileSpec("b")}, "v2");
  EXPECT_EQ(Permits("a"), 1u);
  EXPECT_EQ(Find("a")->spec().origin, Origin::kFile);
  EXPECT_EQ(table_->admin_changes(), 0u);
}

TEST_F(LimitRegistryTest, PutOverTheFileEndsWhenTheFileDropsTheLimit) {
  Apply({FileSpec("a", 1), FileSpec("b")}, "v1");
  Put(Spec("a", 5));
  Apply({FileSpec("b")}, "v2");
  EXPECT_THAT(Names(), ElementsAre("b"));
}

TEST_F(LimitRegistryTest, PutOfAnotherLimitSurvivesReloads) {
  Apply({FileSpec("a", 1)}, "v1");
  const auto put = registry_.Put(Spec("mine", 5));
  ASSERT_TRUE(put.ok());
  EXPECT_FALSE(put->replaced);
  EXPECT_EQ(put->limit->spec().origin, Origin::kAdmin);
  EXPECT_EQ(put->limit->spec().defined_at, "");
  const store::Rule* rule = &put->limit->rule();
  Apply({FileSpec("b")}, "v2");
  EXPECT_THAT(Names(), ElementsAre("b", "mine"));
  EXPECT_EQ(&Find("mine")->rule(), rule);
  EXPECT_EQ(table_->admin_changes(), 1u);
}

TEST_F(LimitRegistryTest, AFileThatNamesAnAdminLimitTakesItOver) {
  Put(Spec("a", 5));
  Apply({FileSpec("a", 1)}, "v1");
  EXPECT_EQ(Permits("a"), 1u);
  EXPECT_EQ(Find("a")->spec().origin, Origin::kFile);
  Apply({FileSpec("b")}, "v2");
  EXPECT_EQ(Find("a"), nullptr);
}

TEST_F(LimitRegistryTest, FileAndEnvoyConfigurationAreReplacedApart) {
  Apply({FileSpec("a", 1)}, "v1");
  const auto companion = std::make_shared<const int>(1);
  ASSERT_TRUE(*registry_.ApplyEnvoy({FileSpec("e//y"), FileSpec("e//x")}, "e1", companion));
  EXPECT_THAT(Names(), ElementsAre("a", "e//x", "e//y"));
  EXPECT_EQ(Find("e//x")->spec().origin, Origin::kEnvoy);
  EXPECT_THAT(table_->envoy_limits(), ElementsAre(table_->Find("e//y"), table_->Find("e//x")));
  EXPECT_EQ(table_->envoy_companion(), companion.get());

  Apply({FileSpec("b", 1)}, "v2");
  EXPECT_THAT(Names(), ElementsAre("b", "e//x", "e//y"));
  EXPECT_THAT(table_->envoy_limits(), ElementsAre(table_->Find("e//y"), table_->Find("e//x")));
  EXPECT_EQ(table_->envoy_companion(), companion.get());

  const auto next = std::make_shared<const int>(2);
  ASSERT_TRUE(*registry_.ApplyEnvoy({FileSpec("e//z")}, "e2", next));
  EXPECT_THAT(Names(), ElementsAre("b", "e//z"));
  EXPECT_EQ(table_->envoy_companion(), next.get());
  EXPECT_FALSE(*registry_.ApplyEnvoy({}, "e2", nullptr));
}

TEST_F(LimitRegistryTest, PutOverAnEnvoyLimitEndsWhenItsConfigurationChanges) {
  ASSERT_TRUE(registry_.ApplyEnvoy({FileSpec("e//x", 1), FileSpec("e//y")}, "e1", nullptr).ok());
  const auto put = registry_.Put(Spec("e//x", 5));
  ASSERT_TRUE(put.ok());
  EXPECT_EQ(put->limit->spec().origin, Origin::kAdminOverFile);
  ASSERT_TRUE(registry_.Delete("e//y").ok());
  Apply({FileSpec("a", 1)}, "v1");
  EXPECT_EQ(Permits("e//x"), 5u);
  EXPECT_THAT(table_->envoy_limits(), ElementsAre(table_->Find("e//x"), nullptr));
  EXPECT_EQ(table_->admin_changes(), 2u);

  ASSERT_TRUE(registry_.ApplyEnvoy({FileSpec("e//x", 1), FileSpec("e//y")}, "e2", nullptr).ok());
  EXPECT_EQ(Permits("e//x"), 1u);
  EXPECT_THAT(Names(), ElementsAre("a", "e//x", "e//y"));
  EXPECT_EQ(table_->admin_changes(), 0u);
}

TEST_F(LimitRegistryTest, RefusesOverAnEnvoyLimitWhatCountsNoHits) {
  ASSERT_TRUE(registry_.ApplyEnvoy({FileSpec("e//x"), FileSpec("e//y")}, "e1", nullptr).ok());
  EXPECT_EQ(registry_.Put(FileSpec("e//x", 1, {"e//y"})).status().message(),
            "limit.charges[0]: \"e//y\": a limit of Envoy's configuration charges no others; leave "
            "it out");
  LimitSpec slots = FileSpec("e//z");
  slots.algorithm = algorithm::Kind::kConcurrency;
  slots.rate = {};
  slots.permits = 3;
  slots.ends_at_ns = 1000;
  Put(slots);
  const absl::Status refused = registry_.ApplyEnvoy({FileSpec("e//z")}, "e2", nullptr).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(
      refused.message(),
      "limits: \"e//z\", which was put by the admin, does not go with Envoy's configuration: "
      "algorithm: \"concurrency\": a limit of Envoy's configuration counts hits, which do not "
      "end; say token_bucket, sliding_window or another with a rate; change or delete it "
      "first");
}

TEST_F(LimitRegistryTest, RefusesALimitThatFileAndEnvoyConfigurationBothDefine) {
  Apply({FileSpec("a", 1)}, "v1");
  const absl::Status refused = registry_.ApplyEnvoy({FileSpec("a")}, "e1", nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "limits: \"a\" (limits.yaml:1) is also in the limits file (limits.yaml:1); rename one "
            "of them");
  ASSERT_TRUE(registry_.ApplyEnvoy({FileSpec("b")}, "e1", nullptr).ok());
  EXPECT_EQ(registry_.ApplyFile({FileSpec("b")}, "v2").status().message(),
            "limits: \"b\" (limits.yaml:1) is also a limit of Envoy's configuration "
            "(limits.yaml:1); rename one of them");
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
}

TEST_F(LimitRegistryTest, ADeletedFileLimitReturnsWhenTheFileChanges) {
  Apply({FileSpec("a", 1), FileSpec("b")}, "v1");
  ASSERT_TRUE(registry_.Delete("a").ok());
  EXPECT_THAT(Names(), ElementsAre("b"));
  EXPECT_EQ(table_->admin_changes(), 1u);
  EXPECT_FALSE(*registry_.ApplyFile({FileSpec("a", 1), FileSpec("b")}, "v1"));
  EXPECT_THAT(Names(), ElementsAre("b"));
  Apply({FileSpec("a", 1), FileSpec("b", 9)}, "v2");
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  EXPECT_EQ(table_->admin_changes(), 0u);
}

TEST_F(LimitRegistryTest, DeleteOfAPutOverTheFileRemovesBoth) {
  Apply({FileSpec("a", 1)}, "v1");
  Put(Spec("a", 5));
  ASSERT_TRUE(registry_.Delete("a").ok());
  EXPECT_EQ(Find("a"), nullptr);
  EXPECT_EQ(table_->admin_changes(), 1u);
  // Put again: the file still names it.
  Put(Spec("a", 6));
  EXPECT_EQ(Find("a")->spec().origin, Origin::kAdminOverFile);
  EXPECT_EQ(table_->admin_changes(), 1u);
}

TEST_F(LimitRegistryTest, ATemporaryPutIsUndoneToTheLimitOfTheFile) {
  Apply({FileSpec("api", 10)}, "v1");
  EXPECT_EQ(registry_.Current()->first_end_ns(), LimitTable::kNoEnd);
  Put(Until(100, Spec("api", 50)));
  EXPECT_EQ(Permits("api"), 50u);
  EXPECT_EQ(Find("api")->spec().origin, Origin::kAdminOverFile);
  EXPECT_EQ(registry_.Current()->first_end_ns(), 100);
  EXPECT_EQ(registry_.Current()->admin_changes(), 1u);
  EXPECT_EQ(registry_.EndTemporary("api", 99).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Permits("api"), 50u);
  const uint32_t rule = Find("api")->rule().id;
  ASSERT_TRUE(registry_.EndTemporary("api", 100).ok());
  EXPECT_EQ(Permits("api"), 10u);
  EXPECT_EQ(Find("api")->spec().origin, Origin::kFile);
  EXPECT_GT(Find("api")->rule().id, rule) << "so that buckets are converted";
  EXPECT_EQ(registry_.Current()->first_end_ns(), LimitTable::kNoEnd);
  EXPECT_EQ(registry_.Current()->admin_changes(), 0u);
  EXPECT_EQ(registry_.EndTemporary("api", 100).code(), absl::StatusCode::kNotFound);
}

TEST_F(LimitRegistryTest, ATemporaryPutSurvivesReloadsAndIsUndoneToTheNewFile) {
  Apply({FileSpec("api", 10), FileSpec("gone", 10)}, "v1");
  Put(Until(100, Spec("api", 50)));
  Put(Until(200, Spec("gone", 51)));
  LimitSpec moved = FileSpec("api", 20);
  moved.defined_at = "limits.yaml:77";
  const uint32_t rule = Find("api")->rule().id;
  Apply({moved, FileSpec("other")}, "v2");
  EXPECT_EQ(Permits("api"), 50u);
  EXPECT_EQ(Find("api")->spec().defined_at, "limits.yaml:77");
  EXPECT_EQ(Find("api")->rule().id, rule);
  EXPECT_EQ(Find("gone")->spec().origin, Origin::kAdmin);
  EXPECT_EQ(Find("gone")->spec().defined_at, "");
  ASSERT_TRUE(registry_.EndTemporary("api", 100).ok());
  EXPECT_EQ(Permits("api"), 20u);
  EXPECT_EQ(registry_.Current()->first_end_ns(), 200);
  ASSERT_TRUE(registry_.EndTemporary("gone", 200).ok());
  EXPECT_THAT(Names(), ElementsAre("api", "other"));
}

TEST_F(LimitRegistryTest, ASecondTemporaryPutIsUndoneToTheLimitBeforeTheFirst) {
  Apply({FileSpec("file", 10)}, "v1");
  Put(Spec("admin", 11));
  ASSERT_TRUE(registry_.Delete("file").ok());
  for (const uint64_t permits : {50u, 60u}) {
    Put(Until(static_cast<int64_t>(permits), Spec("file", permits)));
    Put(Until(static_cast<int64_t>(permits), Spec("admin", permits)));
    Put(Until(static_cast<int64_t>(permits), Spec("new", permits)));
  }
  EXPECT_EQ(registry_.Current()->admin_changes(), 3u);
  EXPECT_EQ(registry_.EndTemporary("admin", 50).code(), absl::StatusCode::kNotFound)
      << "the second end counts";
  for (const char* name : {"file", "admin", "new"}) {
    EXPECT_EQ(Permits(name), 60u);
    ASSERT_TRUE(registry_.EndTemporary(name, 60).ok());
  }
  EXPECT_THAT(Names(), ElementsAre("admin")) << "`file` was deleted before";
  EXPECT_EQ(Permits("admin"), 11u);
}

TEST_F(LimitRegistryTest, APutWithoutEndAndADeleteEndATemporaryPut) {
  Apply({FileSpec("api", 10), FileSpec("file", 10)}, "v1");
  Put(Until(100, Spec("api", 50)));
  Put(Spec("api", 60));
  EXPECT_EQ(Permits("api"), 60u);
  EXPECT_EQ(registry_.EndTemporary("api", 100).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Permits("api"), 60u);
  Put(Until(100, Spec("file", 50)));
  ASSERT_TRUE(registry_.Delete("file").ok());
  EXPECT_EQ(Find("file"), nullptr);
  EXPECT_EQ(registry_.EndTemporary("file", 100).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(registry_.Current()->first_end_ns(), LimitTable::kNoEnd);
}

TEST_F(LimitRegistryTest, ATemporaryPutStaysWhileOthersNeedIt) {
  Put(Until(100, Spec("parent", 50)));
  Put(Until(200, Spec("child", 50, {"parent"})));
  EXPECT_EQ(registry_.EndTemporary("parent", 100).message(), registry_.Delete("parent").message());
  EXPECT_EQ(registry_.EndTemporary("parent", 100).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Permits("parent"), 50u);
  ASSERT_TRUE(registry_.EndTemporary("child", 200).ok());
  ASSERT_TRUE(registry_.EndTemporary("parent", 100).ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(LimitRegistryTest, ATemporaryPutOverAnEnvoyLimitSurvivesItsConfiguration) {
  ASSERT_TRUE(registry_.ApplyEnvoy({FileSpec("envoy", 10)}, "v1", nullptr).ok());
  Put(Until(100, Spec("envoy", 50)));
  ASSERT_TRUE(registry_.ApplyEnvoy({FileSpec("envoy", 20)}, "v2", nullptr).ok());
  EXPECT_EQ(Permits("envoy"), 50u);
  EXPECT_EQ(registry_.Current()->envoy_limits()[0], Find("envoy"));
  ASSERT_TRUE(registry_.EndTemporary("envoy", 100).ok());
  EXPECT_EQ(Permits("envoy"), 20u);
}

TEST_F(LimitRegistryTest, AnotherReasonMakesNoNewRule) {
  LimitSpec spec = Spec("api");
  spec.reason = "one";
  Put(spec);
  const uint32_t rule = Find("api")->rule().id;
  spec.reason = "two";
  spec.ends_at_ns = 7;
  Put(spec);
  EXPECT_EQ(Find("api")->spec().reason, "two");
  EXPECT_EQ(Find("api")->rule().id, rule);
}

TEST_F(LimitRegistryTest, DeleteOfAnAdminLimitIsPermanent) {
  Put(Spec("mine"));
  ASSERT_TRUE(registry_.Delete("mine").ok());
  EXPECT_EQ(Find("mine"), nullptr);
  EXPECT_EQ(table_->admin_changes(), 0u);
  EXPECT_EQ(registry_.Delete("mine").code(), absl::StatusCode::kNotFound);
}

TEST_F(LimitRegistryTest, RejectsDeletingALimitThatOthersCharge) {
  Apply({FileSpec("overall"), FileSpec("a", 1, {"overall"}), FileSpec("b", 1, {"overall"})}, "v1");
  const absl::Status status = registry_.Delete("overall");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "limit \"overall\" is charged by \"a\" and 1 more; take it out of their charges first");
  EXPECT_THAT(Names(), ElementsAre("a", "b", "overall"));
}

TEST_F(LimitRegistryTest, RejectsAFileWithoutALimitThatAnAdminLimitCharges) {
  Apply({FileSpec("overall")}, "v1");
  Put(Spec("mine", 1, {"overall"}));
  const auto applied = registry_.ApplyFile({FileSpec("other")}, "v2");
  EXPECT_EQ(applied.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(applied.status().message(),
            "limits: \"mine\", which was put by the admin, charges \"overall\", which this file "
            "does not have; keep it in the file, or change or delete \"mine\" first");
  EXPECT_THAT(Names(), ElementsAre("mine", "overall"));
  EXPECT_EQ(table_->file_version(), "v1");
}

TEST_F(LimitRegistryTest, RejectsAFileLimitThatChargesAnAdminLimit) {
  Put(Spec("mine"));
  EXPECT_THAT(
      std::string(registry_.ApplyFile({FileSpec("a", 1, {"mine"})}, "v1").status().message()),
      HasSubstr("limits[0].charges[0]: \"mine\": no limit has that name"));
}

TEST_F(LimitRegistryTest, ABadPutIsExplainedAndChangesNothing) {
  Apply({FileSpec("a", 1, {"b"}), FileSpec("b")}, "v1");
  const auto before = registry_.Current();
  LimitSpec log = Spec("log");
  log.algorithm = algorithm::Kind::kSlidingLog;
  log.burst = 5;
  EXPECT_EQ(registry_.Put(log).status().message(),
            "limit.burst: \"5\": sliding_log has none; take it out, or say algorithm: "
            "token_bucket");
  EXPECT_EQ(registry_.Put(Spec("b", 1, {"a"})).status().message(),
            "limit.charges[0]: \"a\": makes a cycle, b -> a -> b; a limit cannot charge itself, "
            "take one of them out");
  EXPECT_EQ(registry_.Put(Spec("c", 1, {"nobody"})).status().message(),
            "limit.charges[0]: \"nobody\": no limit has that name; add it, or take this out");
  EXPECT_EQ(registry_.Put(Spec("c", 1, {"nobody"})).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_.Current(), before);
}

TEST_F(LimitRegistryTest, RejectsAPutThatGivesAnotherLimitTooManyCharges) {
  std::vector<LimitSpec> specs;
  for (int i = 0; i < 15; ++i) {
    specs.push_back(FileSpec("l" + std::to_string(i), 1, {"l" + std::to_string(i + 1)}));
  }
  specs.push_back(FileSpec("l15"));
  specs.push_back(FileSpec("more"));
  Apply(specs, "v1");
  EXPECT_THAT(std::string(registry_.Put(Spec("l15", 1, {"more"})).status().message()),
              HasSubstr("limit.charges: \"l0\" charges this limit: charges: with those"));
}

// Access to the table.

TEST_F(LimitRegistryTest, LocalFollowsEachChange) {
  EXPECT_EQ(registry_.Local()->Find("a"), nullptr);
  Apply({FileSpec("a", 1)}, "v1");
  EXPECT_NE(registry_.Local()->Find("a"), nullptr);
  EXPECT_EQ(registry_.Local().get(), registry_.Current().get());
  std::thread([&] { EXPECT_NE(registry_.Local()->Find("a"), nullptr); }).join();
}

TEST_F(LimitRegistryTest, LocalDistinguishesRegistries) {
  RecordingStore other_store;
  std::optional<LimitRegistry> other(std::in_place, &other_store);
  Apply({FileSpec("a", 1)}, "v1");
  EXPECT_NE(registry_.Local()->Find("a"), nullptr);
  EXPECT_EQ(other->Local()->Find("a"), nullptr);
  EXPECT_NE(registry_.Local()->Find("a"), nullptr);
  // A registry at the address of a destroyed one is not confused with it.
  EXPECT_EQ(other->Local()->Find("a"), nullptr);
  other.emplace(&other_store);
  ASSERT_TRUE(other->ApplyFile({FileSpec("c")}, "v1").ok());
  EXPECT_NE(other->Local()->Find("c"), nullptr);
}

TEST_F(LimitRegistryTest, KeepsATableThatIsStillReferenced) {
  Apply({FileSpec("a", 1)}, "v1");
  const std::shared_ptr<const LimitTable> held = registry_.Local();
  std::weak_ptr<const LimitTable> weak = registry_.Current();
  Apply({FileSpec("a", 2)}, "v2");
  EXPECT_EQ(registry_.Local()->Find("a")->rule().parameters.token_bucket.rate.permits, 2u);
  registry_.ReleaseRetired();
  EXPECT_FALSE(weak.expired());
  EXPECT_EQ(held->Find("a")->rule().parameters.token_bucket.rate.permits, 1u);
}

TEST_F(LimitRegistryTest, ReleaseRetiredFreesUnreferencedTables) {
  Apply({FileSpec("a", 1)}, "v1");
  std::weak_ptr<const LimitTable> weak = registry_.Current();
  EXPECT_NE(registry_.Local()->Find("a"), nullptr);
  Apply({FileSpec("a", 2)}, "v2");
  // This thread's cache still has it.
  EXPECT_FALSE(weak.expired());
  EXPECT_NE(registry_.Local()->Find("a"), nullptr);
  // The request thread did not free it.
  EXPECT_FALSE(weak.expired());
  registry_.ReleaseRetired();
  EXPECT_TRUE(weak.expired());
}

TEST_F(LimitRegistryTest, FindsOverridesByKey) {
  LimitSpec a = FileSpec("a", 1);
  for (int i = 0; i < 100; ++i) {
    a.keys.push_back({"k" + std::to_string(i), {}, static_cast<uint64_t>(i + 1), {}});
  }
  a.keys.push_back({"", {}, 1000, {}});
  Apply({a}, "v1");
  const Limit* limit = Find("a");
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(limit->RuleFor("k" + std::to_string(i)).parameters.token_bucket.burst,
              static_cast<uint64_t>(i + 1));
  }
  EXPECT_EQ(limit->RuleFor("").parameters.token_bucket.burst, 1000u);
  EXPECT_EQ(&limit->RuleFor("k100"), &limit->rule());
}

TEST_F(LimitRegistryTest, AcceptsMaxLimitsAndNoMore) {
  std::vector<LimitSpec> specs;
  for (size_t i = 0; i < common::bounds::kMaxLimits; ++i) {
    specs.push_back(Spec("l" + std::to_string(i)));
  }
  Apply(specs, "v1");
  EXPECT_EQ(registry_.Put(Spec("more")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(registry_.Put(Spec("l7", 3)).ok());
  specs.push_back(Spec("more"));
  EXPECT_EQ(registry_.ApplyFile(specs, "v2").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace sluice::limits
