#include "server/transport/services/rate_limiter_codec.h"

#include <cstring>
#include <iterator>
#include <string_view>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/rate_limiter_fields.h"
#include "common/strings.h"
#include "common/utf8.h"
#include "server/service/validation.h"
#include "server/transport/services/codec_parts.h"
#include "server/transport/services/protobuf_messages.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::transport {
namespace {

using common::kMaxVarintBytes;
using common::PutVarint;
using common::WireReader;
using common::WireWriter;
namespace fields = common::fields;

constexpr uint64_t kSecond = 1'000'000'000;

// ---- Requests ----

// A duration that occurs twice is merged, as protobuf does.
bool ReadDuration(std::string_view bytes, service::WireDuration* duration) {
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    if (reader.field() == fields::Duration::kSeconds && reader.ReadVarint(&value)) {
      duration->seconds = static_cast<int64_t>(value);
    } else if (reader.field() == fields::Duration::kNanos && reader.ReadVarint(&value)) {
      duration->nanos = static_cast<int32_t>(value);
    }
  }
  return reader.ok();
}

// Reads the most common AcquireRequest: one charge, its fields in order, each of fewer than 128
// bytes, and nothing else. Returns false, and reads nothing, if the bytes are anything else.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool ReadUsualAcquire(std::string_view bytes,
                                                          service::AcquireCall* call) {
  const auto* const at = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t size = bytes.size();
  if (size < 4 || size >= 0x80 || at[0] != 0x0a || at[1] != size - 2 || at[2] != 0x0a) return false;
  const size_t limit_end = 4 + size_t{at[3]};
  std::string_view key;
  uint64_t permits = 1;
  size_t end = limit_end;
  if (end + 2 <= size && at[end] == 0x12) {
    key = bytes.substr(end + 2, at[end + 1]);
    end += 2 + size_t{at[end + 1]};
  }
  if (end + 2 == size && at[end] == 0x18 && at[end + 1] < 0x80) {
    permits = at[end + 1];
    end += 2;
  }
  if (end != size) return false;
  call->AddSingleCharge(bytes.substr(4, at[3]), key, permits);
  return true;
}

// Reads elements of AcquireBatchRequest.acquisitions as long as they are the most common ones, and
// until `most` bytes are read. Returns how many bytes it has read.
size_t ReadUsualAcquisitions(std::string_view bytes, size_t most, service::AcquireCall* call) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t read = 0;
  while (read < most && bytes.size() - read >= 2) {
    const size_t size = data[read + 1];
    if (data[read] != 0x0a || size > bytes.size() - read - 2) break;
    if (!ReadUsualAcquire(bytes.substr(read + 2, size), call)) break;
    read += 2 + size;
  }
  return read;
}

// Returns null, or the name of the part that is not such a message.
const char* ReadAcquire(WireReader reader, service::AcquireCall* call) {
  call->BeginAcquisition({});
  // Not written to the call at once: the call drops acquisitions past its bound.
  service::AcquisitionOptions options;
  std::string_view request_id;
  while (reader.Next()) {
    std::string_view bytes;
    uint64_t value = 0;
    if (reader.field() == fields::AcquireRequest::kCharges && reader.ReadBytes(&bytes)) {
      ChargeFields charge;
      if (!charge.Read(bytes)) return "charges";
      call->AddCharge(charge.limit, charge.key, charge.permits);
    } else if (reader.field() == fields::AcquireRequest::kMaxWait && reader.ReadBytes(&bytes)) {
      if (!ReadDuration(bytes, &options.max_wait)) return "max_wait";
    } else if (reader.field() == fields::AcquireRequest::kHold && reader.ReadVarint(&value)) {
      options.hold = value != 0;
    } else if (reader.field() == fields::AcquireRequest::kWantReceipt &&
               reader.ReadVarint(&value)) {
      options.want_receipt = value != 0;
    } else if (reader.field() == fields::AcquireRequest::kForce && reader.ReadVarint(&value)) {
      options.force = value != 0;
    } else if (reader.field() == fields::AcquireRequest::kRequestId) {
      reader.ReadBytes(&request_id);
    } else if (reader.field() == fields::AcquireRequest::kSettleWithin &&
               reader.ReadBytes(&bytes)) {
      if (!options.settle_within.has_value()) options.settle_within.emplace();
      if (!ReadDuration(bytes, &*options.settle_within)) return "settle_within";
    }
  }
  if (!reader.ok()) return "AcquireRequest";
  call->options_of_last() = options;
  if (!request_id.empty()) call->SetRequestId(request_id);
  return nullptr;
}

// ---- Answers ----
//
// Writers are passed and returned by value: as long as a writer's address is not taken, the
// compiler keeps its position in a register.

constexpr uint8_t VarintTag(int field) { return static_cast<uint8_t>(field << 3); }
constexpr uint8_t BytesTag(int field) { return static_cast<uint8_t>(field << 3 | 2); }

constexpr int kSecondsField = google::protobuf::Duration::kSecondsFieldNumber;
constexpr int kNanosField = google::protobuf::Duration::kNanosFieldNumber;

v1::Source ToWire(store::Source source) {
  constexpr v1::Source kSources[] = {v1::SOURCE_STORE, v1::SOURCE_STORE_UNAVAILABLE,
                                     v1::SOURCE_OVERFLOW, v1::SOURCE_LOCAL};
  static_assert(std::size(kSources) == static_cast<size_t>(store::Source::kLocal) + 1);
  return kSources[static_cast<size_t>(source)];
}

// The two enums have the same numbers.
v1::Reason ToWire(store::Reason reason) {
  static_assert(static_cast<int>(store::Reason::kShareTooSmall) == v1::Reason_MAX);
  return static_cast<v1::Reason>(reason);
}

// The most bytes that WriteResponse, or the error in its place, needs.
size_t MaxBytes(const service::AcquisitionResult& result) {
  if (!result.status.ok()) return 3 * WireWriter::kFieldBytes + result.status.message().size();
  constexpr size_t kDuration = 3 * WireWriter::kFieldBytes;
  constexpr size_t kCharge =
      6 * WireWriter::kFieldBytes + 2 * kDuration + common::bounds::kMaxLimitNameBytes;
  return 4 * WireWriter::kFieldBytes + 2 * kDuration + result.charges * kCharge +
         result.receipt.size();
}

inline WireWriter WriteResponse(const service::AcquireCall& call, size_t i,
                                const service::AcquisitionResult& result, WireWriter out) {
  using Response = v1::AcquireResponse;
  using Charge = v1::ChargeStatus;
  if (result.granted) out.Varint(Response::kGrantedFieldNumber, 1);
  if (result.wait_ns > 0) out = WriteDuration(Response::kWaitFieldNumber, result.wait_ns, out);
  if (!result.granted) {
    out = WriteDuration(Response::kRetryAfterFieldNumber, result.retry_after_ns, out);
  }
  for (size_t c = 0; c < result.charges; ++c) {
    const service::ChargeStatus charge = call.charge(i, c);
    const store::BucketLevel& level = charge.level;
    uint8_t* const mark = out.BeginMessage(Response::kChargesFieldNumber);
    if (level.remaining != 0) {
      out.Varint(Charge::kRemainingFieldNumber, WireWriter::ZigZag(level.remaining));
    }
    if (level.capacity != 0) out.Varint(Charge::kCapacityFieldNumber, level.capacity);
    out = WriteDuration(Charge::kResetAfterFieldNumber, level.reset_after_ns, out);
    if (charge.reason != store::Reason::kNone) {
      out.Varint(Charge::kReasonFieldNumber, ToWire(charge.reason));
    }
    if (!charge.limit.empty()) out.Bytes(Charge::kLimitFieldNumber, charge.limit);
    if (charge.forgiven != 0) out.Varint(Charge::kForgivenFieldNumber, charge.forgiven);
    if (charge.held_for_ns > 0) {
      out = WriteDuration(Charge::kHeldForFieldNumber, charge.held_for_ns, out);
    }
    out.EndMessage(mark);
  }
  out.Varint(Response::kSourceFieldNumber, ToWire(result.source));
  if (!result.receipt.empty()) out.Bytes(Response::kReceiptFieldNumber, result.receipt);
  if (result.repeated) out.Varint(Response::kRepeatedFieldNumber, 1);
  return out;
}

// The most bytes that WriteSingleCharge needs, with the bytes that its last PutVarint may touch.
constexpr size_t kMaxSingleChargeBytes = 108;

// Encodes a varint whose value is often the same as the last one: a limit's capacity.
class RepeatedVarint {
 public:
  // As PutVarint.
  uint8_t* Put(uint8_t* at, uint64_t value) {
    if (value != value_) {
      if (value >> 56 != 0) return PutVarint(at, value);
      value_ = value;
      size_ = static_cast<size_t>(PutVarint(bytes_, value) - bytes_);
    }
    std::memcpy(at, bytes_, 8);
    return at + size_;
  }

 private:
  uint64_t value_ = 0;
  size_t size_ = 1;
  uint8_t bytes_[kMaxVarintBytes] = {};
};

// A faster WriteResult for the most common result of a batch: one charge, no wait and no receipt.
// Each part has fewer than 128 bytes, so each length is one byte.
inline uint8_t* WriteSingleCharge(const store::Acquisition& decided, RepeatedVarint& capacity,
                                  uint8_t* at) {
  using Response = v1::AcquireResponse;
  using Charge = v1::ChargeStatus;
  const auto begin = [&at](uint8_t tag) {
    at[0] = tag;
    return at += 2;
  };
  const auto end = [&at](uint8_t* content) { content[-1] = static_cast<uint8_t>(at - content); };
  const auto varint = [&at](uint8_t tag, uint64_t value) {
    at[0] = tag;
    at = PutVarint(at + 1, value);
  };
  const auto duration = [&](uint8_t tag, int64_t signed_ns) {
    uint8_t* const content = begin(tag);
    auto ns = static_cast<uint64_t>(signed_ns);
    if (ns >= kSecond) {
      varint(VarintTag(kSecondsField), ns / kSecond);
      ns %= kSecond;
    }
    if (ns != 0) varint(VarintTag(kNanosField), ns);
    end(content);
  };
  uint8_t* const item = begin(BytesTag(v1::AcquireBatchResponse::kResultsFieldNumber));
  uint8_t* const response = begin(BytesTag(v1::AcquireResult::kResponseFieldNumber));
  if (decided.outcome == store::Outcome::kGranted) {
    at[0] = VarintTag(Response::kGrantedFieldNumber);
    at[1] = 1;
    at += 2;
  } else {
    duration(BytesTag(Response::kRetryAfterFieldNumber), decided.retry_after_ns);
  }
  const store::ChargeResult& result = *decided.results;
  uint8_t* const charge = begin(BytesTag(Response::kChargesFieldNumber));
  if (result.level.remaining != 0) {
    varint(VarintTag(Charge::kRemainingFieldNumber), WireWriter::ZigZag(result.level.remaining));
  }
  if (result.level.capacity != 0) {
    at[0] = VarintTag(Charge::kCapacityFieldNumber);
    at = capacity.Put(at + 1, result.level.capacity);
  }
  duration(BytesTag(Charge::kResetAfterFieldNumber), result.level.reset_after_ns);
  if (result.reason != store::Reason::kNone) {
    varint(VarintTag(Charge::kReasonFieldNumber), ToWire(result.reason));
  }
  if (result.forgiven != 0) varint(VarintTag(Charge::kForgivenFieldNumber), result.forgiven);
  end(charge);
  varint(VarintTag(Response::kSourceFieldNumber), ToWire(decided.source));
  end(response);
  end(item);
  return at;
}

// One result of any kind. REQUIRES: room for MaxBytes and two fields.
WireWriter WriteResult(const service::AcquireCall& call, size_t i,
                       const service::AcquisitionResult& result, WireWriter out) {
  uint8_t* const item = out.BeginMessage(v1::AcquireBatchResponse::kResultsFieldNumber);
  if (result.status.ok()) {
    uint8_t* const response = out.BeginMessage(v1::AcquireResult::kResponseFieldNumber);
    out = WriteResponse(call, i, result, out);
    out.EndMessage(response);
  } else {
    uint8_t* const error = out.BeginMessage(v1::AcquireResult::kErrorFieldNumber);
    out.Varint(v1::Error::kCodeFieldNumber, static_cast<uint64_t>(result.status.code()));
    out.Bytes(v1::Error::kMessageFieldNumber, common::ToStd(result.status.message()));
    if (common::errors::WasNotExecuted(result.status)) {
      out.Varint(v1::Error::kNothingTakenFieldNumber, 1);
    }
    out.EndMessage(error);
  }
  out.EndMessage(item);
  return out;
}

void WriteBucket(const service::BucketStatus& bucket, v1::BucketStatus* out) {
  out->mutable_limit()->assign(bucket.limit);
  out->mutable_key()->assign(bucket.key);
  if (!bucket.error.ok()) {
    out->mutable_error()->set_code(static_cast<int>(bucket.error.code()));
    out->mutable_error()->mutable_message()->assign(common::ToStd(bucket.error.message()));
    if (bucket.source == store::Source::kStoreUnavailable) out->set_source(ToWire(bucket.source));
    return;
  }
  out->set_remaining(bucket.level.remaining);
  out->set_capacity(bucket.level.capacity);
  SetTime(bucket.level.reset_after_ns, out->mutable_reset_after());
  if (bucket.level.next_permit_after_ns > 0) {
    SetTime(bucket.level.next_permit_after_ns, out->mutable_next_permit_after());
  }
  out->set_exists(bucket.exists);
  out->set_waiting(bucket.waiting);
  if (bucket.next_grant_after_ns > 0) {
    SetTime(bucket.next_grant_after_ns, out->mutable_next_grant_after());
  }
  out->set_source(ToWire(bucket.source));
  out->set_open_receipts(bucket.refundable.receipts);
  out->set_refundable(bucket.refundable.permits);
  out->set_holds(bucket.holds);
  if (bucket.next_end_after_ns > 0) {
    SetTime(bucket.next_end_after_ns, out->mutable_next_end_after());
  }
}

}  // namespace

absl::Status DecodeAcquire(absl::Span<const uint8_t> bytes, service::AcquireCall* call) {
  call->Reset(service::AcquireCall::Form::kUnary, service::AcquireCall::Utf8::kUnchecked);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (ReadUsualAcquire(text, call)) return absl::OkStatus();
  const char* const broken = ReadAcquire(WireReader(bytes), call);
  return broken == nullptr ? absl::OkStatus() : Broken(broken);
}

absl::Status DecodeAcquireBatch(absl::Span<const uint8_t> bytes, service::AcquireCall* call) {
  return BatchDecoder(bytes, call).Step(bytes.size());
}

BatchDecoder::BatchDecoder(absl::Span<const uint8_t> bytes, service::AcquireCall* call)
    : call_(call), reader_(bytes) {
  call->Reset(service::AcquireCall::Form::kBatch, service::AcquireCall::Utf8::kUnchecked);
}

absl::Status BatchDecoder::Step(size_t step_bytes) {
  constexpr size_t kMaxBytes = common::bounds::kMaxAcquisitionBytes;
  // Bytes that take 100 ns: of the most common acquisitions, and of others at the worst.
  constexpr size_t kUsualBytesPerUnit = 128;
  constexpr size_t kBytesPerUnit = 16;
  const size_t before = reader_.left();
  const size_t stop = before - std::min(before, step_bytes);
  size_t usual_bytes = 0;
  do {
    const std::string_view rest = reader_.Rest();
    const size_t usual =
        ReadUsualAcquisitions(rest, rest.size() - std::min(rest.size(), stop), call_);
    reader_.Advance(usual);
    usual_bytes += usual;
    if (!reader_.Next()) {
      done_ = true;
      break;
    }
    std::string_view acquisition;
    if (reader_.field() != 1 || !reader_.ReadBytes(&acquisition)) continue;
    if (acquisition.size() > kMaxBytes) {
      return common::errors::AcquisitionTooLarge(call_->begun(), acquisition.size());
    }
    const char* const broken = ReadAcquire(WireReader(acquisition), call_);
    if (broken != nullptr) {
      return Broken(absl::StrCat("acquisitions[", call_->begun() - 1, "].", broken));
    }
  } while (stop == 0 || reader_.left() > stop);
  // A value that is skipped costs no more than a step.
  const size_t other_bytes = std::min(before - reader_.left() - usual_bytes, step_bytes);
  units_ = static_cast<int64_t>(usual_bytes / kUsualBytesPerUnit + other_bytes / kBytesPerUnit);
  return reader_.ok() ? absl::OkStatus() : Broken("AcquireBatchRequest");
}

absl::Status DecodeQuery(absl::Span<const uint8_t> bytes, service::QueryCall* call) {
  call->Reset(service::QueryCall::UnknownLimit::kFailsCall, service::Utf8::kUnchecked);
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view bytes;
    if (reader.field() != 1 || !reader.ReadBytes(&bytes)) continue;
    ChargeFields bucket;
    // Those over the bound are counted.
    if (call->added() < common::bounds::kMaxQueryBuckets && !bucket.Read(bytes)) {
      return Broken("buckets");
    }
    call->AddBucket(bucket.limit, bucket.key);
  }
  return reader.ok() ? absl::OkStatus() : Broken("QueryRequest");
}

absl::Status DecodeWatch(absl::Span<const uint8_t> bytes, service::WatchOptions* options) {
  WireReader reader(bytes);
  size_t buckets = 0;  // those over the bound are not kept
  while (reader.Next()) {
    std::string_view value;
    if (reader.field() == 1) {
      if (!reader.ReadBytes(&value)) continue;
      if (++buckets > common::bounds::kMaxQueryBuckets) continue;
      ChargeFields bucket;
      if (!bucket.Read(value)) return Broken("buckets");
      for (const auto& [name, text] : {std::pair("limit", bucket.limit), {"key", bucket.key}}) {
        if (common::IsUtf8(text)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("buckets[", options->buckets.size(), "].", name, ": must be UTF-8"));
      }
      options->buckets.push_back({std::string(bucket.limit), std::string(bucket.key)});
    } else if (reader.field() == 2) {
      if (!reader.ReadBytes(&value)) continue;
      if (!ReadDuration(value, &options->min_interval.emplace())) return Broken("min_interval");
    }
  }
  if (!reader.ok()) return Broken("WatchRequest");
  if (buckets > common::bounds::kMaxQueryBuckets) return common::errors::TooManyBuckets(buckets);
  return absl::OkStatus();
}

void EncodeAcquire(const service::AcquireCall& call, Buffer* out) {
  const service::AcquisitionResult result = call.result(0);
  uint8_t* const start = out->Reserve(MaxBytes(result));
  const WireWriter writer = WriteResponse(call, 0, result, WireWriter(start));
  out->Commit(static_cast<size_t>(writer.at() - start));
}

void EncodeAcquireBatch(const service::AcquireCall& call, Buffer* out) {
  constexpr size_t kUsualResultBytes = 32;
  out->Reserve(call.size() * kUsualResultBytes);
  RepeatedVarint capacity;
  for (size_t i = call.first(); i < call.end(); ++i) {
    const store::Acquisition* const decided = call.single(i);
    if (decided != nullptr) {
      uint8_t* const start = out->Reserve(kMaxSingleChargeBytes);
      out->Commit(static_cast<size_t>(WriteSingleCharge(*decided, capacity, start) - start));
      continue;
    }
    const service::AcquisitionResult result = call.result(i);
    uint8_t* const start = out->Reserve(MaxBytes(result) + 2 * WireWriter::kFieldBytes);
    const WireWriter writer = WriteResult(call, i, result, WireWriter(start));
    out->Commit(static_cast<size_t>(writer.at() - start));
  }
}

void EncodeQuery(const service::QueryCall& call, Buffer* out) {
  v1::QueryResponse response;
  for (size_t i = 0; i < call.size(); ++i) WriteBucket(call.bucket(i), response.add_buckets());
  SetTime(call.wall_ns(), response.mutable_at());
  Append(response, out);
}

std::string EncodeWatch(absl::Span<const service::BucketStatus> buckets, int64_t wall_ns) {
  v1::QueryResponse response;
  for (const service::BucketStatus& bucket : buckets) WriteBucket(bucket, response.add_buckets());
  SetTime(wall_ns, response.mutable_at());
  return response.SerializeAsString();
}

}  // namespace sluice::transport
