// Bad limits files and their errors: file, line, column, field, value, remedy.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "common/bounds.h"
#include "server/config/load.h"

namespace sluice::config {
namespace {

struct BadCase {
  std::string_view name;
  std::string text;
  std::string message;
};

void PrintTo(const BadCase& c, std::ostream* out) { *out << c.name; }

// One limit with these lines beside its name.
std::string Limit(std::string_view lines) {
  std::string text = "limits:\n  - name: api\n";
  while (!lines.empty()) {
    const size_t end = lines.find('\n');
    text += "    " + std::string(lines.substr(0, end)) + "\n";
    lines = end == std::string_view::npos ? std::string_view() : lines.substr(end + 1);
  }
  return text;
}

std::string Chain(int limits) {
  std::string text = "limits:\n";
  for (int i = 0; i < limits; ++i) {
    text += "  - { name: l" + std::to_string(i) + ", rate: 1/s";
    if (i + 1 < limits) text += ", charges: [l" + std::to_string(i + 1) + "]";
    text += " }\n";
  }
  return text;
}

const BadCase kCases[] = {
    // The file as a whole.
    {"Empty", "", "f.yaml:1:1: the file is empty; say limits: [] to have no limits"},
    {"OnlyAComment", "# nothing\n",
     "f.yaml:1:1: the file is empty; say limits: [] to have no limits"},
    {"OnlyADocumentStart", "---\n",
     "f.yaml:1:1: the file is empty; say limits: [] to have no limits"},
    {"AList", "- name: api\n", "f.yaml:1:1: is a list; begin the file with limits:"},
    {"AValue", "api\n", "f.yaml:1:1: is a single value; begin the file with limits:"},
    {"EmptyMap", "{}\n", "f.yaml:1:1: limits: is missing; say limits: [] for none"},
    {"NoLimits", "limits:\n", "f.yaml:1:1: limits: has no value; say limits: [] for none"},
    {"LimitsIsAMap", "limits:\n  api:\n    rate: 5/s\n",
     "f.yaml:2:3: limits: say a list, each limit after a dash, not a map"},
    {"LimitsIsAValue", "limits: none\n",
     "f.yaml:1:9: limits: say a list, each limit after a dash, not a single value"},
    {"UnknownTopField", "limit:\n  - { name: api, rate: 5/s }\n",
     "f.yaml:1:1: \"limit\": no field has that name; did you mean limits?"},
    {"AnotherTopField", "limits: []\nversion: 2\n",
     "f.yaml:2:1: \"version\": no field has that name; there is only limits"},
    {"TopFieldTwice", "limits: []\nlimits: []\n",
     "f.yaml:2:1: \"limits\": is given twice, first in line 1; keep one"},
    {"TwoDocuments", "limits: []\n---\nlimits: []\n",
     "f.yaml:2:1: a second document begins here; keep one"},
    {"TwoDocumentsTheSecondEmpty", "limits: []\n---\n",
     "f.yaml:2:1: a second document begins here; keep one"},
    {"NotYaml", "limits:\n  - name: api\n    rate: 5/s\n  x\n",
     "f.yaml:4:3: is not YAML: end of map not found"},
    {"OpenBracket", "limits: [", "f.yaml:1:1: is not YAML: end of sequence flow not found"},
    {"BadDirective", "%YAML 1.\x02\n---\nlimits: []\n",
     "f.yaml:1:1: is not YAML: bad YAML version: 1.\\x02"},
    {"HalfACharacterEscaped", "limits: \"\\\xc3\xa4\"\n",
     "f.yaml:1:12: is not YAML: unknown escape character: \\xc3"},
    {"LongDirective", "%YAML " + std::string(1000, 'x') + "\n---\nlimits: []\n",
     "f.yaml:1:1: is not YAML: bad YAML version: " + std::string(142, 'x') + "..."},
    {"Tab", "limits:\n\t- name: api\n", "f.yaml:2:2: is not YAML: illegal block entry"},
    {"Nul", std::string("limits: []\n\0", 12), "f.yaml:2:1: a NUL byte; the file must be text"},
    {"NotUtf8", "limits:\n  - name: \xff\n",
     "f.yaml:2:11: byte 0xff is not UTF-8; save the file as UTF-8"},
    {"Latin1", "# caf\xe9\nlimits: []\n",
     "f.yaml:1:6: byte 0xe9 is not UTF-8; save the file as UTF-8"},
    {"OverlongUtf8", "# \xc0\x80\n", "f.yaml:1:3: byte 0xc0 is not UTF-8; save the file as UTF-8"},
    {"Surrogate", "# \xed\xa0\x80\n", "f.yaml:1:3: byte 0xed is not UTF-8; save the file as UTF-8"},
    {"Utf16", std::string("\xff\xfel\0i\0", 6),
     "f.yaml:1:1: byte 0xff is not UTF-8; save the file as UTF-8"},
    {"DeepNesting", std::string(100, '[') + std::string(100, ']'),
     "f.yaml:1:33: is nested deeper than 32 levels"},
    // Rejected before yaml-cpp parses them, which would take many seconds.
    {"VeryDeepNesting", std::string(8 << 20, '['), "f.yaml:1:33: is nested deeper than 32 levels"},
    {"VeryDeepNestingBelow", "limits:\n # [[\n - " + std::string(100'000, '{'),
     "f.yaml:3:36: is nested deeper than 32 levels"},

    // YAML features that a limits file must not use.
    {"Alias", "limits:\n  - &a { name: api, rate: 5/s }\n  - *a\n",
     "f.yaml:2:5: an anchor (&name) is not allowed; take it out"},
    {"AnchorOnAValue", Limit("rate: &r 5/s"),
     "f.yaml:3:11: an anchor (&name) is not allowed; take it out"},
    {"AliasOfNothing", "limits: *a\n",
     "f.yaml:1:9: is not YAML: the referenced anchor is not defined"},
    {"Tag", Limit("rate: !!str 5/s"),
     "f.yaml:3:11: tag: \"tag:yaml.org,2002:str\": tags are not allowed; take it "
     "out"},
    {"OwnTag", "limits: !mine []\n",
     "f.yaml:1:9: tag: \"!mine\": tags are not allowed; take it out"},
    {"MergeKey", Limit("rate: 5/s\n<<: { burst: 5 }"),
     "f.yaml:4:5: limits[0]: \"<<\": merge keys are not allowed; write the fields "
     "out"},
    {"ListAsKey", Limit("? [a, b]\n: c"), "f.yaml:3:7: a list or map as a key; say a plain name"},
    {"NullAsKey", Limit("~: 5"), "f.yaml:3:5: an empty key, null or ~; put the key in quotes"},

    // A limit's fields.
    {"LimitIsAValue", "limits: [api]\n",
     "f.yaml:1:10: limits[0]: say a map with name and rate, e.g. { name: api, rate: 100/s }, not "
     "a single value"},
    {"LimitIsNothing", "limits:\n  -\n",
     "f.yaml:3:1: limits[0]: say a map with name and rate, e.g. { name: api, rate: 100/s }, not "
     "nothing"},
    {"UnknownField", Limit("rate: 5/s\nbrust: 5"),
     "f.yaml:4:5: limits[0]: \"brust\": no field has that name; did you mean burst?"},
    {"UnlikelyField", Limit("rate: 5/s\ncolour: red"),
     "f.yaml:4:5: limits[0]: \"colour\": no field has that name; there are name, algorithm, rate, "
     "burst, debt, max_owed, permits, hold_for, mode, charges, keys, sub_windows, utc_offset, "
     "on_store_failure, "
     "hash_tag, sharing, max_wait, min_keys and direct"},
    {"Leased", Limit("rate: 5/s\nsharing: leased"),
     "f.yaml:4:14: limits[0].sharing: \"leased\": is not supported yet; say exact, split or "
     "relaxed"},
    {"NoSharing", Limit("rate: 5/s\nsharing: some"),
     "f.yaml:4:14: limits[0].sharing: \"some\": say exact, split or relaxed"},
    {"NoStoreFailure", Limit("rate: 5/s\non_store_failure: some"),
     "f.yaml:4:23: limits[0].on_store_failure: \"some\": say deny, allow or split"},
    {"FieldTwice", Limit("rate: 5/s\nrate: 6/s"),
     "f.yaml:4:5: \"rate\": is given twice, first in line 3; keep one"},
    {"FieldTwiceInFlow", "limits: [{ name: a, rate: 5/s, rate: 5/s }]\n",
     "f.yaml:1:32: \"rate\": is given twice, first in line 1; keep one"},
    {"HashTagIsEmpty", Limit("rate: 5/s\nhash_tag: ''"),
     "f.yaml:4:15: limits[0].hash_tag: is empty; take it out, or say a word, e.g. orders"},
    {"HashTagOfBraces", Limit("rate: 5/s\nhash_tag: '{a}'"),
     "f.yaml:4:15: limits[0].hash_tag: \"{a}\": a name has only letters, digits and - _ . : / @"},
    {"NoName", "limits:\n  - rate: 5/s\n",
     "f.yaml:2:5: limits[0].name: is missing; give the limit a name"},
    {"NoRate", "limits:\n  - name: api\n",
     "f.yaml:2:5: limits[0].rate: is missing; say e.g. rate: 100/s"},
    {"NullName", "limits:\n  - name: null\n    rate: 5/s\n",
     "f.yaml:2:5: limits[0].name: has no value; say a name, in quotes if it is null or ~, or take "
     "the field out"},
    {"EmptyName", "limits:\n  - name: \"\"\n    rate: 5/s\n",
     "f.yaml:2:11: limits[0].name: is empty; say a name of letters, digits and - _ . : / @"},
    {"NameWithABlank", "limits:\n  - name: my api\n    rate: 5/s\n",
     "f.yaml:2:11: limits[0].name: \"my api\": a name has only letters, digits and - _ . : / @"},
    {"LongName", "limits:\n  - name: " + std::string(129, 'n') + "\n    rate: 5/s\n",
     "f.yaml:2:11: limits[0].name: \"" + std::string(64, 'n') +
         "...\": the name has 129 characters; at most 128"},
    {"NameTwice",
     "limits:\n  - { name: api, rate: 5/s }\n  - { name: b, rate: 5/s }\n"
     "  - { name: api, rate: 5/s }\n",
     "f.yaml:4:13: limits[2].name: \"api\": is already the name of limits[0] in line 2; give each "
     "limit a name of its own"},
    {"UnknownAlgorithm", Limit("rate: 5/s\nalgorithm: tokenbucket"),
     "f.yaml:4:16: limits[0].algorithm: \"tokenbucket\": did you mean token_bucket? say "
     "token_bucket, sliding_log, sliding_window, fixed_window or concurrency"},
    // Slots.
    {"SlotsWithoutPermits", Limit("algorithm: concurrency"),
     "f.yaml:2:5: limits[0].permits: is missing; say how many may be in use, e.g. permits: 100"},
    {"SlotsPermitsZero", Limit("algorithm: concurrency\npermits: 0"),
     "f.yaml:4:14: limits[0].permits: \"0\": grants nothing; say at least 1"},
    {"SlotsPermitsTooMany", Limit("algorithm: concurrency\npermits: 9223372036854775808"),
     "f.yaml:4:14: limits[0].permits: \"9223372036854775808\": does not fit; at most "
     "9223372036854775807"},
    {"SlotsHoldForZero", Limit("algorithm: concurrency\npermits: 1\nhold_for: 0s"),
     "f.yaml:5:15: limits[0].hold_for: \"0s\": must be from 1ms to 24h"},
    {"SlotsHoldForTooLong", Limit("algorithm: concurrency\npermits: 1\nhold_for: 25h"),
     "f.yaml:5:15: limits[0].hold_for: \"25h\": must be from 1ms to 24h"},
    {"SlotsWithRate", Limit("algorithm: concurrency\npermits: 1\nrate: 5/s"),
     "f.yaml:5:11: limits[0].rate: \"5/s\": concurrency has none; say permits: 100, or another "
     "algorithm"},
    {"SlotsWithBurst", Limit("algorithm: concurrency\npermits: 1\nburst: 5"),
     "f.yaml:5:12: limits[0].burst: \"5\": concurrency has none; take it out, or say algorithm: "
     "token_bucket"},
    {"SlotsWithDebt", Limit("algorithm: concurrency\npermits: 1\ndebt: 5"),
     "f.yaml:5:11: limits[0].debt: \"5\": concurrency has none; take it out, or say algorithm: "
     "token_bucket"},
    {"SlotsWithMaxOwed", Limit("algorithm: concurrency\npermits: 1\nmax_owed: 5"),
     "f.yaml:5:15: limits[0].max_owed: \"5\": concurrency has no forced debits, as slots cannot be "
     "owed; take it out"},
    {"SlotsSplit", Limit("algorithm: concurrency\npermits: 1\nsharing: split"),
     "f.yaml:5:14: limits[0].sharing: \"split\": concurrency is exact, as a slot that is granted "
     "twice cannot be taken back; take it out"},
    {"SlotsRelaxed", Limit("algorithm: concurrency\npermits: 1\nsharing: relaxed"),
     "f.yaml:5:14: limits[0].sharing: \"relaxed\": concurrency is exact, as a slot that is granted "
     "twice cannot be taken back; take it out"},
    {"SlotsAllow", Limit("algorithm: concurrency\npermits: 1\non_store_failure: allow"),
     "f.yaml:5:23: limits[0].on_store_failure: \"allow\": concurrency is exact, as a slot that is "
     "granted twice cannot be taken back; take it out"},
    {"SlotsSplitOnFailure", Limit("algorithm: concurrency\npermits: 1\non_store_failure: split"),
     "f.yaml:5:23: limits[0].on_store_failure: \"split\": concurrency is exact, as a slot that is "
     "granted twice cannot be taken back; take it out"},
    {"SlotsKeyWithRate", Limit("algorithm: concurrency\npermits: 1\nkeys: { u: { rate: 1/s } }"),
     "f.yaml:5:24: limits[0].keys[\"u\"].rate: \"1/s\": concurrency has none; say permits: 100, or "
     "another algorithm"},
    {"SlotsKeyZero", Limit("algorithm: concurrency\npermits: 1\nkeys: { u: { permits: 0 } }"),
     "f.yaml:5:27: limits[0].keys[\"u\"].permits: \"0\": grants nothing; say at least 1"},
    {"SlotsKeySaysNothing", Limit("algorithm: concurrency\npermits: 1\nkeys: { u: {} }"),
     "f.yaml:5:13: limits[0].keys[\"u\"]: \"u\": says nothing; give it permits, or take it out"},
    {"PermitsOfARate", Limit("rate: 5/s\npermits: 1"),
     "f.yaml:4:14: limits[0].permits: \"1\": token_bucket has none; take it out, or say algorithm: "
     "concurrency"},
    {"HoldForOfARate", Limit("rate: 5/s\nhold_for: 1s"),
     "f.yaml:4:15: limits[0].hold_for: \"1s\": token_bucket has none; take it out, or say "
     "algorithm: concurrency"},
    {"KeyPermitsOfARate", Limit("rate: 5/s\nkeys: { u: { permits: 1 } }"),
     "f.yaml:4:27: limits[0].keys[\"u\"].permits: \"1\": token_bucket has none; take it out, or "
     "say algorithm: concurrency"},
    {"UnknownMode", Limit("rate: 5/s\nmode: dry"),
     "f.yaml:4:11: limits[0].mode: \"dry\": say enforce or shadow"},
    {"ModeIsAList", Limit("rate: 5/s\nmode: [shadow]"),
     "f.yaml:4:11: limits[0].mode: say enforce or shadow, not a list"},

    // Rates.
    {"RateWithoutPeriod",
     "limits:\n  - { name: a, rate: 1/s }\n  - { name: b, rate: 1/s }\n  - name: c\n    rate: 5\n",
     "f.yaml:5:11: limits[2].rate: \"5\": say permits per period, e.g. 5/s, 500/250ms or "
     "10000/24h"},
    {"RateZero", Limit("rate: 0/s"),
     "f.yaml:3:11: limits[0].rate: \"0/s\": grants nothing; say at least 1 permit per period, "
     "e.g. 1/s"},
    {"RateNegative", Limit("rate: -5/s"),
     "f.yaml:3:11: limits[0].rate: \"-5/s\": permits cannot be negative; say e.g. 5/s"},
    {"RateFloat", Limit("rate: 1.5/s"),
     "f.yaml:3:11: limits[0].rate: \"1.5/s\": permits are whole; for a fraction take a longer "
     "period, e.g. 15/10s for 1.5 a second"},
    {"RateExponent", Limit("rate: 1e6/s"),
     "f.yaml:3:11: limits[0].rate: \"1e6/s\": say a whole number, e.g. 100 or 10_000"},
    {"RatePeriodZero", Limit("rate: 5/0s"),
     "f.yaml:3:11: limits[0].rate: \"5/0s\": the period must be from 1ms to 366d"},
    {"RatePeriodNegative", Limit("rate: 5/-1s"),
     "f.yaml:3:11: limits[0].rate: \"5/-1s\": the period cannot be negative; say e.g. 500/250ms"},
    {"RatePeriodShort", Limit("rate: 5/999us"),
     "f.yaml:3:11: limits[0].rate: \"5/999us\": the period must be from 1ms to 366d"},
    {"RatePeriodLong", Limit("rate: 5/2y"),
     "f.yaml:3:11: limits[0].rate: \"5/2y\": the period must be from 1ms to 366d"},
    {"RatePeriodDoesNotFit", Limit("rate: 5/300y"),
     "f.yaml:3:11: limits[0].rate: \"5/300y\": is longer than 292 years, which does not fit; at "
     "most 366d"},
    {"RateUnknownUnit", Limit("rate: 5/fortnight"),
     "f.yaml:3:11: limits[0].rate: \"5/fortnight\": no unit is named \"fortnight\"; the units are "
     "ns, us, ms, s, m, h, d, w and y"},
    {"RatePerMonth", Limit("rate: 5/month"),
     "f.yaml:3:11: limits[0].rate: \"5/month\": a month has no fixed length; say 30d"},
    {"RateTooFast", Limit("rate: 2000000000/s"),
     "f.yaml:3:11: limits[0].rate: \"2000000000/s\": is too fast; at most 1000000000/s"},
    {"RateDoesNotFit", Limit("rate: 18446744073709551616/s"),
     "f.yaml:3:11: limits[0].rate: \"18446744073709551616/s\": does not fit; at most "
     "9223372036854775807"},
    {"RateAboveSigned", Limit("rate: 9223372036854775808/s"),
     "f.yaml:3:11: limits[0].rate: \"9223372036854775808/s\": the permits do not fit; at most "
     "9223372036854775807"},
    {"RateIsAMap", Limit("rate: { permits: 5 }"),
     "f.yaml:3:11: limits[0].rate: say permits per period, e.g. 5/s, 500/250ms or 10000/24h, not a "
     "map"},
    {"RateIsNothing", Limit("rate:"),
     "f.yaml:3:5: limits[0].rate: has no value; say permits per period, e.g. 5/s, 500/250ms or "
     "10000/24h, or take the field out"},

    // Burst, debt and fields of one algorithm.
    {"BurstZero", Limit("rate: 5/s\nburst: 0"),
     "f.yaml:4:12: limits[0].burst: \"0\": without debt grants nothing; say at least 1, or add "
     "debt to pace evenly"},
    {"BurstNegative", Limit("rate: 5/s\nburst: -1"),
     "f.yaml:4:12: limits[0].burst: \"-1\": say a whole number, e.g. 100 or 10_000"},
    {"BurstFloat", Limit("rate: 5/s\nburst: 1.5"),
     "f.yaml:4:12: limits[0].burst: \"1.5\": say a whole number, e.g. 100 or 10_000"},
    {"BurstIsAWord", Limit("rate: 5/s\nburst: many"),
     "f.yaml:4:12: limits[0].burst: \"many\": say a whole number, e.g. 100 or 10_000"},
    {"BurstIsNothing", Limit("rate: 5/s\nburst:"),
     "f.yaml:4:5: limits[0].burst: has no value; say a whole number of permits, or take the field "
     "out"},
    {"BurstDoesNotFit", Limit("rate: 5/s\nburst: 99999999999999999999"),
     "f.yaml:4:12: limits[0].burst: \"99999999999999999999\": does not fit; at most "
     "9223372036854775807"},
    {"BurstAboveSigned", Limit("rate: 5/s\nburst: 9223372036854775808"),
     "f.yaml:4:12: limits[0].burst: \"9223372036854775808\": does not fit; at most "
     "9223372036854775807"},
    {"BurstLongerThanTicks", Limit("rate: 1/year\nburst: 1000"),
     "f.yaml:4:12: limits[0].burst: \"1000\": at rate 1/8760h burst and debt together can be at "
     "most 73 permits"},
    {"DebtLongerThanTicks", Limit("rate: 1/year\ndebt: 1000"),
     "f.yaml:4:11: limits[0].debt: \"1000\": at rate 1/8760h burst and debt together can be at "
     "most 73 permits"},
    {"MaxOwedBelowDebt", Limit("rate: 5/s\ndebt: 10\nmax_owed: 9"),
     "f.yaml:5:15: limits[0].max_owed: \"9\": is below debt, 10; say at least as many"},
    {"MaxOwedDoesNotFit", Limit("rate: 1/year\nmax_owed: 1000"),
     "f.yaml:4:15: limits[0].max_owed: \"1000\": does not fit beside burst, 1; at most 72"},
    {"MaxOwedDoesNotFitAWindow",
     Limit("algorithm: fixed_window\nrate: 5/s\nmax_owed: 9223372036854775807"),
     "f.yaml:5:15: limits[0].max_owed: \"9223372036854775807\": does not fit beside the permits of "
     "the rate, 5; at most 9223372036854775802"},
    {"MaxOwedOfASplitLimit", Limit("rate: 5/s\nsharing: split\nmax_owed: 9"),
     "f.yaml:5:15: limits[0].max_owed: \"9\": sharing: split has no forced debits; take it out, or "
     "say sharing: exact"},
    {"BurstOnASlidingLog", Limit("algorithm: sliding_log\nrate: 5/s\nburst: 5"),
     "f.yaml:5:12: limits[0].burst: \"5\": sliding_log has none; take it out, or say algorithm: "
     "token_bucket"},
    {"DebtOnASlidingWindow", Limit("algorithm: sliding_window\nrate: 5/s\ndebt: 0"),
     "f.yaml:5:11: limits[0].debt: \"0\": sliding_window has none; take it out, or say algorithm: "
     "token_bucket"},
    {"BurstOnAFixedWindow", Limit("algorithm: fixed_window\nrate: 5/s\nburst: 1_0"),
     "f.yaml:5:12: limits[0].burst: \"1_0\": fixed_window has none; take it out, or say "
     "algorithm: token_bucket"},
    {"SubWindowsOnATokenBucket", Limit("rate: 5/s\nsub_windows: 10"),
     "f.yaml:4:18: limits[0].sub_windows: \"10\": token_bucket has none; take it out, or say "
     "algorithm: sliding_window"},
    {"SubWindowsZero", Limit("algorithm: sliding_window\nrate: 5/s\nsub_windows: 0"),
     "f.yaml:5:18: limits[0].sub_windows: \"0\": must be from 1 to 100"},
    {"SubWindowsMany", Limit("algorithm: sliding_window\nrate: 5/s\nsub_windows: 4294967297"),
     "f.yaml:5:18: limits[0].sub_windows: \"4294967297\": must be from 1 to 100"},
    {"UtcOffsetOnATokenBucket", Limit("rate: 5/s\nutc_offset: +02:00"),
     "f.yaml:4:17: limits[0].utc_offset: \"+02:00\": token_bucket has none; take it out, or say "
     "algorithm: fixed_window"},
    {"UtcOffsetFar", Limit("algorithm: fixed_window\nrate: 5/s\nutc_offset: -25h"),
     "f.yaml:5:17: limits[0].utc_offset: \"-25h\": must be from -24:00 to +24:00"},
    {"UtcOffsetByName", Limit("algorithm: fixed_window\nrate: 5/s\nutc_offset: CET"),
     "f.yaml:5:17: limits[0].utc_offset: \"CET\": say an offset from UTC, e.g. +02:00, -5h30m or "
     "0"},

    // Booking ahead, reserved room, direct requests.
    {"MaxWaitOverADay", Limit("rate: 5/s\nmax_wait: 25h"),
     "f.yaml:4:15: limits[0].max_wait: \"25h\": must be from 0s to 24h"},
    {"MaxWaitWithoutUnit", Limit("rate: 5/s\nmax_wait: 60"),
     "f.yaml:4:15: limits[0].max_wait: \"60\": say a number and a unit, e.g. 250ms, 24h or 1h30m"},
    {"NegativeMaxWait", Limit("rate: 5/s\nmax_wait: -1s"),
     "f.yaml:4:15: limits[0].max_wait: \"-1s\": say a number and a unit, e.g. 250ms, 24h or "
     "1h30m"},
    {"MinKeysInWords", Limit("rate: 5/s\nmin_keys: many"),
     "f.yaml:4:15: limits[0].min_keys: \"many\": say a whole number, e.g. 100 or 10_000"},
    {"MinKeysWithoutValue", Limit("rate: 5/s\nmin_keys:"),
     "f.yaml:4:5: limits[0].min_keys: has no value; say a whole number of keys, or take the field "
     "out"},
    {"TooManyMinKeys", Limit("rate: 5/s\nmin_keys: 4294967297"),
     "f.yaml:4:15: limits[0].min_keys: \"4294967297\": is too many; at most 4294967296"},
    {"DirectByAnotherName", Limit("rate: 5/s\ndirect: yes"),
     "f.yaml:4:13: limits[0].direct: \"yes\": say true or false"},

    // Charges.
    {"ChargesIsAValue", Limit("rate: 5/s\ncharges: overall"),
     "f.yaml:4:14: limits[0].charges: say a list of limits' names, e.g. [overall], not a single "
     "value"},
    {"ChargesUnknown",
     "limits:\n  - name: api\n    rate: 5/s\n    charges: [overal]\n"
     "  - { name: overall, rate: 5/s }\n",
     "f.yaml:4:15: limits[0].charges[0]: \"overal\": no limit has that name; did you mean "
     "overall?"},
    {"ChargesItself", Limit("rate: 5/s\ncharges: [api]"),
     "f.yaml:4:15: limits[0].charges[0]: \"api\": makes a cycle, api -> api; a limit cannot charge "
     "itself, take one of them out"},
    {"Cycle",
     "limits:\n  - { name: a, rate: 5/s, charges: [b] }\n"
     "  - { name: b, rate: 5/s, charges: [a] }\n",
     "f.yaml:2:37: limits[0].charges[0]: \"b\": makes a cycle, a -> b -> a; a limit cannot charge "
     "itself, take one of them out"},
    {"ChargesTwice",
     "limits:\n  - name: api\n    rate: 5/s\n    charges:\n      - b\n      - b\n"
     "  - { name: b, rate: 5/s }\n",
     "f.yaml:6:9: limits[0].charges[1]: \"b\": is named twice; a limit is charged once, name it "
     "once"},
    {"ChargesNothing", Limit("rate: 5/s\ncharges: [~]"),
     "f.yaml:4:15: limits[0].charges[0]: has no value; say a limit's name, or take the field out"},
    {"SeventeenCharges", Chain(17),
     "f.yaml:2:37: limits[0].charges: with those that the limits named here charge in turn, and "
     "itself, this limit makes more than 16 charges of one; at most 16"},

    // Overrides.
    {"KeysIsAList", Limit("rate: 5/s\nkeys: [a]"),
     "f.yaml:4:11: limits[0].keys: say a map of keys to their parameters, e.g. { \"user:42\": { "
     "rate: "
     "1000/s } }, not a list"},
    {"KeyIsARate", Limit("rate: 5/s\nkeys: { u: 6/s }"),
     "f.yaml:4:16: limits[0].keys[\"u\"]: say a map of parameters, e.g. { rate: 1000/s }, not a "
     "single value"},
    {"KeyTwice", Limit("rate: 5/s\nkeys:\n  u: { burst: 1 }\n  u: { burst: 2 }"),
     "f.yaml:6:7: \"u\": is given twice, first in line 5; keep one"},
    {"KeyLong", Limit("rate: 5/s\nkeys:\n  ? " + std::string(513, 'k') + "\n  : { burst: 1 }"),
     "f.yaml:5:9: limits[0].keys[\"" + std::string(64, 'k') + "...\"]: \"" + std::string(64, 'k') +
         "...\": the key has 513 bytes; at most 512"},
    {"KeySaysNothing", Limit("rate: 5/s\nkeys: { u: {} }"),
     "f.yaml:4:13: limits[0].keys[\"u\"]: \"u\": says nothing; give it a rate, burst or debt, or "
     "take it out"},
    {"KeyUnknownField", Limit("rate: 5/s\nkeys: { u: { rates: 6/s } }"),
     "f.yaml:4:18: limits[0].keys[\"u\"]: \"rates\": no field has that name; did you mean rate?"},
    {"KeyBadRate", Limit("rate: 5/s\nkeys: { u: { rate: 6 } }"),
     "f.yaml:4:24: limits[0].keys[\"u\"].rate: \"6\": say permits per period, e.g. 5/s, 500/250ms "
     "or 10000/24h"},
    {"KeyBurstZero", Limit("rate: 5/s\nkeys: { u: { burst: 00 } }"),
     "f.yaml:4:25: limits[0].keys[\"u\"].burst: \"00\": without debt grants nothing; say at least "
     "1, or add debt to pace evenly"},
    {"KeyBurstOnASlidingLog",
     Limit("algorithm: sliding_log\nrate: 5/s\nkeys: { u: { rate: 6/s, burst: 5 } }"),
     "f.yaml:5:36: limits[0].keys[\"u\"].burst: \"5\": sliding_log has none; take it out, or say "
     "algorithm: token_bucket"},
    {"KeyRateDoesNotGoWithTheLimitsBurst",
     Limit("rate: 5/s\nburst: 1000\nkeys: { u: { rate: 1/y } }"),
     "f.yaml:5:13: limits[0].keys[\"u\"]: \"u\": its burst of 1000 (the limit's or the default) "
     "does not go with it: at rate 1/8760h burst and debt together can be at most 73 permits"},
    {"KeyUnprintable", Limit("rate: 5/s\nkeys: { \"a\\x01\\n\\\"\": {} }"),
     "f.yaml:4:13: limits[0].keys[\"a\\x01\\n\\\"\"]: \"a\\x01\\n\\\"\": says nothing; give it a "
     "rate, burst or debt, or take it out"},
    {"ColumnsCountBytes", "limits: [{ name: \"\xc3\xa4\xc3\xa4\", rate: 5/s }]\n",
     "f.yaml:1:18: limits[0].name: \"\xc3\xa4\xc3\xa4\": a name has only letters, digits and - _ . "
     ": / @"},
};

class BadLimitsTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadLimitsTest, ReportsPlaceAndRemedy) {
  const auto specs = ParseLimits(GetParam().text, "f.yaml");
  ASSERT_FALSE(specs.ok());
  EXPECT_EQ(specs.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(specs.status().message()), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(All, BadLimitsTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadLimitsTest, RejectsATooLongTextUnread) {
  const std::string text(common::bounds::kMaxLimitsFileBytes + 1, '[');
  EXPECT_EQ(std::string(ParseLimits(text, "f.yaml").status().message()),
            "f.yaml: has 8388609 bytes; at most 8388608 bytes are allowed");
}

TEST(BadLimitsTest, RejectsTooManyLimits) {
  std::string text = "limits:\n";
  for (size_t i = 0; i <= common::bounds::kMaxLimits; ++i) {
    text += "- {name: l" + std::to_string(i) + ", rate: 1/s}\n";
  }
  EXPECT_EQ(std::string(ParseLimits(text, "f.yaml").status().message()),
            "f.yaml:100002:3: limits: there are 100001; at most 100000");
}

}  // namespace
}  // namespace sluice::config
