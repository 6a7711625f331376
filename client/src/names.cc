#include "sluice/decision.h"
#include "sluice/status.h"

namespace sluice {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (!message_.empty()) text.append(": ").append(message_);
  return text;
}

std::string_view SourceName(Source source) {
  switch (source) {
    case Source::kUnspecified:
      return "unspecified";
    case Source::kStore:
      return "store";
    case Source::kStoreUnavailable:
      return "store_unavailable";
    case Source::kOverflow:
      return "overflow";
    case Source::kLocal:
      return "local";
    case Source::kUnavailable:
      return "unavailable";
  }
  return "unspecified";
}

std::string_view ReasonName(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "";
    case Reason::kNotEnough:
      return "not_enough";
    case Reason::kWaitingBound:
      return "waiting_bound";
    case Reason::kStoreUnavailable:
      return "store_unavailable";
    case Reason::kOverflow:
      return "overflow";
    case Reason::kShadowDenied:
      return "shadow_denied";
    case Reason::kDeadlineTooShort:
      return "deadline_too_short";
    case Reason::kShareTooSmall:
      return "share_too_small";
  }
  return "";
}

std::string_view RefundOutcomeName(RefundOutcome outcome) {
  switch (outcome) {
    case RefundOutcome::kRefunded:
      return "refunded";
    case RefundOutcome::kAlreadyRefunded:
      return "already_refunded";
    case RefundOutcome::kExpired:
      return "expired";
  }
  return "expired";
}

std::string_view RenewOutcomeName(RenewOutcome outcome) {
  return outcome == RenewOutcome::kRenewed ? "renewed" : "gone";
}

std::string_view SettleOutcomeName(SettleOutcome outcome) {
  switch (outcome) {
    case SettleOutcome::kSettled:
      return "settled";
    case SettleOutcome::kAlreadySettled:
      return "already_settled";
    case SettleOutcome::kLate:
      return "late";
    case SettleOutcome::kUnknown:
      return "unknown";
  }
  return "unknown";
}

}  // namespace sluice
