// MessageReader: cuts the bytes of a request into gRPC messages, and decompresses them. A message
// is a prefix of five bytes (compressed or not, length in big-endian order) and its bytes.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_MESSAGE_READER_H_
#define SLUICE_SERVER_TRANSPORT_RPC_MESSAGE_READER_H_

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/buffer.h"

namespace sluice::transport {

using common::Buffer;

// Bounded decompression of gzip messages (RFC 1952), in steps. Reusable; allocates its window
// (about 40 KB) at the first use and keeps it. Not thread-safe.
class GzipInflater {
 public:
  GzipInflater() = default;
  ~GzipInflater();
  GzipInflater(const GzipInflater&) = delete;
  GzipInflater& operator=(const GzipInflater&) = delete;

  // Decompresses up to `step_bytes` more, at most a part for each kBytesPerPart of them, and
  // appends them. Returns whether that was all. Until
  // then, or an error, or Cancel, each call has the same bytes, which may have moved, `max_bytes`
  // and `out`.
  // INTERNAL: `compressed` is not one complete gzip stream. RESOURCE_EXHAUSTED: the result is
  // larger than max_bytes; decompression stopped there.
  absl::StatusOr<bool> Inflate(absl::Span<const uint8_t> compressed, size_t max_bytes,
                               size_t step_bytes, Buffer* out);
  // Forgets the message that is being decompressed.
  void Cancel() { running_ = false; }
  bool running() const { return running_; }
  // The parts decompressed since the last call. A part is at most one block, and takes up to 3 us
  // beside what it gives.
  size_t TakeParts() { return std::exchange(parts_, 0); }

 private:
  static constexpr size_t kBytesPerPart = 256;  // decompressed
  static constexpr size_t kMostPerPart = 1024;  // compressed

  absl::Status Begin(absl::Span<const uint8_t> compressed);

  z_stream stream_{};
  bool ready_ = false;
  bool running_ = false;  // within a message
  size_t left_ = 0;       // bytes of it that are compressed
  size_t total_ = 0;      // bytes of it that are not
  size_t parts_ = 0;
};

// Decompresses one message at a time.
struct Decompressor {
  GzipInflater inflater;
  Buffer message;  // the last message that was decompressed
};

// Not thread-safe; one per call, reusable. Errors are the gRPC status that ends the call:
// RESOURCE_EXHAUSTED (a message above the bound), INTERNAL (broken framing), UNIMPLEMENTED (not
// exactly one message where one is expected).
class MessageReader {
 public:
  enum class Encoding : uint8_t { kIdentity, kGzip, kUnsupported };
  using Message = absl::Span<const uint8_t>;

  // The result of a step towards the next message.
  struct Step {
    enum class State : uint8_t {
      kIncomplete,  // more has to arrive
      kUnfinished,  // more has to be decompressed: call again, with the same decompressor
      kMessage,
    };
    State state = State::kIncomplete;
    Message message = {};
  };

  // `max_message_bytes`: bound of a message, before and after decompression.
  void Begin(Encoding encoding, size_t max_message_bytes) {
    encoding_ = encoding;
    max_message_bytes_ = max_message_bytes;
  }

  void Append(absl::Span<const uint8_t> data) { bytes_.Append(data); }

  // Bytes of the next message as it arrives, which may be compressed; 0: not known yet.
  size_t next_bytes() const { return HasPrefix() ? announced_bytes() : 0; }
  bool next_is_compressed() const { return HasPrefix() && compressed(); }
  // Whether the next message has begun to arrive and is not complete.
  bool awaits_rest() const { return size() > 0 && size() < kPrefixBytes + next_bytes(); }

  // For streams: takes the next message, decompressing at most `step_bytes`. The message is valid
  // until the decompressor is used again or more bytes are appended.
  absl::StatusOr<Step> Next(Decompressor& decompressor, size_t step_bytes);
  // Moves the message that Next returned last into `into`, and returns it there. Copies it, or what
  // follows it, whichever is less.
  Message Keep(Message message, Buffer* into);

  // For requests of one message. Checks what has arrived so far, so that a request that is too
  // large is refused by its announcement.
  absl::Status CheckSingle() const;
  // The message of a complete request, valid until Clear or Swap. As Next; never kIncomplete.
  // REQUIRES: CheckSingle was OK.
  absl::StatusOr<Step> TakeSingle(Decompressor& decompressor, size_t step_bytes);

  // Bytes that arrived and were not taken.
  size_t size() const { return bytes_.size(); }
  size_t capacity() const { return bytes_.capacity(); }
  void Clear(size_t keep) { bytes_.Clear(keep); }
  void Trim(size_t keep) { bytes_.Trim(keep); }
  void Swap(Buffer& other) { bytes_.Swap(other); }

 private:
  static constexpr size_t kPrefixBytes = 5;

  bool HasPrefix() const { return bytes_.size() >= kPrefixBytes; }
  bool compressed() const { return bytes_.data()[0] == 1; }
  size_t announced_bytes() const;
  absl::Status CheckPrefix() const;
  // The message itself, or the next step of its decompression.
  absl::StatusOr<Step> Decompress(Message message, Decompressor& decompressor,
                                  size_t step_bytes) const;

  Buffer bytes_;
  size_t max_message_bytes_ = 0;
  Encoding encoding_ = Encoding::kIdentity;
  bool in_place_ = false;  // the message that Next returned last
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_MESSAGE_READER_H_
