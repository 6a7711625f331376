// Status and Result: how calls of the client end. Only the standard library is needed.
#ifndef SLUICE_STATUS_H_
#define SLUICE_STATUS_H_

#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sluice {

// The numbers are gRPC's.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,  // the client was destroyed, or the call was cancelled
  kUnknown = 2,
  kInvalidArgument = 3,   // the message names the field, the value and what would be right
  kDeadlineExceeded = 4,  // no answer in time
  kNotFound = 5,          // a charge names a limit that does not exist
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,  // the server sheds load, or a queue of the client is full
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,  // no server could be reached, or the connection broke
  kDataLoss = 15,
  kUnauthenticated = 16,  // no token or certificate, or a wrong one
};

// "UNAVAILABLE" and so on.
std::string_view StatusCodeName(StatusCode code);

// A value; default: OK.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // An error after which it is certain that the server executed nothing.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // An error after which nobody here knows whether the server executed the call: permits may have
  // been taken.
  static Status MaybeExecuted(StatusCode code, std::string message) {
    Status status(code, std::move(message));
    status.may_have_executed_ = true;
    return status;
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Whether the server may have executed the call although it has no answer. Such a call is never
  // sent again by the client.
  bool may_have_executed() const { return may_have_executed_; }

  // "OK", or "NOT_FOUND: limit \"x\" ...".
  std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  bool may_have_executed_ = false;
  std::string message_;
};

inline std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.ToString();
}

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): `return value;` and `return status;` read well.
  Result(T value) : outcome_(std::in_place_index<1>, std::move(value)) {}
  // REQUIRES: !status.ok()
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Status status) : outcome_(std::in_place_index<0>, std::move(status)) {}

  bool ok() const { return outcome_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(outcome_); }

  // REQUIRES: ok(). Otherwise the program ends.
  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->Checked(); }

 private:
  T& Checked() {
    T* value = std::get_if<1>(&outcome_);
    if (value == nullptr) std::abort();
    return *value;
  }

  std::variant<Status, T> outcome_;
};

}  // namespace sluice

#endif  // SLUICE_STATUS_H_
