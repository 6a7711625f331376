#include "server/transport/envoy/codec.h"

#include <google/protobuf/arena.h>

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/protobuf_wire.h"
#include "common/strings.h"
#include "common/utf8.h"
#include "envoy/service/ratelimit/v3/rls.pb.h"
#include "kuadrant/service/ratelimit/v1/ratelimit.pb.h"
#include "server/transport/services/protobuf_messages.h"

namespace sluice::transport {
namespace {

namespace bounds = common::bounds;
namespace errors = common::errors;
namespace common_v3 = ::envoy::extensions::common::ratelimit::v3;
namespace kuadrant = ::kuadrant::service::ratelimit::v1;
namespace v3 = ::envoy::service::ratelimit::v3;
using common::WireReader;
using common::WireWriter;

constexpr int kWrapped = google::protobuf::UInt64Value::kValueFieldNumber;

// ---- Requests ----

enum class Fault : uint8_t { kNone, kBroken, kTooManyEntries, kKeyNotText, kValueNotText };

bool IsText(std::string_view bytes) { return common::IsAscii(bytes) || common::IsUtf8(bytes); }

// A wrapper that occurs twice is merged, as protobuf does.
bool ReadWrapped(std::string_view bytes, uint64_t* value) {
  WireReader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == kWrapped) reader.ReadVarint(value);
  }
  return reader.ok();
}

// A text that is replaced by a later one must be UTF-8 too.
Fault ReadEntry(std::string_view bytes, envoy::Entry* entry) {
  using Entry = common_v3::RateLimitDescriptor_Entry;
  WireReader reader(bytes);
  while (reader.Next()) {
    if (reader.field() == Entry::kKeyFieldNumber) {
      if (reader.ReadBytes(&entry->key) && !IsText(entry->key)) return Fault::kKeyNotText;
    } else if (reader.field() == Entry::kValueFieldNumber) {
      if (reader.ReadBytes(&entry->value) && !IsText(entry->value)) return Fault::kValueNotText;
    }
  }
  return reader.ok() ? Fault::kNone : Fault::kBroken;
}

bool ReadLimit(std::string_view bytes, RequestedLimit* limit) {
  using Override = common_v3::RateLimitDescriptor_RateLimitOverride;
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    std::string_view wrapped;
    if (reader.field() == Override::kRequestsPerUnitFieldNumber && reader.ReadVarint(&value)) {
      limit->requests_per_unit = static_cast<uint32_t>(value);
    } else if (reader.field() == Override::kUnitFieldNumber && reader.ReadVarint(&value)) {
      limit->unit = static_cast<int32_t>(value);
    } else if (reader.field() == Override::kUnitMultiplierFieldNumber &&
               reader.ReadBytes(&wrapped)) {
      value = limit->has_multiplier ? limit->unit_multiplier : 0;
      if (!ReadWrapped(wrapped, &value)) return false;
      limit->has_multiplier = true;
      limit->unit_multiplier = static_cast<uint32_t>(value);
    }
  }
  return reader.ok();
}

// Reads the entries at the front of a descriptor as long as they are the most common ones: key and
// value in order, all of fewer than 128 bytes, ASCII, and nothing else. Returns the bytes read.
inline size_t ReadUsualEntries(std::string_view bytes, RateLimitRequest* request) {
  constexpr uint8_t kFirst = 0x0a;   // field 1, bytes
  constexpr uint8_t kSecond = 0x12;  // field 2, bytes
  const auto* const at = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t read = 0;
  while (bytes.size() - read >= 6 && at[read] == kFirst) {
    const size_t end = read + 2 + at[read + 1];
    const size_t key = read + 4;
    const size_t value = key + at[read + 3] + 2;
    if (at[read + 1] >= 0x80 || end > bytes.size() || at[read + 2] != kFirst || value > end ||
        at[value - 2] != kSecond || value + at[value - 1] != end ||
        !common::IsAscii(bytes.substr(key, end - key)) ||
        request->entries.size() == bounds::kMaxEnvoyEntries) {
      break;
    }
    request->entries.push_back(
        {bytes.substr(key, value - 2 - key), bytes.substr(value, end - value)});
    read = end;
  }
  return read;
}

Fault ReadDescriptor(std::string_view bytes, RateLimitRequest* request) {
  using Descriptor = common_v3::RateLimitDescriptor;
  RequestedDescriptor& descriptor = request->descriptors.emplace_back();
  descriptor.first_entry = static_cast<uint32_t>(request->entries.size());
  bytes.remove_prefix(ReadUsualEntries(bytes, request));
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view part;
    uint64_t value = 0;
    if (reader.field() == Descriptor::kEntriesFieldNumber && reader.ReadBytes(&part)) {
      if (request->entries.size() == bounds::kMaxEnvoyEntries) return Fault::kTooManyEntries;
      const Fault fault = ReadEntry(part, &request->entries.emplace_back());
      if (fault != Fault::kNone) return fault;
    } else if (reader.field() == Descriptor::kLimitFieldNumber && reader.ReadBytes(&part)) {
      descriptor.has_limit = true;
      if (!ReadLimit(part, &descriptor.limit)) return Fault::kBroken;
    } else if (reader.field() == Descriptor::kHitsAddendFieldNumber && reader.ReadBytes(&part)) {
      descriptor.has_hits = true;
      if (!ReadWrapped(part, &descriptor.hits)) return Fault::kBroken;
    } else if (reader.field() == Descriptor::kIsNegativeHitsFieldNumber &&
               reader.ReadVarint(&value)) {
      descriptor.negative_hits = value != 0;
    }
  }
  descriptor.entries = static_cast<uint32_t>(request->entries.size()) - descriptor.first_entry;
  return reader.ok() ? Fault::kNone : Fault::kBroken;
}

absl::Status Broken(std::string_view part) {
  return absl::InvalidArgumentError(absl::StrCat(
      common::ToAbsl(part), ": the bytes are not a protobuf message of the service's definition"));
}

// Of the last descriptor, in its last entry.
absl::Status FaultOf(const RateLimitRequest& request, Fault fault) {
  const std::string path = absl::StrCat("descriptors[", request.descriptors.size() - 1, "]");
  if (fault == Fault::kBroken) return Broken(path);
  if (fault == Fault::kTooManyEntries) {
    return errors::Invalid(path, "the request has more than ", bounds::kMaxEnvoyEntries,
                           " entries; at most ", bounds::kMaxEnvoyEntries);
  }
  const size_t entry = request.entries.size() - 1 - request.descriptors.back().first_entry;
  return errors::Invalid(
      absl::StrCat(path, ".entries[", entry, "].", fault == Fault::kKeyNotText ? "key" : "value"),
      "must be UTF-8");
}

// Reads the fields that all requests have, and passes the others on: other(reader) returns an
// error of its field.
template <typename Message, typename Other>
inline absl::Status ReadRequest(absl::Span<const uint8_t> bytes, std::string_view name,
                                RateLimitRequest* request, Other other) {
  request->Clear();
  WireReader reader(bytes);
  while (reader.Next()) {
    std::string_view part;
    if (reader.field() == Message::kDescriptorsFieldNumber && reader.ReadBytes(&part)) {
      if (request->descriptors.size() == bounds::kMaxEnvoyDescriptors) {
        return errors::Invalid("descriptors", "the request has more than ",
                               bounds::kMaxEnvoyDescriptors, "; at most ",
                               bounds::kMaxEnvoyDescriptors);
      }
      const Fault fault = ReadDescriptor(part, request);
      if (fault != Fault::kNone) return FaultOf(*request, fault);
    } else if (reader.field() == Message::kDomainFieldNumber) {
      if (reader.ReadBytes(&request->domain) && !IsText(request->domain)) {
        return errors::Invalid("domain", "must be UTF-8");
      }
    } else if (absl::Status status = other(reader); !status.ok()) {
      return status;
    }
  }
  return reader.ok() ? absl::OkStatus() : Broken(name);
}

// A duration that occurs twice is merged, too.
bool ReadDuration(std::string_view bytes, service::WireDuration* duration) {
  using google::protobuf::Duration;
  WireReader reader(bytes);
  while (reader.Next()) {
    uint64_t value = 0;
    if (reader.field() == Duration::kSecondsFieldNumber && reader.ReadVarint(&value)) {
      duration->seconds = static_cast<int64_t>(value);
    } else if (reader.field() == Duration::kNanosFieldNumber && reader.ReadVarint(&value)) {
      duration->nanos = static_cast<int32_t>(value);
    }
  }
  return reader.ok();
}

// ---- Answers ----

// The most bytes that WriteStatus needs.
size_t MaxBytes(const DescriptorStatus& status) {
  return 10 * WireWriter::kFieldBytes + status.name.size();
}

// Writers are passed and returned by value, so that their position stays in a register.
inline WireWriter WriteLimit(const DescriptorStatus& status, WireWriter out) {
  using Limit = v3::RateLimitResponse_RateLimit;
  uint8_t* const limit =
      out.BeginMessage(v3::RateLimitResponse_DescriptorStatus::kCurrentLimitFieldNumber);
  if (status.requests_per_unit != 0) {
    out.Varint(Limit::kRequestsPerUnitFieldNumber, status.requests_per_unit);
  }
  if (status.unit != envoy::Unit::kUnknown) {
    out.Varint(Limit::kUnitFieldNumber, static_cast<uint64_t>(status.unit));
  }
  if (!status.name.empty()) out.Bytes(Limit::kNameFieldNumber, status.name);
  if (status.unit_multiplier != 1) {
    uint8_t* const multiplier = out.BeginMessage(Limit::kUnitMultiplierFieldNumber);
    if (status.unit_multiplier != 0) out.Varint(kWrapped, status.unit_multiplier);
    out.EndShortMessage(multiplier);
  }
  out.EndMessage(limit);
  return out;
}

inline WireWriter WriteStatus(const DescriptorStatus& status, WireWriter out) {
  using Status = v3::RateLimitResponse_DescriptorStatus;
  uint8_t* const mark = out.BeginMessage(v3::RateLimitResponse::kStatusesFieldNumber);
  out.Varint(Status::kCodeFieldNumber, static_cast<uint64_t>(status.code()));
  if (status.limit == DescriptorStatus::Limit::kUnlimited) {
    out.Varint(Status::kLimitRemainingFieldNumber, UINT32_MAX);
  } else if (status.limit == DescriptorStatus::Limit::kCounted) {
    out = WriteLimit(status, out);
    if (status.remaining != 0) out.Varint(Status::kLimitRemainingFieldNumber, status.remaining);
    uint8_t* const reset = out.BeginMessage(Status::kDurationUntilResetFieldNumber);
    out.Varint(google::protobuf::Duration::kSecondsFieldNumber, status.reset_s);
    out.EndShortMessage(reset);
  }
  out.EndMessage(mark);
  return out;
}

void WriteHeader(std::string_view name, uint64_t value, common::Buffer* out) {
  char text[20];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  uint8_t* const start = out->Reserve(4 * WireWriter::kFieldBytes + name.size() + sizeof(text));
  WireWriter writer(start);
  uint8_t* const header =
      writer.BeginMessage(v3::RateLimitResponse::kResponseHeadersToAddFieldNumber);
  writer.Bytes(::envoy::config::core::v3::HeaderValue::kKeyFieldNumber, name);
  writer.Bytes(::envoy::config::core::v3::HeaderValue::kValueFieldNumber,
               {text, static_cast<size_t>(end - text)});
  writer.EndMessage(header);
  out->Commit(static_cast<size_t>(writer.at() - start));
}

void WriteHeaders(absl::Span<const DescriptorStatus> statuses, const AnswerOptions& options,
                  common::Buffer* out) {
  const DescriptorStatus* const status = StatusOfHeaders(statuses);
  if (status == nullptr) return;
  WriteHeader(options.limit_header, status->requests_per_unit, out);
  WriteHeader(options.remaining_header, status->remaining, out);
  WriteHeader(options.reset_header, status->reset_s, out);
}

// ---- Metadata. Rare, so that protobuf's objects serve well enough.

using google::protobuf::Struct;
using google::protobuf::Value;

void Set(const envoy::MetadataValue& from, Value* to) {
  using Kind = envoy::MetadataValue::Kind;
  switch (from.kind) {
    case Kind::kNull:
      to->set_null_value(google::protobuf::NULL_VALUE);
      break;
    case Kind::kBool:
      to->set_bool_value(from.boolean);
      break;
    case Kind::kNumber:
      to->set_number_value(from.number);
      break;
    case Kind::kText:
      to->set_string_value(from.text);
      break;
    case Kind::kList:
      to->mutable_list_value();
      for (const envoy::MetadataValue& one : from.list) {
        Set(one, to->mutable_list_value()->add_values());
      }
      break;
    case Kind::kStruct:
      to->mutable_struct_value();
      for (const auto& [name, value] : from.fields) {
        Set(value, &(*to->mutable_struct_value()->mutable_fields())[name]);
      }
      break;
  }
}

Value& FieldOf(Struct* message, const char* name) { return (*message->mutable_fields())[name]; }

// Of values with one name the first stays, but for structs, which are merged.
void Merge(const envoy::MetadataValue::Fields& from, Struct* to) {
  for (const auto& [name, value] : from) {
    Value& existing = (*to->mutable_fields())[name];
    if (existing.kind_case() == Value::KIND_NOT_SET) {
      Set(value, &existing);
    } else if (existing.has_struct_value() && value.kind == envoy::MetadataValue::Kind::kStruct) {
      Merge(value.fields, existing.mutable_struct_value());
    }
  }
}

std::string LimitText(const RequestedLimit& limit) {
  std::string text = absl::StrCat("requests_per_unit:", limit.requests_per_unit,
                                  " unit:", ::envoy::type::v3::RateLimitUnit_Name(limit.unit));
  if (limit.has_multiplier) {
    absl::StrAppend(&text, " unit_multiplier:{value:", limit.unit_multiplier, "}");
  }
  return text;
}

void SetDescriptor(const RateLimitRequest& request, const RequestedDescriptor& descriptor,
                   Struct* to) {
  auto* const entries = FieldOf(to, "entries").mutable_list_value();
  for (const envoy::Entry& entry : request.EntriesOf(descriptor)) {
    entries->add_values()->set_string_value(
        absl::StrCat(common::ToAbsl(entry.key), "=", common::ToAbsl(entry.value)));
  }
  if (descriptor.has_limit) FieldOf(to, "limit").set_string_value(LimitText(descriptor.limit));
  if (descriptor.has_hits) {
    FieldOf(to, "hitsAddend").set_number_value(static_cast<double>(descriptor.hits));
  }
}

void WriteMetadata(const RateLimitRequest& request, absl::Span<const DescriptorStatus> statuses,
                   common::Buffer* out) {
  google::protobuf::Arena arena;  // there may be thousands of values
  Struct& metadata = *google::protobuf::Arena::CreateMessage<Struct>(&arena);
  FieldOf(&metadata, "domain").mutable_string_value()->assign(request.domain);
  auto* const descriptors = FieldOf(&metadata, "descriptors").mutable_list_value();
  for (const RequestedDescriptor& descriptor : request.descriptors) {
    SetDescriptor(request, descriptor, descriptors->add_values()->mutable_struct_value());
  }
  if (request.hits_addend != 0) {
    FieldOf(&metadata, "hitsAddend").set_number_value(request.hits_addend);
  }
  absl::flat_hash_set<const envoy::MetadataValue::Fields*> merged;
  for (const DescriptorStatus& status : statuses) {
    if (status.metadata == nullptr || status.code() == Code::kOverLimit) continue;
    if (!merged.insert(status.metadata).second) continue;
    Merge(*status.metadata, FieldOf(&metadata, "metadata").mutable_struct_value());
  }
  const std::string bytes = metadata.SerializeAsString();
  uint8_t* const start = out->Reserve(WireWriter::kFieldBytes + bytes.size());
  WireWriter writer(start);
  writer.Bytes(v3::RateLimitResponse::kDynamicMetadataFieldNumber, bytes);
  out->Commit(static_cast<size_t>(writer.at() - start));
}

}  // namespace

absl::Status DecodeRateLimitRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request) {
  using Message = v3::RateLimitRequest;
  return ReadRequest<Message>(bytes, "RateLimitRequest", request, [&](WireReader& reader) {
    uint64_t value = 0;
    if (reader.field() == Message::kHitsAddendFieldNumber && reader.ReadVarint(&value)) {
      request->hits_addend = static_cast<uint32_t>(value);
    }
    return absl::OkStatus();
  });
}

absl::Status DecodeReserveRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request) {
  using Message = kuadrant::ReserveRequest;
  return ReadRequest<Message>(bytes, "ReserveRequest", request, [&](WireReader& reader) {
    std::string_view part;
    if (reader.field() == Message::kAmountFieldNumber) {
      reader.ReadVarint(&request->amount);
    } else if (reader.field() == Message::kTtlFieldNumber && reader.ReadBytes(&part)) {
      if (!ReadDuration(part, &request->ttl)) return Broken("ttl");
    }
    return absl::OkStatus();
  });
}

absl::Status DecodeCommitRequest(absl::Span<const uint8_t> bytes, RateLimitRequest* request) {
  using Message = kuadrant::CommitRequest;
  return ReadRequest<Message>(bytes, "CommitRequest", request, [&](WireReader& reader) {
    if (reader.field() == Message::kActualAmountFieldNumber) {
      reader.ReadVarint(&request->amount);
    } else if (reader.field() == Message::kReservationIdFieldNumber) {
      if (reader.ReadBytes(&request->reservation_id) && !IsText(request->reservation_id)) {
        return errors::Invalid("reservation_id", "must be UTF-8");
      }
    }
    return absl::OkStatus();
  });
}

void EncodeReserveResponse(Code code, std::string_view reservation_id, common::Buffer* out) {
  using Message = kuadrant::ReserveResponse;
  uint8_t* const start = out->Reserve(3 * WireWriter::kFieldBytes + reservation_id.size());
  WireWriter writer(start);
  writer.Varint(Message::kCodeFieldNumber, static_cast<uint64_t>(code));
  if (!reservation_id.empty()) writer.Bytes(Message::kReservationIdFieldNumber, reservation_id);
  out->Commit(static_cast<size_t>(writer.at() - start));
}

void EncodeRateLimitResponse(const RateLimitRequest& request, Code overall,
                             absl::Span<const DescriptorStatus> statuses,
                             const AnswerOptions& options, common::Buffer* out) {
  size_t most = WireWriter::kFieldBytes;
  for (const DescriptorStatus& status : statuses) most += MaxBytes(status);
  uint8_t* const start = out->Reserve(most);
  WireWriter writer(start);
  writer.Varint(v3::RateLimitResponse::kOverallCodeFieldNumber, static_cast<uint64_t>(overall));
  for (const DescriptorStatus& status : statuses) writer = WriteStatus(status, writer);
  out->Commit(static_cast<size_t>(writer.at() - start));
  if (options.headers) WriteHeaders(statuses, options, out);
  if (options.metadata) WriteMetadata(request, statuses, out);
}

}  // namespace sluice::transport
