#include "server/transport/http1/answer.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/json_string.h"
#include "common/strings.h"

namespace sluice::http1 {
namespace {

struct CodeNames {
  absl::StatusCode code;
  std::string_view name;
  int http_status;
};

constexpr CodeNames kCodes[] = {
    {absl::StatusCode::kOk, "OK", 200},
    {absl::StatusCode::kCancelled, "CANCELLED", 499},
    {absl::StatusCode::kUnknown, "UNKNOWN", 500},
    {absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", 400},
    {absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED", 504},
    {absl::StatusCode::kNotFound, "NOT_FOUND", 404},
    {absl::StatusCode::kAlreadyExists, "ALREADY_EXISTS", 409},
    {absl::StatusCode::kPermissionDenied, "PERMISSION_DENIED", 403},
    {absl::StatusCode::kResourceExhausted, "RESOURCE_EXHAUSTED", 503},
    {absl::StatusCode::kFailedPrecondition, "FAILED_PRECONDITION", 400},
    {absl::StatusCode::kAborted, "ABORTED", 409},
    {absl::StatusCode::kOutOfRange, "OUT_OF_RANGE", 400},
    {absl::StatusCode::kUnimplemented, "UNIMPLEMENTED", 501},
    {absl::StatusCode::kInternal, "INTERNAL", 500},
    {absl::StatusCode::kUnavailable, "UNAVAILABLE", 503},
    {absl::StatusCode::kDataLoss, "DATA_LOSS", 500},
    {absl::StatusCode::kUnauthenticated, "UNAUTHENTICATED", 401},
};

const CodeNames& NamesOf(absl::StatusCode code) {
  for (const CodeNames& one : kCodes) {
    if (one.code == code) return one;
  }
  return kCodes[2];
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) { return NamesOf(code).http_status; }
std::string_view NameOf(absl::StatusCode code) { return NamesOf(code).name; }

absl::StatusCode CodeOf(int http_status) {
  // A denial is an answer, whatever status the caller chose for it: see CheckHandler.
  if (http_status < 400) return absl::StatusCode::kOk;
  switch (http_status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 499:
      return absl::StatusCode::kCancelled;
    case 405:
    case 501:
    case 505:
      return absl::StatusCode::kUnimplemented;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return http_status < 500 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
  }
}

std::string_view ReasonOf(int http_status) {
  switch (http_status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Status";
  }
}

Problem Problem::Of(const absl::Status& status, int http_status) {
  Problem problem;
  problem.code = status.code();
  problem.status = common::errors::IsOverClientBound(status) ? 429
                   : http_status != 0                        ? http_status
                                                             : HttpStatusOf(status.code());
  problem.detail = std::string(status.message());
  problem.nothing_taken = common::errors::WasNotExecuted(status);
  return problem;
}

Problem Problem::Http(int http_status, std::string detail) {
  Problem problem;
  problem.status = http_status;
  problem.code = CodeOf(http_status);
  problem.detail = std::move(detail);
  return problem;
}

std::string Problem::ToJson() const {
  const CodeNames& names = NamesOf(code);
  std::string json = R"({"type":"about:blank","title":)";
  common::AppendJsonString(ReasonOf(status), &json);
  absl::StrAppend(&json, R"(,"status":)", status, R"(,"detail":)");
  common::AppendJsonString(detail, &json);
  absl::StrAppend(&json, R"(,"code":")", common::ToAbsl(names.name), R"(","grpc_status":)",
                  static_cast<int>(names.code));
  if (nothing_taken) json += R"(,"nothing_taken":true)";
  json += "}\n";
  return json;
}

Answer Problem::ToAnswer() const {
  return {.status = status,
          .content_type = "application/problem+json",
          .headers = headers,
          .body = SharedBytes::Of(ToJson())};
}

}  // namespace sluice::http1
