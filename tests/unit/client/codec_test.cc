// The client's codec against protobuf's own: random messages in both directions, and damaged bytes.
#include "client/src/transport/codec.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/protobuf_wire.h"
#include "common/rate_limiter_fields.h"
#include "common/utf8.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/decision_fields.h"
#include "tests/unit/client/protobuf_reference.h"

namespace sluice::client_internal {
namespace {

using google::protobuf::util::MessageDifferencer;
using std::chrono::nanoseconds;
namespace fields = common::fields;

// Random values, with those at the edges of the encodings more often.
class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}

  uint64_t Below(uint64_t end) { return generator_() % end; }
  bool Chance(uint64_t in) { return Below(in) == 0; }
  uint64_t Number() {
    switch (Below(4)) {
      case 0:
        return Below(4);
      case 1:
        return uint64_t{1} << Below(64);
      case 2:
        return (uint64_t{1} << Below(64)) - 1;
      default:
        return generator_() >> Below(64);
    }
  }
  std::string Text() {
    static const char* const kTexts[] = {"", "a", "user:42", "\xc3\xa4\xe2\x82\xac"};
    if (Chance(8)) return std::string(100 + Below(200), 'x');
    return kTexts[Below(4)];
  }
  // Arbitrary bytes.
  std::string Bytes() {
    std::string bytes(Below(40), '\0');
    for (char& c : bytes) c = static_cast<char>(Below(256));
    return bytes;
  }
  void Fill(google::protobuf::Duration* duration) {
    if (!Chance(4)) duration->set_seconds(static_cast<int64_t>(Number()));
    if (!Chance(4)) duration->set_nanos(static_cast<int32_t>(Number()));
  }
  nanoseconds Time() { return nanoseconds(static_cast<int64_t>(Number())); }

 private:
  std::mt19937_64 generator_;
};

std::string MessageOf(const std::string& framed) {
  EXPECT_GE(framed.size(), 5u);
  EXPECT_EQ(framed[0], 0);
  size_t size = 0;
  for (int i = 1; i < 5; ++i) size = size << 8 | static_cast<uint8_t>(framed[i]);
  EXPECT_EQ(size, framed.size() - 5);
  return framed.substr(5);
}

// The codec's message, parsed by protobuf, equals `expected`.
template <typename Message>
void ExpectEncodes(const std::string& framed, const Message& expected) {
  Message parsed;
  ASSERT_TRUE(parsed.ParseFromString(MessageOf(framed)));
  EXPECT_TRUE(MessageDifferencer::Equals(parsed, expected))
      << parsed.ShortDebugString() << "\nexpected " << expected.ShortDebugString();
}

// ---- Requests ----

Acquisition RandomAcquisition(Random& random) {
  Acquisition acquisition;
  for (uint64_t i = random.Below(4); i > 0; --i) {
    acquisition.charges.push_back({random.Text(), random.Text(), random.Number()});
  }
  acquisition.want_receipt = random.Chance(2);
  if (random.Chance(2)) acquisition.max_wait = random.Time();
  acquisition.hold = random.Chance(2);
  acquisition.force = random.Chance(2);
  if (random.Chance(2)) acquisition.request_id = random.Bytes();
  if (random.Chance(2)) acquisition.settle_within = random.Time();
  return acquisition;
}

std::vector<Bucket> RandomBuckets(Random& random) {
  std::vector<Bucket> buckets;
  for (uint64_t i = random.Below(5); i > 0; --i) buckets.push_back({random.Text(), random.Text()});
  return buckets;
}

template <typename Request>
void AddBuckets(const std::vector<Bucket>& buckets, Request* request) {
  for (const Bucket& bucket : buckets) {
    auto* const wire = request->add_buckets();
    wire->set_limit(bucket.limit);
    wire->set_key(bucket.key);
  }
}

TEST(ClientCodecTest, ProtobufReadsTheRequests) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    std::string bytes;
    const Acquisition acquisition = RandomAcquisition(random);
    EncodeAcquire(acquisition, &bytes);
    v1::AcquireRequest acquire;
    protobuf_reference::ToWire(acquisition, &acquire);
    ExpectEncodes(bytes, acquire);

    std::vector<Acquisition> batch(random.Below(5));
    for (Acquisition& one : batch) one = RandomAcquisition(random);
    bytes.clear();
    EncodeAcquireBatch(batch, &bytes);
    v1::AcquireBatchRequest batch_request;
    protobuf_reference::ToWire(batch, &batch_request);
    ExpectEncodes(bytes, batch_request);

    const std::vector<Bucket> buckets = RandomBuckets(random);
    bytes.clear();
    EncodeQuery(buckets, &bytes);
    v1::QueryRequest query;
    AddBuckets(buckets, &query);
    ExpectEncodes(bytes, query);

    const nanoseconds interval = random.Time();
    bytes.clear();
    EncodeWatch(buckets, interval, &bytes);
    v1::WatchRequest watch;
    AddBuckets(buckets, &watch);
    protobuf_reference::ToWire(interval, watch.mutable_min_interval());
    ExpectEncodes(bytes, watch);

    const std::string receipt = random.Bytes();
    bytes.clear();
    EncodeRefund(receipt, &bytes);
    v1::RefundRequest refund;
    refund.set_receipt(receipt);
    ExpectEncodes(bytes, refund);

    std::vector<std::string> receipts;
    for (uint64_t i = random.Below(5); i > 0; --i) receipts.push_back(random.Bytes());
    bytes.clear();
    EncodeRenew(receipts, &bytes);
    v1::RenewRequest renew;
    for (const std::string& one : receipts) renew.add_receipts(one);
    ExpectEncodes(bytes, renew);

    const Settlement settlement = {random.Bytes(), RandomAcquisition(random).charges,
                                   random.Chance(2)};
    bytes.clear();
    EncodeSettle(settlement, &bytes);
    v1::SettleRequest settle;
    protobuf_reference::ToWire(settlement, &settle);
    ExpectEncodes(bytes, settle);

    std::vector<Settlement> settlements(random.Below(5), settlement);
    v1::SettleBatchRequest settle_batch;
    for (Settlement& one : settlements) {
      one.receipt = random.Bytes();
      protobuf_reference::ToWire(one, settle_batch.add_settlements());
    }
    bytes.clear();
    EncodeSettleBatch(settlements, &bytes);
    ExpectEncodes(bytes, settle_batch);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ClientCodecTest, AppendsRequestsToWhatTheBufferHolds) {
  std::string twice;
  EncodeRefund("one", &twice);
  EncodeRefund("two", &twice);
  std::string second;
  EncodeRefund("two", &second);
  EXPECT_EQ(twice.substr(twice.size() - second.size()), second);
  EXPECT_EQ(twice.size(), 2 * second.size());
}

// ---- Answers ----

void Fill(Random& random, v1::AcquireResponse* response) {
  response->set_granted(random.Chance(2));
  if (random.Chance(2)) random.Fill(response->mutable_wait());
  if (random.Chance(2)) random.Fill(response->mutable_retry_after());
  for (uint64_t i = random.Below(4); i > 0; --i) {
    v1::ChargeStatus* const charge = response->add_charges();
    charge->set_remaining(static_cast<int64_t>(random.Number()));
    charge->set_capacity(random.Number());
    if (random.Chance(2)) random.Fill(charge->mutable_reset_after());
    charge->set_reason(static_cast<v1::Reason>(random.Number()));
    charge->set_limit(random.Text());
    if (random.Chance(2)) charge->set_forgiven(random.Number());
    if (random.Chance(2)) random.Fill(charge->mutable_held_for());
  }
  response->set_source(static_cast<v1::Source>(random.Number()));
  if (random.Chance(2)) response->set_receipt(random.Bytes());
  if (random.Chance(2)) response->set_repeated(true);
}

void Fill(Random& random, v1::Error* error) {
  error->set_code(static_cast<int32_t>(random.Below(18)));
  error->set_message(random.Text());
  error->set_nothing_taken(random.Chance(2));
}

void Fill(Random& random, v1::AcquireBatchResponse* response) {
  for (uint64_t i = random.Below(6); i > 0; --i) {
    v1::AcquireResult* const result = response->add_results();
    const uint64_t kind = random.Below(5);
    if (kind == 0) continue;
    if (kind == 1) {
      Fill(random, result->mutable_error());
    } else {
      Fill(random, result->mutable_response());
    }
  }
}

void Fill(Random& random, v1::QueryResponse* response) {
  for (uint64_t i = random.Below(4); i > 0; --i) {
    v1::BucketStatus* const bucket = response->add_buckets();
    bucket->set_limit(random.Text());
    bucket->set_key(random.Text());
    bucket->set_remaining(static_cast<int64_t>(random.Number()));
    bucket->set_capacity(random.Number());
    if (random.Chance(2)) random.Fill(bucket->mutable_reset_after());
    if (random.Chance(2)) random.Fill(bucket->mutable_next_permit_after());
    bucket->set_exists(random.Chance(2));
    bucket->set_waiting(random.Number());
    if (random.Chance(2)) random.Fill(bucket->mutable_next_grant_after());
    bucket->set_open_receipts(random.Number());
    bucket->set_refundable(random.Number());
    bucket->set_holds(random.Number());
    if (random.Chance(2)) random.Fill(bucket->mutable_next_end_after());
    bucket->set_source(static_cast<v1::Source>(random.Number()));
    if (random.Chance(4)) Fill(random, bucket->mutable_error());
  }
  if (random.Chance(2)) response->mutable_at()->set_seconds(1);
}

void Fill(Random& random, v1::RefundResponse* response) {
  response->set_outcome(static_cast<v1::RefundOutcome>(random.Below(5)));
  for (uint64_t i = random.Below(4); i > 0; --i) {
    v1::RefundedCharge* const charge = response->add_charges();
    charge->set_limit(random.Text());
    charge->set_key(random.Text());
    charge->set_permits(random.Number());
  }
}

void Fill(Random& random, v1::RenewResponse* response) {
  for (uint64_t i = random.Below(5); i > 0; --i) {
    v1::RenewResult* const result = response->add_results();
    result->set_outcome(static_cast<v1::RenewOutcome>(random.Below(4)));
    if (random.Chance(2)) random.Fill(result->mutable_held_for());
    if (random.Chance(4)) Fill(random, result->mutable_error());
  }
}

void Fill(Random& random, v1::SettleResponse* response) {
  response->set_outcome(static_cast<v1::SettleOutcome>(random.Below(6)));
  for (uint64_t i = random.Below(4); i > 0; --i) {
    v1::SettledCharge* const charge = response->add_charges();
    charge->set_limit(random.Text());
    charge->set_key(random.Text());
    charge->set_given_back(random.Number());
    charge->set_charged(random.Number());
    charge->set_forgiven(random.Number());
  }
}

void Fill(Random& random, v1::SettleBatchResponse* response) {
  for (uint64_t i = random.Below(5); i > 0; --i) {
    v1::SettleResult* const result = response->add_results();
    if (random.Chance(4)) {
      Fill(random, result->mutable_error());
    } else if (!random.Chance(8)) {
      Fill(random, result->mutable_response());
    }
  }
}

bool Same(const Decision& a, const Decision& b) {
  if (a.charges.size() != b.charges.size()) return false;
  for (size_t i = 0; i < a.charges.size(); ++i) {
    const ChargeStatus& left = a.charges[i];
    const ChargeStatus& right = b.charges[i];
    if (left.remaining != right.remaining || left.capacity != right.capacity ||
        left.reset_after != right.reset_after || left.reason != right.reason ||
        left.limit != right.limit || left.forgiven != right.forgiven ||
        left.held_for != right.held_for) {
      return false;
    }
  }
  return a.granted == b.granted && a.source == b.source && a.retry_after == b.retry_after &&
         a.wait == b.wait && a.receipt == b.receipt && a.repeated == b.repeated;
}

bool Same(const BatchDecisions& a, const BatchDecisions& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].ok() != b[i].ok() || a[i].status() != b[i].status()) return false;
    if (a[i].ok() && !Same(*a[i], *b[i])) return false;
  }
  return true;
}

bool Same(const std::vector<BucketStatus>& a, const std::vector<BucketStatus>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].limit != b[i].limit || a[i].key != b[i].key || a[i].remaining != b[i].remaining ||
        a[i].capacity != b[i].capacity || a[i].reset_after != b[i].reset_after ||
        a[i].next_permit_after != b[i].next_permit_after || a[i].exists != b[i].exists ||
        a[i].waiting != b[i].waiting || a[i].next_grant_after != b[i].next_grant_after ||
        a[i].open_receipts != b[i].open_receipts || a[i].refundable != b[i].refundable ||
        a[i].holds != b[i].holds || a[i].next_end_after != b[i].next_end_after ||
        a[i].source != b[i].source || a[i].status != b[i].status) {
      return false;
    }
  }
  return true;
}

bool Same(const RefundResult& a, const RefundResult& b) {
  if (a.outcome != b.outcome || a.charges.size() != b.charges.size()) return false;
  for (size_t i = 0; i < a.charges.size(); ++i) {
    if (a.charges[i].limit != b.charges[i].limit || a.charges[i].key != b.charges[i].key ||
        a.charges[i].permits != b.charges[i].permits) {
      return false;
    }
  }
  return true;
}

bool Same(const std::vector<Renewal>& a, const std::vector<Renewal>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].outcome != b[i].outcome || a[i].held_for != b[i].held_for ||
        a[i].status != b[i].status) {
      return false;
    }
  }
  return true;
}

bool Same(const SettleResult& a, const SettleResult& b) {
  if (a.outcome != b.outcome || a.charges.size() != b.charges.size()) return false;
  for (size_t i = 0; i < a.charges.size(); ++i) {
    const SettledCharge& left = a.charges[i];
    const SettledCharge& right = b.charges[i];
    if (left.limit != right.limit || left.key != right.key || left.given_back != right.given_back ||
        left.charged != right.charged || left.forgiven != right.forgiven) {
      return false;
    }
  }
  return true;
}

bool Same(const BatchSettlements& a, const BatchSettlements& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    if (!one.ok() || !other.ok()) return one.status() == other.status();
    return Same(*one, *other);
  });
}

// The codec accepts what protobuf accepts, with the same value. Returns whether both accept.
template <typename Message, typename Value>
bool ExpectSameAsProtobuf(const std::string& bytes) {
  Message message;
  Value ours{};
  const bool accepted = Decode(bytes, &ours);
  if (!message.ParseFromString(bytes)) return false;
  EXPECT_TRUE(accepted) << message.ShortDebugString();
  if (accepted) {
    EXPECT_TRUE(Same(ours, protobuf_reference::FromWire(&message)));
  }
  return accepted;
}

template <typename Message, typename Value>
void CompareRandomMessages() {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    Message message;
    Fill(random, &message);
    std::string bytes = message.SerializeAsString();
    EXPECT_TRUE((ExpectSameAsProtobuf<Message, Value>(bytes)));
    // Protobuf merges two messages whose bytes follow each other.
    Message second;
    Fill(random, &second);
    EXPECT_TRUE((ExpectSameAsProtobuf<Message, Value>(bytes + second.SerializeAsString())));
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ClientCodecTest, ReadsAnswersAsProtobufDoes) {
  CompareRandomMessages<v1::AcquireResponse, Decision>();
  CompareRandomMessages<v1::AcquireBatchResponse, BatchDecisions>();
  CompareRandomMessages<v1::QueryResponse, std::vector<BucketStatus>>();
  CompareRandomMessages<v1::RefundResponse, RefundResult>();
  CompareRandomMessages<v1::RenewResponse, std::vector<Renewal>>();
  CompareRandomMessages<v1::SettleResponse, SettleResult>();
  CompareRandomMessages<v1::SettleBatchResponse, BatchSettlements>();
}

// Sets every field, also those that this test does not know.
void SetAll(google::protobuf::Message* message) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& set = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const Field* const field = message->GetDescriptor()->field(i);
    switch (field->cpp_type()) {
      case Field::CPPTYPE_INT32:
        set.SetInt32(message, field, 1);
        break;
      case Field::CPPTYPE_INT64:
        set.SetInt64(message, field, 1);
        break;
      case Field::CPPTYPE_UINT64:
        set.SetUInt64(message, field, 1);
        break;
      case Field::CPPTYPE_BOOL:
        set.SetBool(message, field, true);
        break;
      case Field::CPPTYPE_ENUM:
        set.SetEnumValue(message, field, 1);
        break;
      case Field::CPPTYPE_STRING:
        set.SetString(message, field, "a");
        break;
      case Field::CPPTYPE_MESSAGE:
        SetAll(field->is_repeated() ? set.AddMessage(message, field)
                                    : set.MutableMessage(message, field));
        break;
      default:
        FAIL() << field->full_name();
    }
  }
}

TEST(ClientCodecTest, ReadsEveryFieldOfADecision) {
  v1::AcquireResponse message;
  SetAll(&message);
  Decision decision;
  ASSERT_TRUE(Decode(message.SerializeAsString(), &decision));
  testing::FieldsSet set;
  testing::AddFields(decision, &set);
  for (const auto& [field, is_set] : set) EXPECT_TRUE(is_set) << field;
}

// Changes, removes, doubles or adds a few bytes.
std::string Damaged(std::string bytes, Random& random) {
  for (uint64_t i = 1 + random.Below(3); i > 0; --i) {
    if (bytes.empty()) return random.Bytes();
    const size_t at = random.Below(bytes.size());
    switch (random.Below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.Below(256));
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << random.Below(8));
        break;
      case 2:
        bytes.erase(at, 1 + random.Below(4));
        break;
      case 3:
        bytes.insert(at, bytes.substr(random.Below(bytes.size()), random.Below(20)));
        break;
      default:
        bytes.resize(at);
        break;
    }
  }
  return bytes;
}

template <typename Message, typename Value>
void CompareDamagedMessages(int* accepted, int* refused) {
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed);
    Message message;
    Fill(random, &message);
    const std::string bytes = Damaged(message.SerializeAsString(), random);
    ++*(ExpectSameAsProtobuf<Message, Value>(bytes) ? accepted : refused);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ClientCodecTest, ReadsDamagedAnswersAsProtobufDoes) {
  int accepted = 0;
  int refused = 0;
  CompareDamagedMessages<v1::AcquireResponse, Decision>(&accepted, &refused);
  CompareDamagedMessages<v1::AcquireBatchResponse, BatchDecisions>(&accepted, &refused);
  CompareDamagedMessages<v1::QueryResponse, std::vector<BucketStatus>>(&accepted, &refused);
  CompareDamagedMessages<v1::RefundResponse, RefundResult>(&accepted, &refused);
  CompareDamagedMessages<v1::SettleResponse, SettleResult>(&accepted, &refused);
  CompareDamagedMessages<v1::SettleBatchResponse, BatchSettlements>(&accepted, &refused);
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

// What protobuf refuses, the codec refuses too. A RefundResponse without texts leaves no room for
// the one difference, which is UTF-8.
TEST(ClientCodecTest, RefusesWhatProtobufRefuses) {
  int refused = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed);
    v1::AcquireResponse message;
    Fill(random, &message);
    for (v1::ChargeStatus& charge : *message.mutable_charges()) charge.clear_limit();
    const std::string bytes = Damaged(message.SerializeAsString(), random);
    Decision decision;
    if (message.ParseFromString(bytes)) continue;
    if (!Decode(bytes, &decision)) {
      ++refused;
      continue;
    }
    bool utf8 = true;
    for (const ChargeStatus& charge : decision.charges) {
      utf8 = utf8 && common::IsUtf8(charge.limit);
    }
    EXPECT_FALSE(utf8) << "seed " << seed;
  }
  EXPECT_GT(refused, 1000);
}

TEST(ClientCodecTest, RefusesMoreElementsThanAServerSends) {
  const auto repeated = [](char tag, size_t count) {
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes += {tag, '\0'};
    return bytes;
  };
  Decision decision;
  EXPECT_TRUE(Decode(repeated('\x22', 16), &decision));
  EXPECT_FALSE(Decode(repeated('\x22', 17), &decision));
  BatchDecisions decisions;
  EXPECT_TRUE(Decode(repeated('\x0a', 4096), &decisions));
  EXPECT_EQ(decisions.size(), 4096u);
  EXPECT_FALSE(Decode(repeated('\x0a', 4097), &decisions));
  std::vector<BucketStatus> buckets;
  EXPECT_TRUE(Decode(repeated('\x0a', 256), &buckets));
  EXPECT_FALSE(Decode(repeated('\x0a', 257), &buckets));
}

TEST(WireReaderTest, SkipsGroupsAsProtobufDoes) {
  const auto group = [](int depth, char end) {
    std::string bytes;
    for (int i = 0; i < depth; ++i) bytes += '\x53';  // field 10: group begins
    bytes += "\x58\x07";                              // field 11: a varint
    for (int i = 0; i < depth; ++i) bytes += i == 0 ? end : '\x54';
    return bytes + "\x08\x01";  // field 1: granted
  };
  Decision decision;
  EXPECT_TRUE(Decode(group(1, '\x54'), &decision));
  EXPECT_TRUE(decision.granted);
  EXPECT_TRUE(Decode(group(50, '\x54'), &decision));
  EXPECT_FALSE(Decode(group(101, '\x54'), &decision));
  EXPECT_FALSE(Decode(group(2, '\x5c'), &decision));  // the end of another field's group
  EXPECT_FALSE(Decode("\x53\x58\x07", &decision));    // no end
}

// ---- Field numbers ----

template <typename Message>
void ExpectFields(std::initializer_list<std::pair<const char*, uint32_t>> expected) {
  const auto* const descriptor = Message::descriptor();
  EXPECT_EQ(static_cast<size_t>(descriptor->field_count()), expected.size())
      << descriptor->full_name();
  for (const auto& [name, number] : expected) {
    const auto* const field = descriptor->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(static_cast<uint32_t>(field->number()), number) << field->full_name();
  }
}

TEST(RateLimiterFieldsTest, AreThoseOfTheProtoFile) {
  using F = fields::AcquireResponse;
  using B = fields::BucketStatus;
  using C = fields::ChargeStatus;
  using R = fields::AcquireRequest;
  ExpectFields<google::protobuf::Duration>(
      {{"seconds", fields::Duration::kSeconds}, {"nanos", fields::Duration::kNanos}});
  ExpectFields<v1::Charge>({{"limit", fields::Charge::kLimit},
                            {"key", fields::Charge::kKey},
                            {"permits", fields::Charge::kPermits}});
  ExpectFields<v1::AcquireRequest>({{"charges", R::kCharges},
                                    {"max_wait", R::kMaxWait},
                                    {"hold", R::kHold},
                                    {"want_receipt", R::kWantReceipt},
                                    {"force", R::kForce},
                                    {"settle_within", R::kSettleWithin},
                                    {"request_id", R::kRequestId}});
  ExpectFields<v1::ChargeStatus>({{"remaining", C::kRemaining},
                                  {"capacity", C::kCapacity},
                                  {"reset_after", C::kResetAfter},
                                  {"reason", C::kReason},
                                  {"limit", C::kLimit},
                                  {"forgiven", C::kForgiven},
                                  {"held_for", C::kHeldFor}});
  ExpectFields<v1::AcquireResponse>({{"granted", F::kGranted},
                                     {"wait", F::kWait},
                                     {"retry_after", F::kRetryAfter},
                                     {"charges", F::kCharges},
                                     {"source", F::kSource},
                                     {"receipt", F::kReceipt},
                                     {"repeated", F::kRepeated}});
  ExpectFields<v1::AcquireBatchRequest>(
      {{"acquisitions", fields::AcquireBatchRequest::kAcquisitions}});
  ExpectFields<v1::AcquireResult>(
      {{"response", fields::AcquireResult::kResponse}, {"error", fields::AcquireResult::kError}});
  ExpectFields<v1::Error>({{"code", fields::Error::kCode},
                           {"message", fields::Error::kMessage},
                           {"nothing_taken", fields::Error::kNothingTaken}});
  ExpectFields<v1::AcquireBatchResponse>({{"results", fields::AcquireBatchResponse::kResults}});
  ExpectFields<v1::QueryRequest::Bucket>(
      {{"limit", fields::Bucket::kLimit}, {"key", fields::Bucket::kKey}});
  ExpectFields<v1::QueryRequest>({{"buckets", fields::QueryRequest::kBuckets}});
  ExpectFields<v1::BucketStatus>({{"limit", B::kLimit},
                                  {"key", B::kKey},
                                  {"remaining", B::kRemaining},
                                  {"capacity", B::kCapacity},
                                  {"reset_after", B::kResetAfter},
                                  {"next_permit_after", B::kNextPermitAfter},
                                  {"exists", B::kExists},
                                  {"waiting", B::kWaiting},
                                  {"next_grant_after", B::kNextGrantAfter},
                                  {"source", B::kSource},
                                  {"error", B::kError},
                                  {"open_receipts", B::kOpenReceipts},
                                  {"refundable", B::kRefundable},
                                  {"holds", B::kHolds},
                                  {"next_end_after", B::kNextEndAfter}});
  ExpectFields<v1::QueryResponse>(
      {{"buckets", fields::QueryResponse::kBuckets}, {"at", fields::QueryResponse::kAt}});
  ExpectFields<v1::WatchRequest>({{"buckets", fields::WatchRequest::kBuckets},
                                  {"min_interval", fields::WatchRequest::kMinInterval}});
  ExpectFields<v1::RefundRequest>({{"receipt", fields::RefundRequest::kReceipt}});
  ExpectFields<v1::RefundedCharge>({{"limit", fields::RefundedCharge::kLimit},
                                    {"key", fields::RefundedCharge::kKey},
                                    {"permits", fields::RefundedCharge::kPermits}});
  ExpectFields<v1::RefundResponse>({{"outcome", fields::RefundResponse::kOutcome},
                                    {"charges", fields::RefundResponse::kCharges}});
  ExpectFields<v1::RenewRequest>({{"receipts", fields::RenewRequest::kReceipts}});
  ExpectFields<v1::RenewResult>({{"outcome", fields::RenewResult::kOutcome},
                                 {"held_for", fields::RenewResult::kHeldFor},
                                 {"error", fields::RenewResult::kError}});
  ExpectFields<v1::RenewResponse>({{"results", fields::RenewResponse::kResults}});
  ExpectFields<v1::SettleRequest>({{"receipt", fields::SettleRequest::kReceipt},
                                   {"actual", fields::SettleRequest::kActual},
                                   {"more", fields::SettleRequest::kMore}});
  ExpectFields<v1::SettledCharge>({{"limit", fields::SettledCharge::kLimit},
                                   {"key", fields::SettledCharge::kKey},
                                   {"given_back", fields::SettledCharge::kGivenBack},
                                   {"charged", fields::SettledCharge::kCharged},
                                   {"forgiven", fields::SettledCharge::kForgiven}});
  ExpectFields<v1::SettleResponse>({{"outcome", fields::SettleResponse::kOutcome},
                                    {"charges", fields::SettleResponse::kCharges}});
  ExpectFields<v1::SettleBatchRequest>({{"settlements", fields::SettleBatchRequest::kSettlements}});
  ExpectFields<v1::SettleResult>(
      {{"response", fields::SettleResult::kResponse}, {"error", fields::SettleResult::kError}});
  ExpectFields<v1::SettleBatchResponse>({{"results", fields::SettleBatchResponse::kResults}});
}

}  // namespace
}  // namespace sluice::client_internal
