#include "server/transport/rpc/response_writer.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/container/inlined_vector.h"
#include "server/transport/rpc/grpc_text.h"

namespace sluice::transport {
namespace {

using Kind = HeaderKind;
using Fields = absl::InlinedVector<HeaderField, 8>;

constexpr size_t kPrefixBytes = 5;
constexpr size_t kMaxStatusMessageBytes = 2048;

const HeaderField kHeaders[] = {MakeHeader(":status", "200", Kind::kConstant),
                                MakeHeader("content-type", "application/grpc", Kind::kConstant)};
const HeaderField kOkTrailers[] = {MakeHeader("grpc-status", "0", Kind::kConstant)};
constexpr std::string_view kCodeTexts[] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                                           "9", "10", "11", "12", "13", "14", "15", "16"};

void Append(const std::vector<std::pair<std::string, std::string>>& metadata, Fields* fields) {
  for (const auto& [name, value] : metadata) {
    fields->push_back(MakeHeader(name, value, Kind::kCopied));
  }
}

void AppendStatus(absl::StatusCode code, std::string_view message, Fields* fields) {
  fields->push_back(
      MakeHeader("grpc-status", kCodeTexts[static_cast<size_t>(code)], Kind::kConstant));
  if (!message.empty()) fields->push_back(MakeHeader("grpc-message", message, Kind::kUnindexed));
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

void ResponseWriter::SubmitHeaders(Http2Session& session, Http2Stream& stream) const {
  if (initial_metadata_.empty()) {
    session.SubmitHeaders(stream, kHeaders, /*has_body=*/true);
    return;
  }
  Fields fields(std::begin(kHeaders), std::end(kHeaders));
  Append(initial_metadata_, &fields);
  session.SubmitHeaders(stream, fields, /*has_body=*/true);
}

void ResponseWriter::SubmitTrailersOnly(Http2Session& session, Http2Stream& stream) const {
  Fields fields(std::begin(kHeaders), std::end(kHeaders));
  Append(initial_metadata_, &fields);
  AppendStatus(code_, status_message_, &fields);
  Append(trailing_metadata_, &fields);
  session.SubmitHeaders(stream, fields, /*has_body=*/false);
}

void ResponseWriter::SubmitTrailers(Http2Session& session, Http2Stream& stream) const {
  if (code_ == absl::StatusCode::kOk && status_message_.empty() && trailing_metadata_.empty()) {
    session.SubmitTrailers(stream, kOkTrailers);
    return;
  }
  Fields fields;
  AppendStatus(code_, status_message_, &fields);
  Append(trailing_metadata_, &fields);
  session.SubmitTrailers(stream, fields);
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
  status_message_.clear();
  initial_metadata_.clear();
  trailing_metadata_.clear();
}

}  // namespace sluice::transport
