// ConcurrencyWindow against a server of which all is known: it answers in order, each command takes
// it the same time, and so does the way to it.
#include "server/store/redis/connection/concurrency_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <queue>
#include <tuple>
#include <vector>

namespace sluice::store::redis {
namespace {

constexpr int64_t kUs = 1'000;
constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kBudget = 20 * kMs;

struct Setting {
  int senders = 1;
  int64_t service_ns = 0;  // of each command
  int64_t way_ns = 0;      // there and back
  // If not 0: what arrived in one cycle is answered at the end of the next, however much it is, as
  // by a Redis that syncs its file before it answers, or has others' slow commands between.
  int64_t cycle_ns = 0;
};

// Senders with more to send than the server can answer.
class Overload {
 public:
  Overload(const Setting& setting, size_t most) : setting_(setting) {
    for (int i = 0; i < setting.senders; ++i) {
      senders_.push_back({ConcurrencyWindow(kBudget, most)});
      senders_.back().window.Reset(setting.way_ns);
    }
  }

  struct Seen {
    int64_t longest_ns = 0;
    int64_t answered = 0;
    int64_t least_of_one = 0;  // replies to the loop with the fewest
  };
  Seen RunFor(int64_t ns) {
    const int64_t until_ns = now_ns_ + ns;
    for (Sender& sender : senders_) sender.answered = 0;
    for (size_t i = 0; i < senders_.size(); ++i) Send(i);
    Seen seen;
    while (!replies_.empty() && std::get<0>(replies_.front()) <= until_ns) {
      const auto [at_ns, sent_ns, from] = replies_.front();
      replies_.pop();
      now_ns_ = at_ns;
      Sender& sender = senders_[from];
      --sender.in_flight;
      ++sender.answered;
      ++seen.answered;
      seen.longest_ns = std::max(seen.longest_ns, at_ns - sent_ns);
      sender.window.OnAnswer(sent_ns, at_ns - sent_ns, wanted_);
      Send(from);
    }
    now_ns_ = until_ns;
    seen.least_of_one =
        std::min_element(senders_.begin(), senders_.end(), [](const Sender& a, const Sender& b) {
          return a.answered < b.answered;
        })->answered;
    return seen;
  }
  void set_service_ns(int64_t ns) { setting_.service_ns = ns; }
  // No caller waits for room, although there is always something to send.
  void set_wanted(bool wanted) { wanted_ = wanted; }
  size_t size(size_t sender) const { return senders_[sender].window.size(); }

 private:
  struct Sender {
    ConcurrencyWindow window;
    size_t in_flight = 0;
    int64_t answered = 0;
  };

  void Send(size_t from) {
    Sender& sender = senders_[from];
    for (; sender.in_flight < sender.window.size(); ++sender.in_flight) {
      const int64_t arrives_ns = now_ns_ + setting_.way_ns / 2;
      if (setting_.cycle_ns != 0) {
        free_ns_ = (arrives_ns / setting_.cycle_ns + 2) * setting_.cycle_ns;
      } else {
        free_ns_ = std::max(free_ns_, arrives_ns) + setting_.service_ns;
      }
      replies_.emplace(free_ns_ + setting_.way_ns / 2, now_ns_, from);
    }
  }

  Setting setting_;
  std::vector<Sender> senders_;
  using ReplyAt = std::tuple<int64_t, int64_t, size_t>;  // when, sent when, whose
  std::queue<ReplyAt> replies_;  // in the order of their times, since the server answers in order
  int64_t now_ns_ = 0;
  int64_t free_ns_ = 0;
  bool wanted_ = true;
};

TEST(ConcurrencyWindowTest, KeepsTheServerBusyAndAnswersWithinTheBudget) {
  for (const Setting& setting :
       {Setting{1, 5 * kUs, 100 * kUs}, Setting{1, 12 * kUs, 0}, Setting{1, 25 * kUs, 1 * kMs},
        Setting{1, 25 * kUs, 15 * kMs}, Setting{1, 1 * kMs, 100 * kUs},
        Setting{4, 12 * kUs, 100 * kUs}, Setting{24, 12 * kUs, 500 * kUs},
        Setting{24, 200 * kUs, 100 * kUs}}) {
    SCOPED_TRACE(testing::Message() << setting.senders << " senders, " << setting.service_ns
                                    << " ns a command, " << setting.way_ns << " ns on the way");
    Overload overload(setting, 4096);
    // Of a budget that the way takes up the window has little to breathe with.
    const bool far = setting.way_ns > kBudget / 2;
    const int64_t most_ns = far ? kBudget * 5 / 4 : kBudget;
    // Where one command of each alone takes a quarter of the budget, more would be no one's making.
    const bool crowded = setting.senders * setting.service_ns > kBudget / 5;
    // Nor does it begin with more than is answered in time.
    EXPECT_LT(overload.RunFor(2 * kSecond).longest_ns, most_ns) << "at first";
    const Overload::Seen seen = overload.RunFor(10 * kSecond);
    EXPECT_LT(seen.longest_ns, far || crowded ? most_ns : kBudget * 3 / 4);
    EXPECT_GT(static_cast<double>(seen.answered),
              (far ? 0.8 : 0.97) * static_cast<double>(10 * kSecond / setting.service_ns));
    EXPECT_GT(seen.least_of_one * setting.senders, seen.answered / 2) << "an unfair share";
  }
}

// Answers that are late whatever is sent are no reason to send less.
TEST(ConcurrencyWindowTest, DoesNotNarrowForSlownessThatItDoesNotCause) {
  for (const int64_t cycle_ns : {3 * kMs, 5 * kMs, 7 * kMs}) {
    for (const int senders : {1, 8}) {
      SCOPED_TRACE(testing::Message() << senders << " senders, cycles of " << cycle_ns << " ns");
      Overload overload({senders, 0, 100 * kUs, cycle_ns}, 1024);
      overload.RunFor(5 * kSecond);
      const Overload::Seen seen = overload.RunFor(5 * kSecond);
      // In each cycle as many as half of what may be.
      EXPECT_GT(seen.answered, senders * 5 * kSecond / (2 * cycle_ns) * 512);
    }
  }
}

TEST(ConcurrencyWindowTest, SettlesAgainWhenCommandsBecomeSlower) {
  Overload overload({4, 10 * kUs, 100 * kUs}, 4096);
  overload.RunFor(2 * kSecond);
  overload.set_service_ns(300 * kUs);
  overload.RunFor(2 * kSecond);
  EXPECT_LT(overload.RunFor(2 * kSecond).longest_ns, kBudget * 3 / 4);
  overload.set_service_ns(10 * kUs);
  overload.RunFor(2 * kSecond);
  EXPECT_GT(overload.RunFor(2 * kSecond).answered, 2 * kSecond / (10 * kUs) * 97 / 100);
}

TEST(ConcurrencyWindowTest, StaysBetweenOneAndItsMaximum) {
  Overload fast({1, 100, 10 * kMs}, 300);
  fast.RunFor(kSecond);
  EXPECT_EQ(fast.size(0), 300u);
  Overload slow({1, 50 * kMs, 0}, 300);
  slow.RunFor(10 * kSecond);
  EXPECT_EQ(slow.size(0), 1u);
}

TEST(ConcurrencyWindowTest, DoesNotGrowWhileNoCallerWaits) {
  Overload overload({1, 10 * kUs, 1 * kMs}, 4096);
  overload.set_wanted(false);
  overload.RunFor(kSecond);
  EXPECT_EQ(overload.size(0), 1u);
  overload.set_wanted(true);
  overload.RunFor(kSecond);
  EXPECT_GT(overload.size(0), 1u);
}

}  // namespace
}  // namespace sluice::store::redis
