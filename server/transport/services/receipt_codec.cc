// The half of the codec that reads and writes Refund, Renew, Settle and SettleBatch.
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/rate_limiter_fields.h"
#include "common/strings.h"
#include "server/transport/services/codec_parts.h"
#include "server/transport/services/protobuf_messages.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::transport {
namespace {

using common::WireReader;
using common::WireWriter;
namespace fields = common::fields;

// Begins a settlement. Returns null, or the name of the part that is not such a message.
const char* ReadSettle(WireReader reader, service::SettleCall* call) {
  call->BeginSettlement();
  while (reader.Next()) {
    std::string_view bytes;
    uint64_t value = 0;
    if (reader.field() == fields::SettleRequest::kReceipt && reader.ReadBytes(&bytes)) {
      call->SetReceipt(bytes);
    } else if (reader.field() == fields::SettleRequest::kActual && reader.ReadBytes(&bytes)) {
      ChargeFields charge;
      if (!charge.Read(bytes)) return "actual";
      call->AddActual(charge.limit, charge.key, charge.permits);
    } else if (reader.field() == fields::SettleRequest::kMore && reader.ReadVarint(&value)) {
      call->SetMore(value != 0);
    }
  }
  return reader.ok() ? nullptr : "SettleRequest";
}

// The two enums have the same numbers; those that only the store has do not reach the wire.
v1::RefundOutcome ToWire(store::RefundOutcome outcome) {
  static_assert(static_cast<int>(store::RefundOutcome::kExpired) == v1::RefundOutcome_MAX);
  return outcome <= store::RefundOutcome::kExpired ? static_cast<v1::RefundOutcome>(outcome)
                                                   : v1::REFUND_OUTCOME_UNSPECIFIED;
}

// As for refunds.
v1::SettleOutcome ToWire(store::SettleOutcome outcome) {
  static_assert(static_cast<int>(store::SettleOutcome::kUnknown) == v1::SettleOutcome_MAX);
  return outcome <= store::SettleOutcome::kUnknown ? static_cast<v1::SettleOutcome>(outcome)
                                                   : v1::SETTLE_OUTCOME_UNSPECIFIED;
}

// The most bytes that WriteSettled, or the error in its place, needs.
size_t MaxBytes(const service::SettleCall& call, const service::SettleCall::Result& result) {
  if (!result.status.ok()) return 5 * WireWriter::kFieldBytes + result.status.message().size();
  size_t bytes = 3 * WireWriter::kFieldBytes;
  for (size_t c = 0; c < result.charges; ++c) {
    const service::SettledCharge& charge = call.charge(result.first_charge + c);
    bytes += 6 * WireWriter::kFieldBytes + charge.limit.size() + charge.key.size();
  }
  return bytes;
}

WireWriter WriteSettled(const service::SettleCall& call, const service::SettleCall::Result& result,
                        WireWriter out) {
  using Charge = v1::SettledCharge;
  if (const auto outcome = ToWire(result.outcome); outcome != v1::SETTLE_OUTCOME_UNSPECIFIED) {
    out.Varint(v1::SettleResponse::kOutcomeFieldNumber, outcome);
  }
  for (size_t c = 0; c < result.charges; ++c) {
    const service::SettledCharge& charge = call.charge(result.first_charge + c);
    uint8_t* const mark = out.BeginMessage(v1::SettleResponse::kChargesFieldNumber);
    if (!charge.limit.empty()) out.Bytes(Charge::kLimitFieldNumber, charge.limit);
    if (!charge.key.empty()) out.Bytes(Charge::kKeyFieldNumber, charge.key);
    const auto number = [&out](uint32_t field, uint64_t value) {
      if (value != 0) out.Varint(field, value);
    };
    number(Charge::kGivenBackFieldNumber, charge.permits.given_back);
    number(Charge::kChargedFieldNumber, charge.permits.charged);
    number(Charge::kForgivenFieldNumber, charge.permits.forgiven);
    out.EndMessage(mark);
  }
  return out;
}

// An Error, in a result of a Renew or a SettleBatch.
WireWriter WriteError(uint32_t field, const absl::Status& status, WireWriter out) {
  uint8_t* const error = out.BeginMessage(field);
  out.Varint(v1::Error::kCodeFieldNumber, static_cast<uint64_t>(status.code()));
  out.Bytes(v1::Error::kMessageFieldNumber, common::ToStd(status.message()));
  out.EndMessage(error);
  return out;
}

constexpr const char* NameOf(const service::RenewCall*) { return "RenewRequest"; }
constexpr const char* NameOf(const service::SettleCall*) { return "SettleBatchRequest"; }

void ResetForBatch(service::RenewCall* call) { call->Reset(); }
void ResetForBatch(service::SettleCall* call) { call->Reset(service::SettleCall::Form::kBatch); }

absl::Status ReadItem(std::string_view receipt, service::RenewCall* call) {
  call->AddReceipt(receipt);
  return absl::OkStatus();
}

absl::Status ReadItem(std::string_view settlement, service::SettleCall* call) {
  if (settlement.size() > common::bounds::kMaxAcquisitionBytes) {
    return common::errors::SettlementTooLarge(call->begun(), settlement.size());
  }
  const char* const broken = ReadSettle(WireReader(settlement), call);
  if (broken == nullptr) return absl::OkStatus();
  return Broken(absl::StrCat("settlements[", call->begun() - 1, "].", broken));
}

}  // namespace

absl::Status DecodeRefund(absl::Span<const uint8_t> bytes, service::RefundCall* call) {
  std::string_view receipt;
  if (!common::ReadFirstField(bytes, &receipt)) return Broken("RefundRequest");
  call->Reset(receipt);
  return absl::OkStatus();
}

absl::Status DecodeRenew(absl::Span<const uint8_t> bytes, service::RenewCall* call) {
  return RenewDecoder(bytes, call).Step(bytes.size());
}

absl::Status DecodeSettle(absl::Span<const uint8_t> bytes, service::SettleCall* call) {
  call->Reset(service::SettleCall::Form::kUnary);
  const char* const broken = ReadSettle(WireReader(bytes), call);
  return broken == nullptr ? absl::OkStatus() : Broken(broken);
}

absl::Status DecodeSettleBatch(absl::Span<const uint8_t> bytes, service::SettleCall* call) {
  return SettleBatchDecoder(bytes, call).Step(bytes.size());
}

template <typename Call>
ItemDecoder<Call>::ItemDecoder(absl::Span<const uint8_t> bytes, Call* call)
    : call_(call), reader_(bytes) {
  ResetForBatch(call);
}

template <typename Call>
absl::Status ItemDecoder<Call>::Step(size_t step_bytes) {
  static_assert(fields::RenewRequest::kReceipts == 1);
  static_assert(fields::SettleBatchRequest::kSettlements == 1);
  // 100 ns: so many fields, and so many bytes of a settlement, which has fields too.
  constexpr size_t kFieldsPerUnit = 16;
  constexpr size_t kBytesPerUnit = 32;
  const size_t left = reader_.left();
  const size_t stop = left - std::min(left, step_bytes);
  size_t read = 0;
  size_t bytes = 0;
  absl::Status status;
  do {
    if (!reader_.Next()) {
      done_ = true;
      break;
    }
    ++read;
    std::string_view item;
    if (reader_.field() != 1 || !reader_.ReadBytes(&item)) continue;
    if (std::is_same_v<Call, service::SettleCall>) bytes += item.size();
    status = ReadItem(item, call_);
  } while (status.ok() && (stop == 0 || reader_.left() > stop));
  units_ = static_cast<int64_t>(1 + read / kFieldsPerUnit + bytes / kBytesPerUnit);
  if (!status.ok()) return status;
  return reader_.ok() ? absl::OkStatus() : Broken(NameOf(call_));
}

template class ItemDecoder<service::RenewCall>;
template class ItemDecoder<service::SettleCall>;

void EncodeRefund(const service::RefundCall& call, Buffer* out) {
  v1::RefundResponse response;
  response.set_outcome(ToWire(call.outcome()));
  for (size_t i = 0; i < call.size(); ++i) {
    const service::RefundedCharge charge = call.charge(i);
    v1::RefundedCharge* const to = response.add_charges();
    to->mutable_limit()->assign(charge.limit);
    to->mutable_key()->assign(charge.key);
    to->set_permits(charge.permits);
  }
  Append(response, out);
}

void EncodeRenew(const service::RenewCall& call, Buffer* out) {
  for (size_t i = 0; i < call.size(); ++i) {
    const service::RenewCall::Result& result = call.result(i);
    uint8_t* const start =
        out->Reserve(8 * WireWriter::kFieldBytes + result.status.message().size());
    WireWriter writer(start);
    uint8_t* const item = writer.BeginMessage(fields::RenewResponse::kResults);
    if (result.status.ok()) {
      writer.Varint(fields::RenewResult::kOutcome,
                    result.renewed ? v1::RENEW_OUTCOME_RENEWED : v1::RENEW_OUTCOME_GONE);
      if (result.renewed) {
        writer = WriteDuration(fields::RenewResult::kHeldFor, result.held_for_ns, writer);
      }
    } else {
      writer = WriteError(fields::RenewResult::kError, result.status, writer);
    }
    writer.EndMessage(item);
    out->Commit(static_cast<size_t>(writer.at() - start));
  }
}

void EncodeSettle(const service::SettleCall& call, Buffer* out) {
  const service::SettleCall::Result& result = call.result(0);
  uint8_t* const start = out->Reserve(MaxBytes(call, result));
  const WireWriter writer = WriteSettled(call, result, WireWriter(start));
  out->Commit(static_cast<size_t>(writer.at() - start));
}

void EncodeSettleBatch(const service::SettleCall& call, Buffer* out) {
  for (size_t i = call.first(); i < call.end(); ++i) {
    const service::SettleCall::Result& result = call.result(i);
    uint8_t* const start = out->Reserve(MaxBytes(call, result));
    WireWriter writer(start);
    uint8_t* const item = writer.BeginMessage(v1::SettleBatchResponse::kResultsFieldNumber);
    if (result.status.ok()) {
      uint8_t* const response = writer.BeginMessage(v1::SettleResult::kResponseFieldNumber);
      writer = WriteSettled(call, result, writer);
      writer.EndMessage(response);
    } else {
      writer = WriteError(v1::SettleResult::kErrorFieldNumber, result.status, writer);
    }
    writer.EndMessage(item);
    out->Commit(static_cast<size_t>(writer.at() - start));
  }
}

}  // namespace sluice::transport
