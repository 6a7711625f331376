#include "server/transport/rpc/response_writer.h"

#include <algorithm>
#include <cstring>

#include "server/transport/rpc/grpc_text.h"

namespace sluice::transport {
namespace {

constexpr size_t kPrefixBytes = 5;
constexpr size_t kMaxStatusMessageBytes = 2048;

// What nearly all responses have.
const http2::HpackConstant& Status200() {
  static const http2::HpackConstant field(":status", "200");
  return field;
}
const http2::HpackConstant& GrpcContent() {
  static const http2::HpackConstant field("content-type", "application/grpc");
  return field;
}
const http2::HpackConstant& GrpcOk() {
  static const http2::HpackConstant field("grpc-status", "0");
  return field;
}

constexpr std::string_view kCodeTexts[] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                           "9", "10", "11", "12", "13", "14", "15", "16"};

void Append(const std::vector<std::pair<std::string, std::string>>& metadata,
            http2::HeaderWriter& to) {
  for (const auto& [name, value] : metadata) to.Append(name, value);
}

}  // namespace

// Reserves the prefix, which FinishMessage fills.
void ResponseWriter::BeginMessage() {
  std::memset(bytes_.Reserve(kPrefixBytes), 0, kPrefixBytes);
  bytes_.Commit(kPrefixBytes);
}

size_t ResponseWriter::FinishMessage() {
  Buffer& bytes = message();
  const size_t size = bytes.size() - ready_bytes_ - kPrefixBytes;
  uint8_t* const prefix = bytes.data() + ready_bytes_;
  prefix[0] = 0;  // not compressed
  prefix[1] = static_cast<uint8_t>(size >> 24);
  prefix[2] = static_cast<uint8_t>(size >> 16);
  prefix[3] = static_cast<uint8_t>(size >> 8);
  prefix[4] = static_cast<uint8_t>(size);
  ready_bytes_ = bytes.size();
  return size;
}

void ResponseWriter::SetStatus(absl::StatusCode code, std::string_view message) {
  code_ = GrpcCode(code);
  if (!message.empty()) status_message_ = PercentEncode(message, kMaxStatusMessageBytes);
}

void ResponseWriter::AppendHeaders(http2::HeaderWriter& to) const {
  to.Append(Status200());
  to.Append(GrpcContent());
  Append(initial_metadata_, to);
}

void ResponseWriter::AppendTrailersOnly(http2::HeaderWriter& to) const {
  AppendHeaders(to);
  AppendTrailers(to);
}

void ResponseWriter::AppendTrailers(http2::HeaderWriter& to) const {
  AppendStatus(to);
  Append(trailing_metadata_, to);
}

void ResponseWriter::AppendStatus(http2::HeaderWriter& to) const {
  if (code_ == absl::StatusCode::kOk) {
    to.Append(GrpcOk());
  } else {
    to.Append("grpc-status", kCodeTexts[static_cast<size_t>(code_)]);
  }
  if (!status_message_.empty()) to.Append("grpc-message", status_message_);
}

absl::Span<const uint8_t> ResponseWriter::TakeBody(size_t room) {
  const absl::Span<const uint8_t> body = {bytes_.data(), std::min(room, ready_bytes_)};
  bytes_.Consume(body.size());  // leaves the bytes in place until the next message begins
  ready_bytes_ -= body.size();
  return body;
}

void ResponseWriter::Clear(size_t keep) {
  bytes_.Clear(keep);
  ready_bytes_ = 0;
  code_ = absl::StatusCode::kOk;
  if (!status_message_.empty()) status_message_ = std::string();
  initial_metadata_.clear();
  trailing_metadata_.clear();
}

}  // namespace sluice::transport
