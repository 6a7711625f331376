#include "server/transport/services/rate_limiter_codec.h"

#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/strings.h"
#include "common/utf8.h"
#include "server/service/validation.h"
#include "server/transport/services/protobuf_wire.h"

namespace sluice::transport {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

absl::Status Broken(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      common::ToAbsl(what), ": the bytes are not a protobuf message of sluice.v1's definition"));
}

// Fields of a message that comes twice are merged, as protobuf does.
bool ReadDuration(std::string_view bytes, service::WireDuration* duration) {
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    switch (reader.field()) {
      case 1:
        if (reader.ReadVarint(&value)) duration->seconds = static_cast<int64_t>(value);
        break;
      case 2:
        if (reader.ReadVarint(&value)) duration->nanos = static_cast<int32_t>(value);
        break;
      default:
        break;
    }
  }
  return reader.ok();
}

bool ReadCharge(std::string_view bytes, service::AcquireCall* call) {
  std::string_view limit;
  std::string_view key;
  uint64_t permits = 1;
  WireReader reader(bytes);
  while (reader.Next()) {
    switch (reader.field()) {
      case 1:
        reader.ReadBytes(&limit);
        break;
      case 2:
        reader.ReadBytes(&key);
        break;
      case 3:
        reader.ReadVarint(&permits);
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) return false;
  call->AddCharge(limit, key, permits);
  return true;
}

// The usual AcquireRequest: one charge, its fields in order, each of less than 128 bytes, and
// nothing else. False: it is another, or none; nothing was read.
bool ReadUsualAcquire(std::string_view bytes, service::AcquireCall* call) {
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
  call->BeginAcquisition({});
  call->AddCharge(bytes.substr(4, at[3]), key, permits);
  return true;
}

// Null: it is an AcquireRequest. Else what is not.
const char* ReadAcquire(WireReader reader, service::AcquireCall* call) {
  call->BeginAcquisition({});
  // Kept here and not in the call, which drops acquisitions past its bound.
  service::AcquisitionOptions options;
  while (reader.Next()) {
    std::string_view bytes;
    uint64_t value = 0;
    switch (reader.field()) {
      case 1:
        if (reader.ReadBytes(&bytes) && !ReadCharge(bytes, call)) return "charges";
        break;
      case 2:
        if (reader.ReadBytes(&bytes) && !ReadDuration(bytes, &options.max_wait)) return "max_wait";
        break;
      case 3:
        if (reader.ReadVarint(&value)) options.hold = value != 0;
        break;
      case 4:
        if (reader.ReadVarint(&value)) options.want_receipt = value != 0;
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) return "AcquireRequest";
  call->options_of_last() = options;
  return nullptr;
}

bool ReadBucket(std::string_view bytes, std::string_view* limit, std::string_view* key) {
  WireReader reader(bytes);
  while (reader.Next()) {
    switch (reader.field()) {
      case 1:
        reader.ReadBytes(limit);
        break;
      case 2:
        reader.ReadBytes(key);
        break;
      default:
        break;
    }
  }
  return reader.ok();
}

// Writers are passed by value and handed back: as long as nobody has a writer's address the
// compiler keeps where it writes in a register.

// Durations of answers are never negative.
inline WireWriter WriteDuration(uint32_t field, int64_t signed_ns, WireWriter out) {
  const auto ns = static_cast<uint64_t>(signed_ns);
  uint8_t* const mark = out.BeginMessage(field);
  uint64_t nanos = ns;
  if (ns >= kSecond) {
    out.Varint(1, ns / kSecond);
    nanos = ns % kSecond;
  }
  if (nanos != 0) out.Varint(2, nanos);
  out.EndShortMessage(mark);  // at most 17 bytes
  return out;
}

uint64_t ToWire(store::Source source) {
  switch (source) {
    case store::Source::kStore:
      return 1;
    case store::Source::kLease:
      return 2;
    case store::Source::kStoreUnavailable:
      return 3;
    case store::Source::kOverflow:
      return 4;
    case store::Source::kLocal:
      return 5;
  }
  return 0;
}

uint64_t ToWire(store::Reason reason) {
  switch (reason) {
    case store::Reason::kNone:
      return 0;
    case store::Reason::kNotEnough:
      return 1;
    case store::Reason::kWaitingBound:
      return 2;
    case store::Reason::kStoreUnavailable:
      return 3;
    case store::Reason::kOverflow:
      return 4;
    case store::Reason::kShadowDenied:
      return 5;
    case store::Reason::kDeadlineTooShort:
      return 6;
    case store::Reason::kShareTooSmall:
      return 7;
  }
  return 0;
}

// What WriteResponse, or the error instead of it, takes at most.
size_t MostBytes(const service::AcquisitionResult& result) {
  if (!result.status.ok()) return 3 * WireWriter::kFieldBytes + result.status.message().size();
  constexpr size_t kDuration = 3 * WireWriter::kFieldBytes;
  constexpr size_t kCharge =
      5 * WireWriter::kFieldBytes + kDuration + common::bounds::kMaxLimitNameBytes;
  return 3 * WireWriter::kFieldBytes + 2 * kDuration + result.charges * kCharge +
         result.receipt.size();
}

inline WireWriter WriteResponse(const service::AcquireCall& call, size_t i,
                                const service::AcquisitionResult& result, WireWriter out) {
  if (result.granted) out.Varint(1, 1);
  if (result.wait_ns > 0) out = WriteDuration(2, result.wait_ns, out);
  if (!result.granted) out = WriteDuration(3, result.retry_after_ns, out);
  for (size_t c = 0; c < result.charges; ++c) {
    const service::ChargeStatus charge = call.charge(i, c);
    uint8_t* const mark = out.BeginMessage(4);
    if (charge.level.remaining != 0) out.Varint(1, WireWriter::ZigZag(charge.level.remaining));
    if (charge.level.capacity != 0) out.Varint(2, charge.level.capacity);
    out = WriteDuration(3, charge.level.reset_after_ns, out);
    if (const uint64_t reason = ToWire(charge.reason); reason != 0) out.Varint(4, reason);
    if (!charge.limit.empty()) out.Bytes(5, charge.limit);
    out.EndMessage(mark);
  }
  if (const uint64_t source = ToWire(result.source); source != 0) out.Varint(5, source);
  if (!result.receipt.empty()) out.Bytes(6, result.receipt);
  return out;
}

// What WriteUsualItem takes at most, with the slack of its last varint.
constexpr size_t kMostUsualBytes = 96;

// A varint that mostly is the same as the last one was: a limit's capacity.
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

// An answer of a batch to one charge, without a wait or a receipt. All its parts are shorter than
// 128 bytes, so that each length is a byte.
inline uint8_t* WriteUsualItem(const store::Acquisition& decided, RepeatedVarint& capacity,
                               uint8_t* at) {
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
      varint(0x08, ns / kSecond);
      ns %= kSecond;
    }
    if (ns != 0) varint(0x10, ns);
    end(content);
  };
  uint8_t* const item = begin(0x0a);
  uint8_t* const response = begin(0x0a);
  if (decided.outcome == store::Outcome::kGranted) {
    at[0] = 0x08;
    at[1] = 1;
    at += 2;
  } else {
    duration(0x1a, decided.retry_after_ns);
  }
  const store::ChargeResult& result = *decided.results;
  uint8_t* const charge = begin(0x22);
  if (result.level.remaining != 0) varint(0x08, WireWriter::ZigZag(result.level.remaining));
  if (result.level.capacity != 0) {
    at[0] = 0x10;
    at = capacity.Put(at + 1, result.level.capacity);
  }
  duration(0x1a, result.level.reset_after_ns);
  if (const uint64_t reason = ToWire(result.reason); reason != 0) varint(0x20, reason);
  end(charge);
  if (const uint64_t source = ToWire(decided.source); source != 0) varint(0x28, source);
  end(response);
  end(item);
  return at;
}

}  // namespace

absl::Status DecodeAcquire(absl::Span<const uint8_t> bytes, service::AcquireCall* call) {
  call->Reset(service::AcquireCall::Form::kUnary, service::AcquireCall::Utf8::kUnchecked);
  const char* const broken = ReadAcquire(WireReader(bytes), call);
  return broken == nullptr ? absl::OkStatus() : Broken(broken);
}

absl::Status DecodeAcquireBatch(absl::Span<const uint8_t> bytes, service::AcquireCall* call) {
  call->Reset(service::AcquireCall::Form::kBatch, service::AcquireCall::Utf8::kUnchecked);
  WireReader reader(bytes);
  size_t index = 0;
  while (reader.Next()) {
    std::string_view acquisition;
    if (reader.field() != 1 || !reader.ReadBytes(&acquisition)) continue;
    const char* const broken =
        ReadUsualAcquire(acquisition, call) ? nullptr : ReadAcquire(WireReader(acquisition), call);
    if (broken != nullptr) return Broken(absl::StrCat("acquisitions[", index, "].", broken));
    ++index;
  }
  return reader.ok() ? absl::OkStatus() : Broken("AcquireBatchRequest");
}

absl::Status DecodeQuery(absl::Span<const uint8_t> bytes, service::QueryCall* call) {
  call->Reset(service::QueryCall::UnknownLimit::kFailsCall, service::Utf8::kUnchecked);
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view bucket;
    if (reader.field() != 1 || !reader.ReadBytes(&bucket)) continue;
    std::string_view limit;
    std::string_view key;
    if (!ReadBucket(bucket, &limit, &key)) return Broken("buckets");
    call->AddBucket(limit, key);
  }
  return reader.ok() ? absl::OkStatus() : Broken("QueryRequest");
}

absl::Status DecodeWatch(absl::Span<const uint8_t> bytes, service::WatchOptions* options) {
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view value;
    if (reader.field() == 1) {
      if (!reader.ReadBytes(&value)) continue;
      std::string_view limit;
      std::string_view key;
      if (!ReadBucket(value, &limit, &key)) return Broken("buckets");
      for (const auto& [name, text] : {std::pair("limit", limit), std::pair("key", key)}) {
        if (common::IsUtf8(text)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("buckets[", options->buckets.size(), "].", name, ": must be UTF-8"));
      }
      options->buckets.push_back({std::string(limit), std::string(key)});
    } else if (reader.field() == 2) {
      if (!reader.ReadBytes(&value)) continue;
      options->has_min_interval = true;
      if (!ReadDuration(value, &options->min_interval)) return Broken("min_interval");
    }
  }
  return reader.ok() ? absl::OkStatus() : Broken("WatchRequest");
}

void EncodeAcquire(const service::AcquireCall& call, Buffer* out) {
  const service::AcquisitionResult result = call.result(0);
  uint8_t* const start = out->Reserve(MostBytes(result));
  const WireWriter writer = WriteResponse(call, 0, result, WireWriter(start));
  out->Commit(static_cast<size_t>(writer.at() - start));
}

void EncodeAcquireBatch(const service::AcquireCall& call, Buffer* out) {
  RepeatedVarint capacity;
  for (size_t i = 0; i < call.size(); ++i) {
    const store::Acquisition* const decided = call.single(i);
    if (decided != nullptr) {
      uint8_t* const start = out->Reserve(kMostUsualBytes);
      out->Commit(static_cast<size_t>(WriteUsualItem(*decided, capacity, start) - start));
      continue;
    }
    const service::AcquisitionResult result = call.result(i);
    uint8_t* const start = out->Reserve(MostBytes(result) + 2 * WireWriter::kFieldBytes);
    WireWriter writer(start);
    uint8_t* const item = writer.BeginMessage(1);
    if (result.status.ok()) {
      uint8_t* const response = writer.BeginMessage(1);
      writer = WriteResponse(call, i, result, writer);
      writer.EndMessage(response);
    } else {
      uint8_t* const error = writer.BeginMessage(2);
      writer.Varint(1, static_cast<uint64_t>(result.status.code()));
      writer.Bytes(2, common::ToStd(result.status.message()));
      if (common::errors::WasNotExecuted(result.status)) writer.Varint(3, 1);
      writer.EndMessage(error);
    }
    writer.EndMessage(item);
    out->Commit(static_cast<size_t>(writer.at() - start));
  }
}

}  // namespace sluice::transport
