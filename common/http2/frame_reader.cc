#include "common/http2/frame_reader.h"

namespace sluice::http2 {

FrameReader::Result FrameReader::NextOfData(absl::Span<const uint8_t>* data, Piece* piece) {
  if (data->empty()) return Result::kNeedsInput;
  const size_t taken = std::min(data_left_, data->size());
  data_left_ -= taken;
  *piece = {data_header_, data->first(taken), /*first=*/false, /*last=*/data_left_ == 0};
  data->remove_prefix(taken);
  if (piece->last) ++frames_;
  return Result::kPiece;
}

FrameReader::Result FrameReader::NextOfKept(absl::Span<const uint8_t>* data, Piece* piece) {
  if (!FillKept(data, kFrameHeaderBytes)) return Result::kNeedsInput;
  piece->header = ReadFrameHeader(kept_.data());
  if (piece->header.length > kDefaultMaxFrameBytes) return Result::kTooLarge;
  const size_t needed = NeededBytes(piece->header);
  if (!FillKept(data, kFrameHeaderBytes + needed)) return Result::kNeedsInput;
  piece->payload = kept_.view().subspan(kFrameHeaderBytes);
  given_kept_ = true;
  return Begin(piece);
}

bool FrameReader::FillKept(absl::Span<const uint8_t>* data, size_t bytes) {
  if (kept_.size() < bytes) {
    const size_t taken = std::min(bytes - kept_.size(), data->size());
    kept_.Append(data->first(taken));
    data->remove_prefix(taken);
  }
  return kept_.size() >= bytes;
}

}  // namespace sluice::http2
