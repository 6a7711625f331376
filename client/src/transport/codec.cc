#include "client/src/transport/codec.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "common/bounds.h"
#include "common/protobuf_wire.h"
#include "common/rate_limiter_fields.h"

namespace sluice::client_internal {
namespace {

using common::WireReader;
using common::WireWriter;
using std::chrono::nanoseconds;
namespace bounds = common::bounds;
namespace fields = common::fields;

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kField = WireWriter::kFieldBytes;
// A duration's two fields, of which negative values take ten bytes each, and its own tag.
constexpr size_t kDuration = 3 * kField;
constexpr size_t kMessageHead = 5;  // gRPC's flags and length

// ---- Requests ----

// Appends one message of gRPC. `write(WireWriter)` writes at most `most` bytes and returns the
// writer.
template <typename Write>
void AppendMessage(size_t most, std::string* out, const Write& write) {
  const size_t start = out->size();
  // A varint may be written with eight bytes at once, past its own end.
  out->resize(start + kMessageHead + most + kField);
  auto* const head = reinterpret_cast<uint8_t*>(out->data()) + start;
  uint8_t* const end = write(WireWriter(head + kMessageHead)).at();
  const auto size = static_cast<size_t>(end - head) - kMessageHead;
  head[0] = 0;  // not compressed
  for (int i = 0; i < 4; ++i) head[1 + i] = static_cast<uint8_t>(size >> (24 - 8 * i));
  out->resize(start + kMessageHead + size);
}

// Writers are passed and returned by value, so that their position stays in a register.
WireWriter WriteDuration(uint32_t field, nanoseconds time, WireWriter out) {
  uint8_t* const mark = out.BeginMessage(field);
  const int64_t seconds = time.count() / kSecond;
  const int64_t nanos = time.count() % kSecond;
  if (seconds != 0) out.Varint(fields::Duration::kSeconds, static_cast<uint64_t>(seconds));
  if (nanos != 0) out.Varint(fields::Duration::kNanos, static_cast<uint64_t>(nanos));
  out.EndShortMessage(mark);
  return out;
}

size_t MostBytes(const Acquisition& acquisition) {
  size_t size = 2 * kDuration + 5 * kField + acquisition.request_id.size();
  for (const Charge& charge : acquisition.charges) {
    size += charge.limit.size() + charge.key.size() + 4 * kField;
  }
  return size;
}

// Absent permits mean 1.
WireWriter WriteCharge(uint32_t field, const Charge& charge, WireWriter out) {
  uint8_t* const mark = out.BeginMessage(field);
  if (!charge.limit.empty()) out.Bytes(fields::Charge::kLimit, charge.limit);
  if (!charge.key.empty()) out.Bytes(fields::Charge::kKey, charge.key);
  if (charge.permits != 1) out.Varint(fields::Charge::kPermits, charge.permits);
  out.EndMessage(mark);
  return out;
}

WireWriter Write(const Acquisition& acquisition, WireWriter out) {
  using Request = fields::AcquireRequest;
  for (const Charge& charge : acquisition.charges) {
    out = WriteCharge(Request::kCharges, charge, out);
  }
  if (acquisition.max_wait.count() != 0) {
    out = WriteDuration(Request::kMaxWait, acquisition.max_wait, out);
  }
  if (acquisition.hold) out.Varint(Request::kHold, 1);
  if (acquisition.want_receipt) out.Varint(Request::kWantReceipt, 1);
  if (acquisition.force) out.Varint(Request::kForce, 1);
  if (acquisition.settle_within.count() != 0) {
    out = WriteDuration(Request::kSettleWithin, acquisition.settle_within, out);
  }
  if (!acquisition.request_id.empty()) out.Bytes(Request::kRequestId, acquisition.request_id);
  return out;
}

size_t MostBytes(const Settlement& settlement) {
  size_t size = settlement.receipt.size() + 2 * kField;
  for (const Charge& charge : settlement.actual) {
    size += charge.limit.size() + charge.key.size() + 4 * kField;
  }
  return size;
}

WireWriter Write(const Settlement& settlement, WireWriter out) {
  if (!settlement.receipt.empty()) out.Bytes(fields::SettleRequest::kReceipt, settlement.receipt);
  for (const Charge& charge : settlement.actual) {
    out = WriteCharge(fields::SettleRequest::kActual, charge, out);
  }
  if (settlement.more) out.Varint(fields::SettleRequest::kMore, 1);
  return out;
}

size_t MostBytes(std::span<const Bucket> buckets) {
  size_t size = 0;
  for (const Bucket& bucket : buckets) size += bucket.limit.size() + bucket.key.size() + 3 * kField;
  return size;
}

// QueryRequest and WatchRequest have the buckets in the same field.
static_assert(uint32_t{fields::QueryRequest::kBuckets} == fields::WatchRequest::kBuckets);

WireWriter Write(std::span<const Bucket> buckets, WireWriter out) {
  for (const Bucket& bucket : buckets) {
    uint8_t* const mark = out.BeginMessage(fields::QueryRequest::kBuckets);
    if (!bucket.limit.empty()) out.Bytes(fields::Bucket::kLimit, bucket.limit);
    if (!bucket.key.empty()) out.Bytes(fields::Bucket::kKey, bucket.key);
    out.EndMessage(mark);
  }
  return out;
}

// ---- Answers ----
//
// As protobuf does, a scalar that occurs twice has its last value, and a message that occurs twice
// is merged.

struct WireDuration {
  int64_t seconds = 0;
  int32_t nanos = 0;

  bool Read(std::string_view bytes) {
    WireReader reader(bytes);
    while (reader.Next()) {
      uint64_t value = 0;
      if (reader.field() == fields::Duration::kSeconds && reader.ReadVarint(&value)) {
        seconds = static_cast<int64_t>(value);
      } else if (reader.field() == fields::Duration::kNanos && reader.ReadVarint(&value)) {
        nanos = static_cast<int32_t>(value);
      }
    }
    return reader.ok();
  }

  // Saturates at 292 years.
  nanoseconds Value() const {
    constexpr int64_t kMostSeconds = INT64_MAX / kSecond - 3;  // any `nanos` is below 3 s
    if (seconds > kMostSeconds) return nanoseconds::max();
    if (seconds < -kMostSeconds) return nanoseconds::min();
    return nanoseconds(seconds * kSecond + nanos);
  }
};

int64_t UnZigZag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

// Reads the current field if it is a message with a Read method. Returns false if its bytes are
// invalid.
template <typename Message>
bool ReadMessage(WireReader* reader, Message* message) {
  std::string_view bytes;
  return !reader->ReadBytes(&bytes) || message->Read(bytes);
}

// The same for a text.
void ReadText(WireReader* reader, std::string* text) {
  std::string_view bytes;
  if (reader->ReadBytes(&bytes)) text->assign(bytes);
}

struct ErrorFields {
  int32_t code = 0;
  std::string message;
  bool nothing_taken = false;

  bool Read(std::string_view bytes) {
    WireReader reader(bytes);
    while (reader.Next()) {
      uint64_t value = 0;
      switch (reader.field()) {
        case fields::Error::kCode:
          if (reader.ReadVarint(&value)) code = static_cast<int32_t>(value);
          break;
        case fields::Error::kMessage:
          ReadText(&reader, &message);
          break;
        case fields::Error::kNothingTaken:
          if (reader.ReadVarint(&value)) nothing_taken = value != 0;
          break;
        default:
          break;
      }
    }
    return reader.ok();
  }

  // In a batch each acquisition has its own error. Most codes mean that nothing was debited; with
  // some the server may not know.
  Status Value() && {
    const auto status_code = static_cast<StatusCode>(code);
    if (nothing_taken) return Status(status_code, std::move(message));
    switch (status_code) {
      case StatusCode::kUnavailable:
      case StatusCode::kInternal:
      case StatusCode::kUnknown:
      case StatusCode::kDeadlineExceeded:
        return Status::MaybeExecuted(status_code, std::move(message));
      case StatusCode::kOk:
        return Status(StatusCode::kInternal, std::move(message));
      default:
        return Status(status_code, std::move(message));
    }
  }
};

bool ReadCharge(std::string_view bytes, ChargeStatus* charge) {
  using Field = fields::ChargeStatus;
  WireDuration reset_after;
  WireDuration held_for;
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    switch (reader.field()) {
      case Field::kRemaining:
        if (reader.ReadVarint(&value)) charge->remaining = UnZigZag(value);
        break;
      case Field::kCapacity:
        reader.ReadVarint(&charge->capacity);
        break;
      case Field::kResetAfter:
        if (!ReadMessage(&reader, &reset_after)) return false;
        break;
      case Field::kReason:
        if (reader.ReadVarint(&value)) {
          charge->reason = static_cast<Reason>(static_cast<int32_t>(value));
        }
        break;
      case Field::kLimit:
        ReadText(&reader, &charge->limit);
        break;
      case Field::kForgiven:
        reader.ReadVarint(&charge->forgiven);
        break;
      case Field::kHeldFor:
        if (!ReadMessage(&reader, &held_for)) return false;
        break;
      default:
        break;
    }
  }
  charge->reset_after = reset_after.Value();
  charge->held_for = held_for.Value();
  return reader.ok();
}

struct DecisionFields {
  Decision decision;
  WireDuration wait;
  WireDuration retry_after;

  bool Read(std::string_view bytes) {
    using Field = fields::AcquireResponse;
    WireReader reader(bytes);
    while (reader.Next()) {
      std::string_view charge;
      uint64_t value = 0;
      switch (reader.field()) {
        case Field::kGranted:
          if (reader.ReadVarint(&value)) decision.granted = value != 0;
          break;
        case Field::kWait:
          if (!ReadMessage(&reader, &wait)) return false;
          break;
        case Field::kRetryAfter:
          if (!ReadMessage(&reader, &retry_after)) return false;
          break;
        case Field::kCharges:
          if (!reader.ReadBytes(&charge)) break;
          if (decision.charges.size() >= bounds::kMaxCharges) return false;
          if (!ReadCharge(charge, &decision.charges.emplace_back())) return false;
          break;
        case Field::kSource:
          if (reader.ReadVarint(&value)) {
            decision.source = static_cast<Source>(static_cast<int32_t>(value));
          }
          break;
        case Field::kReceipt:
          ReadText(&reader, &decision.receipt);
          break;
        case Field::kRepeated:
          if (reader.ReadVarint(&value)) decision.repeated = value != 0;
          break;
        default:
          break;
      }
    }
    return reader.ok();
  }

  Decision Value() && {
    decision.wait = wait.Value();
    decision.retry_after = retry_after.Value();
    return std::move(decision);
  }
};

// Appends one result of a batch.
bool ReadResult(std::string_view bytes, BatchDecisions* decisions) {
  enum class Outcome { kNone, kResponse, kError } outcome = Outcome::kNone;
  DecisionFields response;
  ErrorFields error;
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view value;
    if (reader.field() == fields::AcquireResult::kResponse && reader.ReadBytes(&value)) {
      if (outcome == Outcome::kError) response = {};
      outcome = Outcome::kResponse;
      if (!response.Read(value)) return false;
    } else if (reader.field() == fields::AcquireResult::kError && reader.ReadBytes(&value)) {
      if (outcome == Outcome::kResponse) error = {};
      outcome = Outcome::kError;
      if (!error.Read(value)) return false;
    }
  }
  switch (outcome) {
    case Outcome::kResponse:
      decisions->emplace_back(std::move(response).Value());
      break;
    case Outcome::kError:
      decisions->emplace_back(std::move(error).Value());
      break;
    case Outcome::kNone:
      decisions->emplace_back(Status::MaybeExecuted(StatusCode::kInternal,
                                                    "the server sent a result without a decision"));
      break;
  }
  return reader.ok();
}

bool ReadBucket(std::string_view bytes, BucketStatus* bucket) {
  using Field = fields::BucketStatus;
  WireDuration reset_after;
  WireDuration next_permit_after;
  WireDuration next_grant_after;
  WireDuration next_end_after;
  ErrorFields error;
  bool has_error = false;
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    std::string_view message;
    switch (reader.field()) {
      case Field::kLimit:
        ReadText(&reader, &bucket->limit);
        break;
      case Field::kKey:
        ReadText(&reader, &bucket->key);
        break;
      case Field::kRemaining:
        if (reader.ReadVarint(&value)) bucket->remaining = UnZigZag(value);
        break;
      case Field::kCapacity:
        reader.ReadVarint(&bucket->capacity);
        break;
      case Field::kResetAfter:
        if (!ReadMessage(&reader, &reset_after)) return false;
        break;
      case Field::kNextPermitAfter:
        if (!ReadMessage(&reader, &next_permit_after)) return false;
        break;
      case Field::kExists:
        if (reader.ReadVarint(&value)) bucket->exists = value != 0;
        break;
      case Field::kWaiting:
        reader.ReadVarint(&bucket->waiting);
        break;
      case Field::kNextGrantAfter:
        if (!ReadMessage(&reader, &next_grant_after)) return false;
        break;
      case Field::kSource:
        if (reader.ReadVarint(&value)) {
          bucket->source = static_cast<Source>(static_cast<int32_t>(value));
        }
        break;
      case Field::kError:
        if (!reader.ReadBytes(&message)) break;
        has_error = true;
        if (!error.Read(message)) return false;
        break;
      case Field::kHolds:
        reader.ReadVarint(&bucket->holds);
        break;
      case Field::kNextEndAfter:
        if (!ReadMessage(&reader, &next_end_after)) return false;
        break;
      case Field::kOpenReceipts:
        reader.ReadVarint(&bucket->open_receipts);
        break;
      case Field::kRefundable:
        reader.ReadVarint(&bucket->refundable);
        break;
      default:
        break;
    }
  }
  bucket->reset_after = reset_after.Value();
  bucket->next_permit_after = next_permit_after.Value();
  bucket->next_grant_after = next_grant_after.Value();
  bucket->next_end_after = next_end_after.Value();
  if (has_error) bucket->status = std::move(error).Value();
  return reader.ok();
}

bool ReadRenewal(std::string_view bytes, Renewal* renewal) {
  WireDuration held_for;
  ErrorFields error;
  bool has_error = false;
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    std::string_view message;
    if (reader.field() == fields::RenewResult::kOutcome && reader.ReadVarint(&value)) {
      const auto outcome = static_cast<RenewOutcome>(static_cast<int32_t>(value));
      renewal->outcome =
          outcome == RenewOutcome::kRenewed ? RenewOutcome::kRenewed : RenewOutcome::kGone;
    } else if (reader.field() == fields::RenewResult::kHeldFor) {
      if (!ReadMessage(&reader, &held_for)) return false;
    } else if (reader.field() == fields::RenewResult::kError && reader.ReadBytes(&message)) {
      has_error = true;
      if (!error.Read(message)) return false;
    }
  }
  renewal->held_for = held_for.Value();
  if (has_error) renewal->status = std::move(error).Value();
  return reader.ok();
}

bool ReadRefundedCharge(std::string_view bytes, RefundedCharge* charge) {
  WireReader reader(bytes);
  while (reader.Next()) {
    switch (reader.field()) {
      case fields::RefundedCharge::kLimit:
        ReadText(&reader, &charge->limit);
        break;
      case fields::RefundedCharge::kKey:
        ReadText(&reader, &charge->key);
        break;
      case fields::RefundedCharge::kPermits:
        reader.ReadVarint(&charge->permits);
        break;
      default:
        break;
    }
  }
  return reader.ok();
}

bool ReadSettledCharge(std::string_view bytes, SettledCharge* charge) {
  using Field = fields::SettledCharge;
  WireReader reader(bytes);
  while (reader.Next()) {
    switch (reader.field()) {
      case Field::kLimit:
        ReadText(&reader, &charge->limit);
        break;
      case Field::kKey:
        ReadText(&reader, &charge->key);
        break;
      case Field::kGivenBack:
        reader.ReadVarint(&charge->given_back);
        break;
      case Field::kCharged:
        reader.ReadVarint(&charge->charged);
        break;
      case Field::kForgiven:
        reader.ReadVarint(&charge->forgiven);
        break;
      default:
        break;
    }
  }
  return reader.ok();
}

// Adds what the bytes say, as protobuf merges messages.
bool ReadSettled(std::string_view bytes, SettleResult* result) {
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    std::string_view charge;
    if (reader.field() == fields::SettleResponse::kOutcome && reader.ReadVarint(&value)) {
      const auto outcome = static_cast<SettleOutcome>(static_cast<int32_t>(value));
      const bool known = outcome >= SettleOutcome::kSettled && outcome <= SettleOutcome::kUnknown;
      result->outcome = known ? outcome : SettleOutcome::kUnknown;
    } else if (reader.field() == fields::SettleResponse::kCharges && reader.ReadBytes(&charge)) {
      if (result->charges.size() >= bounds::kMaxCharges) return false;
      if (!ReadSettledCharge(charge, &result->charges.emplace_back())) return false;
    }
  }
  return reader.ok();
}

// Appends one result of a batch of settlements.
bool ReadResult(std::string_view bytes, BatchSettlements* results) {
  std::optional<SettleResult> response;
  std::optional<ErrorFields> error;
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view value;
    if (reader.field() == fields::SettleResult::kResponse && reader.ReadBytes(&value)) {
      error.reset();
      if (!response.has_value()) response.emplace();
      if (!ReadSettled(value, &*response)) return false;
    } else if (reader.field() == fields::SettleResult::kError && reader.ReadBytes(&value)) {
      response.reset();
      if (!error.has_value()) error.emplace();
      if (!error->Read(value)) return false;
    }
  }
  if (response.has_value()) {
    results->emplace_back(*std::move(response));
  } else if (error.has_value()) {
    results->emplace_back((*std::move(error)).Value());
  } else {
    results->emplace_back(Status::MaybeExecuted(StatusCode::kInternal,
                                                "the server sent a result without an outcome"));
  }
  return reader.ok();
}

}  // namespace

void EncodeAcquire(const Acquisition& acquisition, std::string* out) {
  AppendMessage(MostBytes(acquisition), out,
                [&](WireWriter writer) { return Write(acquisition, writer); });
}

void EncodeAcquireBatch(std::span<const Acquisition> batch, std::string* out) {
  size_t most = 0;
  for (const Acquisition& acquisition : batch) most += MostBytes(acquisition) + kField;
  AppendMessage(most, out, [&](WireWriter writer) {
    for (const Acquisition& acquisition : batch) {
      uint8_t* const mark = writer.BeginMessage(fields::AcquireBatchRequest::kAcquisitions);
      writer = Write(acquisition, writer);
      writer.EndMessage(mark);
    }
    return writer;
  });
}

void EncodeQuery(std::span<const Bucket> buckets, std::string* out) {
  AppendMessage(MostBytes(buckets), out, [&](WireWriter writer) { return Write(buckets, writer); });
}

void EncodeWatch(std::span<const Bucket> buckets, nanoseconds min_interval, std::string* out) {
  AppendMessage(MostBytes(buckets) + kDuration, out, [&](WireWriter writer) {
    return WriteDuration(fields::WatchRequest::kMinInterval, min_interval, Write(buckets, writer));
  });
}

void EncodeRefund(std::string_view receipt, std::string* out) {
  AppendMessage(receipt.size() + kField, out, [&](WireWriter writer) {
    if (!receipt.empty()) writer.Bytes(fields::RefundRequest::kReceipt, receipt);
    return writer;
  });
}

void EncodeRenew(std::span<const std::string> receipts, std::string* out) {
  size_t most = 0;
  for (const std::string& receipt : receipts) most += receipt.size() + kField;
  AppendMessage(most, out, [&](WireWriter writer) {
    for (const std::string& receipt : receipts) {
      writer.Bytes(fields::RenewRequest::kReceipts, receipt);
    }
    return writer;
  });
}

void EncodeSettle(const Settlement& settlement, std::string* out) {
  AppendMessage(MostBytes(settlement), out,
                [&](WireWriter writer) { return Write(settlement, writer); });
}

void EncodeSettleBatch(std::span<const Settlement> batch, std::string* out) {
  size_t most = 0;
  for (const Settlement& settlement : batch) most += MostBytes(settlement) + kField;
  AppendMessage(most, out, [&](WireWriter writer) {
    for (const Settlement& settlement : batch) {
      uint8_t* const mark = writer.BeginMessage(fields::SettleBatchRequest::kSettlements);
      writer = Write(settlement, writer);
      writer.EndMessage(mark);
    }
    return writer;
  });
}

bool Decode(std::string_view bytes, Decision* decision) {
  DecisionFields read;
  if (!read.Read(bytes)) return false;
  *decision = std::move(read).Value();
  return true;
}

bool Decode(std::string_view bytes, BatchDecisions* decisions) {
  constexpr size_t kUsualResultBytes = 24;
  decisions->clear();
  decisions->reserve(std::min(bytes.size() / kUsualResultBytes + 1, bounds::kMaxBatch));
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view result;
    if (reader.field() != fields::AcquireBatchResponse::kResults || !reader.ReadBytes(&result)) {
      continue;
    }
    if (decisions->size() >= bounds::kMaxBatch || !ReadResult(result, decisions)) return false;
  }
  return reader.ok();
}

bool Decode(std::string_view bytes, std::vector<BucketStatus>* buckets) {
  buckets->clear();
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view bucket;
    if (reader.field() != fields::QueryResponse::kBuckets || !reader.ReadBytes(&bucket)) continue;
    if (buckets->size() >= bounds::kMaxQueryBuckets) return false;
    if (!ReadBucket(bucket, &buckets->emplace_back())) return false;
  }
  return reader.ok();
}

bool Decode(std::string_view bytes, std::vector<Renewal>* renewals) {
  renewals->clear();
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view result;
    if (reader.field() != fields::RenewResponse::kResults || !reader.ReadBytes(&result)) continue;
    if (renewals->size() >= bounds::kMaxRenewedReceipts) return false;
    if (!ReadRenewal(result, &renewals->emplace_back())) return false;
  }
  return reader.ok();
}

bool Decode(std::string_view bytes, RefundResult* result) {
  *result = {};
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    std::string_view charge;
    if (reader.field() == fields::RefundResponse::kOutcome && reader.ReadVarint(&value)) {
      const auto outcome = static_cast<RefundOutcome>(static_cast<int32_t>(value));
      const bool known =
          outcome == RefundOutcome::kRefunded || outcome == RefundOutcome::kAlreadyRefunded;
      result->outcome = known ? outcome : RefundOutcome::kExpired;
    } else if (reader.field() == fields::RefundResponse::kCharges && reader.ReadBytes(&charge)) {
      if (result->charges.size() >= bounds::kMaxCharges) return false;
      if (!ReadRefundedCharge(charge, &result->charges.emplace_back())) return false;
    }
  }
  return reader.ok();
}

bool Decode(std::string_view bytes, SettleResult* result) {
  *result = {};
  return ReadSettled(bytes, result);
}

bool Decode(std::string_view bytes, BatchSettlements* results) {
  results->clear();
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view result;
    if (reader.field() != fields::SettleBatchResponse::kResults || !reader.ReadBytes(&result)) {
      continue;
    }
    if (results->size() >= bounds::kMaxBatch || !ReadResult(result, results)) return false;
  }
  return reader.ok();
}

}  // namespace sluice::client_internal
