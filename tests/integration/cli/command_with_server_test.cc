// The command against the real sluiced, on every data transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cli/shell.h"
#include "tests/support/server_process.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::ServerProcess;

class CommandWithServerTest : public ::testing::TestWithParam<testing::DataTransport> {
 protected:
  void Start(const std::string& limits = "limits: [{name: api, rate: 5/s}]",
             std::vector<std::string> flags = {}) {
    server_ = std::make_unique<ServerProcess>(ServerProcess::Options{
        .limits = limits, .flags = std::move(flags), .transport = GetParam()});
    setenv("SLUICE_SERVER", server_->data_address().c_str(), 1);
    setenv("SLUICE_ADMIN", server_->admin_address().c_str(), 1);
    unsetenv("SLUICE_TOKEN_FILE");
  }

  // The deadline leaves room for a slow machine.
  static Outcome Sluice(const std::string& arguments) {
    return testing::Shell("$SLUICE --deadline 20s " + arguments);
  }

  std::unique_ptr<ServerProcess> server_;
};

TEST_P(CommandWithServerTest, HealthTellsOfEachPortAndEachService) {
  Start();
  const Outcome serving = Sluice("health");
  EXPECT_EQ(serving.exit_code, 0) << serving.err;
  EXPECT_EQ(serving.out, "SERVING\n");
  EXPECT_EQ(Sluice("health sluice.v1.RateLimiter").out, "SERVING\n");
  EXPECT_EQ(Sluice("health --admin-port").out, "SERVING\n");
  EXPECT_EQ(Sluice("health --admin-port sluice.v1.LimitAdmin --output json").out,
            "{\"server\":\"" + server_->admin_address() +
                "\",\"service\":\"sluice.v1.LimitAdmin\",\"status\":\"SERVING\"}\n");
  // Each port knows its own service.
  const Outcome unknown = Sluice("health sluice.v1.LimitAdmin");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err, HasSubstr("NOT_FOUND"));
}

TEST_P(CommandWithServerTest, HealthOfADrainingServerIsNotServingAndOfOneThatLeftAway) {
  Start("limits: [{name: api, rate: 5/s}]", {"--drain_notice=30s"});
  server_->Signal(SIGTERM);
  Outcome draining = Sluice("health");
  for (int i = 0; i < 1000 && draining.exit_code == 0; ++i) draining = Sluice("health");
  EXPECT_EQ(draining.exit_code, 1) << draining.err;
  EXPECT_EQ(draining.out, "NOT_SERVING\n");
  const Outcome admin = Sluice("health --admin-port --output json");
  EXPECT_EQ(admin.exit_code, 1) << admin.err;
  EXPECT_THAT(admin.out, HasSubstr("\"status\":\"NOT_SERVING\""));

  // Several servers: a line each, and the worst one's exit code.
  const ServerProcess other({.transport = GetParam()});
  const Outcome both =
      Sluice("health --server " + other.data_address() + "," + server_->data_address());
  EXPECT_EQ(both.exit_code, 1);
  EXPECT_EQ(both.out,
            other.data_address() + "  SERVING\n" + server_->data_address() + "  NOT_SERVING\n");

  server_->Kill();
  const Outcome away = Sluice("--deadline 2s health");
  EXPECT_EQ(away.exit_code, 3);
  EXPECT_EQ(away.out, "");
  EXPECT_THAT(away.err, HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(Sluice("--deadline 2s health --server " + other.data_address() + "," +
                   server_->data_address())
                .exit_code,
            3);
}

INSTANTIATE_TEST_SUITE_P(OnEveryTransport, CommandWithServerTest,
                         ::testing::ValuesIn(testing::DataTransports()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluice
