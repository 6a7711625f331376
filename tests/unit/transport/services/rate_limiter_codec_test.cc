// The codec compared with protobuf's own parser.
#include "server/transport/services/rate_limiter_codec.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/protobuf_wire.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/damaged_bytes.h"
#include "tests/unit/service/fixture.h"

namespace sluice::transport {
namespace {

using common::kMaxVarintBytes;
using common::PutVarint;
using google::protobuf::util::MessageDifferencer;

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// ---- The reference: the same conversions by protobuf's objects ----

google::protobuf::Duration ToDuration(int64_t ns) {
  google::protobuf::Duration duration;
  duration.set_seconds(ns / service::kSecond);
  duration.set_nanos(static_cast<int32_t>(ns % service::kSecond));
  return duration;
}

v1::Source Source(store::Source source) {
  return source == store::Source::kOverflow ? v1::SOURCE_OVERFLOW : v1::SOURCE_STORE;
}

v1::Reason Reason(store::Reason reason) {
  switch (reason) {
    case store::Reason::kNotEnough:
      return v1::REASON_NOT_ENOUGH;
    case store::Reason::kWaitingBound:
      return v1::REASON_WAITING_BOUND;
    case store::Reason::kOverflow:
      return v1::REASON_OVERFLOW;
    case store::Reason::kShadowDenied:
      return v1::REASON_SHADOW_DENIED;
    default:
      return v1::REASON_UNSPECIFIED;
  }
}

// Fills the call with views into the request.
void Read(const v1::AcquireBatchRequest& request, service::AcquireCall* call) {
  call->Reset(service::AcquireCall::Form::kBatch);
  for (const v1::AcquireRequest& acquisition : request.acquisitions()) {
    call->BeginAcquisition(
        {.max_wait = {acquisition.max_wait().seconds(), acquisition.max_wait().nanos()},
         .hold = acquisition.hold(),
         .want_receipt = acquisition.want_receipt(),
         .force = acquisition.force()});
    if (!acquisition.request_id().empty()) call->SetRequestId(acquisition.request_id());
    for (const v1::Charge& charge : acquisition.charges()) {
      call->AddCharge(charge.limit(), charge.key(), charge.has_permits() ? charge.permits() : 1);
    }
  }
}

v1::AcquireResponse Response(const service::AcquireCall& call, size_t i) {
  const service::AcquisitionResult result = call.result(i);
  v1::AcquireResponse response;
  response.set_granted(result.granted);
  if (result.wait_ns > 0) *response.mutable_wait() = ToDuration(result.wait_ns);
  if (!result.granted) *response.mutable_retry_after() = ToDuration(result.retry_after_ns);
  for (size_t c = 0; c < result.charges; ++c) {
    const service::ChargeStatus charge = call.charge(i, c);
    v1::ChargeStatus* const status = response.add_charges();
    status->set_remaining(charge.level.remaining);
    status->set_capacity(charge.level.capacity);
    *status->mutable_reset_after() = ToDuration(charge.level.reset_after_ns);
    status->set_reason(Reason(charge.reason));
    status->set_limit(std::string(charge.limit));
    status->set_forgiven(charge.forgiven);
    if (charge.held_for_ns > 0) *status->mutable_held_for() = ToDuration(charge.held_for_ns);
  }
  response.set_source(Source(result.source));
  response.set_receipt(std::string(result.receipt));
  response.set_repeated(result.repeated);
  return response;
}

v1::AcquireBatchResponse BatchResponse(const service::AcquireCall& call) {
  v1::AcquireBatchResponse response;
  for (size_t i = 0; i < call.size(); ++i) {
    const absl::Status status = call.result(i).status;
    v1::AcquireResult* const out = response.add_results();
    if (status.ok()) {
      *out->mutable_response() = Response(call, i);
      continue;
    }
    out->mutable_error()->set_code(static_cast<int>(status.code()));
    out->mutable_error()->set_message(std::string(status.message()));
    out->mutable_error()->set_nothing_taken(common::errors::WasNotExecuted(status));
  }
  return response;
}

class RateLimiterCodecTest : public service::ServiceTest {
 protected:
  RateLimiterCodecTest() {
    limits::LimitSpec child = service::PerSecond("child", 10);
    child.charges = {"parent"};
    // Long durations; all buckets are full again within 100 s.
    limits::LimitSpec slow = service::PerSecond("slow", 1);
    slow.rate.period_ns = int64_t{40} * service::kSecond;
    slow.burst = 2;
    limits::LimitSpec huge = service::PerSecond("huge", 1'000'000'000);
    huge.burst = uint64_t{1} << 60;
    limits::LimitSpec owing = service::PerSecond("owing", 5);
    owing.max_owed = 3;
    limits::LimitSpec slots;
    slots.name = "slots";
    slots.algorithm = algorithm::Kind::kConcurrency;
    slots.permits = 2;
    Load({service::PerSecond("api", 5), child, service::PerSecond("parent", 1'000'000), slow, huge,
          owing, slots});
  }

  // Decides the request, decoded and encoded by the codec.
  v1::AcquireBatchResponse Ours(const std::string& request, absl::Status* status) {
    service::AcquireCall call;
    *status = DecodeAcquireBatch(Bytes(request), &call);
    v1::AcquireBatchResponse response;
    if (!status->ok()) return response;
    Run(&call);
    *status = call.status();
    if (!status->ok()) return response;
    Buffer out;
    EncodeAcquireBatch(call, &out);
    EXPECT_TRUE(response.ParseFromArray(out.data(), static_cast<int>(out.size())));
    return response;
  }
  // The same, decoded and encoded by the reference.
  v1::AcquireBatchResponse Theirs(const v1::AcquireBatchRequest& request, absl::Status* status) {
    service::AcquireCall call;
    Read(request, &call);
    Run(&call);
    *status = call.status();
    return status->ok() ? BatchResponse(call) : v1::AcquireBatchResponse();
  }
};

v1::AcquireBatchRequest RandomBatch(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<const char*> of) {
    return std::string(*(of.begin() + random() % of.size()));
  };
  v1::AcquireBatchRequest batch;
  for (size_t n = random() % 12; n > 0; --n) {
    v1::AcquireRequest* const request = batch.add_acquisitions();
    for (size_t c = 1 + random() % 2; c > 0; --c) {
      v1::Charge* const charge = request->add_charges();
      charge->set_limit(pick({"api", "api", "api", "api", "child", "parent", "slow", "huge",
                              "owing", "owing", "unknown", ""}));
      charge->set_key(random() % 20 == 0 ? std::string(random() % 600, 'k')
                                         : pick({"", "a", "a", "\xC3\xA9"}));
      if (random() % 2) charge->set_permits(random() % 30 == 0 ? ~uint64_t{0} : 1 + random() % 3);
    }
    if (random() % 8 == 0) {
      request->mutable_max_wait()->set_seconds(static_cast<int32_t>(random()));
      request->mutable_max_wait()->set_nanos(static_cast<int32_t>(random()));
    }
    if (random() % 8 == 0) request->set_hold(true);
    if (random() % 8 == 0) request->set_force(true);
    if (random() % 4 == 0) {
      request->set_request_id(pick({"0123456789abcdef", "fedcba9876543210", "short"}));
    }
  }
  return batch;
}

TEST_F(RateLimiterCodecTest, AnswersEqualThoseEncodedByProtobuf) {
  std::mt19937 random(7);
  int granted = 0;
  int denied = 0;
  int errors = 0;
  for (int i = 0; i < 5000; ++i) {
    const v1::AcquireBatchRequest request = RandomBatch(random);
    // All buckets are full before each of the two decisions.
    clock_.Advance(int64_t{100} * service::kSecond);
    absl::Status our_status;
    const v1::AcquireBatchResponse ours = Ours(request.SerializeAsString(), &our_status);
    clock_.Advance(int64_t{100} * service::kSecond);
    absl::Status their_status;
    const v1::AcquireBatchResponse theirs = Theirs(request, &their_status);
    ASSERT_EQ(our_status, their_status);
    ASSERT_TRUE(MessageDifferencer::Equals(ours, theirs))
        << request.DebugString() << ours.DebugString() << theirs.DebugString();
    for (const auto& result : ours.results()) {
      ++(result.has_error() ? errors : result.response().granted() ? granted : denied);
    }
  }
  // The sequence reaches all kinds of answers.
  EXPECT_GT(granted, 100);
  EXPECT_GT(denied, 100);
  EXPECT_GT(errors, 100);
}

// AcquireBatchRequest with bytes in place of strings: protobuf's parser refuses strings that are
// not UTF-8, while our use case refuses them later and names the field.
class WithoutUtf8 {
 public:
  WithoutUtf8() {
    const auto* const file = v1::AcquireBatchRequest::descriptor()->file();
    for (int i = 0; i < file->dependency_count(); ++i) {
      google::protobuf::FileDescriptorProto dependency;
      file->dependency(i)->CopyTo(&dependency);
      pool_.BuildFile(dependency);
    }
    google::protobuf::FileDescriptorProto copy;
    file->CopyTo(&copy);
    for (auto& message : *copy.mutable_message_type()) {
      for (auto& field : *message.mutable_field()) {
        if (field.type() == google::protobuf::FieldDescriptorProto::TYPE_STRING) {
          field.set_type(google::protobuf::FieldDescriptorProto::TYPE_BYTES);
        }
      }
    }
    pool_.BuildFile(copy);
    message_.reset(
        factory_.GetPrototype(pool_.FindMessageTypeByName("sluice.v1.AcquireBatchRequest"))->New());
  }
  bool Parses(const std::string& bytes) { return message_->ParseFromString(bytes); }

 private:
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_{&pool_};
  std::unique_ptr<google::protobuf::Message> message_;
};

// Of two errors about the same name, one may suggest another name and the other not.
std::string WithoutSuggestion(std::string message) {
  return message.substr(0, message.find("; did you mean"));
}
v1::AcquireBatchResponse WithoutSuggestions(v1::AcquireBatchResponse response) {
  for (auto& result : *response.mutable_results()) {
    if (result.has_error()) {
      result.mutable_error()->set_message(WithoutSuggestion(result.error().message()));
    }
  }
  return response;
}

TEST_F(RateLimiterCodecTest, AcceptsTheSameBytesAsProtobuf) {
  const google::protobuf::LogSilencer silence;
  WithoutUtf8 reference;
  std::mt19937 random(11);
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string bytes = RandomBatch(random).SerializeAsString();
    testing::DamageBytes(random, &bytes);
    service::AcquireCall call;
    const bool ours = DecodeAcquireBatch(Bytes(bytes), &call).ok();
    ASSERT_EQ(ours, reference.Parses(bytes)) << i;
    ++(ours ? taken : refused);
    v1::AcquireBatchRequest parsed;
    if (!parsed.ParseFromString(bytes)) continue;
    clock_.Advance(int64_t{100} * service::kSecond);
    absl::Status our_status;
    const v1::AcquireBatchResponse our_response = Ours(bytes, &our_status);
    clock_.Advance(int64_t{100} * service::kSecond);
    absl::Status their_status;
    const v1::AcquireBatchResponse their_response = Theirs(parsed, &their_status);
    ASSERT_EQ(our_status.code(), their_status.code());
    ASSERT_EQ(WithoutSuggestion(std::string(our_status.message())),
              WithoutSuggestion(std::string(their_status.message())));
    ASSERT_TRUE(MessageDifferencer::Equals(WithoutSuggestions(our_response),
                                           WithoutSuggestions(their_response)))
        << parsed.DebugString();
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

// Adds the names of all fields that are set.
void CollectFields(const google::protobuf::Message& message, std::set<std::string>* names) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    names->insert(field->full_name());
    if (field->message_type() == nullptr) continue;
    if (!field->is_repeated()) {
      CollectFields(reflection.GetMessage(message, field), names);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      CollectFields(reflection.GetRepeatedMessage(message, field, i), names);
    }
  }
}

TEST_F(RateLimiterCodecTest, EncodesEveryFieldOfTheAnswers) {
  v1::AcquireBatchRequest request;
  const auto add = [&](const char* limit, uint64_t permits) {
    v1::AcquireRequest* const acquisition = request.add_acquisitions();
    acquisition->add_charges()->set_limit(limit);
    acquisition->mutable_charges(0)->set_permits(permits);
    return acquisition;
  };
  add("child", 1)->set_want_receipt(true);
  add("api", 5);
  add("api", 1);  // denied
  add("api", 1)->mutable_max_wait()->set_seconds(1);
  add("owing", 9)->set_force(true);
  add("unknown", 1);
  for (int i = 0; i < 2; ++i) add("slots", 1)->set_request_id("0123456789abcdef");
  std::set<std::string> encoded;
  absl::Status status;
  CollectFields(Ours(request.SerializeAsString(), &status), &encoded);
  EXPECT_TRUE(status.ok()) << status;

  service::BucketStatus bucket;
  bucket.limit = "api";
  bucket.key = "k";
  bucket.level.remaining = 1;
  bucket.level.capacity = 2;
  bucket.level.reset_after_ns = 3;
  bucket.level.next_permit_after_ns = 4;
  bucket.exists = true;
  bucket.waiting = 5;
  bucket.next_grant_after_ns = 6;
  bucket.refundable = {7, 8};
  bucket.holds = 9;
  bucket.next_end_after_ns = 10;
  service::BucketStatus failed;
  failed.error = absl::NotFoundError("no such limit");
  v1::QueryResponse response;
  ASSERT_TRUE(response.ParseFromString(EncodeWatch({bucket, failed}, service::kSecond)));
  CollectFields(response, &encoded);

  for (const auto* message : {v1::AcquireResponse::descriptor(), v1::AcquireResult::descriptor(),
                              v1::ChargeStatus::descriptor(), v1::BucketStatus::descriptor(),
                              v1::QueryResponse::descriptor()}) {
    for (int i = 0; i < message->field_count(); ++i) {
      EXPECT_TRUE(encoded.contains(message->field(i)->full_name()))
          << message->field(i)->full_name() << ": not encoded by rate_limiter_codec.cc";
    }
  }
}

TEST_F(RateLimiterCodecTest, EncodesQueriesWatchesAndRefunds) {
  ASSERT_TRUE(Acquire("api", "k", 2).granted);
  v1::QueryRequest request;
  for (const char* key : {"k", "full"}) {
    request.add_buckets()->set_limit("api");
    request.mutable_buckets()->rbegin()->set_key(key);
  }
  const std::string bytes = request.SerializeAsString();
  service::QueryCall query;
  ASSERT_TRUE(DecodeQuery(Bytes(bytes), &query).ok());
  limiter_.Query(&query, store::kNoDeadline, [](void*, service::QueryCall*) {}, nullptr);
  Buffer out;
  EncodeQuery(query, &out);
  v1::QueryResponse response;
  ASSERT_TRUE(response.ParseFromArray(out.data(), static_cast<int>(out.size())));
  ASSERT_EQ(response.buckets_size(), 2);
  EXPECT_EQ(response.buckets(0).limit(), "api");
  EXPECT_EQ(response.buckets(0).key(), "k");
  EXPECT_EQ(response.buckets(0).remaining(), 3);
  EXPECT_EQ(response.buckets(0).capacity(), 5u);
  EXPECT_TRUE(response.buckets(0).exists());
  EXPECT_EQ(response.buckets(0).reset_after().nanos(), 400'000'000);
  EXPECT_EQ(response.buckets(0).source(), v1::SOURCE_STORE);
  EXPECT_FALSE(response.buckets(1).exists());
  EXPECT_FALSE(response.buckets(1).has_next_permit_after());
  EXPECT_EQ(response.at().seconds(), clock_.WallNs() / service::kSecond);

  service::BucketStatus unknown;
  unknown.limit = "gone";
  unknown.error = absl::NotFoundError("no such limit");
  ASSERT_TRUE(response.ParseFromString(EncodeWatch({unknown}, 7 * service::kSecond)));
  ASSERT_EQ(response.buckets_size(), 1);
  EXPECT_EQ(response.buckets(0).error().code(), 5);
  EXPECT_EQ(response.buckets(0).error().message(), "no such limit");
  EXPECT_EQ(response.at().seconds(), 7);

  const std::string receipt(Acquire("api", "k", 1, {.want_receipt = true}).receipt);
  v1::RefundRequest refund_request;
  refund_request.set_receipt(receipt);
  service::RefundCall refund;
  ASSERT_TRUE(DecodeRefund(Bytes(refund_request.SerializeAsString()), &refund).ok());
  limiter_.Refund(&refund, store::kNoDeadline, [](void*, service::RefundCall*) {}, nullptr);
  out.Clear();
  EncodeRefund(refund, &out);
  v1::RefundResponse refunded;
  ASSERT_TRUE(refunded.ParseFromArray(out.data(), static_cast<int>(out.size())));
  EXPECT_EQ(refunded.outcome(), v1::REFUND_OUTCOME_REFUNDED);
  ASSERT_EQ(refunded.charges_size(), 1);
  EXPECT_EQ(refunded.charges(0).limit(), "api");
  EXPECT_EQ(refunded.charges(0).key(), "k");
  EXPECT_EQ(refunded.charges(0).permits(), 1u);
}

TEST(WireWriterTest, WritesVarintsOfEveryLength) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20'000; ++i) {
    uint64_t value = random() >> random() % 64;
    if (i < 128) value = (uint64_t{1} << i % 64) - static_cast<uint64_t>(i / 64);
    uint8_t ours[kMaxVarintBytes];
    uint8_t theirs[kMaxVarintBytes];
    const auto size = static_cast<size_t>(PutVarint(ours, value) - ours);
    const auto* const end =
        google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(value, theirs);
    ASSERT_EQ(std::string_view(reinterpret_cast<char*>(ours), size),
              std::string_view(reinterpret_cast<char*>(theirs), static_cast<size_t>(end - theirs)))
        << value;
  }
}

// Tags of unusual lengths, which random changes rarely produce.
TEST_F(RateLimiterCodecTest, AcceptsTheSameTagsAsProtobuf) {
  const google::protobuf::LogSilencer silence;
  WithoutUtf8 reference;
  std::mt19937 random(13);
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (size_t n = random() % 7; n > 0; --n) {
      bytes.push_back(static_cast<char>(random() | 0x80));
    }
    bytes.push_back(static_cast<char>(random() % 2 == 0 ? random() & 0x7f : 0));
    bytes += "\x01\x01\x01\x01\x01\x01\x01\x01";
    service::AcquireCall call;
    const bool ours = DecodeAcquireBatch(Bytes(bytes), &call).ok();
    ASSERT_EQ(ours, reference.Parses(bytes)) << i;
    ++(ours ? taken : refused);
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 1000);
}

TEST_F(RateLimiterCodecTest, CountsDecodingByTheBytesThatItReadsFieldByField) {
  constexpr size_t kStep = 4 << 10;
  const auto units = [](const std::string& acquisition) {
    std::string bytes;
    while (bytes.size() < 2 * kStep) bytes += acquisition;
    service::AcquireCall call;
    BatchDecoder decoder(Bytes(bytes), &call);
    EXPECT_TRUE(decoder.Step(kStep).ok());
    return decoder.units();
  };
  v1::AcquireBatchRequest usual;
  v1::Charge* const charge = usual.add_acquisitions()->add_charges();
  charge->set_limit("api");
  charge->set_key("user:12345678");
  const int64_t usual_units = units(usual.SerializeAsString());
  // Less than half of what deciding them counts.
  EXPECT_LT(usual_units, static_cast<int64_t>(kStep / usual.ByteSizeLong() / 2));
  for (const std::string& other : {std::string("\x0A\x00", 2), std::string("\x28\x01", 2)}) {
    EXPECT_GT(units(other), 5 * usual_units);
  }
  // A value that is skipped at once.
  const std::string skipped = std::string("\xA2\x06\x80\x80\x40", 5) + std::string(1 << 20, 'x');
  EXPECT_LE(units(skipped), units(std::string("\x0A\x00", 2)));
}

TEST_F(RateLimiterCodecTest, SkipsFieldsOfLaterVersions) {
  v1::AcquireRequest known;
  v1::Charge* const charge = known.add_charges();
  charge->set_limit("api");
  charge->set_permits(2);
  // Field 100 as a varint, as bytes, as fixed64 and fixed32, and as a group with a field.
  const std::string unknown(
      "\xA0\x06\x05\xA2\x06\x03xyz\xA1\x06"
      "12345678"
      "\xA5\x06"
      "1234"
      "\xA3\x06\x08\x01\xA4\x06");
  const std::string request = unknown + known.SerializeAsString() + unknown;
  service::AcquireCall call;
  ASSERT_TRUE(DecodeAcquire(Bytes(request), &call).ok());
  Run(&call);
  EXPECT_TRUE(call.result(0).granted);
  EXPECT_EQ(call.charge(0, 0).level.remaining, 3);
}

TEST_F(RateLimiterCodecTest, NamesTheFieldThatIsNotUtf8) {
  for (const bool in_key : {false, true}) {
    std::string charge = in_key ? std::string(
                                      "\x0A\x03"
                                      "api"
                                      "\x12\x02\xFF\xFE")
                                : std::string("\x0A\x02\xFF\xFE");
    std::string request = std::string("\x0A") + static_cast<char>(charge.size()) + charge;
    service::AcquireCall call;
    ASSERT_TRUE(DecodeAcquire(Bytes(request), &call).ok());
    Run(&call);
    const absl::Status status = call.result(0).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(in_key ? "charges[0].key" : "charges[0].limit"),
              absl::string_view::npos)
        << status;
  }
}

TEST_F(RateLimiterCodecTest, NamesThePartThatIsNotAMessage) {
  service::AcquireCall call;
  EXPECT_NE(DecodeAcquire(Bytes("\x0A\x02\x0A\x09"), &call).message().find("charges"),
            absl::string_view::npos);
  EXPECT_NE(DecodeAcquire(Bytes("\xFF"), &call).message().find("AcquireRequest"),
            absl::string_view::npos);
  EXPECT_NE(DecodeAcquireBatch(Bytes(std::string("\x0A\x00\x0A\x01\x07", 5)), &call)
                .message()
                .find("acquisitions[1].AcquireRequest"),
            absl::string_view::npos);
}

// 256 KiB of empty buckets would take 8 MB.
TEST_F(RateLimiterCodecTest, KeepsNoMoreWatchedBucketsThanTheBound) {
  v1::WatchRequest request;
  for (int i = 0; i < 131'072; ++i) request.add_buckets();
  const std::string bytes = request.SerializeAsString();
  service::WatchOptions options;
  const absl::Status status = DecodeWatch(Bytes(bytes), &options);
  EXPECT_EQ(status.message(), "buckets: 131072; ask for at most 256");
  EXPECT_LE(options.buckets.capacity(), 256u);
}

TEST_F(RateLimiterCodecTest, EncodesReceiptsAndLongNames) {
  limits::LimitSpec child = service::PerSecond("child", 10);
  const std::string parent(128, 'p');
  child.charges = {parent};
  Load({child, service::PerSecond(parent, 100)});
  v1::AcquireRequest request;
  request.add_charges()->set_limit("child");
  request.set_want_receipt(true);
  const std::string bytes = request.SerializeAsString();
  service::AcquireCall call;
  ASSERT_TRUE(DecodeAcquire(Bytes(bytes), &call).ok());
  Run(&call);
  Buffer out;
  EncodeAcquire(call, &out);
  v1::AcquireResponse ours;
  ASSERT_TRUE(ours.ParseFromArray(out.data(), static_cast<int>(out.size())));
  const v1::AcquireResponse theirs = Response(call, 0);
  EXPECT_FALSE(ours.receipt().empty());
  ASSERT_EQ(ours.charges_size(), 2);
  EXPECT_EQ(ours.charges(1).limit(), parent);
  EXPECT_TRUE(MessageDifferencer::Equals(ours, theirs));
}

}  // namespace
}  // namespace sluice::transport
