// FrameReader: cuts a connection's input into frames, wherever the input is split.
#ifndef SLUICE_COMMON_HTTP2_FRAME_READER_H_
#define SLUICE_COMMON_HTTP2_FRAME_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/http2/frames.h"

namespace sluice::http2 {

// Not thread-safe; one per connection.
class FrameReader {
 public:
  // A frame. A DATA frame may come in several pieces, as it arrives; the first one of a padded
  // frame has at least the length of the padding, if the frame has.
  struct Piece {
    FrameHeader header;
    absl::Span<const uint8_t> payload;  // valid until the next call
    bool first = true;
    bool last = true;
  };
  enum class Result : uint8_t {
    kPiece,
    kNeedsInput,  // all input was taken, and belongs to an unfinished frame
    kTooLarge,    // the next frame is larger than kDefaultMaxFrameBytes
  };

  // Takes the next piece from the front of `data`.
  Result Next(absl::Span<const uint8_t>* data, Piece* piece) {
    if (given_kept_) ForgetKept();
    if (data_left_ > 0) return NextOfData(data, piece);
    if (!kept_.empty()) return NextOfKept(data, piece);
    if (data->size() < kFrameHeaderBytes) return Keep(data);
    piece->header = ReadFrameHeader(data->data());
    const size_t length = piece->header.length;
    if (length > kDefaultMaxFrameBytes) return Result::kTooLarge;
    const size_t here = data->size() - kFrameHeaderBytes;
    if (here < length && here < NeededBytes(piece->header)) return Keep(data);
    const size_t taken = std::min(here, length);
    piece->payload = data->subspan(kFrameHeaderBytes, taken);
    data->remove_prefix(kFrameHeaderBytes + taken);
    return Begin(piece);
  }

  // Whether a frame has begun and is not complete.
  bool mid_frame() const { return data_left_ > 0 || (!kept_.empty() && !given_kept_); }
  // Complete frames so far.
  uint64_t frames() const { return frames_; }
  size_t memory() const { return kept_.capacity(); }

 private:
  // Bytes that stay allocated between unfinished frames.
  static constexpr size_t kKeepBytes = 512;

  // Payload without which a frame cannot be given.
  static size_t NeededBytes(const FrameHeader& header) {
    if (header.type != FrameType::kData) return header.length;
    return header.has(kPadded) ? std::min<size_t>(1, header.length) : 0;
  }
  // The first piece of a frame has its payload.
  Result Begin(Piece* piece) {
    data_left_ = piece->header.length - piece->payload.size();
    piece->first = true;
    piece->last = data_left_ == 0;
    if (piece->last) {
      ++frames_;
    } else {
      data_header_ = piece->header;
    }
    return Result::kPiece;
  }
  Result Keep(absl::Span<const uint8_t>* data) {
    kept_.Append(*data);
    data->remove_prefix(data->size());
    return Result::kNeedsInput;
  }
  void ForgetKept() {
    kept_.Clear(kKeepBytes);
    given_kept_ = false;
  }
  Result NextOfData(absl::Span<const uint8_t>* data, Piece* piece);
  Result NextOfKept(absl::Span<const uint8_t>* data, Piece* piece);
  // Moves input to kept_ until it has `bytes`. Returns whether it has.
  bool FillKept(absl::Span<const uint8_t>* data, size_t bytes);

  common::Buffer kept_;      // an unfinished frame; of DATA, its header
  bool given_kept_ = false;  // the last piece was a view of it
  size_t data_left_ = 0;     // of a DATA frame that has begun
  FrameHeader data_header_;
  uint64_t frames_ = 0;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_FRAME_READER_H_
