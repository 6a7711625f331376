#include "server/transport/rpc/message_reader.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace sluice::transport {

GzipInflater::~GzipInflater() {
  if (ready_) inflateEnd(&stream_);
}

absl::Status GzipInflater::Begin(absl::Span<const uint8_t> compressed) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  const int started = ready_ ? inflateReset(&stream_) : inflateInit2(&stream_, kGzipOnly);
  if (started != Z_OK) return absl::ResourceExhaustedError("no memory to decompress");
  ready_ = running_ = true;
  left_ = compressed.size();
  total_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<bool> GzipInflater::Inflate(absl::Span<const uint8_t> compressed, size_t max_bytes,
                                           size_t step_bytes, Buffer* out) {
  if (!running_) {
    if (absl::Status begun = Begin(compressed); !begun.ok()) return begun;
  }
  absl::Cleanup stop = [this] { running_ = false; };
  const size_t until = total_ + step_bytes;
  // Blocks, and a header, that decompress to nothing take time too.
  for (size_t parts = 0;; ++parts, ++parts_) {
    if (total_ >= until || parts > step_bytes / kBytesPerPart) {
      std::move(stop).Cancel();
      return false;
    }
    // Room for one byte above the bound shows whether the message is larger than the bound.
    const size_t room = std::min(max_bytes + 1 - total_, step_bytes);
    stream_.next_out = out->Reserve(room);
    stream_.avail_out = static_cast<uInt>(room);
    const size_t given = std::min(left_, kMostPerPart);
    stream_.next_in = const_cast<uint8_t*>(compressed.end()) - left_;
    stream_.avail_in = static_cast<uInt>(given);
    const int result = inflate(&stream_, Z_BLOCK);
    left_ -= given - stream_.avail_in;
    const size_t made = room - stream_.avail_out;
    out->Commit(made);
    total_ += made;
    if (total_ > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the decompressed message has more than ", max_bytes, " bytes"));
    }
    if (result == Z_STREAM_END) break;
    if (result != Z_OK) return absl::InternalError("the message is not valid gzip");
  }
  if (left_ != 0) {
    return absl::InternalError("bytes follow the end of the message's gzip stream");
  }
  return true;
}

size_t MessageReader::announced_bytes() const {
  const uint8_t* const prefix = bytes_.data();
  return size_t{prefix[1]} << 24 | size_t{prefix[2]} << 16 | size_t{prefix[3]} << 8 | prefix[4];
}

absl::Status MessageReader::CheckPrefix() const {
  const uint8_t first = bytes_.data()[0];
  if (first > 1) {
    return absl::InternalError("a message's first byte must be 0 (plain) or 1 (compressed)");
  }
  if (first == 1 && encoding_ != Encoding::kGzip) {
    return absl::InternalError(
        "a message is marked as compressed, and grpc-encoding names no compression");
  }
  if (announced_bytes() > max_message_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("a message of ", announced_bytes(),
                                                     " bytes is announced; at most ",
                                                     max_message_bytes_, " are allowed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<MessageReader::Step> MessageReader::Decompress(Message message,
                                                              Decompressor& decompressor,
                                                              size_t step_bytes) const {
  if (!compressed()) return Step{Step::State::kMessage, message};
  constexpr size_t kKeepBytes = 16 << 10;
  if (!decompressor.inflater.running()) decompressor.message.Clear(kKeepBytes);
  const absl::StatusOr<bool> done =
      decompressor.inflater.Inflate(message, max_message_bytes_, step_bytes, &decompressor.message);
  if (!done.ok()) return done.status();
  if (!*done) return Step{Step::State::kUnfinished};
  return Step{Step::State::kMessage, decompressor.message.view()};
}

absl::StatusOr<MessageReader::Step> MessageReader::Next(Decompressor& decompressor,
                                                        size_t step_bytes) {
  if (!HasPrefix()) return Step{};
  if (absl::Status checked = CheckPrefix(); !checked.ok()) return checked;
  const size_t size = announced_bytes();
  if (bytes_.size() < kPrefixBytes + size) return Step{};
  const absl::StatusOr<Step> step =
      Decompress({bytes_.data() + kPrefixBytes, size}, decompressor, step_bytes);
  in_place_ = !compressed();
  // Consumed bytes stay in place until the next Append.
  if (!step.ok() || step->state == Step::State::kMessage) bytes_.Consume(kPrefixBytes + size);
  return step;
}

MessageReader::Message MessageReader::Keep(Message message, Buffer* into) {
  into->Clear();
  if (!in_place_ || message.size() < bytes_.size()) {
    into->Append(message);
    return into->view();
  }
  into->Append(bytes_.view());
  bytes_.Swap(*into);
  return message;
}

absl::Status MessageReader::CheckSingle() const {
  if (!HasPrefix()) return absl::OkStatus();
  if (absl::Status checked = CheckPrefix(); !checked.ok()) return checked;
  if (bytes_.size() > kPrefixBytes + announced_bytes()) {
    return absl::UnimplementedError("the method takes one request, and more were sent");
  }
  return absl::OkStatus();
}

absl::StatusOr<MessageReader::Step> MessageReader::TakeSingle(Decompressor& decompressor,
                                                              size_t step_bytes) {
  if (bytes_.empty()) {
    return absl::UnimplementedError("the method takes one request, and none was sent");
  }
  if (!HasPrefix() || bytes_.size() != kPrefixBytes + announced_bytes()) {
    return absl::InternalError("the request ended within a message");
  }
  constexpr size_t kSmallBytes = 4 << 10;
  const bool swap = compressed();
  absl::StatusOr<Step> step =
      Decompress({bytes_.data() + kPrefixBytes, announced_bytes()}, decompressor, step_bytes);
  if (swap && step.ok() && step->state == Step::State::kMessage) {
    // The message must last as long as the call, and a held call may last for hours.
    if (decompressor.message.capacity() > 2 * step->message.size()) {
      bytes_.Clear(std::max(kSmallBytes, 2 * step->message.size()));
      bytes_.Append(step->message);
    } else {
      bytes_.Swap(decompressor.message);
    }
    step->message = bytes_.view();
  }
  return step;
}

}  // namespace sluice::transport
