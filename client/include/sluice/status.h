// Status and Result: errors of the client library. They need only the standard library.
#ifndef SLUICE_STATUS_H_
#define SLUICE_STATUS_H_

#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sluice {

// gRPC's status codes.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,  // the client was destroyed, or the call was cancelled
  kUnknown = 2,
  kInvalidArgument = 3,   // the message has the field, the value and a correction
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
  kUnauthenticated = 16,  // the token or certificate is missing or wrong
};

// For example "UNAVAILABLE".
std::string_view StatusCodeName(StatusCode code);

// A plain value. Default: OK.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // An error of a call that no server executed.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  // An error of a call that a server may have executed: permits may have been taken.
  static Status MaybeExecuted(StatusCode code, std::string message) {
    Status status(code, std::move(message));
    status.may_have_executed_ = true;
    return status;
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Whether a server may have executed the call although no answer arrived. The client retries
  // such a call only if a second execution changes nothing (queries, refunds, request ids).
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

// A value, or the Status that explains why there is none.
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

  // REQUIRES: ok(); aborts the program otherwise.
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
