#include "client/cli/text.h"

#include <gtest/gtest.h>

#include "client/cli/json.h"
#include "client/cli/latency_recorder.h"

namespace sluice::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(TextTest, FormatsDurations) {
  const std::pair<int64_t, const char*> cases[] = {
      {0, "0s"},
      {1, "1ns"},
      {999, "999ns"},
      {1'500, "1.5us"},
      {12'345'678, "12.3ms"},
      {999'499'999, "999ms"},
      {999'600'000, "1s"},
      {1'234'000'000, "1.23s"},
      {59'900'000'000, "59.9s"},
      {65'000'000'000, "1m05s"},
      {7'200'000'000'000, "2h00m"},
      {90'000'000'000'000, "1d01h"},
      {-1'500, "-1.5us"},
  };
  for (const auto& [ns, text] : cases) EXPECT_EQ(FormatDuration(nanoseconds(ns)), text);
}

TEST(TextTest, ParsesDurations) {
  EXPECT_EQ(*ParseDuration("250ms"), std::chrono::milliseconds(250));
  EXPECT_EQ(*ParseDuration("1.5s"), std::chrono::milliseconds(1500));
  EXPECT_EQ(*ParseDuration("1m30s"), std::chrono::seconds(90));
  EXPECT_EQ(*ParseDuration("0"), nanoseconds(0));
  for (const char* bad : {"", "5", "s", "-1s", "1x", "1s ", "nans", "infs", "1000000d"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
}

TEST(TextTest, FormatsAndParsesRates) {
  for (const char* rate : {"100/s", "500/250ms", "10000/d", "5/m", "1/90s", "7/1500us"}) {
    EXPECT_EQ(FormatRate(*ParseRate(rate)), rate);
  }
  EXPECT_EQ(FormatRate(*ParseRate("10000/24h")), "10000/d");
  for (const char* bad : {"5", "5/", "/s", "x/s", "5/x", "-5/s", "5/s/s"}) {
    EXPECT_FALSE(ParseRate(bad).ok()) << bad;
  }
}

TEST(TextTest, ParsesOnlyDigitsAsNumbers) {
  EXPECT_EQ(*ParseNumber("18446744073709551615"), UINT64_MAX);
  for (const char* bad : {"", "-1", "+1", "1.0", "0x1", "1 ", "18446744073709551616"}) {
    EXPECT_FALSE(ParseNumber(bad).ok()) << bad;
  }
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
}

TEST(TextTest, ReceiptsSurviveBase64Url) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(*FromBase64Url(ToBase64Url(bytes)), bytes);
    bytes += static_cast<char>(i * 37);
  }
  for (const char* bad : {"a", "ab=", "a+", "a/", "ab c", "ZB"}) {
    EXPECT_FALSE(FromBase64Url(bad).ok()) << bad;
  }
}

TEST(TextTest, ParsesAcquisitionsAsWordsAndAsJson) {
  const auto words = ParseAcquisition("  api user:42 5 ");
  ASSERT_TRUE(words.ok());
  EXPECT_EQ(words->charges[0].limit, "api");
  EXPECT_EQ(words->charges[0].key, "user:42");
  EXPECT_EQ(words->charges[0].permits, 5u);
  EXPECT_EQ(ParseAcquisition("api \"\" 5")->charges[0].key, "");
  EXPECT_EQ(ParseAcquisition("api")->charges[0].permits, 1u);

  const auto charge =
      ParseAcquisition(R"({"limit": "api", "key": "a b", "permits": "18446744073709551615"})");
  ASSERT_TRUE(charge.ok()) << charge.status();
  EXPECT_EQ(charge->charges[0].key, "a b");
  EXPECT_EQ(charge->charges[0].permits, UINT64_MAX);

  const auto several = ParseAcquisition(
      R"({"charges": [{"limit": "a"}, {"limit": "b", "permits": 2}], "want_receipt": true})");
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_EQ(several->charges.size(), 2u);
  EXPECT_TRUE(several->want_receipt);
  EXPECT_EQ(several->settle_within, nanoseconds(0));

  const auto estimate = ParseAcquisition(
      R"({"charges": [{"limit": "a"}], "max_wait": "1.5s", "settle_within": "120s"})");
  ASSERT_TRUE(estimate.ok()) << estimate.status();
  EXPECT_EQ(estimate->max_wait, milliseconds(1500));
  EXPECT_EQ(estimate->settle_within, seconds(120));

  for (const char* bad : {"", "a b c d", "a b x", "{", R"({"limt": "a"})",
                          R"({"charges": [{"limit": "a"}], "hold": true})"}) {
    EXPECT_FALSE(ParseAcquisition(bad).ok()) << bad;
  }
}

TEST(TextTest, AlignsTables) {
  EXPECT_EQ(FormatTable({{"NAME", ">LEFT"}, {"a", "1"}, {"longer", "100"}}),
            "NAME    LEFT\na          1\nlonger   100\n");
}

TEST(JsonTest, WritesValuesAndEscapes) {
  Json json;
  json.Open('{').Field("a", 1).Field("b", "x\"\n\x01").Name("c").Open('[');
  json.Value(true).Value(-2).Close().Field("d", 0.5).Close();
  EXPECT_EQ(json.text(), R"({"a":1,"b":"x\"\u000a\u0001","c":[true,-2],"d":0.5})");
}

TEST(LatencyRecorderTest, QuantilesAreAtMostThreePercentTooHigh) {
  LatencyRecorder recorder;
  for (int i = 1; i <= 100'000; ++i) recorder.Record(nanoseconds(i));
  for (const double share : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const double exact = share * 100'000;
    const auto got = static_cast<double>(recorder.Quantile(share).count());
    EXPECT_GE(got, exact);
    EXPECT_LE(got, exact * 1.032);
  }
  EXPECT_EQ(recorder.max(), nanoseconds(100'000));
  recorder.Record(nanoseconds(INT64_MAX));
  EXPECT_EQ(recorder.Quantile(1.0), nanoseconds(INT64_MAX));
}

}  // namespace
}  // namespace sluice::cli
