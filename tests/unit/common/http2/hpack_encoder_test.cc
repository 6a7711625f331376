#include "common/http2/hpack_encoder.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/hpack_oracle.h"

namespace sluice::http2 {
namespace {

using testing::HpackFields;
using testing::OracleInflater;
using testing::OurDecoder;

// An encoder, and two decoders that must read the same from it.
class Connection {
 public:
  using Write = std::function<uint8_t*(HpackEncoder&, uint8_t*)>;

  std::string Encode(const Write& write, size_t bound = 1 << 16) {
    std::string block(HpackEncoder::kBeginBound + bound, '\0');
    auto* const begin = reinterpret_cast<uint8_t*>(block.data());
    const uint8_t* const end = write(encoder_, encoder_.Begin(begin));
    EXPECT_LE(static_cast<size_t>(end - begin), block.size());
    block.resize(end - begin);
    const std::optional<HpackFields> fields = oracle_.Decode(block);
    EXPECT_TRUE(fields.has_value());
    HpackFields ours;
    EXPECT_EQ(decoder_.Decode(block, &ours), HpackError::kNone);
    EXPECT_EQ(fields, ours);
    EXPECT_EQ(decoder_.decoder().table().count(), encoder_.count());
    EXPECT_EQ(decoder_.decoder().table().bytes(), encoder_.table_bytes());
    fields_ = ours;
    return block;
  }
  std::string Encode(const HpackConstant& field) {
    return Encode([&](HpackEncoder& encoder, uint8_t* out) { return encoder.Append(field, out); },
                  field.bound());
  }
  void SetPeerTableBytes(uint32_t bytes) {
    oracle_.SetMaxTableBytes(bytes);
    encoder_.SetPeerTableBytes(bytes);
  }
  // What was read from the last block.
  const HpackFields& fields() const { return fields_; }
  const HpackEncoder& encoder() const { return encoder_; }
  HpackFields Table() const { return decoder_.Table(); }

 private:
  HpackEncoder encoder_;
  OracleInflater oracle_;
  OurDecoder decoder_;
  HpackFields fields_;
};

TEST(HpackEncoderTest, EncodesFieldsOfTheStaticTableInAByte) {
  Connection connection;
  EXPECT_EQ(connection.Encode(HpackConstant(":status", "200")), "\x88");
  EXPECT_EQ(connection.Encode(HpackConstant(":method", "POST")), "\x83");
  EXPECT_EQ(connection.encoder().count(), 0u);
}

TEST(HpackEncoderTest, EncodesConstantsInAByteFromTheSecondTime) {
  const HpackConstant status(":status", "200");
  const HpackConstant content_type("content-type", "application/grpc");
  const HpackConstant grpc_status("grpc-status", "0");
  Connection connection;
  const auto headers = [&](HpackEncoder& encoder, uint8_t* out) {
    return encoder.Append(content_type, encoder.Append(status, out));
  };
  connection.Encode(headers);
  EXPECT_EQ(connection.fields(),
            (HpackFields{{":status", "200"}, {"content-type", "application/grpc"}}));
  connection.Encode(grpc_status);
  EXPECT_EQ(connection.fields(), (HpackFields{{"grpc-status", "0"}}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(connection.Encode(headers), "\x88\xbf");
    EXPECT_EQ(connection.Encode(grpc_status), "\xbe");
  }
  // Another connection's table is another one.
  Connection other;
  EXPECT_EQ(other.Encode(grpc_status).size(), 12u);
}

TEST(HpackEncoderTest, LiteralsLeaveTheTableAlone) {
  Connection connection;
  for (const HpackSecrecy secrecy : {HpackSecrecy::kPublic, HpackSecrecy::kSecret}) {
    const HpackFields fields = {{":path", "/x"},
                                {"grpc-message", std::string(3000, 'm')},
                                {"via", ""},
                                {"x", std::string(126, 'y')}};
    for (const auto& [name, value] : fields) {
      const std::string block = connection.Encode(
          [&](HpackEncoder& encoder, uint8_t* out) {
            return HpackEncoder::AppendLiteral(name, value, secrecy, out);
          },
          HpackEncoder::LiteralBound(name, value));
      EXPECT_EQ(connection.fields(), (HpackFields{{name, value}}));
      EXPECT_EQ(block[0] & 0xf0, secrecy == HpackSecrecy::kSecret ? 0x10 : 0x00);
    }
  }
  EXPECT_EQ(connection.encoder().count(), 0u);
}

TEST(HpackEncoderTest, FieldsWithTheNameOfAConstantReferToIt) {
  const HpackConstant timeout("grpc-timeout", "");
  Connection connection;
  const auto encode = [&](std::string_view value) {
    return connection.Encode(
        [&](HpackEncoder& encoder, uint8_t* out) {
          return encoder.AppendWithNameOf(timeout, value, out);
        },
        HpackEncoder::LiteralBound("grpc-timeout", value));
  };
  encode("100m");
  EXPECT_EQ(connection.fields(), (HpackFields{{"grpc-timeout", "100m"}}));
  EXPECT_EQ(connection.Table(), (HpackFields{{"grpc-timeout", "100m"}}));
  EXPECT_EQ(encode("4987u"), std::string("\x0f\x2f\x05") + "4987u");
  EXPECT_EQ(connection.fields(), (HpackFields{{"grpc-timeout", "4987u"}}));
  EXPECT_EQ(connection.encoder().count(), 1u);
  // A value that the table has no room for enters nothing.
  Connection other;
  const std::string large(5000, 'v');
  other.Encode([&](HpackEncoder& encoder, uint8_t* out) {
    return encoder.AppendWithNameOf(timeout, large, out);
  });
  EXPECT_EQ(other.fields(), (HpackFields{{"grpc-timeout", large}}));
  EXPECT_EQ(other.encoder().count(), 0u);
  // A name of the static table needs no entry.
  const HpackConstant age("age", "");
  other.Encode(
      [&](HpackEncoder& encoder, uint8_t* out) { return encoder.AppendWithNameOf(age, "7", out); });
  EXPECT_EQ(other.fields(), (HpackFields{{"age", "7"}}));
  EXPECT_EQ(other.encoder().count(), 0u);
}

TEST(HpackEncoderTest, FollowsThePeersTableSizeAtTheNextBlock) {
  const HpackConstant a("name-a", "value");  // 43 bytes in a table
  const HpackConstant b("name-b", "value");
  Connection connection;
  connection.Encode(a);
  connection.Encode(b);
  connection.SetPeerTableBytes(50);
  EXPECT_EQ(connection.Encode(b), "\x3f\x13\xbe");
  EXPECT_EQ(connection.encoder().count(), 1u);
  connection.Encode(a);
  EXPECT_EQ(connection.Table(), (HpackFields{{"name-a", "value"}}));
  connection.SetPeerTableBytes(0);
  for (int i = 0; i < 2; ++i) {
    connection.Encode(a);
    EXPECT_EQ(connection.fields(), (HpackFields{{"name-a", "value"}}));
    EXPECT_EQ(connection.encoder().count(), 0u);
  }
}

TEST(HpackEncoderTest, AnnouncesTheLeastSizeInBetween) {
  const HpackConstant a("name-a", "value");
  Connection connection;
  connection.Encode(a);
  connection.SetPeerTableBytes(10);
  connection.SetPeerTableBytes(1 << 20);
  const std::string block = connection.Encode(a);
  EXPECT_EQ(block.substr(0, 4), "\x2a\x3f\xe1\x1f");
  EXPECT_EQ(connection.Encode(a), "\xbe");
}

TEST(HpackEncoderTest, ALargerPeerTableNeedsNoUpdate) {
  const HpackConstant a("name-a", "value");
  Connection connection;
  connection.SetPeerTableBytes(1 << 20);
  connection.SetPeerTableBytes(4096);
  connection.Encode(a);
  EXPECT_EQ(connection.Encode(a), "\xbe");
}

TEST(HpackEncoderTest, TakesBackNoUpdateThatIsDue) {
  const HpackConstant a("name-a", "value");
  Connection connection;
  connection.SetPeerTableBytes(0);
  connection.SetPeerTableBytes(4096);
  EXPECT_EQ(connection.Encode(a).substr(0, 4), std::string("\x20\x3f\xe1\x1f"));
}

TEST(HpackEncoderTest, FullTableTakesNoMoreConstants) {
  std::vector<HpackConstant> constants;
  constants.reserve(40);
  for (int i = 0; i < 40; ++i) constants.emplace_back("name", std::to_string(i));
  Connection connection;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < constants.size(); ++i) {
      const std::string block = connection.Encode(constants[i]);
      EXPECT_EQ(connection.fields()[0].second, std::to_string(i));
      if (round > 0) {
        EXPECT_EQ(block.size() == 1, i < 32) << i;
      }
    }
  }
}

// Constants of all sizes, literals, changes of the peer's table: nghttp2 reads what was written.
TEST(HpackEncoderTest, StaysInStepWithNghttp2) {
  std::mt19937_64 random(7);
  for (int history = 0; history < 60; ++history) {
    std::vector<HpackConstant> constants;
    HpackFields texts;
    for (int i = 0; i < 45; ++i) {
      std::string name = random() % 4 == 0 ? "content-type" : "n" + std::to_string(random() % 9);
      texts.emplace_back(std::move(name),
                         std::string(random() % 5 == 0 ? random() % 2000 : random() % 40,
                                     static_cast<char>('a' + random() % 26)));
      constants.emplace_back(texts.back().first, texts.back().second);
    }
    const HpackConstant timeout("grpc-timeout", "");
    Connection connection;
    for (int block = 0; block < 100 && !HasFailure(); ++block) {
      for (uint64_t changes = random() % 12; changes < 3; ++changes) {
        connection.SetPeerTableBytes(random() % 3 == 0 ? 4096 : random() % 6000);
      }
      HpackFields expected;
      connection.Encode([&](HpackEncoder& encoder, uint8_t* out) {
        for (uint64_t fields = random() % 8; fields > 0; --fields) {
          // Some constants are frequent.
          const size_t which = random() % (random() % constants.size() + 1);
          switch (random() % 6) {
            case 0:
              out = HpackEncoder::AppendLiteral(texts[which].first, texts[which].second,
                                                HpackSecrecy::kSecret, out);
              expected.push_back(texts[which]);
              break;
            case 1:
              out = encoder.AppendWithNameOf(timeout, texts[which].second, out);
              expected.emplace_back("grpc-timeout", texts[which].second);
              break;
            default:
              out = encoder.Append(constants[which], out);
              expected.push_back(texts[which]);
          }
        }
        return out;
      });
      EXPECT_EQ(connection.fields(), expected) << history << " " << block;
    }
  }
}

}  // namespace
}  // namespace sluice::http2
