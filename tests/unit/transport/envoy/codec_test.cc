// The codec compared with protobuf's own parser.
#include "server/transport/envoy/codec.h"

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "envoy/service/ratelimit/v3/rls.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "kuadrant/service/ratelimit/v1/ratelimit.pb.h"
#include "tests/support/damaged_bytes.h"

namespace sluice::transport {
namespace {

namespace bounds = common::bounds;
namespace kuadrant = ::kuadrant::service::ratelimit::v1;
namespace v3 = ::envoy::service::ratelimit::v3;
using google::protobuf::util::MessageDifferencer;

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// ---- The reference: the same conversions by protobuf's objects ----

v3::RateLimitRequest ToMessage(const RateLimitRequest& request) {
  v3::RateLimitRequest message;
  message.set_domain(std::string(request.domain));
  message.set_hits_addend(request.hits_addend);
  for (const RequestedDescriptor& from : request.descriptors) {
    auto* const to = message.add_descriptors();
    for (const envoy::Entry& entry : request.EntriesOf(from)) {
      auto* const added = to->add_entries();
      added->set_key(std::string(entry.key));
      added->set_value(std::string(entry.value));
    }
    if (from.has_limit) {
      auto* const limit = to->mutable_limit();
      limit->set_requests_per_unit(from.limit.requests_per_unit);
      limit->set_unit(static_cast<::envoy::type::v3::RateLimitUnit>(from.limit.unit));
      if (from.limit.has_multiplier) {
        limit->mutable_unit_multiplier()->set_value(from.limit.unit_multiplier);
      }
    }
    if (from.has_hits) to->mutable_hits_addend()->set_value(from.hits);
    to->set_is_negative_hits(from.negative_hits);
  }
  return message;
}

v3::RateLimitResponse ToMessage(Code overall, const std::vector<DescriptorStatus>& statuses) {
  v3::RateLimitResponse message;
  message.set_overall_code(static_cast<v3::RateLimitResponse::Code>(overall));
  for (const DescriptorStatus& from : statuses) {
    auto* const to = message.add_statuses();
    to->set_code(static_cast<v3::RateLimitResponse::Code>(from.code()));
    if (from.limit == DescriptorStatus::Limit::kUnlimited) to->set_limit_remaining(UINT32_MAX);
    if (from.limit != DescriptorStatus::Limit::kCounted) continue;
    auto* const limit = to->mutable_current_limit();
    limit->set_requests_per_unit(from.requests_per_unit);
    limit->set_unit(static_cast<v3::RateLimitResponse::RateLimit::Unit>(from.unit));
    limit->set_name(std::string(from.name));
    if (from.unit_multiplier != 1) {
      limit->mutable_unit_multiplier()->set_value(from.unit_multiplier);
    }
    to->set_limit_remaining(from.remaining);
    to->mutable_duration_until_reset()->set_seconds(from.reset_s);
  }
  return message;
}

uint64_t AnyNumber(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return random() % 3;
    case 1:
      return random() % 1000;
    case 2:
      return random();
    default:
      return ~uint64_t{0} - random() % 2;
  }
}

v3::RateLimitRequest RandomRequest(std::mt19937& random) {
  const auto text = [&] {
    const char* const kTexts[] = {"", "a", "user", "\xC3\xA9"};
    return random() % 20 == 0 ? std::string(random() % 300, 'k')
                              : std::string(kTexts[random() % std::size(kTexts)]);
  };
  v3::RateLimitRequest request;
  request.set_domain(text());
  if (random() % 3 == 0) request.set_hits_addend(static_cast<uint32_t>(AnyNumber(random)));
  for (size_t n = random() % 4; n > 0; --n) {
    auto* const descriptor = request.add_descriptors();
    for (size_t e = random() % 4; e > 0; --e) {
      auto* const entry = descriptor->add_entries();
      entry->set_key(text());
      entry->set_value(text());
    }
    if (random() % 3 == 0) {
      auto* const limit = descriptor->mutable_limit();
      limit->set_requests_per_unit(static_cast<uint32_t>(AnyNumber(random)));
      limit->set_unit(static_cast<::envoy::type::v3::RateLimitUnit>(random() % 9));
      if (random() % 2) {
        limit->mutable_unit_multiplier()->set_value(static_cast<uint32_t>(AnyNumber(random)));
      }
    }
    if (random() % 2) descriptor->mutable_hits_addend()->set_value(AnyNumber(random));
    if (random() % 4 == 0) descriptor->set_is_negative_hits(true);
  }
  return request;
}

TEST(EnvoyCodecTest, ReadsTheSameMessagesAsProtobuf) {
  const google::protobuf::LogSilencer silence;
  std::mt19937 random(7);
  RateLimitRequest ours;
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string bytes = RandomRequest(random).SerializeAsString();
    testing::DamageBytes(random, &bytes);
    // A field that occurs twice is merged.
    if (random() % 8 == 0) bytes += RandomRequest(random).SerializeAsString();
    v3::RateLimitRequest theirs;
    const absl::Status status = DecodeRateLimitRequest(Bytes(bytes), &ours);
    ASSERT_EQ(status.ok(), theirs.ParseFromString(bytes)) << i << status;
    ++(status.ok() ? taken : refused);
    if (!status.ok()) continue;
    theirs.DiscardUnknownFields();
    ASSERT_TRUE(MessageDifferencer::Equals(ToMessage(ours), theirs))
        << ToMessage(ours).DebugString() << theirs.DebugString();
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

// The fields that Kuadrant's requests have beside domain and descriptors.
template <typename Message>
bool Equal(const RateLimitRequest& ours, const Message& theirs) {
  if constexpr (std::is_same_v<Message, kuadrant::ReserveRequest>) {
    return ours.amount == theirs.amount() && ours.ttl.seconds == theirs.ttl().seconds() &&
           ours.ttl.nanos == theirs.ttl().nanos();
  } else {
    return ours.amount == theirs.actual_amount() && ours.reservation_id == theirs.reservation_id();
  }
}

template <typename Message>
Message RandomReservation(std::mt19937& random) {
  Message message;
  // Domain and descriptors have the same numbers.
  EXPECT_TRUE(message.ParseFromString([&] {
    v3::RateLimitRequest request = RandomRequest(random);
    request.clear_hits_addend();
    return request.SerializeAsString();
  }()));
  if constexpr (std::is_same_v<Message, kuadrant::ReserveRequest>) {
    if (random() % 2) message.set_amount(AnyNumber(random));
    if (random() % 2) message.mutable_ttl()->set_seconds(static_cast<int64_t>(AnyNumber(random)));
    if (random() % 4 == 0) message.mutable_ttl()->set_nanos(static_cast<int32_t>(random()));
  } else {
    if (random() % 2) message.set_actual_amount(AnyNumber(random));
    if (random() % 2) message.set_reservation_id(random() % 2 ? "id" : "\xC3\xA9");
  }
  return message;
}

template <typename Message, auto kDecode>
void ExpectReadsAsProtobuf() {
  const google::protobuf::LogSilencer silence;
  std::mt19937 random(8);
  RateLimitRequest ours;
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = RandomReservation<Message>(random).SerializeAsString();
    testing::DamageBytes(random, &bytes);
    if (random() % 8 == 0) bytes += RandomReservation<Message>(random).SerializeAsString();
    Message theirs;
    const absl::Status status = kDecode(Bytes(bytes), &ours);
    ASSERT_EQ(status.ok(), theirs.ParseFromString(bytes)) << i << status;
    ++(status.ok() ? taken : refused);
    if (!status.ok()) continue;
    ASSERT_TRUE(Equal(ours, theirs)) << theirs.DebugString();
    ASSERT_EQ(ours.domain, theirs.domain());
    ASSERT_EQ(static_cast<int>(ours.descriptors.size()), theirs.descriptors_size());
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(EnvoyCodecTest, ReadsKuadrantsRequestsAsProtobufDoes) {
  ExpectReadsAsProtobuf<kuadrant::ReserveRequest, &DecodeReserveRequest>();
  ExpectReadsAsProtobuf<kuadrant::CommitRequest, &DecodeCommitRequest>();
}

TEST(EnvoyCodecTest, WritesKuadrantsAnswerToReserve) {
  for (const char* const id : {"", "an-id"}) {
    common::Buffer out;
    EncodeReserveResponse(Code::kOverLimit, id, &out);
    kuadrant::ReserveResponse response;
    ASSERT_TRUE(response.ParseFromArray(out.data(), static_cast<int>(out.size())));
    EXPECT_EQ(response.code(), v3::RateLimitResponse::OVER_LIMIT);
    EXPECT_EQ(response.reservation_id(), id);
  }
}

TEST(EnvoyCodecTest, WritesTheSameAnswersAsProtobuf) {
  std::mt19937 random(9);
  const std::string long_name(200, 'n');
  for (int i = 0; i < 20'000; ++i) {
    std::vector<DescriptorStatus> statuses(random() % 5);
    for (DescriptorStatus& status : statuses) {
      status.limit = static_cast<DescriptorStatus::Limit>(random() % 3);
      status.over = random() % 2;
      status.shadow_mode = random() % 4 == 0;
      status.requests_per_unit = static_cast<uint32_t>(AnyNumber(random));
      status.unit_multiplier = random() % 2 ? 1 : static_cast<uint32_t>(AnyNumber(random));
      if (status.unit_multiplier == 0) status.unit_multiplier = 2;
      status.unit = static_cast<envoy::Unit>(random() % 8);
      status.remaining = static_cast<uint32_t>(AnyNumber(random));
      status.reset_s = 1 + random() % 1'000'000;
      const char* const kNames[] = {"", "n", long_name.c_str()};
      status.name = kNames[random() % 3];
    }
    const Code overall = OverallCode(statuses);
    common::Buffer out;
    EncodeRateLimitResponse({}, overall, statuses, {}, &out);
    v3::RateLimitResponse ours;
    ASSERT_TRUE(ours.ParseFromArray(out.data(), static_cast<int>(out.size())));
    const v3::RateLimitResponse theirs = ToMessage(overall, statuses);
    ASSERT_TRUE(MessageDifferencer::Equals(ours, theirs))
        << ours.DebugString() << theirs.DebugString();
  }
}

v3::RateLimitResponse Encoded(const v3::RateLimitRequest& message,
                              const std::vector<DescriptorStatus>& statuses,
                              const AnswerOptions& options) {
  const std::string bytes = message.SerializeAsString();
  RateLimitRequest request;
  EXPECT_TRUE(DecodeRateLimitRequest(Bytes(bytes), &request).ok());
  common::Buffer out;
  EncodeRateLimitResponse(request, OverallCode(statuses), statuses, options, &out);
  v3::RateLimitResponse response;
  EXPECT_TRUE(response.ParseFromArray(out.data(), static_cast<int>(out.size())));
  return response;
}

TEST(EnvoyCodecTest, WritesHeadersWithTheirConfiguredNames) {
  DescriptorStatus status;
  status.limit = DescriptorStatus::Limit::kCounted;
  status.requests_per_unit = 100;
  status.remaining = 42;
  status.reset_s = 7;
  AnswerOptions options;
  EXPECT_EQ(Encoded({}, {status}, options).response_headers_to_add_size(), 0);
  options.headers = true;
  options.remaining_header = "x-left";
  const v3::RateLimitResponse response = Encoded({}, {status}, options);
  ASSERT_EQ(response.response_headers_to_add_size(), 3);
  EXPECT_EQ(response.response_headers_to_add(0).key(), "RateLimit-Limit");
  EXPECT_EQ(response.response_headers_to_add(0).value(), "100");
  EXPECT_EQ(response.response_headers_to_add(1).key(), "x-left");
  EXPECT_EQ(response.response_headers_to_add(1).value(), "42");
  EXPECT_EQ(response.response_headers_to_add(2).key(), "RateLimit-Reset");
  EXPECT_EQ(response.response_headers_to_add(2).value(), "7");
  EXPECT_EQ(Encoded({}, {DescriptorStatus()}, options).response_headers_to_add_size(), 0);
}

envoy::MetadataValue Text(const char* text) {
  envoy::MetadataValue value;
  value.kind = envoy::MetadataValue::Kind::kText;
  value.text = text;
  return value;
}

TEST(EnvoyCodecTest, WritesTheRequestAndTheMetadataOfLimitsThatItIsWithin) {
  const envoy::MetadataValue::Fields first = {{"team", Text("a")}};
  const envoy::MetadataValue::Fields second = {{"team", Text("b")}, {"tier", Text("gold")}};
  const envoy::MetadataValue::Fields of_over = {{"never", Text("shown")}};
  std::vector<DescriptorStatus> statuses(3);
  statuses[0].metadata = &first;
  statuses[1].metadata = &second;
  statuses[2].metadata = &of_over;
  statuses[2].over = true;
  v3::RateLimitRequest request;
  request.set_domain("d");
  request.set_hits_addend(3);
  auto* const descriptor = request.add_descriptors();
  descriptor->add_entries()->set_key("k");
  descriptor->mutable_entries(0)->set_value("v");
  descriptor->mutable_limit()->set_requests_per_unit(5);
  descriptor->mutable_limit()->set_unit(::envoy::type::v3::MINUTE);
  AnswerOptions options;
  EXPECT_FALSE(Encoded(request, statuses, options).has_dynamic_metadata());
  options.metadata = true;
  const auto full = Encoded(request, statuses, options).dynamic_metadata().fields();
  EXPECT_EQ(full.size(), 4u);
  EXPECT_EQ(full.at("domain").string_value(), "d");
  EXPECT_EQ(full.at("hitsAddend").number_value(), 3);
  const auto shown = full.at("descriptors").list_value().values(0).struct_value().fields();
  EXPECT_EQ(shown.at("entries").list_value().values(0).string_value(), "k=v");
  EXPECT_EQ(shown.at("limit").string_value(), "requests_per_unit:5 unit:MINUTE");
  const auto metadata = full.at("metadata").struct_value().fields();
  EXPECT_EQ(metadata.size(), 2u);
  EXPECT_EQ(metadata.at("team").string_value(), "a");
  EXPECT_EQ(metadata.at("tier").string_value(), "gold");
}

TEST(EnvoyCodecTest, NamesTheTextThatIsNotUtf8) {
  RateLimitRequest request;
  // descriptors[0].entries[1].value
  const std::string entry = "\x0a\x01k\x12\x01\xff";
  const std::string good = "\x0a\x01k\x12\x01v";
  const std::string descriptor = "\x0a\x06" + good + "\x0a\x06" + entry;
  const std::string bytes =
      "\x0a\x01"
      "d\x12\x10" +
      descriptor;
  EXPECT_EQ(DecodeRateLimitRequest(Bytes(bytes), &request),
            absl::InvalidArgumentError("descriptors[0].entries[1].value: must be UTF-8"));
  EXPECT_EQ(DecodeRateLimitRequest(Bytes("\x0a\x01\xff"), &request),
            absl::InvalidArgumentError("domain: must be UTF-8"));
}

TEST(EnvoyCodecTest, BoundsDescriptorsAndEntries) {
  RateLimitRequest request;
  v3::RateLimitRequest many;
  many.set_domain("d");
  for (size_t i = 0; i < bounds::kMaxEnvoyDescriptors; ++i) many.add_descriptors();
  EXPECT_TRUE(DecodeRateLimitRequest(Bytes(many.SerializeAsString()), &request).ok());
  many.add_descriptors();
  EXPECT_EQ(
      DecodeRateLimitRequest(Bytes(many.SerializeAsString()), &request),
      absl::InvalidArgumentError("descriptors: the request has more than 1024; at most 1024"));
  v3::RateLimitRequest long_one;
  auto* const descriptor = long_one.add_descriptors();
  for (size_t i = 0; i < bounds::kMaxEnvoyEntries; ++i) descriptor->add_entries();
  EXPECT_TRUE(DecodeRateLimitRequest(Bytes(long_one.SerializeAsString()), &request).ok());
  descriptor->add_entries();
  EXPECT_EQ(DecodeRateLimitRequest(Bytes(long_one.SerializeAsString()), &request),
            absl::InvalidArgumentError(
                "descriptors[0]: the request has more than 4096 entries; at most 4096"));
}

}  // namespace
}  // namespace sluice::transport
