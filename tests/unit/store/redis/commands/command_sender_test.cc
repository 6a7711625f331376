#include "server/store/redis/commands/command_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/store/redis/commands/command.h"
#include "server/store/redis/scripts/scripts.h"
#include "tests/unit/store/redis/command_scene.h"

namespace sluice::store::redis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Writes down what happens to it.
class RecordedCommand final : public Command {
 public:
  RecordedCommand(CommandContext& context, std::string name, std::vector<std::string>* events)
      : Command(context), name_(std::move(name)), events_(*events) {}

  std::string_view RoutingKey() const override { return name_; }
  bool urgent() const override { return is_urgent; }
  size_t units() const override { return script_units; }
  bool Build(std::vector<std::string>* words) override {
    if (!callers_wait) return false;
    *words = {"GET", name_};
    return true;
  }
  Next OnReply(const Reply& reply) override {
    events_.push_back(name_ + " answered " + reply.text);
    if (script_units > 1) sender_.OnBegan(began_ns);
    return next;
  }
  void OnError(const Reply& error) override { events_.push_back(name_ + " failed " + error.text); }
  void OnUnavailable() override { events_.push_back(name_ + " unavailable"); }
  void OnEnd() override {
    events_.push_back(name_ + (sender_.answer_missing() ? " ended, perhaps executed" : " ended"));
    delete this;
  }
  CommandSender& sender() { return sender_; }

  bool is_urgent = false;
  // More than one: it is a script, which begins at began_ns of the server's clock.
  size_t script_units = 1;
  int64_t began_ns = 0;
  bool callers_wait = true;
  Next next;

 private:
  const std::string name_;
  std::vector<std::string>& events_;
};

class CommandSenderTest : public CommandScene {
 protected:
  RecordedCommand& Make(const std::string& name) {
    return *new RecordedCommand(*this, name, &events);
  }
  RecordedCommand& Send(const std::string& name) {
    RecordedCommand& command = Make(name);
    CommandSender::Start(command);
    return command;
  }
  bool Ended(size_t count = 1) {
    return Until([&] {
      size_t ended = 0;
      for (const std::string& event : events) ended += event.find(" ended") != event.npos ? 1 : 0;
      return ended == count;
    });
  }

  std::vector<std::string> events;
};

TEST_F(CommandSenderTest, DeliversTheReplyAndEnds) {
  Send("a");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(servers[0].asked[0], ElementsAre("GET", "a"));
  servers[0].Answer("+hello\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("a answered hello", "a ended"));
}

TEST_F(CommandSenderTest, SendsNothingWhenNoCallerWaits) {
  RecordedCommand& command = Make("a");
  command.callers_wait = false;
  CommandSender::Start(command);
  EXPECT_THAT(events, ElementsAre("a ended"));
  EXPECT_TRUE(Asked(0));
}

TEST_F(CommandSenderTest, LoadsTheScriptsAfterNoscriptAndSendsAgain) {
  Send("a");
  ASSERT_TRUE(Asked(1));
  const size_t loads = servers[0].loads;
  servers[0].Answer("-NOSCRIPT flushed\r\n");
  ASSERT_TRUE(Asked(1));
  EXPECT_EQ(servers[0].loads, loads + kScripts);
  servers[0].Answer("+hello\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("a answered hello", "a ended"));
}

TEST_F(CommandSenderTest, GivesUpAfterEightRefusalsAndKnowsThatNothingWasExecuted) {
  Send("a");
  for (int tries = 0; tries < 8; ++tries) {
    ASSERT_TRUE(Asked(1)) << tries;
    servers[0].Answer("-NOSCRIPT flushed\r\n");
  }
  ASSERT_TRUE(Ended());
  EXPECT_TRUE(Asked(0));
  EXPECT_THAT(events, ElementsAre("a unavailable", "a ended"));
}

TEST_F(CommandSenderTest, NeverSendsAgainWhatABrokenConnectionMayHaveExecuted) {
  Send("a");
  ASSERT_TRUE(Asked(1));
  servers[0].asked.clear();
  servers[0].HangUp();
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("a unavailable", "a ended, perhaps executed"));
  Pass(2'000'000'000);
  EXPECT_FALSE(endpoints[0]->unavailable()) << "connected again";
  EXPECT_TRUE(Asked(0));
}

TEST_F(CommandSenderTest, OnlyErrorsFromBeforeTheFirstWriteProveThatNothingWasExecuted) {
  Send("a");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("-OOM command not allowed\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_EQ(events.back(), "a ended");
  Send("b");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("-ERR in the middle of the script\r\n");
  ASSERT_TRUE(Ended(2));
  EXPECT_EQ(events.back(), "b ended, perhaps executed");
}

// Redis 7.2 and newer, when a command of the script may not be used; earlier ones answer ERR.
TEST_F(CommandSenderTest, ScriptThatLacksARightMayHaveWritten) {
  Send("a");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("-NOPERM User u has no permissions to run the 'evalsha' command\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_EQ(events.back(), "a ended");
  Send("b");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer(
      "-NOPERM ACL failure in script: User u has no permissions to run the 'set' command script: "
      "5e1, on @user_script:1.\r\n");
  ASSERT_TRUE(Ended(2));
  EXPECT_EQ(events.back(), "b ended, perhaps executed");
}

class ScriptTimeTest : public CommandSenderTest {
 protected:
  static constexpr int64_t kUs = 1000;

  // Urgent, so that it does not wait for room.
  void SendScript(int64_t began_ns) {
    RecordedCommand& script = Make("script");
    script.is_urgent = true;
    script.script_units = 16;
    script.began_ns = began_ns;
    CommandSender::Start(script);
  }
  // What is sent later is not in the same write.
  void AnswerAll() {
    Settle();
    while (!servers[0].asked.empty()) servers[0].Answer("+done\r\n");
    clock_.Advance(kUs);
    Settle();
  }
  size_t units() { return endpoints[0]->script_units(); }
};

TEST_F(ScriptTimeTest, ScriptsOfOneWriteTellWhatAUnitCosts) {
  SendScript(1'000 * kUs);
  SendScript(1'330 * kUs);
  AnswerAll();
  EXPECT_EQ(units(), 12u) << "some 20 us each";
  SendScript(9'000 * kUs);
  SendScript(9'330 * kUs + 100'000 * kUs);
  AnswerAll();
  EXPECT_EQ(units(), 11u);
}

// Others may have been served between them.
TEST_F(ScriptTimeTest, ScriptsThatWereSentApartTellNothing) {
  SendScript(1'000 * kUs);
  SendScript(1'330 * kUs);
  AnswerAll();
  for (int i = 0; i < 10; ++i) {
    SendScript(i * 100'000 * kUs);
    AnswerAll();
    SendScript(i * 100'000 * kUs + 40 * kUs);
    SendScript(i * 100'000 * kUs + 370 * kUs);
    AnswerAll();
    Send("not a script");
    SendScript(i * 100'000 * kUs + 90'000 * kUs);
    AnswerAll();
  }
  EXPECT_EQ(units(), 12u);
}

TEST_F(CommandSenderTest, FollowsAMovedSlot) {
  course = [&](const Reply&) {
    at = endpoints[1].get();
    return Course{Course::What::kSendAgain};
  };
  Send("a");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("-MOVED 1 there\r\n");
  ASSERT_TRUE(Asked(1, /*server=*/1));
  servers[1].Answer("+hello\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("a answered hello", "a ended"));
}

TEST_F(CommandSenderTest, AsksTheServerThatImportsASlot) {
  course = [&](const Reply&) {
    return Course{Course::What::kSendAgain, endpoints[1].get(), /*asking=*/true};
  };
  Send("a");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("-ASK 1 there\r\n");
  ASSERT_TRUE(Asked(2, /*server=*/1));
  EXPECT_THAT(servers[1].asked[0], ElementsAre("ASKING"));
  EXPECT_THAT(servers[1].asked[1], ElementsAre("GET", "a"));
  servers[1].Answer("+OK\r\n");
  servers[1].Answer("+hello\r\n");
  ASSERT_TRUE(Ended());
}

TEST_F(CommandSenderTest, WaitsLongerEachTimeThatTheFenceIsReplaced) {
  course = [&](const Reply&) {
    return Course{Course::What::kSendLater, nullptr, false, /*after_ns=*/1'000'000};
  };
  Send("a");
  int64_t wait_ns = 1'000'000;
  for (int tries = 0; tries < 3; ++tries, wait_ns *= 2) {
    ASSERT_TRUE(Asked(1));
    servers[0].Answer("-FENCE replaced\r\n");
    Settle();
    EXPECT_EQ(sends_.waiting.size(), 1u);
    Pass(wait_ns - 1'000'000);
    EXPECT_TRUE(Asked(0)) << tries;
    Pass(2'000'000);
  }
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+hello\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(sends_.waiting, IsEmpty());
}

TEST_F(CommandSenderTest, ReplyMayAskForAnotherTry) {
  RecordedCommand& command = Send("a");
  command.next = {Next::What::kSend, /*after_ns=*/1'000'000};
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+early\r\n");
  ASSERT_TRUE(Asked(0));
  command.next = {};
  Pass(2'000'000);
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+late\r\n");
  ASSERT_TRUE(Ended());
  EXPECT_THAT(events, ElementsAre("a answered early", "a answered late", "a ended"));
}

TEST_F(CommandSenderTest, OpenBreakerAnswersItAndTheLateReplyOnlyEndsIt) {
  Send("a");
  ASSERT_TRUE(Asked(1));
  Pass(2 * kBudgetNs);
  EXPECT_THAT(events, ElementsAre("a unavailable"));
  Send("b");
  EXPECT_THAT(events, ElementsAre("a unavailable", "b unavailable", "b ended"));
  servers[0].Answer("+late\r\n");
  ASSERT_TRUE(Ended(2));
  EXPECT_EQ(events.back(), "a ended, perhaps executed");
  EXPECT_EQ(counters_.lost.value(), 1u);
}

TEST_F(CommandSenderTest, EndsWhenTheLoopDropsItWhileItWaits) {
  course = [&](const Reply&) {
    return Course{Course::What::kSendLater, nullptr, false, /*after_ns=*/1'000'000};
  };
  RecordedCommand& command = Send("a");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("-FENCE replaced\r\n");
  Settle();
  sends_.waiting.erase(&command.sender());
  command.sender().Drop();
  EXPECT_THAT(events, ElementsAre("a unavailable", "a ended"));
}

// A new connection has room for one command.
TEST_F(CommandSenderTest, WaitsForRoomInOrder) {
  Send("a");
  Send("b");
  Send("c");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+1\r\n");
  ASSERT_TRUE(Asked(1));
  EXPECT_THAT(servers[0].asked[0], ElementsAre("GET", "b"));
  servers[0].Answer("+2\r\n");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+3\r\n");
  ASSERT_TRUE(Ended(3));
  EXPECT_THAT(events, ElementsAre("a answered 1", "a ended", "b answered 2", "b ended",
                                  "c answered 3", "c ended"));
}

TEST_F(CommandSenderTest, UrgentCommandDoesNotWaitForRoom) {
  Send("a");
  Send("b");
  RecordedCommand& urgent = Make("u");
  urgent.is_urgent = true;
  CommandSender::Start(urgent);
  ASSERT_TRUE(Asked(2));
  EXPECT_THAT(servers[0].asked[1], ElementsAre("GET", "u"));
  for (int i = 0; i < 2; ++i) servers[0].Answer("+1\r\n");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+1\r\n");
  ASSERT_TRUE(Ended(3));
}

TEST_F(CommandSenderTest, IsAnsweredWithoutRedisWhenTooManyWaitForRoom) {
  most_waiting = 1;
  Send("a");
  Send("b");
  Send("c");
  EXPECT_THAT(events, ElementsAre("c unavailable", "c ended"));
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+1\r\n");
  ASSERT_TRUE(Asked(1));
  servers[0].Answer("+2\r\n");
  ASSERT_TRUE(Ended(3));
}

TEST_F(CommandSenderTest, KeyWithoutAServerIsUnavailable) {
  at = nullptr;
  Send("a");
  EXPECT_THAT(events, ElementsAre("a unavailable", "a ended"));
}

}  // namespace
}  // namespace sluice::store::redis
