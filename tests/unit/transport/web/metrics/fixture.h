// MetricsTest: a server's use cases on a memory store, and the text of its metrics.
#ifndef SLUICE_TESTS_UNIT_TRANSPORT_WEB_METRICS_FIXTURE_H_
#define SLUICE_TESTS_UNIT_TRANSPORT_WEB_METRICS_FIXTURE_H_

#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/service/limit_admin.h"
#include "server/service/registry_rules.h"
#include "server/transport/web/metrics/exposition.h"
#include "tests/unit/service/fixture.h"

namespace sluice::metrics {

using service::PerSecond;

class MetricsTest : public service::ServiceTest {
 protected:
  MetricsTest() : null_(open("/dev/null", O_WRONLY)) {}
  ~MetricsTest() override { close(null_); }

  std::string Text(uint32_t max_limits = common::bounds::kMaxMetricLimits) {
    Exposition exposition(sources_, max_limits);
    std::string text;
    while (exposition.Step(&text)) {
    }
    return text;
  }

  // "name{labels}" -> value, as text. Fails the test if a sample stands there twice, or if a family
  // is not in one piece with its HELP and TYPE before it.
  static std::map<std::string, std::string> Samples(const std::string& text) {
    std::map<std::string, std::string> samples;
    std::map<std::string, int> families;
    std::string family;
    size_t end = 0;
    for (size_t start = 0; start < text.size(); start = end + 1) {
      end = text.find('\n', start);
      const std::string line = text.substr(start, end - start);
      if (line.rfind("# HELP ", 0) == 0) {
        family = line.substr(7, line.find(' ', 7) - 7);
        EXPECT_EQ(++families[family], 1) << line;
        continue;
      }
      if (line.rfind("# TYPE ", 0) == 0) continue;
      EXPECT_EQ(line.rfind(family, 0), 0u) << line << "\nis among the samples of " << family;
      const size_t space = line.rfind(' ');
      const bool added = samples.emplace(line.substr(0, space), line.substr(space + 1)).second;
      EXPECT_TRUE(added) << line;
    }
    return samples;
  }
  std::map<std::string, std::string> Samples(
      uint32_t max_limits = common::bounds::kMaxMetricLimits) {
    return Samples(Text(max_limits));
  }

  struct NoAlarm final : waiting::Alarm {
    void SetAt(int64_t) override {}
  };

  const int null_;
  common::Log log_{clock_, common::LogLevel::kError, null_};
  limits::FileStatus file_;
  service::LimitAdmin admin_{
      {registry_, store_, clock_, metrics_, usage_, signer_}, log_, "1.2.3", [this] {
        return file_;
      }};
  service::RegistryRules rules_{registry_};
  NoAlarm alarm_;
  waiting::HeldCallers held_{store_, clock_, rules_, alarm_};
  service::WatchHub watches_{limiter_};
  common::MemoryBudget memory_{1 << 20};
  Sources sources_{admin_, held_, watches_, memory_};
};

}  // namespace sluice::metrics

#endif  // SLUICE_TESTS_UNIT_TRANSPORT_WEB_METRICS_FIXTURE_H_
