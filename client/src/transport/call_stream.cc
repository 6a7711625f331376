#include "client/src/transport/call_stream.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <utility>

#include "client/src/transport/link.h"
#include "client/src/transport/not_executed.h"
#include "common/execution_mark.h"

namespace sluice::client_internal {
namespace {

using http2::ErrorCode;
using http2::HpackConstant;
using http2::StreamEnd;

// A hostile server's answers stay below these; a correct one's largest are: 16 charges of 200
// bytes, 4096 such decisions, 256 buckets with keys of 512 bytes.
constexpr size_t kMaxSmallAnswer = size_t{64} << 10;
constexpr size_t kMaxBatchAnswer = size_t{16} << 20;
constexpr size_t kMaxQueryAnswer = size_t{1} << 20;

// Sent bytes that an open-ended request may keep.
constexpr size_t kKeptSent = size_t{64} << 10;

// A grpc-timeout of at most a day is that much shorter than the time until the deadline.
constexpr std::chrono::milliseconds kTimeoutRounding{1};

struct MethodInfo {
  HpackConstant path;
  size_t max_answer_bytes;
};

const MethodInfo& InfoOf(Method method) {
  // Never destroyed: calls may run while the program exits.
  static const MethodInfo* const infos = [] {
    const auto path = [](const char* name) {
      return HpackConstant(":path", std::string("/sluice.v1.RateLimiter/") + name);
    };
    return new MethodInfo[9]{
        {path("Acquire"), kMaxSmallAnswer},       {path("AcquireBatch"), kMaxBatchAnswer},
        {path("AcquireStream"), kMaxBatchAnswer}, {path("Query"), kMaxQueryAnswer},
        {path("Watch"), kMaxQueryAnswer},         {path("Refund"), kMaxSmallAnswer},
        {path("Settle"), kMaxSmallAnswer},        {path("SettleBatch"), kMaxBatchAnswer},
        {path("Renew"), kMaxBatchAnswer}};
  }();
  return infos[static_cast<size_t>(method)];
}

// Headers of every call.
struct CommonHeaders {
  const HpackConstant method{":method", "POST"};
  const HpackConstant te{"te", "trailers"};
  const HpackConstant content_type{"content-type", "application/grpc"};
  const HpackConstant user_agent{"user-agent",
                                 std::string(common::kMarkKnowingAgent) + "/" SLUICE_VERSION};
};

const CommonHeaders& Common() {
  static const CommonHeaders* const headers = new CommonHeaders();
  return *headers;
}

// At most eight digits and a unit; rounded down, so that the server does not answer too late.
std::string_view TimeoutText(std::chrono::nanoseconds left, char (&text)[16]) {
  static constexpr std::pair<int64_t, char> kUnits[] = {
      {1, 'n'}, {1'000, 'u'}, {1'000'000, 'm'}, {1'000'000'000, 'S'}, {60'000'000'000, 'M'}};
  const int64_t ns = std::max<int64_t>(left.count(), 1);
  for (const auto& [unit_ns, unit] : kUnits) {
    const int64_t value = ns / unit_ns;
    if (value >= 100'000'000) continue;
    char* const end = std::to_chars(text, std::end(text), value).ptr;
    *end = unit;
    return {text, static_cast<size_t>(end + 1 - text)};
  }
  return "99999999H";
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// Decodes "grpc-message": %XX is a byte. Other texts stay as they are.
std::string PercentDecoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(HexDigit(text[i + 1]) << 4 | HexDigit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// gRPC's tables for answers that have no grpc-status.
StatusCode CodeOfHttp(int http_status) {
  switch (http_status) {
    case 400:
      return StatusCode::kInternal;
    case 401:
      return StatusCode::kUnauthenticated;
    case 403:
      return StatusCode::kPermissionDenied;
    case 404:
      return StatusCode::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kUnknown;
  }
}

StatusCode CodeOfReset(ErrorCode code) {
  switch (code) {
    case ErrorCode::kRefusedStream:
      return StatusCode::kUnavailable;
    case ErrorCode::kEnhanceYourCalm:
      return StatusCode::kResourceExhausted;
    case ErrorCode::kInadequateSecurity:
      return StatusCode::kPermissionDenied;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

RequestHeaders::RequestHeaders(bool tls, const std::string& authority, const std::string& token)
    : scheme(":scheme", tls ? "https" : "http"),
      authority(":authority", authority),
      authorization("authorization", "Bearer " + token),
      has_token(!token.empty()) {}

Status BrokenCall(bool sent, StatusCode code, std::string message) {
  return sent ? Status::MaybeExecuted(code, std::move(message)) : Status(code, std::move(message));
}

// ---- The request

void CallStream::OnSendHeaders(http2::HeaderWriter& to) {
  start_ = link->output_position();
  const RequestHeaders& headers = link->headers();
  const CommonHeaders& common = Common();
  to.Append(common.method);
  to.Append(headers.scheme);
  to.Append(InfoOf(method_).path);
  to.Append(headers.authority);
  to.Append(common.te);
  to.Append(common.content_type);
  to.Append(common.user_agent);
  if (headers.has_token) to.Append(headers.authorization);
  if (deadline != TimePoint::max()) {
    char text[16];
    to.Append("grpc-timeout", TimeoutText(deadline - std::chrono::steady_clock::now(), text));
  }
}

http2::Body CallStream::OnSendBody(size_t room) {
  const size_t size = std::min(room, request.size() - request_sent_);
  request_given_ = size;
  const bool all = request_sent_ + size == request.size();
  starved_ = all && !request_ends() && size == 0;
  return {{reinterpret_cast<const uint8_t*>(request.data()) + request_sent_, size},
          all && request_ends() ? http2::Body::Then::kEnd : http2::Body::Then::kMore};
}

void CallStream::OnBodySent() {
  request_sent_ += std::exchange(request_given_, 0);
  // An open-ended request is a queue; a unary one may have to be sent again.
  if (request_ends()) return;
  const bool all = request_sent_ == request.size();
  // Not for a few bytes: what follows them moves.
  if (all || (request_sent_ > kKeptSent && request_sent_ > request.size() / 2)) {
    request.erase(0, request_sent_);
    request_sent_ = 0;
  }
}

void CallStream::ResumeRequest() {
  if (!starved_ || state != State::kOpen) return;
  starved_ = false;
  link->session().ResumeBody(*this);
}

bool CallStream::MayHaveBeenSent() const {
  return link != nullptr && begun() && link->written() > start_;
}

// ---- The answer

void CallStream::OnHeader(const http2::HpackField& field) {
  switch (http2::NameOf(field)) {
    case http2::HeaderName::kStatus:
      http_status_ = static_cast<int>(http2::ValueOf(field));
      break;
    case http2::HeaderName::kContentType:
      is_grpc_ = field.value.substr(0, 16) == "application/grpc";
      break;
    case http2::HeaderName::kGrpcStatus: {
      const uint32_t value = http2::ValueOf(field);
      grpc_status_ = value == http2::kNoNumber ? static_cast<int>(StatusCode::kUnknown)
                                               : static_cast<int>(value);
      break;
    }
    case http2::HeaderName::kGrpcMessage:
      grpc_message_.assign(field.value);
      break;
    case http2::HeaderName::kOther:
      if (field.name == common::kExecutedMetadata) {
        not_executed_ = field.value == common::kNotExecuted;
      }
      break;
    default:
      break;
  }
}

void CallStream::OnHeadersDone(bool end) {
  if (end || grpc_status_ != kNoStatus) return;
  if (http_status_ != 200 || !is_grpc_) Break(StatusOfServer());
}

void CallStream::OnHeadersTooLarge() {
  Break(Status::MaybeExecuted(StatusCode::kInternal,
                              "the headers of the answer are larger than " +
                                  std::to_string(common::bounds::kMaxHeaderListBytes) + " bytes"));
}

void CallStream::Break(Status status) {
  if (failed()) return;
  Fail(std::move(status));
  link->session().Reset(*this, ErrorCode::kCancel);
}

void CallStream::OnConsumed(size_t bytes) { link->session().ConsumeStream(*this, bytes); }

bool CallStream::BeginMessage(const uint8_t* head) {
  const size_t size = http2::ReadUint32(head + 1);
  const size_t most = InfoOf(method_).max_answer_bytes;
  if (head[0] != 0) {
    Break(Status::MaybeExecuted(StatusCode::kInternal,
                                "the server sent a compressed answer, which was not asked for"));
    return false;
  }
  if (size > most) {
    Break(Status::MaybeExecuted(StatusCode::kInternal,
                                "the server sent an answer of " + std::to_string(size) +
                                    " bytes; at most " + std::to_string(most) + " are valid"));
    return false;
  }
  message_left_ = size;
  return true;
}

void CallStream::EndMessage(std::string_view message) {
  ++messages_;
  if (Status bad = OnMessage(message); !bad.ok()) Break(std::move(bad));
}

void CallStream::OnData(absl::Span<const uint8_t> data) {
  OnConsumed(data.size());
  while (!data.empty() && !failed()) {
    if (head_bytes_ < kMessageHead) {
      const size_t size = std::min(kMessageHead - head_bytes_, data.size());
      std::copy_n(data.data(), size, head_ + head_bytes_);
      head_bytes_ = static_cast<uint8_t>(head_bytes_ + size);
      data.remove_prefix(size);
      if (head_bytes_ < kMessageHead || !BeginMessage(head_)) return;
      partial_.clear();
    }
    const std::string_view arrived(reinterpret_cast<const char*>(data.data()),
                                   std::min(message_left_, data.size()));
    data.remove_prefix(arrived.size());
    const bool whole = partial_.empty() && arrived.size() == message_left_;
    message_left_ -= arrived.size();
    if (!whole) partial_.append(arrived);
    if (message_left_ > 0) return;
    head_bytes_ = 0;
    EndMessage(whole ? arrived : std::string_view(partial_));
  }
}

StatusCode CallStream::CodeOfCancelByServer() const {
  const bool at_deadline = std::chrono::steady_clock::now() >= deadline - kTimeoutRounding;
  return at_deadline ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable;
}

Status CallStream::StatusOfServer() const {
  StatusCode code = StatusCode::kUnknown;
  std::string message;
  if (grpc_status_ != kNoStatus) {
    if (grpc_status_ <= static_cast<int>(StatusCode::kUnauthenticated)) {
      code = static_cast<StatusCode>(grpc_status_);
    }
    message = PercentDecoded(grpc_message_);
    if (code == StatusCode::kOk) return Status();
  } else if (http_status_ != 200) {
    code = CodeOfHttp(http_status_);
    message = "the server, or a proxy, answered with HTTP status " + std::to_string(http_status_);
  } else {
    message = is_grpc_ ? "the answer has no grpc-status" : "the answer is not one of gRPC";
  }
  if (code == StatusCode::kCancelled) {
    code = CodeOfCancelByServer();
    if (!not_executed_) message = "the server cancelled the call: " + message;
  }
  return BrokenCall(!not_executed_ && !MeansNotExecuted(code), code, std::move(message));
}

Status CallStream::Outcome(const StreamEnd& end) {
  if (failed()) return failure_;
  switch (end.kind) {
    case StreamEnd::Kind::kComplete:
      return StatusOfAnswer();
    case StreamEnd::Kind::kNotProcessed:
      return Status(StatusCode::kUnavailable, "the server did not accept the call");
    case StreamEnd::Kind::kResetByPeer:
      return BrokenCall(
          MayHaveBeenSent(),
          end.code == ErrorCode::kCancel ? CodeOfCancelByServer() : CodeOfReset(end.code),
          "the server reset the call: HTTP/2 error " +
              std::to_string(static_cast<uint32_t>(end.code)));
    case StreamEnd::Kind::kReset:
    case StreamEnd::Kind::kError:
      break;
  }
  return BrokenCall(MayHaveBeenSent(), StatusCode::kInternal,
                    std::string("the server's answer is malformed: ") + end.text);
}

Status CallStream::StatusOfAnswer() const {
  Status status = StatusOfServer();
  if (!status.ok()) return status;
  if (head_bytes_ != 0) {
    return Status::MaybeExecuted(StatusCode::kInternal, "the answer ends within a message");
  }
  if (messages_ == 0 && !may_be_empty()) {
    return Status::MaybeExecuted(StatusCode::kInternal, "the server sent no answer");
  }
  return Status();
}

void CallStream::Rewind() {
  state = State::kNew;
  link = nullptr;
  starved_ = not_executed_ = is_grpc_ = false;
  head_bytes_ = 0;
  http_status_ = 0;
  grpc_status_ = kNoStatus;
  messages_ = 0;
  message_left_ = request_sent_ = request_given_ = 0;
  partial_.clear();
  grpc_message_.clear();
}

}  // namespace sluice::client_internal
