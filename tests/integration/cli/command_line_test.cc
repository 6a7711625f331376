#include "client/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

const std::vector<CommandSpec> kCommands = {
    {.name = "acquire",
     .arguments = "LIMIT [KEY]",
     .flags = {{"permits", "N", ""}, {"receipt", "", ""}},
     .min_arguments = 1,
     .max_arguments = 2},
    {.name = "limits list"},
    {.name = "limits get", .arguments = "NAME", .min_arguments = 1, .max_arguments = 1},
    {.name = "run",
     .flags = {{"limit", "L", ""}, {"wait", "TIME", "", true}},
     .takes_command = true},
};
const std::vector<Flag> kGlobal = {{"server", "HOST:PORT", ""}, {"help", "", ""}};

Result<ParsedLine> Parse(const std::vector<std::string>& words) {
  return ParseLine(words, kCommands, kGlobal);
}

std::string Error(const std::vector<std::string>& words) {
  const auto line = Parse(words);
  return line.ok() ? "" : line.status().message();
}

TEST(CommandLineTest, ParsesFlagsInBothFormsAnywhere) {
  const auto line = Parse({"--server", "a:1", "acquire", "api", "--permits=5", "k", "--receipt"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->command->name, "acquire");
  EXPECT_EQ(line->arguments.positional, (std::vector<std::string>{"api", "k"}));
  EXPECT_EQ(line->arguments.Get("server"), "a:1");
  EXPECT_EQ(line->arguments.Get("permits"), "5");
  EXPECT_TRUE(line->arguments.Has("receipt"));
}

TEST(CommandLineTest, ParsesCommandsOfTwoWords) {
  EXPECT_EQ(Parse({"limits", "list"})->command->name, "limits list");
  EXPECT_EQ(Error({"limits"}), "\"limits\" needs a second word: limits list, limits get");
  EXPECT_EQ(Error({"limits", "lst"}), "unknown command \"limits lst\"; did you mean limits list?");
}

TEST(CommandLineTest, SuggestsTheNearestName) {
  EXPECT_EQ(Error({"aquire", "api"}), "unknown command \"aquire\"; did you mean acquire?");
  EXPECT_EQ(Error({"acquire", "api", "--permit", "3"}),
            "unknown flag --permit of acquire; did you mean --permits?");
  EXPECT_EQ(Error({"frobnicate"}), "unknown command \"frobnicate\"");
  EXPECT_EQ(Error({"--sever=x", "acquire", "a"}), "unknown flag --sever; did you mean --server?");
}

TEST(CommandLineTest, RejectsBadUsage) {
  EXPECT_EQ(Error({"acquire"}), "acquire needs LIMIT [KEY]");
  EXPECT_EQ(Error({"acquire", "a", "b", "c"}), "acquire takes LIMIT [KEY], not also \"c\"");
  EXPECT_EQ(Error({"acquire", "a", "--permits"}), "flag --permits needs a value: --permits=N");
  EXPECT_EQ(Error({"acquire", "a", "--receipt=yes"}), "flag --receipt takes no value");
  EXPECT_EQ(Error({"run", "--limit", "x"}), "run needs -- and a command to run");
  EXPECT_EQ(Error({"run", "--limit", "x", "--"}), "run needs -- and a command to run");
}

TEST(CommandLineTest, KeepsWordsAfterTwoDashes) {
  const auto line = Parse({"run", "--limit", "x", "--", "ls", "--server", "-l"});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->arguments.command, (std::vector<std::string>{"ls", "--server", "-l"}));
  const auto key = Parse({"acquire", "api", "--", "--odd-key"});
  EXPECT_EQ(key->arguments.positional, (std::vector<std::string>{"api", "--odd-key"}));
}

TEST(CommandLineTest, AcceptsHelpWithoutArguments) {
  EXPECT_TRUE(Parse({"acquire", "--help"}).ok());
  EXPECT_TRUE(Parse({"-h"})->arguments.Has("help"));
}

TEST(CommandLineTest, TakesTheNextWordAsAnOptionalValueIfItIsANumber) {
  const auto wait = [](std::vector<std::string> words) {
    words.insert(words.begin(), "run");
    words.insert(words.end(), {"--", "true"});
    const auto line = ParseLine(words, kCommands, {});
    return line.ok() ? line->arguments.Get("wait").value_or("none") : line.status().message();
  };
  EXPECT_EQ(wait({"--limit", "a"}), "none");
  EXPECT_EQ(wait({"--wait"}), "");
  EXPECT_EQ(wait({"--wait", "--limit", "a"}), "");
  EXPECT_EQ(wait({"--wait=2s"}), "2s");
  EXPECT_EQ(wait({"--wait", "2s", "--limit", "a"}), "2s");
  EXPECT_THAT(CommandHelp(kCommands.back(), {}), ::testing::HasSubstr("--wait[=TIME]"));
}

}  // namespace
}  // namespace sluice::cli
