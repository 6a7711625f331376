// `sluice check` and `sluice import` with Envoy's rate-limit configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/integration/cli/shell.h"
#include "tests/unit/envoy/bad_configurations.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class EnvoyCommandsTest : public ::testing::Test {
 protected:
  EnvoyCommandsTest() {
    char folder[] = "/tmp/sluice-envoy-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~EnvoyCommandsTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  static Outcome Sluice(const std::string& arguments) { return Shell("$SLUICE " + arguments); }

  // Imports one file.
  Outcome Import(const std::string& text, const std::string& options = "") const {
    return Sluice("import " + Write("f.yaml", text) + " " + options);
  }

  std::string folder_;
};

// A limit of every field, below a wildcard.
constexpr char kAll[] = R"(
domain: shop
descriptors:
  - key: path
    value: /api/*
    descriptors:
      - key: tenant
        rate_limit:
          unit: minute
          requests_per_unit: 100
          name: per-tenant
          replaces: [{ name: base }]
        shadow_mode: true
        quota_mode: true
        detailed_metric: true
        metadata: { team: a }
      - key: method
        value: P*T
        share_threshold: true
        rate_limit: { unit: second, requests_per_unit: 0 }
  - key: path
    value: /static
    rate_limit: { unlimited: true }
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 5 }
)";

TEST_F(EnvoyCommandsTest, CheckNamesTheNumberOfDomainsAndLimits) {
  const std::string path = Write("f.yaml", kAll);
  const Outcome good = Sluice("check " + path);
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(good.out, path + ": good, Envoy's configuration: 1 domain, 4 limits\n");
  EXPECT_THAT(Sluice("check --output json " + folder_).out,
              AllOf(HasSubstr("\"domains\":1"), HasSubstr("\"limits\":4")));
}

TEST_F(EnvoyCommandsTest, CheckWarnsOfFieldsWithoutEffect) {
  const std::string path =
      Write("f.yaml",
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, "
            "shadow_mode: true }\n");
  const Outcome good = Sluice("check " + path);
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_THAT(good.err, HasSubstr("warning: " + path + ":4:30: "));
}

TEST_F(EnvoyCommandsTest, CheckRefusesTwoFilesOfADomainUnlessTheyAreMerged) {
  Write("a.yaml", "domain: d\ndescriptors: [{ key: a }]\n");
  Write("b.yaml", "domain: d\ndescriptors: [{ key: b }]\n");
  const Outcome twice = Sluice("check " + folder_);
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.err, HasSubstr(folder_ + "/b.yaml:1:"));
  EXPECT_EQ(Sluice("check --merge-domains " + folder_).exit_code, 0);
}

// Each error of the format, with file, line, column and what to write. Those of a file that does
// not look like Envoy's configuration are the limits file's.
TEST_F(EnvoyCommandsTest, CheckAndImportSayWhereAnErrorIs) {
  for (const envoy::BadConfiguration& bad : envoy::kBadConfigurations) {
    SCOPED_TRACE(bad.name);
    std::filesystem::create_directory(folder_ + "/config");
    const std::string path = Write("config/f.yaml", bad.text);
    std::string message = bad.message;
    for (size_t at = message.find("f.yaml"); at != message.npos;
         at = message.find("f.yaml", at + path.size())) {
      message.replace(at, 6, path);
    }
    // A folder is Envoy's, whatever is in it.
    for (const char* command : {"check ", "import "}) {
      const Outcome refused = Sluice(command + folder_ + "/config");
      EXPECT_EQ(refused.exit_code, 2);
      EXPECT_EQ(refused.err, message + "\n");
      EXPECT_EQ(refused.out, "");
    }
  }
  EXPECT_THAT(Sluice("check --output json " + folder_ + "/config").out,
              AllOf(HasSubstr("\"ok\":false"), HasSubstr("f.yaml:2:14")));
}

TEST_F(EnvoyCommandsTest, ImportWritesALimitsFileThatTheServerAccepts) {
  const Outcome imported = Import(kAll);
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_THAT(imported.out,
              HasSubstr("  - name: shop//user\n    algorithm: token_bucket\n    rate: "
                        "5/h\n"));
  EXPECT_THAT(imported.out, HasSubstr("    mode: shadow\n"));
  const Outcome checked = Sluice("check " + Write("limits.yaml", imported.out));
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("3 limits"));
}

TEST_F(EnvoyCommandsTest, ImportListsWhatALimitsFileCannotExpress) {
  const std::string out = Import(kAll).out;
  // A wildcard of a parent too.
  EXPECT_THAT(out,
              HasSubstr("f.yaml:7:9\n  # not expressed: value /api/* of path: the program must "
                        "compare; quota_mode; replaces base; metadata; detailed_metric, "
                        "value_to_metric; name per-tenant\n"
                        "  # key: value of path | value of tenant\n"));
  EXPECT_THAT(out,
              HasSubstr("  # not expressed: requests_per_unit 0: a limit has at least 1 permit; "
                        "value /api/* of path: the program must compare; value P*T of method: "
                        "the program must compare\n  # key: value of path\n"));
  EXPECT_THAT(out, HasSubstr("  # not expressed: unlimited: needs no limit\n"));
  EXPECT_THAT(
      Import(kAll, "--output json").out,
      HasSubstr("shop//path:/api/@2A//tenant: value /api/* of path: the program must compare"));
}

TEST_F(EnvoyCommandsTest, ImportCountsInTheModeThatIsAskedFor) {
  const std::string text =
      "domain: d\ndescriptors:\n  - key: k\n    rate_limit: { unit: day, requests_per_unit: 5 }\n";
  EXPECT_THAT(Import(text).out, HasSubstr("algorithm: token_bucket"));
  EXPECT_THAT(Import(text, "--mode compatible").out, HasSubstr("algorithm: fixed_window"));
  const Outcome bad = Import(text, "--mode both");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--mode both: write exact or compatible"));
}

TEST_F(EnvoyCommandsTest, ImportOfAMissingFileNamesIt) {
  const Outcome missing = Sluice("import " + folder_ + "/none");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("/none"), Not(HasSubstr("good"))));
}

}  // namespace
}  // namespace sluice::testing
