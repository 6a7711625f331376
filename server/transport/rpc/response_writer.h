// ResponseWriter: the response of a call while it is built: metadata, messages, status.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RESPONSE_WRITER_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RESPONSE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/http2/header_writer.h"

namespace sluice::transport {

using common::Buffer;

// The gRPC code of a status, 0 to 16; UNKNOWN for any other number.
inline absl::StatusCode GrpcCode(absl::StatusCode code) {
  const int value = static_cast<int>(code);
  return value >= 0 && value <= 16 ? code : absl::StatusCode::kUnknown;
}

// Not thread-safe; one per call, reusable.
class ResponseWriter {
 public:
  // The message that is being written: append to it. Unsent messages may precede it. It takes
  // memory from its first use on: thousands of calls may wait for their responses.
  Buffer& message() {
    if (bytes_.size() == ready_bytes_) BeginMessage();
    return bytes_;
  }
  // Completes the message, which may be empty. Returns its size.
  size_t FinishMessage();
  // Drops the message that is being written. As Trim.
  void DropMessage(size_t keep) {
    bytes_.Truncate(ready_bytes_);
    bytes_.Trim(keep);
  }
  // The body of a response that is not gRPC's.
  void WriteText(std::string_view text) {
    bytes_.Append(text);
    ready_bytes_ = bytes_.size();
  }

  // Copies both. Binary values are encoded already.
  void AddInitialMetadata(std::string_view name, std::string_view value) {
    initial_metadata_.emplace_back(name, value);
  }
  void AddTrailingMetadata(std::string_view name, std::string_view value) {
    trailing_metadata_.emplace_back(name, value);
  }
  // OK without a message unless set.
  void SetStatus(absl::StatusCode code, std::string_view message);

  void AppendHeaders(http2::HeaderWriter& to) const;
  // Headers and status at once, without a message.
  void AppendTrailersOnly(http2::HeaderWriter& to) const;
  void AppendTrailers(http2::HeaderWriter& to) const;

  // The next bytes to be sent, at most `room`. Valid until the next message begins.
  absl::Span<const uint8_t> TakeBody(size_t room);

  // Bytes of complete messages that are not sent.
  size_t ready_bytes() const { return ready_bytes_; }
  // With the message that is being written.
  size_t size() const { return bytes_.size(); }
  // Bytes of memory, without metadata.
  size_t memory() const { return bytes_.capacity() + status_message_.capacity(); }

  // Makes it as new; keeps at most `keep` bytes of memory.
  void Clear(size_t keep);
  // Gives most of its memory back if it holds more than `keep` bytes and uses few. Ends the view
  // that TakeBody returned.
  void Trim(size_t keep) { bytes_.Trim(keep); }

 private:
  using Metadata = std::vector<std::pair<std::string, std::string>>;

  void BeginMessage();
  void AppendStatus(http2::HeaderWriter& to) const;

  Buffer bytes_;
  size_t ready_bytes_ = 0;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::string status_message_;  // percent-encoded
  Metadata initial_metadata_;
  Metadata trailing_metadata_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RESPONSE_WRITER_H_
