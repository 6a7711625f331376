#include "server/transport/web/page/overview.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/transport/http1/http_server.h"
#include "tests/support/fake_stream.h"
#include "tests/unit/service/fixture.h"

namespace sluice::web {
namespace {

using ::sluice::testing::FakeStream;

class OpenGate final : public http1::Gate {
 public:
  std::optional<http1::Problem> Check(const http1::Exchange&) const override {
    return std::nullopt;
  }
};

class OverviewTest : public service::ServiceTest {
 protected:
  struct Alarm final : waiting::Alarm {
    void SetAt(int64_t) override {}
  };
  struct Rules final : waiting::RuleSource {
    uint64_t Generation() override { return 0; }
    waiting::Refreshed Refresh(absl::Span<store::Charge>, std::shared_ptr<const void>*) override {
      return waiting::Refreshed::kSame;
    }
  };

  OverviewTest() {
    Load({service::PerSecond("api", 10)});
    overview_.Register(&routes_, gate_);
    server_.AddLoop(loop_);
    overview_.Start();
    background_->RunOnce(0);
  }
  ~OverviewTest() override {
    for (net::StreamHandler* const one : handlers_) one->OnClosed(absl::OkStatus());
    close(null_);
  }

  void Read(size_t readers) {
    constexpr std::string_view kRequest = "GET /v1/overview HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (size_t i = 0; i < readers; ++i) {
      handlers_.push_back(server_.Accept(streams_.emplace_back(loop_)));
      handlers_.back()->OnOpen();
      handlers_.back()->OnData(
          {reinterpret_cast<const uint8_t*>(kRequest.data()), kRequest.size()});
    }
  }
  // A second in which the loop has one iteration.
  void Second() {
    clock_.Advance(service::kSecond);
    background_->RunOnce(0);
    loop_.RunOnce(0);
  }
  size_t ReadersWith(std::string_view event) {
    size_t readers = 0;
    for (const FakeStream& one : streams_) readers += one.output.find(event) != std::string::npos;
    return readers;
  }

  const int null_ = open("/dev/null", O_WRONLY);
  common::Log log_{clock_, common::LogLevel::kError, null_};
  service::LimitAdmin admin_{limiter_.collaborators(), log_, "test",
                             [] { return limits::FileStatus(); }};
  Alarm alarm_;
  Rules rules_;
  waiting::HeldCallers held_{store_, clock_, rules_, alarm_};
  const std::unique_ptr<net::LoopGroup> loops_ =
      *net::LoopGroup::Create(clock_, {.threads = 1, .loop = {}});
  net::EventLoop& loop_ = loops_->loop(0);
  const std::unique_ptr<net::EventLoop> background_ = *net::EventLoop::Create(clock_);
  const OpenGate gate_;
  http1::RouteTable routes_;
  Overview overview_{{admin_, usage_, held_, clock_}, *loops_, *background_};
  http1::HttpServer server_{routes_, clock_, metrics_, {}};
  std::deque<FakeStream> streams_;
  std::vector<net::StreamHandler*> handlers_;
};

TEST_F(OverviewTest, EveryReaderOfALoopThatIsSecondsBehindGetsASnapshot) {
  constexpr size_t kReaders = 2000;
  Read(kReaders);
  for (int i = 0; i < 4; ++i) Second();
  EXPECT_LT(ReadersWith("event: snapshot"), kReaders) << "the loop is to be behind";
  for (int i = 0; i < 40; ++i) Second();
  EXPECT_EQ(ReadersWith("event: snapshot"), kReaders);
}

}  // namespace
}  // namespace sluice::web
