#include "server/limits/notation.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace sluice::limits {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kHourNs = 3600 * kSecondNs;
constexpr int64_t kDayNs = 24 * kHourNs;

TEST(NotationTest, ParsesAllFormsOfRates) {
  const struct {
    std::string_view text;
    uint64_t permits;
    int64_t period_ns;
  } kCases[] = {
      {"5/s", 5, kSecondNs},
      {"5/1s", 5, kSecondNs},
      {"500/250ms", 500, 250'000'000},
      {"10000/24h", 10000, kDayNs},
      {"10_000/24h", 10000, kDayNs},
      {"1/year", 1, 365 * kDayNs},
      {"1/y", 1, 365 * kDayNs},
      {"7/week", 7, 7 * kDayNs},
      {"7/w", 7, 7 * kDayNs},
      {"3/day", 3, kDayNs},
      {"3/d", 3, kDayNs},
      {"60/min", 60, 60 * kSecondNs},
      {"60/m", 60, 60 * kSecondNs},
      {"60/minute", 60, 60 * kSecondNs},
      {"9/hour", 9, kHourNs},
      {"9/second", 9, kSecondNs},
      {"9/sec", 9, kSecondNs},
      {"9/1h30m", 9, kHourNs + kHourNs / 2},
      {"1/1000us", 1, 1'000'000},
      {"1/1000000ns", 1, 1'000'000},
      {"0/s", 0, kSecondNs},
      {"5/0s", 5, 0},
      {"18446744073709551615/s", std::numeric_limits<uint64_t>::max(), kSecondNs},
  };
  for (const auto& c : kCases) {
    const auto rate = ParseRate(c.text);
    ASSERT_TRUE(rate.ok()) << c.text << ": " << rate.status();
    EXPECT_EQ(rate->permits, c.permits) << c.text;
    EXPECT_EQ(rate->period_ns, c.period_ns) << c.text;
  }
}

TEST(NotationTest, ExplainsTheFormOfARate) {
  const struct {
    std::string_view text;
    std::string_view advice;
  } kCases[] = {
      {"5", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"/", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"5/", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"/s", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"5/10", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"5 / s", "say permits per period, e.g. 5/s, 500/250ms or 10000/24h"},
      {"-5/s", "permits cannot be negative; say e.g. 5/s"},
      {"5/-1s", "the period cannot be negative; say e.g. 500/250ms"},
      {"1.5/s",
       "permits are whole; for a fraction take a longer period, e.g. 15/10s for 1.5 a second"},
      {"5/1.5s", "say whole numbers; for a fraction take a smaller unit, e.g. 1500ms"},
      {"5/month", "a month has no fixed length; say 30d"},
      {"5/parsec", "no unit is named \"parsec\"; the units are ns, us, ms, s, m, h, d, w and y"},
      {"5/10 s", "no unit is named \" s\"; the units are ns, us, ms, s, m, h, d, w and y"},
      {"1e6/s", "say a whole number, e.g. 100 or 10_000"},
      {"18446744073709551616/s", "does not fit; at most 9223372036854775807"},
      {"1/300y", "is longer than 292 years, which does not fit; at most 366d"},
      {"1/99999999999999999999y", "does not fit; at most 9223372036854775807"},
  };
  for (const auto& c : kCases) {
    const auto rate = ParseRate(c.text);
    ASSERT_FALSE(rate.ok()) << c.text;
    EXPECT_EQ(rate.status().message(), absl::string_view(c.advice.data(), c.advice.size()))
        << c.text;
  }
}

TEST(NotationTest, ParsesWholeNumbers) {
  EXPECT_EQ(*ParseWhole("0"), 0u);
  EXPECT_EQ(*ParseWhole("007"), 7u);
  EXPECT_EQ(*ParseWhole("1_000_000"), 1'000'000u);
  for (const char* bad : {"", "-1", "+1", "1.0", "1e3", "0x10", "1__0", "_1", "1_", " 1", "1 "}) {
    const auto value = ParseWhole(bad);
    ASSERT_FALSE(value.ok()) << bad;
    EXPECT_EQ(value.status().message(), "say a whole number, e.g. 100 or 10_000") << bad;
  }
}

TEST(NotationTest, ParsesUtcOffsets) {
  EXPECT_EQ(*ParseUtcOffset("0"), 0);
  EXPECT_EQ(*ParseUtcOffset("Z"), 0);
  EXPECT_EQ(*ParseUtcOffset("+00:00"), 0);
  EXPECT_EQ(*ParseUtcOffset("+02:00"), 2 * kHourNs);
  EXPECT_EQ(*ParseUtcOffset("-05:30"), -(5 * kHourNs + kHourNs / 2));
  EXPECT_EQ(*ParseUtcOffset("-5h30m"), -(5 * kHourNs + kHourNs / 2));
  EXPECT_EQ(*ParseUtcOffset("2h"), 2 * kHourNs);
  for (const char* bad : {"", "+", "02:00", "+2:00", "+02:60", "+02:0", "+02:00:00", "CET", "+5",
                          "--2h", "+-2h", "+02-00"}) {
    const auto offset = ParseUtcOffset(bad);
    ASSERT_FALSE(offset.ok()) << bad;
    EXPECT_EQ(offset.status().message(), "say an offset from UTC, e.g. +02:00, -5h30m or 0") << bad;
  }
}

TEST(NotationTest, ParsesNamesOfAlgorithmsAndModes) {
  for (const algorithm::Kind kind : algorithm::kKinds) {
    EXPECT_EQ(*ParseAlgorithm(algorithm::KindName(kind)), kind);
  }
  EXPECT_EQ(*ParseOnStoreFailure("deny"), OnStoreFailure::kDeny);
  EXPECT_EQ(*ParseOnStoreFailure("allow"), OnStoreFailure::kAllow);
  EXPECT_EQ(*ParseOnStoreFailure("split"), OnStoreFailure::kSplit);
  for (const store::Sharing value :
       {store::Sharing::kExact, store::Sharing::kSplit, store::Sharing::kRelaxed}) {
    EXPECT_EQ(*ParseSharing(SharingName(value)), value);
  }
  EXPECT_EQ(*ParseMode("shadow"), Mode::kShadow);
  EXPECT_EQ(*ParseMode("enforce"), Mode::kEnforce);
  EXPECT_EQ(ParseAlgorithm("leaky").status().message(),
            "say token_bucket, sliding_log, sliding_window, fixed_window or concurrency");
  EXPECT_EQ(ParseAlgorithm("token-bucket").status().message(),
            "did you mean token_bucket? say token_bucket, sliding_log, sliding_window, "
            "fixed_window or concurrency");
  EXPECT_EQ(ParseMode("Shadow").status().message(), "say enforce or shadow");
}

TEST(NotationTest, ParsesItsOwnOutput) {
  EXPECT_EQ(FormatRate({5, kSecondNs}), "5/s");
  EXPECT_EQ(FormatRate({500, 250'000'000}), "500/250ms");
  EXPECT_EQ(FormatRate({10000, kDayNs}), "10000/d");
  EXPECT_EQ(FormatRate({1, 365 * kDayNs}), "1/365d");
  EXPECT_EQ(FormatRate({1, 10 * kSecondNs}), "1/10s");
  EXPECT_EQ(FormatRate({5, 0}), "5/0s");
  EXPECT_EQ(FormatUtcOffset(0), "+00:00");
  EXPECT_EQ(FormatUtcOffset(-(5 * kHourNs + kHourNs / 2)), "-05:30");
  EXPECT_EQ(FormatUtcOffset(std::numeric_limits<int64_t>::min()), "-9223372036854775807ns");
  for (const int64_t ns :
       {int64_t{1}, int64_t{1'000}, int64_t{1'500'000}, kSecondNs, 90 * kSecondNs, kHourNs, kDayNs,
        25 * kHourNs, 366 * kDayNs, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(*ParseDuration(FormatDuration(ns)), ns);
    EXPECT_EQ(ParseRate(FormatRate({3, ns}))->period_ns, ns);
    EXPECT_EQ(*ParseUtcOffset(FormatUtcOffset(-ns)), -ns);
  }
}

}  // namespace
}  // namespace sluice::limits
