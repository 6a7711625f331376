#include "server/transport/rpc/server_call.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/transport/rpc/grpc_text.h"
#include "server/transport/rpc/rpc_connection.h"
#include "server/transport/rpc/rpc_server.h"

namespace sluice::transport {
namespace {

constexpr size_t kMaxStatusTextBytes = 2048;

// Headers whose texts are constants are not copied by nghttp2.
constexpr uint8_t kConstant = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;

uint8_t* Bytes(std::string_view text) {
  return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
}

nghttp2_nv Header(std::string_view name, std::string_view value, uint8_t flags) {
  return {Bytes(name), Bytes(value), name.size(), value.size(), flags};
}

const nghttp2_nv kStatus200 = Header(":status", "200", kConstant);
const nghttp2_nv kContentType = Header("content-type", "application/grpc", kConstant);
const nghttp2_nv kOkHeaders[] = {kStatus200, kContentType};
const nghttp2_nv kOkTrailers[] = {Header("grpc-status", "0", kConstant)};
constexpr std::string_view kCodeTexts[] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                           "9", "10", "11", "12", "13", "14", "15", "16"};

size_t CodeIndex(absl::StatusCode code) {
  const int value = static_cast<int>(code);
  return value >= 0 && value <= 16 ? static_cast<size_t>(value)
                                   : static_cast<size_t>(absl::StatusCode::kUnknown);
}

using Headers = absl::InlinedVector<nghttp2_nv, 8>;

void AppendCustom(const std::vector<std::pair<std::string, std::string>>& custom,
                  Headers* headers) {
  for (const auto& [name, value] : custom) {
    headers->push_back(Header(name, value, NGHTTP2_NV_FLAG_NONE));
  }
}

uint32_t BigEndian32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

}  // namespace

ServerCall::ServerCall() : timer_(net::Timer::To<&ServerCall::Expired>, this) {}
ServerCall::~ServerCall() = default;

void ServerCall::Begin(RpcConnection* connection, int32_t stream_id, int64_t arrived_ns) {
  connection_ = connection;
  stream_id_ = stream_id;
  arrived_ns_ = arrived_ns;
}

void ServerCall::Recycle() {
  timer_.Cancel();
  in_.Clear(kKeepBytes);
  out_.Clear(kKeepBytes);
  UpdateCharges();
  metadata_.clear();
  metadata_bytes_.Clear(kKeepBytes);
  if (!custom_.initial.empty()) custom_.initial.clear();
  if (!custom_.trailing.empty()) custom_.trailing.clear();
  if (!message_.empty()) message_.clear();
  if (!path_.empty()) path_.clear();
  connection_ = nullptr;
  method_ = nullptr;
  encoding_ = Encoding::kIdentity;
  headers_done_ = headers_sent_ = started_ = finished_ = plain_answer_ = false;
  remote_ended_ = requests_done_ = cancelled_ = deadline_passed_ = false;
  paused_ = congested_ = body_waits_ = in_delivery_ = resume_queued_ = message_begun_ = false;
  timer_considered_ = post_ = te_trailers_ = grpc_content_ = false;
  deadline_ns_ = kNoDeadline;
  state_ = nullptr;
  message_at_ = 0;
  content_left_ = RequestRules::kNotAnnounced;
  unconsumed_ = 0;
  status_ = absl::StatusCode::kOk;
  fault_http_ = 0;
  fault_text_ = nullptr;
}

// ---- What was asked.

std::optional<std::string_view> ServerCall::metadata(std::string_view name) const {
  for (size_t i = 0; i < metadata_.size(); ++i) {
    const auto [found, value] = metadata_at(i);
    if (found == name) return value;
  }
  return std::nullopt;
}

std::pair<std::string_view, std::string_view> ServerCall::metadata_at(size_t i) const {
  const MetadataEntry& entry = metadata_[i];
  const char* at = reinterpret_cast<const char*>(metadata_bytes_.data()) + entry.name_at;
  return {{at, entry.name_size}, {at + entry.name_size, entry.value_size}};
}

const net::PeerIdentity& ServerCall::peer() const { return connection_->stream_.peer(); }
std::string ServerCall::peer_address() const { return connection_->stream_.peer_address(); }
net::EventLoop& ServerCall::loop() const { return connection_->grpc_.loop(); }
size_t ServerCall::loop_index() const { return connection_->grpc_.index(); }

// ---- The request's headers.

void ServerCall::Fault(int http_status, absl::StatusCode code, const char* message) {
  if (fault_text_ != nullptr) return;
  fault_http_ = http_status;
  fault_code_ = code;
  fault_text_ = message;
}

void ServerCall::OnHeader(std::string_view name, std::string_view value) {
  if (headers_done_) return;  // trailers of a request mean nothing in gRPC
  switch (name.size()) {
    case 2:
      if (name == "te") {
        te_trailers_ = value == "trailers";
        return;
      }
      break;
    case 5:
      if (name == ":path") {
        method_ = connection_->FindMethod(value);
        if (method_->unary == nullptr && method_->streaming == nullptr) path_ = value;
        return;
      }
      break;
    case 7:
      if (name == ":method") {
        post_ = value == "POST";
        return;
      }
      if (name == ":scheme") return;
      break;
    case 10:
      if (name == ":authority") {
        name = "authority";
        break;
      }
      break;
    case 12:
      if (name == "content-type") {
        constexpr std::string_view kGrpc = "application/grpc";
        grpc_content_ = value.substr(0, kGrpc.size()) == kGrpc;
        if (grpc_content_ && value.size() > kGrpc.size()) {
          const std::string_view rest = value.substr(kGrpc.size());
          if (rest[0] == '+') {
            const std::string_view subtype = rest.substr(1, rest.find(';') - 1);
            if (subtype != "proto") {
              Fault(200, absl::StatusCode::kUnimplemented,
                    "content-type: of the kinds of application/grpc only +proto is served");
            }
          } else if (rest[0] != ';') {
            grpc_content_ = false;  // application/grpc-web and others
          }
        }
        return;
      }
      if (name == "grpc-timeout") {
        const std::optional<int64_t> timeout_ns = ParseTimeout(value);
        if (!timeout_ns.has_value()) {
          Fault(200, absl::StatusCode::kInternal,
                "grpc-timeout: must be 1 to 8 digits and a unit of H M S m u n");
        } else {
          deadline_ns_ =
              *timeout_ns > kNoDeadline - arrived_ns_ ? kNoDeadline : arrived_ns_ + *timeout_ns;
        }
        return;
      }
      break;
    case 13:
      if (name == "grpc-encoding") {
        if (value == "identity") {
          encoding_ = Encoding::kIdentity;
        } else if (value == "gzip") {
          encoding_ = Encoding::kGzip;
        } else {
          encoding_ = Encoding::kUnknown;
          Fault(200, absl::StatusCode::kUnimplemented,
                "grpc-encoding: only identity and gzip are served");
        }
        return;
      }
      break;
    case 20:
      if (name == "grpc-accept-encoding") return;  // answers are never compressed
      break;
    default:
      break;
  }
  metadata_.push_back({static_cast<uint32_t>(metadata_bytes_.size()),
                       static_cast<uint32_t>(name.size()), static_cast<uint32_t>(value.size())});
  metadata_bytes_.Append(name);
  metadata_bytes_.Append(value);
}

void ServerCall::OnHeadersDone(bool end) {
  headers_done_ = true;
  if (finished_) {  // refused for their size
    remote_ended_ = end;
    return;
  }
  if (method_ == nullptr) method_ = &connection_->grpc_.unknown_method_;
  if (!post_ || !grpc_content_ || !te_trailers_) {
    // HTTP's own errors come first: who sent this does not speak gRPC.
    fault_text_ = nullptr;
    if (!post_) {
      Fault(405, absl::StatusCode::kUnknown, "this is a gRPC server: the method must be POST\n");
    } else if (!grpc_content_) {
      Fault(415, absl::StatusCode::kUnknown,
            "this is a gRPC server: the content-type must be application/grpc\n");
    } else {
      Fault(400, absl::StatusCode::kInternal,
            "te: trailers is missing: a proxy in between may not pass trailers\n");
    }
  }
  if (end) remote_ended_ = true;
  if (fault_text_ != nullptr) {
    // In HTTP's way only after the request, which may turn out to be malformed.
    if (fault_http_ == 200 || end) AnswerFault();
    return;
  }
  GrpcLoop& grpc = connection_->grpc_;
  if (method_->streaming == nullptr) {
    if (method_->unary == nullptr) {
      const size_t slash = path_.rfind('/');
      const bool service_known =
          slash != std::string::npos && slash > 0 &&
          grpc.methods().HasService(std::string_view(path_).substr(1, slash - 1));
      FailWithCode(absl::StatusCode::kUnimplemented,
                   absl::StrCat(service_known ? "unknown method " : "unknown service: ", path_));
      return;
    }
    if (end) OnEnd();
    return;
  }
  if (!MayStart()) return;
  started_ = true;
  StartMessage();
  method_->streaming->OnStart(*this);
  if (end && !finished_) connection_->QueueReady(this);
}

void ServerCall::AnswerFault() {
  if (fault_http_ == 200) {
    FailWithCode(fault_code_, fault_text_);
    return;
  }
  // Not gRPC: an HTTP answer with a text for people.
  RecordFinish(fault_code_);
  finished_ = headers_sent_ = plain_answer_ = true;
  out_.Append(std::string_view(fault_text_));
  Headers headers;
  headers.push_back(Header(":status",
                           fault_http_ == 405   ? "405"
                           : fault_http_ == 415 ? "415"
                                                : "400",
                           kConstant));
  headers.push_back(Header("content-type", "text/plain", kConstant));
  if (fault_http_ == 405) headers.push_back(Header("allow", "POST", kConstant));
  connection_->session_.SubmitHeaders(stream_id_, headers.data(), headers.size(), this);
  connection_->MarkDirty();
}

// ---- The request's messages.

void ServerCall::OnData(absl::Span<const uint8_t> data) {
  if (finished_) {
    // What comes after the answer is dropped; the window stays as it is, which stops the client.
    return;
  }
  GrpcLoop& grpc = connection_->grpc_;
  unconsumed_ += data.size();
  if (fault_text_ != nullptr) {
    // Dropped.
  } else if (method_->streaming == nullptr) {
    if (connection_->buffered_bytes_ + data.size() > grpc.options().max_connection_buffered_bytes ||
        grpc.buffered_bytes_ + data.size() > grpc.options().max_loop_buffered_bytes) {
      FailWithCode(absl::StatusCode::kResourceExhausted,
                   "too many bytes of unfinished requests are held");
      return;
    }
    in_.Append(data);
    UpdateCharges();
    if (in_.size() >= kPrefix) {
      uint32_t size = 0;
      if (!CheckPrefix(in_.data(), &size)) return;
      if (in_.size() > kPrefix + size) {
        FailWithCode(absl::StatusCode::kUnimplemented,
                     "the method takes one request, and more were sent");
        return;
      }
    }
  } else {
    in_.Append(data);
    UpdateCharges();
    if (connection_->buffered_bytes_ > grpc.options().max_connection_buffered_bytes ||
        grpc.buffered_bytes_ > grpc.options().max_loop_buffered_bytes) {
      FailWithCode(absl::StatusCode::kResourceExhausted,
                   "too many bytes of unfinished requests are held");
      return;
    }
    // A client whose requests wait may not send on.
    if (!paused_ && !congested_) connection_->QueueReady(this);
    return;
  }
  if (unconsumed_ >= kConsumeBytes) {
    connection_->session_.ConsumeStream(stream_id_, unconsumed_);
    unconsumed_ = 0;
  }
}

bool ServerCall::CheckPrefix(const uint8_t* prefix, uint32_t* size) {
  *size = BigEndian32(prefix + 1);
  if (prefix[0] > 1) {
    FailWithCode(absl::StatusCode::kInternal,
                 "a message's first byte must be 0 (plain) or 1 (compressed)");
    return false;
  }
  if (prefix[0] == 1 && encoding_ != Encoding::kGzip) {
    FailWithCode(absl::StatusCode::kInternal,
                 "a message is marked as compressed, and grpc-encoding names no compression");
    return false;
  }
  if (*size > method_->options.max_request_bytes) {
    FailWithCode(absl::StatusCode::kResourceExhausted,
                 absl::StrCat("a message of ", *size, " bytes is announced; at most ",
                              method_->options.max_request_bytes, " are taken"));
    return false;
  }
  return true;
}

std::optional<absl::Span<const uint8_t>> ServerCall::Unfold(bool compressed,
                                                            absl::Span<const uint8_t> body) {
  common::MethodCounters& counters = connection_->grpc_.CountersOf(*method_);
  connection_->grpc_.EarnSheds(body.size());
  if (!compressed) {
    counters.messages_received.Add(1);
    counters.bytes_received.Add(body.size());
    return body;
  }
  GrpcLoop& grpc = connection_->grpc_;
  grpc.unfolded_.Clear(kKeepBytes);
  const absl::Status unfolded =
      grpc.inflater_.Inflate(body, method_->options.max_request_bytes, &grpc.unfolded_);
  if (!unfolded.ok()) {
    FailWithCode(unfolded.code(), common::ToStd(unfolded.message()));
    return std::nullopt;
  }
  counters.messages_received.Add(1);
  counters.bytes_received.Add(grpc.unfolded_.size());
  return grpc.unfolded_.view();
}

size_t ServerCall::DeliverFrom(absl::Span<const uint8_t> data) {
  size_t taken = 0;
  in_delivery_ = true;
  while (!finished_ && !paused_ && !congested_ && data.size() - taken >= kPrefix) {
    const uint8_t* prefix = data.data() + taken;
    uint32_t size = 0;
    if (!CheckPrefix(prefix, &size)) break;
    if (data.size() - taken - kPrefix < size) break;
    taken += kPrefix + size;
    const auto message = Unfold(prefix[0] == 1, {prefix + kPrefix, size});
    if (!message.has_value()) break;
    method_->streaming->OnMessage(*this, *message);
  }
  in_delivery_ = false;
  return taken;
}

void ServerCall::Deliver() {
  if (in_delivery_ || finished_) return;
  const size_t taken = DeliverFrom(in_.view());
  if (finished_) return;
  in_.Consume(taken);
}

void ServerCall::OnEnd() {
  remote_ended_ = true;
  if (finished_) return;
  if (fault_text_ != nullptr) {
    AnswerFault();
    return;
  }
  connection_->QueueReady(this);
}

void ServerCall::Ready() {
  if (finished_) return;
  if (method_->streaming == nullptr) {
    Dispatch();
    return;
  }
  // Paused or congested since: Resumed goes on.
  if (paused_ || congested_) return;
  DeliverAndTakeMore(kConsumeBytes);
}

void ServerCall::DeliverAndTakeMore(size_t least) {
  Deliver();
  if (finished_) return;
  UpdateCharges();
  if (paused_ || congested_) return;
  if (remote_ended_) {
    EndOfRequests();
  } else if (unconsumed_ >= least) {
    connection_->session_.ConsumeStream(stream_id_, unconsumed_);
    unconsumed_ = 0;
  }
}

void ServerCall::EndOfRequests() {
  if (finished_ || requests_done_ || paused_ || congested_) return;
  if (!in_.empty()) {
    FailWithCode(absl::StatusCode::kInternal, "the request ended within a message");
    return;
  }
  requests_done_ = true;
  method_->streaming->OnRequestsDone(*this);
}

bool ServerCall::MayStart() {
  GrpcLoop& grpc = connection_->grpc_;
  const int64_t now_ns = grpc.Now();
  const int64_t max_queue_ns = grpc.options().max_queue_ns;
  // What waited is the input that completed the request; a request that came slowly is its
  // client's affair.
  if (max_queue_ns > 0 && now_ns - connection_->arrived_ns_ > max_queue_ns &&
      !method_->options.exempt_from_shedding && grpc.PayForShed()) {
    grpc.counters().sheds.Add(1);
    FailWithCode(absl::StatusCode::kResourceExhausted,
                 "the server sheds load: this call waited too long for its turn; nothing was done");
    return false;
  }
  if (now_ns >= deadline_ns_) {
    FailWithCode(absl::StatusCode::kDeadlineExceeded, "the deadline passed before the call's turn");
    return false;
  }
  if (connection_->unsent_bytes_ > grpc.options().max_connection_unsent_bytes) {
    FailWithCode(absl::StatusCode::kResourceExhausted,
                 "too many answers on this connection wait to be read");
    return false;
  }
  return true;
}

void ServerCall::Dispatch() {
  if (!MayStart()) return;
  if (in_.size() < kPrefix) {
    if (in_.empty()) {
      FailWithCode(absl::StatusCode::kUnimplemented,
                   "the method takes one request, and none was sent");
    } else {
      FailWithCode(absl::StatusCode::kInternal, "the request ended within a message");
    }
    return;
  }
  const uint32_t size = BigEndian32(in_.data() + 1);
  if (in_.size() != kPrefix + size) {
    FailWithCode(absl::StatusCode::kInternal, "the request ended within a message");
    return;
  }
  const bool compressed = in_.data()[0] == 1;
  auto message = Unfold(compressed, {in_.data() + kPrefix, size});
  if (!message.has_value()) return;
  if (compressed) {
    // It must last as long as the call.
    in_.Swap(connection_->grpc_.unfolded_);
    message = in_.view();
    UpdateCharges();
  }
  started_ = true;
  method_->unary->OnCall(*this, *message);
}

void ServerCall::KeepRequest(Buffer* into) {
  into->Clear();
  into->Swap(in_);
  UpdateCharges();
}

void ServerCall::ResumeReading() {
  if (!paused_) return;
  paused_ = false;
  if (!in_delivery_ && !finished_) connection_->QueueResume(this);
}

// ---- Answers.

void ServerCall::AddInitialMetadata(std::string_view name, std::string_view value) {
  custom_.initial.emplace_back(name, value);
}
void ServerCall::AddTrailingMetadata(std::string_view name, std::string_view value) {
  custom_.trailing.emplace_back(name, value);
}

// A message's prefix is reserved when the message may begin, and filled when it is complete.
void ServerCall::StartMessage() {
  message_begun_ = true;
  message_at_ = out_.size();
  std::memset(out_.Reserve(kPrefix), 0, kPrefix);
  out_.Commit(kPrefix);
}

void ServerCall::SealMessage() {
  if (!message_begun_) StartMessage();
  const size_t size = out_.size() - message_at_ - kPrefix;
  uint8_t* prefix = out_.data() + message_at_;
  prefix[0] = 0;
  prefix[1] = static_cast<uint8_t>(size >> 24);
  prefix[2] = static_cast<uint8_t>(size >> 16);
  prefix[3] = static_cast<uint8_t>(size >> 8);
  prefix[4] = static_cast<uint8_t>(size);
  common::MethodCounters& counters = connection_->grpc_.CountersOf(*method_);
  counters.messages_sent.Add(1);
  counters.bytes_sent.Add(size);
}

void ServerCall::SendInitialMetadata() {
  if (headers_sent_) return;
  headers_sent_ = true;
  if (custom_.initial.empty()) {
    connection_->session_.SubmitHeaders(stream_id_, kOkHeaders, std::size(kOkHeaders), this);
  } else {
    Headers headers(std::begin(kOkHeaders), std::end(kOkHeaders));
    AppendCustom(custom_.initial, &headers);
    connection_->session_.SubmitHeaders(stream_id_, headers.data(), headers.size(), this);
  }
  connection_->MarkDirty();
}

void ServerCall::Finish() {
  if (finished_) return;
  finished_ = true;
  SealMessage();
  RecordFinish(absl::StatusCode::kOk);
  SendInitialMetadata();
  UpdateCharges();
}

void ServerCall::Finish(const absl::Status& status) {
  if (!finished_ && common::errors::WasNotExecuted(status)) MarkNotExecuted();
  Finish(status.code(), common::ToStd(status.message()));
}

void ServerCall::Finish(absl::StatusCode code, std::string_view message) {
  if (finished_) return;
  if (method_->unary != nullptr) {
    if (code == absl::StatusCode::kOk && message.empty()) {
      Finish();
      return;
    }
    if (code == absl::StatusCode::kOk) {
      SealMessage();
      finished_ = true;
      message_ = PercentEncode(message, kMaxStatusTextBytes);
      RecordFinish(code);
      SendInitialMetadata();
      UpdateCharges();
      return;
    }
  }
  FailWithCode(code, message);
}

void ServerCall::MarkNotExecuted() {
  AddTrailingMetadata(common::kExecutedMetadata, common::kNotExecuted);
}

void ServerCall::FailWithCode(absl::StatusCode code, std::string_view message) {
  finished_ = true;
  // The handler never heard of it. (Other codes mean that it would not be executed later either.)
  if (!started_ && (code == absl::StatusCode::kResourceExhausted ||
                    code == absl::StatusCode::kDeadlineExceeded)) {
    MarkNotExecuted();
  }
  if (method_ == nullptr) method_ = &connection_->grpc_.unknown_method_;
  status_ = static_cast<absl::StatusCode>(CodeIndex(code));
  message_ = PercentEncode(message, kMaxStatusTextBytes);
  RecordFinish(status_);
  // What it had sent so far is of no use any more.
  if (!started_) in_.Clear(kKeepBytes);
  // What was being written is no message.
  if (method_->streaming == nullptr) {
    out_.Clear();
  } else if (started_ && out_.size() >= message_at_) {
    out_.Truncate(message_at_);
  }
  UpdateCharges();
  if (!headers_sent_ && out_.empty()) {
    SubmitTrailersOnly();
    return;
  }
  SendInitialMetadata();
  if (body_waits_) {
    body_waits_ = false;
    connection_->session_.ResumeBody(stream_id_);
  }
  connection_->MarkDirty();
}

void ServerCall::SubmitTrailersOnly() {
  headers_sent_ = true;
  Headers headers(std::begin(kOkHeaders), std::end(kOkHeaders));
  AppendCustom(custom_.initial, &headers);
  headers.push_back(Header("grpc-status", kCodeTexts[CodeIndex(status_)], kConstant));
  if (!message_.empty()) {
    headers.push_back(Header("grpc-message", message_, NGHTTP2_NV_FLAG_NO_INDEX));
  }
  if (encoding_ == Encoding::kUnknown) {
    headers.push_back(Header("grpc-accept-encoding", "identity,gzip", kConstant));
  }
  AppendCustom(custom_.trailing, &headers);
  connection_->session_.SubmitHeaders(stream_id_, headers.data(), headers.size(), nullptr);
  // The client need not send the rest of its request.
  if (!remote_ended_) connection_->session_.EndsEarly();
  connection_->MarkDirty();
}

void ServerCall::SubmitTrailers() {
  if (status_ == absl::StatusCode::kOk && message_.empty() && custom_.trailing.empty()) {
    connection_->session_.SubmitTrailers(stream_id_, kOkTrailers, std::size(kOkTrailers));
  } else {
    Headers trailers;
    trailers.push_back(Header("grpc-status", kCodeTexts[CodeIndex(status_)], kConstant));
    if (!message_.empty()) {
      trailers.push_back(Header("grpc-message", message_, NGHTTP2_NV_FLAG_NO_INDEX));
    }
    AppendCustom(custom_.trailing, &trailers);
    connection_->session_.SubmitTrailers(stream_id_, trailers.data(), trailers.size());
  }
  if (!remote_ended_) connection_->session_.EndsEarly();
}

void ServerCall::Send() {
  if (finished_) return;
  SealMessage();
  StartMessage();
  UpdateCharges();
  SendInitialMetadata();
  if (body_waits_) {
    body_waits_ = false;
    connection_->session_.ResumeBody(stream_id_);
  }
  if (message_at_ > kCongestedBytes) congested_ = true;
  connection_->MarkDirty();
}

absl::Span<const uint8_t> ServerCall::TakeBody(size_t room) {
  // Of a stream, the message that is being built stays.
  const size_t ready = finished_ ? out_.size() : message_at_;
  const absl::Span<const uint8_t> body = {out_.data(), std::min(room, ready)};
  if (!body.empty()) {
    out_.Consume(body.size());
    message_at_ -= std::min(message_at_, body.size());
    UpdateCharges();
    if (congested_ && message_at_ <= kFlowingBytes) connection_->QueueResume(this);
  }
  return body;
}

void ServerCall::RecordFinish(absl::StatusCode code) {
  GrpcLoop& grpc = connection_->grpc_;
  const Method& method = method_ == nullptr ? grpc.unknown_method_ : *method_;
  grpc.CountersOf(method).Finish(
      static_cast<int>(CodeIndex(code)),
      static_cast<uint64_t>(std::max<int64_t>(0, grpc.Now() - arrived_ns_)));
}

void ServerCall::UpdateCharges() {
  GrpcLoop& grpc = connection_->grpc_;
  const size_t in = in_.size();
  connection_->buffered_bytes_ += in - charged_in_;
  grpc.buffered_bytes_ += in - charged_in_;
  charged_in_ = in;
  const size_t out = out_.size();
  connection_->unsent_bytes_ += out - charged_out_;
  charged_out_ = out;
}

// ---- Ends that the handler did not choose.

void ServerCall::Cancel() {
  if (finished_) return;
  finished_ = true;
  cancelled_ = true;
  if (method_ == nullptr) method_ = &connection_->grpc_.unknown_method_;
  RecordFinish(absl::StatusCode::kCancelled);
  if (!started_) return;
  if (method_->streaming != nullptr) {
    method_->streaming->OnCancelled(*this);
  } else {
    method_->unary->OnCancelled(*this);
  }
}

void ServerCall::Resumed() {
  if (finished_) return;
  if (congested_ && message_at_ <= kFlowingBytes) {
    congested_ = false;
    method_->streaming->OnWritable(*this);
    if (finished_) return;
  }
  DeliverAndTakeMore(1);
}

void ServerCall::ArmTimer(int64_t now_ns) {
  timer_considered_ = true;
  if (finished_) return;
  int64_t at_ns = deadline_ns_;
  if (!started_) at_ns = std::min(at_ns, now_ns + connection_->grpc_.options().request_timeout_ns);
  if (at_ns != kNoDeadline) loop().Arm(timer_, at_ns);
}

void ServerCall::Expired() {
  if (finished_) return;
  GrpcLoop& grpc = connection_->grpc_;
  grpc.ReadClock();
  const int64_t now_ns = grpc.Now();
  const bool deadline = now_ns >= deadline_ns_;
  if (started_) {
    if (!deadline) {
      ArmTimer(now_ns);
      return;
    }
    deadline_passed_ = cancelled_ = true;
    if (method_->streaming != nullptr) {
      method_->streaming->OnCancelled(*this);
    } else {
      method_->unary->OnCancelled(*this);
    }
    if (finished_) return;
  }
  FailWithCode(absl::StatusCode::kDeadlineExceeded,
               deadline ? "the deadline passed" : "the request did not end in time");
}

}  // namespace sluice::transport
