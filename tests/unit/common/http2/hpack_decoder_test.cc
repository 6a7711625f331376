#include "common/http2/hpack_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/hpack_oracle.h"

namespace sluice::http2 {
namespace {

using testing::HpackFields;
using ::testing::IsEmpty;
using testing::OurDecoder;

std::string Hex(std::string_view digits) {
  std::string bytes;
  std::string pair;
  for (const char digit : digits) {
    if (digit == ' ') continue;
    pair += digit;
    if (pair.size() < 2) continue;
    bytes += static_cast<char>(std::stoi(pair, nullptr, 16));
    pair.clear();
  }
  return bytes;
}

// A literal that enters the table.
std::string Literal(std::string_view name, std::string_view value) {
  const auto text = [](std::string_view bytes) {
    std::string encoded;
    size_t size = bytes.size();
    if (size < 127) {
      encoded += static_cast<char>(size);
    } else {
      encoded += '\x7f';
      for (size -= 127; size >= 128; size >>= 7) encoded += static_cast<char>(size | 0x80);
      encoded += static_cast<char>(size);
    }
    return encoded.append(bytes);
  };
  return "\x40" + text(name) + text(value);
}

HpackError DecodeOnly(std::string_view block) {
  OurDecoder decoder;
  HpackFields fields;
  return decoder.Decode(block, &fields);
}

struct Step {
  std::string block;
  HpackFields fields;
  HpackFields table;  // afterwards, the newest first
  uint32_t table_bytes;
};

void ExpectSteps(const std::vector<Step>& steps, uint32_t table_limit) {
  OurDecoder decoder;
  for (size_t i = 0; i < steps.size(); ++i) {
    std::string block = Hex(steps[i].block);
    if (i == 0 && table_limit == 256) block = Hex("3fe101") + block;
    HpackFields fields;
    ASSERT_EQ(decoder.Decode(block, &fields), HpackError::kNone) << i;
    EXPECT_EQ(fields, steps[i].fields) << i;
    EXPECT_EQ(decoder.Table(), steps[i].table) << i;
    EXPECT_EQ(decoder.decoder().table().bytes(), steps[i].table_bytes) << i;
  }
}

const HpackFields kFirstRequest = {
    {":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "www.example.com"}};
const HpackFields kSecondRequest = {{":method", "GET"},
                                    {":scheme", "http"},
                                    {":path", "/"},
                                    {":authority", "www.example.com"},
                                    {"cache-control", "no-cache"}};
const HpackFields kThirdRequest = {{":method", "GET"},
                                   {":scheme", "https"},
                                   {":path", "/index.html"},
                                   {":authority", "www.example.com"},
                                   {"custom-key", "custom-value"}};
const HpackFields kFirstTable = {{":authority", "www.example.com"}};
const HpackFields kSecondTable = {{"cache-control", "no-cache"}, {":authority", "www.example.com"}};
const HpackFields kThirdTable = {{"custom-key", "custom-value"},
                                 {"cache-control", "no-cache"},
                                 {":authority", "www.example.com"}};

constexpr char kDate21[] = "Mon, 21 Oct 2013 20:13:21 GMT";
constexpr char kDate22[] = "Mon, 21 Oct 2013 20:13:22 GMT";
constexpr char kCookie[] = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
constexpr char kPlace[] = "https://www.example.com";
const HpackFields kFirstResponse = {
    {":status", "302"}, {"cache-control", "private"}, {"date", kDate21}, {"location", kPlace}};
const HpackFields kSecondResponse = {
    {":status", "307"}, {"cache-control", "private"}, {"date", kDate21}, {"location", kPlace}};
const HpackFields kThirdResponse = {
    {":status", "200"},   {"cache-control", "private"}, {"date", kDate22},
    {"location", kPlace}, {"content-encoding", "gzip"}, {"set-cookie", kCookie}};
const HpackFields kResponseTable1 = {
    {"location", kPlace}, {"date", kDate21}, {"cache-control", "private"}, {":status", "302"}};
const HpackFields kResponseTable2 = {
    {":status", "307"}, {"location", kPlace}, {"date", kDate21}, {"cache-control", "private"}};
const HpackFields kResponseTable3 = {
    {"set-cookie", kCookie}, {"content-encoding", "gzip"}, {"date", kDate22}};

// RFC 7541, appendix C.
TEST(HpackDecoderTest, DecodesLiteralsOfTheRfc) {
  const HpackFields custom = {{"custom-key", "custom-header"}};
  ExpectSteps(
      {{"400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", custom, custom, 55}},
      4096);
  ExpectSteps({{"040c 2f73 616d 706c 652f 7061 7468", {{":path", "/sample/path"}}, {}, 0}}, 4096);
  ExpectSteps({{"1008 7061 7373 776f 7264 0673 6563 7265 74", {{"password", "secret"}}, {}, 0}},
              4096);
  ExpectSteps({{"82", {{":method", "GET"}}, {}, 0}}, 4096);
}

TEST(HpackDecoderTest, DecodesRequestsOfTheRfc) {
  ExpectSteps(
      {{"8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", kFirstRequest, kFirstTable, 57},
       {"8286 84be 5808 6e6f 2d63 6163 6865", kSecondRequest, kSecondTable, 110},
       {"8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", kThirdRequest,
        kThirdTable, 164}},
      4096);
}

TEST(HpackDecoderTest, DecodesHuffmanCodedRequestsOfTheRfc) {
  ExpectSteps({{"8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", kFirstRequest, kFirstTable, 57},
               {"8286 84be 5886 a8eb 1064 9cbf", kSecondRequest, kSecondTable, 110},
               {"8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", kThirdRequest,
                kThirdTable, 164}},
              4096);
}

TEST(HpackDecoderTest, EvictsAsInTheResponsesOfTheRfc) {
  ExpectSteps(
      {{"4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a"
        "3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        kFirstResponse, kResponseTable1, 222},
       {"4803 3330 37c1 c0bf", kSecondResponse, kResponseTable2, 222},
       {"88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04"
        "677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49"
        "553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        kThirdResponse, kResponseTable3, 215}},
      256);
}

TEST(HpackDecoderTest, EvictsAsInTheHuffmanCodedResponsesOfTheRfc) {
  ExpectSteps({{"4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6"
                "2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                kFirstResponse, kResponseTable1, 222},
               {"4883 640e ffc1 c0bf", kSecondResponse, kResponseTable2, 222},
               {"88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab"
                "77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f"
                "9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                kThirdResponse, kResponseTable3, 215}},
              256);
}

TEST(HpackDecoderTest, ReadsIntegersOfSeveralBytes) {
  // C.1.2: 1337 with a prefix of five bits, here a size update.
  OurDecoder decoder;
  HpackFields fields;
  EXPECT_EQ(decoder.Decode(Hex("3f9a0a"), &fields), HpackError::kNone);
  EXPECT_EQ(decoder.decoder().table().limit(), 1337u);
  // With zeros behind it, as long as it has at most five bytes after the prefix.
  EXPECT_EQ(decoder.Decode(Hex("3f9a8a808000"), &fields), HpackError::kNone);
  EXPECT_EQ(DecodeOnly(Hex("3f9a8a80808000")), HpackError::kIntegerTooLarge);
}

TEST(HpackDecoderTest, TakesEmptyBlocksAndStrings) {
  OurDecoder decoder;
  HpackFields fields;
  EXPECT_EQ(decoder.Decode("", &fields), HpackError::kNone);
  EXPECT_EQ(decoder.Decode(Hex("000000 400080 008000"), &fields), HpackError::kNone);
  EXPECT_EQ(fields, HpackFields(3));
  EXPECT_EQ(decoder.decoder().table().bytes(), 32u);
}

TEST(HpackDecoderTest, RefusesTruncatedBlocks) {
  const std::string block = Hex("4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf");
  for (size_t size = 1; size < block.size(); ++size) {
    EXPECT_EQ(DecodeOnly(block.substr(0, size)), HpackError::kTruncated) << size;
  }
  for (const char* unfinished : {"ff", "ff80", "7f", "0f", "3f", "3f80", "007f", "00ff80"}) {
    EXPECT_EQ(DecodeOnly(Hex(unfinished)), HpackError::kTruncated) << unfinished;
  }
}

TEST(HpackDecoderTest, RefusesIndicesOutOfRange) {
  for (const char* block :
       {"80", "be", "ff00", "7f00 0161", "7e 0161", "0f2f 0161", "ffffffffff07", "1f2f 0161"}) {
    EXPECT_EQ(DecodeOnly(Hex(block)), HpackError::kIndexOutOfRange) << block;
  }
  OurDecoder decoder;
  HpackFields fields;
  EXPECT_EQ(decoder.Decode(Literal("a", "1") + "\xbe", &fields), HpackError::kNone);
  EXPECT_EQ(decoder.Decode("\xbf", &fields), HpackError::kIndexOutOfRange);
}

TEST(HpackDecoderTest, RefusesIntegersOfMoreThan32Bits) {
  for (const char* block :
       {"ffffffffff7f", "ff8080808080", "3fe1ffffff0f", "007fffffffff7f", "0fffffffff7f"}) {
    EXPECT_EQ(DecodeOnly(Hex(block)), HpackError::kIntegerTooLarge) << block;
  }
}

TEST(HpackDecoderTest, RefusesBadHuffmanCodes) {
  // Padding of eight ones, of zeros, a code cut short, EOS, EOS within a text.
  for (const char* block :
       {"0081ff00", "00821fff00", "00811800", "0081fe00", "0084ffffffff00", "00861fffffffffff00"}) {
    EXPECT_EQ(DecodeOnly(Hex(block)), HpackError::kBadHuffman) << block;
  }
  EXPECT_EQ(DecodeOnly(Hex("00811f00")), HpackError::kNone);  // "a"
}

TEST(HpackDecoderTest, RefusesSizeUpdatesAboveTheSettings) {
  EXPECT_EQ(DecodeOnly(Hex("3fe11f")), HpackError::kNone);  // 4096
  EXPECT_EQ(DecodeOnly(Hex("3fe21f")), HpackError::kSizeUpdateTooLarge);
}

TEST(HpackDecoderTest, TakesTwoSizeUpdatesAtTheStartOnly) {
  EXPECT_EQ(DecodeOnly(Hex("20 3fe11f 82")), HpackError::kNone);
  EXPECT_EQ(DecodeOnly(Hex("20 20 3fe11f 82")), HpackError::kSizeUpdateLate);
  EXPECT_EQ(DecodeOnly(Hex("82 20")), HpackError::kSizeUpdateLate);
}

TEST(HpackDecoderTest, SizeUpdateEvicts) {
  OurDecoder decoder;
  HpackFields fields;
  ASSERT_EQ(decoder.Decode(Literal("a", "1") + Literal("b", "2") + Literal("c", "3"), &fields),
            HpackError::kNone);
  ASSERT_EQ(decoder.Decode(Hex("3f25"), &fields), HpackError::kNone);  // 68: two entries
  EXPECT_EQ(decoder.Table(), (HpackFields{{"c", "3"}, {"b", "2"}}));
  ASSERT_EQ(decoder.Decode(Hex("20"), &fields), HpackError::kNone);
  EXPECT_THAT(decoder.Table(), IsEmpty());
  ASSERT_EQ(decoder.Decode(Literal("d", "4"), &fields), HpackError::kNone);
  EXPECT_THAT(decoder.Table(), IsEmpty());
}

TEST(HpackDecoderTest, NameOutlivesTheEntryThatItEvicts) {
  OurDecoder decoder;
  HpackFields fields;
  const std::string name(1500, 'n');
  const std::string value(1500, 'v');
  // The entry whose name is used is evicted, and the text moves: round after round.
  ASSERT_EQ(decoder.Decode(Literal(name, "0"), &fields), HpackError::kNone);
  for (int round = 0; round < 20; ++round) {
    std::string block = Literal("", value).substr(2);  // the value alone
    block.insert(0, "\x7e");                           // the newest entry's name
    fields.clear();
    ASSERT_EQ(decoder.Decode(block, &fields), HpackError::kNone);
    EXPECT_EQ(fields, (HpackFields{{name, value}})) << round;
    EXPECT_EQ(decoder.Table(), (HpackFields{{name, value}})) << round;
  }
}

TEST(HpackDecoderTest, FieldThatIsLargerThanTheTableEmptiesIt) {
  OurDecoder decoder;
  HpackFields fields;
  const std::string value(4096, 'v');
  ASSERT_EQ(decoder.Decode(Literal("a", "1") + Literal("b", value), &fields), HpackError::kNone);
  EXPECT_EQ(fields, (HpackFields{{"a", "1"}, {"b", value}}));
  EXPECT_THAT(decoder.Table(), IsEmpty());
}

TEST(HpackDecoderTest, FieldThatIsLargerThanAnyHeaderListHasOnlyItsSize) {
  const std::string large(kMaxHpackFieldBytes, 'v');
  const std::string coded = "\x40\x01" + std::string("n") + Hex("ff 81 7f") +
                            std::string(128 + 16256, '\x18');  // 26,214 characters and a rest
  for (const std::string& block :
       {Literal("n", large), Literal(large, "v"), Literal("n", large + large), coded}) {
    OurDecoder decoder;
    HpackFields fields;
    ASSERT_EQ(decoder.Decode(Literal("a", "1"), &fields), HpackError::kNone);
    size_t calls = 0;
    HpackDecoder plain(testing::HashVocabulary());
    EXPECT_EQ(plain.Decode(testing::BytesOf(block),
                           [&](const HpackField& field) {
                             ++calls;
                             EXPECT_GT(field.bytes, kMaxHpackFieldBytes);
                             EXPECT_THAT(field.name, IsEmpty());
                             EXPECT_THAT(field.value, IsEmpty());
                             EXPECT_EQ(field.meaning, 0u);
                             return true;
                           }),
              HpackError::kNone);
    EXPECT_EQ(calls, 1u);
    EXPECT_EQ(decoder.Decode(block + "\x82", &fields), HpackError::kNone);
    EXPECT_EQ(fields.back().second, "GET");
    EXPECT_THAT(decoder.Table(), IsEmpty());
  }
  // The largest that has its bytes.
  OurDecoder decoder;
  HpackFields fields;
  EXPECT_EQ(decoder.Decode(Literal("n", large.substr(1)), &fields), HpackError::kNone);
  EXPECT_EQ(fields, (HpackFields{{"n", large.substr(1)}}));
}

TEST(HpackDecoderTest, KeepsTheTableWhenFieldsAreNotWanted) {
  OurDecoder decoder;
  HpackFields fields;
  ASSERT_EQ(decoder.Decode("\x82" + Literal("a", "1") + "\x83" + Literal("b", "2") + "\xbe",
                           &fields, /*most=*/1),
            HpackError::kNone);
  EXPECT_EQ(fields, (HpackFields{{":method", "GET"}}));
  EXPECT_EQ(decoder.Table(), (HpackFields{{"b", "2"}, {"a", "1"}}));
  EXPECT_EQ(decoder.Decode("\x82\x80", &fields, 1), HpackError::kIndexOutOfRange);
}

TEST(HpackDecoderTest, RefusesBlocksThatInsertMuchThatIsNotWanted) {
  // An entry with a long name, and two bytes each that insert it again.
  const auto block = [](size_t times) {
    std::string bytes = Literal(std::string(4000, 'n'), "");
    for (size_t i = 0; i < times; ++i) bytes += Hex("7e 00");
    return bytes;
  };
  HpackFields fields;
  EXPECT_EQ(OurDecoder().Decode(block(15), &fields, /*most=*/1), HpackError::kNone);
  EXPECT_EQ(OurDecoder().Decode(block(17), &fields, 1), HpackError::kTooMuchInserted);
}

// Counts its calls.
class CountingInterpreter : public HpackInterpreter {
 public:
  uint64_t Interpret(std::string_view, std::string_view value, uint64_t like) const override {
    ++calls;
    last_like = like;
    return value.size() + 1;
  }
  mutable int calls = 0;
  mutable uint64_t last_like = 0;
};

TEST(HpackDecoderTest, InterpretsEachEntryOnce) {
  CountingInterpreter interpreter;
  const HpackVocabulary vocabulary(interpreter);
  EXPECT_EQ(interpreter.calls, 61);
  HpackDecoder decoder(vocabulary);
  std::vector<uint64_t> meanings;
  const auto decode = [&](std::string_view block) {
    meanings.clear();
    interpreter.calls = 0;
    EXPECT_EQ(decoder.Decode(testing::BytesOf(block),
                             [&](const HpackField& field) {
                               meanings.push_back(field.meaning);
                               return true;
                             }),
              HpackError::kNone);
  };
  decode(Literal("a", "12") + "\x83\xbe");
  EXPECT_EQ(interpreter.calls, 1);
  EXPECT_EQ(interpreter.last_like, 0u);
  EXPECT_EQ(meanings, (std::vector<uint64_t>{3, 5, 3}));
  decode("\xbe\xbe\x83");
  EXPECT_EQ(interpreter.calls, 0);
  EXPECT_EQ(meanings, (std::vector<uint64_t>{3, 3, 5}));
  // A literal that does not enter the table, with an entry's name.
  decode(Hex("0f2f 03313233"));
  EXPECT_EQ(interpreter.calls, 1);
  EXPECT_EQ(interpreter.last_like, 3u);
  EXPECT_EQ(meanings, (std::vector<uint64_t>{4}));
  decode(Hex("be"));
  EXPECT_EQ(interpreter.calls, 0);
}

TEST(HpackDecoderTest, InterpretsARepeatedLiteralOnce) {
  CountingInterpreter interpreter;
  const HpackVocabulary vocabulary(interpreter);
  HpackDecoder decoder(vocabulary);
  const auto decode = [&](std::string_view block, const HpackFields& expected) {
    HpackFields fields;
    interpreter.calls = 0;
    EXPECT_EQ(decoder.Decode(testing::BytesOf(block),
                             [&](const HpackField& field) {
                               EXPECT_EQ(field.meaning, field.value.size() + 1);
                               EXPECT_EQ(field.bytes, field.name.size() + field.value.size() + 32);
                               fields.emplace_back(field.name, field.value);
                               return true;
                             }),
              HpackError::kNone);
    EXPECT_EQ(fields, expected);
    return interpreter.calls;
  };
  // A name of the static table, one of its own, a coded one; the last enters the table.
  const std::string path = Hex("0403 2f612f");
  const std::string own = Hex("00026161 0162");
  const std::string coded = Hex("00811f 811f");
  const std::string indexed = Literal("c", "d");
  const HpackFields all = {{":path", "/a/"}, {"aa", "b"}, {"a", "a"}, {"c", "d"}};
  EXPECT_EQ(decode(path + own + coded + indexed, all), 4);
  EXPECT_EQ(decode(path + own + coded + indexed, all), 0);
  EXPECT_EQ(decoder.table().count(), 2u);  // inserted again
  EXPECT_EQ(decode(path + "\xbe", {{":path", "/a/"}, {"c", "d"}}), 0);
  // Another value, another place, and bytes that only begin alike.
  EXPECT_EQ(decode(path + Hex("00026161 0163"), {{":path", "/a/"}, {"aa", "c"}}), 1);
  EXPECT_EQ(decode(own, {{"aa", "b"}}), 1);
  EXPECT_EQ(decode(Hex("00026161 026263"), {{"aa", "bc"}}), 1);
  // Secrets are not kept.
  const std::string secret = Hex("1001 6b 0176");
  EXPECT_EQ(decode(secret, {{"k", "v"}}), 1);
  EXPECT_EQ(decode(secret, {{"k", "v"}}), 1);
  // An entry's name depends on the table.
  const std::string named = Hex("0f2f 0176");
  EXPECT_EQ(decode(named, {{"c", "v"}}), 1);
  EXPECT_EQ(decode(Literal("e", "f"), {{"e", "f"}}), 1);
  EXPECT_EQ(decode(named, {{"e", "v"}}), 1);
  // Cut short, it is no longer the same.
  HpackDecoder other(vocabulary);
  const auto ignore = [](const HpackField&) { return true; };
  EXPECT_EQ(other.Decode(testing::BytesOf(own), ignore), HpackError::kNone);
  EXPECT_EQ(other.Decode(testing::BytesOf(own.substr(0, 5)), ignore), HpackError::kTruncated);
}

TEST(HpackDecoderTest, DoesNotInterpretLiteralsThatAreNotWanted) {
  CountingInterpreter interpreter;
  const HpackVocabulary vocabulary(interpreter);
  HpackDecoder decoder(vocabulary);
  interpreter.calls = 0;
  const std::string block = "\x82" + Hex("000161 0162") + Literal("c", "3");
  EXPECT_EQ(decoder.Decode(testing::BytesOf(block), [](const HpackField&) { return false; }),
            HpackError::kNone);
  EXPECT_EQ(interpreter.calls, 1);  // of the entry
}

TEST(HpackDecoderTest, HoldsMemoryOnlyForItsEntries) {
  OurDecoder decoder;
  HpackFields fields;
  EXPECT_EQ(decoder.decoder().memory(), 0u);
  ASSERT_EQ(decoder.Decode(Literal("user-agent", "grpc-go/1.60"), &fields), HpackError::kNone);
  EXPECT_LE(decoder.decoder().memory(), 600u);
  // However long it is used, and whatever the sizes of the fields.
  for (size_t i = 0; i < 20'000; ++i) {
    ASSERT_EQ(
        decoder.Decode(Literal(std::string(i % 7, 'n'), std::string(i * i % 4000, 'v')), &fields),
        HpackError::kNone);
    fields.clear();
  }
  EXPECT_LE(decoder.decoder().memory(), testing::kMostHpackMemory);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(decoder.Decode(Literal("", ""), &fields), HpackError::kNone);
  }
  EXPECT_EQ(decoder.decoder().table().count(), 128u);
  EXPECT_LE(decoder.decoder().memory(), testing::kMostHpackMemory);
}

TEST(HpackDecoderTest, EachErrorHasAText) {
  for (int error = 0; error <= static_cast<int>(HpackError::kTooMuchInserted); ++error) {
    EXPECT_NE(HpackErrorText(static_cast<HpackError>(error)), "unknown") << error;
  }
}

}  // namespace
}  // namespace sluice::http2
