// FrameScanner: checks the frame headers of a client's bytes before nghttp2 reads them.
//
// nghttp2 does not report frames that it ignores, and bounds few of the frames that cost the server
// more than the client. The scanner does both, for a few nanoseconds a frame. It ends connections
// that send
//  - frames on streams that the client itself has closed: STREAM_CLOSED;
//  - HEADERS with a stream id that was skipped before: PROTOCOL_ERROR. (Skipping ids is valid: some
//    clients begin at 13.)
//  - more frames than honest clients do of PING, SETTINGS, PRIORITY, RST_STREAM, WINDOW_UPDATE,
//    CONTINUATION, unknown and empty DATA frames: ENHANCE_YOUR_CALM.
//
// Not thread-safe; one per connection.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP2_FRAME_SCANNER_H_
#define SLUICE_SERVER_TRANSPORT_HTTP2_FRAME_SCANNER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice::transport {

// How many events of one kind a peer may cause. It refills with time.
//
// HTTP/2 leaves pings, empty frames, resets and others unlimited. They are cheap to send and not
// free to handle. Each kind has a budget per connection: honest peers stay within it, a flood
// spends it in milliseconds and loses its connection (ENHANCE_YOUR_CALM).
class Budget {
 public:
  // Holds at most `burst`, is full at `now_ns`, and gains one each `refill_ns`.
  Budget(int32_t burst, int64_t refill_ns, int64_t now_ns)
      : left_(burst), burst_(burst), refill_ns_(refill_ns), refilled_ns_(now_ns) {}

  // Takes `count`. Returns false if that was more than was left. `now_ns` must not run backwards.
  // The refill is computed only when the budget seems spent, so a peer that was quiet for long has
  // up to twice the burst.
  bool Spend(int32_t count, int64_t now_ns) {
    left_ -= count;
    if (left_ >= 0) return true;
    const int64_t gained = (now_ns - refilled_ns_) / refill_ns_;
    if (gained > 0) {
      refilled_ns_ += gained * refill_ns_;
      left_ = static_cast<int32_t>(std::min<int64_t>(burst_, left_ + gained));
    }
    return left_ >= 0;
  }

  // Gives back `count`, for something useful that the peer did.
  void Earn(int32_t count) { left_ = std::min(burst_, left_ + count); }
  void Fill() { left_ = burst_; }

 private:
  int32_t left_;
  int32_t burst_;
  int64_t refill_ns_;
  int64_t refilled_ns_;
};

class FrameScanner {
 public:
  struct Verdict {
    // Bytes at the front of the input that nghttp2 may read now.
    size_t pass = 0;
    // Not 0: end the connection with this error code, after nghttp2 has read `pass` bytes.
    uint32_t error = 0;
    const char* text = "";
  };

  explicit FrameScanner(int64_t now_ns);

  // Scans `data`, the next bytes of the connection. If not all of it passes, let nghttp2 read the
  // part that passed, report the streams that this closed, and scan the rest.
  Verdict Scan(absl::Span<const uint8_t> data, int64_t now_ns);

  // The client ended `stream_id` (END_STREAM or RST_STREAM), and it is closed: the client may send
  // no more frames on it.
  void StreamClosedByPeer(int32_t stream_id) {
    closed_[closed_next_++ % closed_.size()] = stream_id;
    newest_closed_ = std::max(newest_closed_, stream_id);
  }

  // The server reset a stream because of what the client sent on it. Returns false if this happened
  // too often.
  bool StreamFault(int32_t weight, int64_t now_ns) { return resets_.Spend(weight, now_ns); }

  // The client reset a stream. Returns false if it reset too many. Only short-lived streams count:
  // a flood opens and resets at once; honest callers wait before they give up.
  bool StreamResetByPeer(bool short_lived, int64_t now_ns) {
    return !short_lived || resets_.Spend(1, now_ns);
  }

  // A stream ended without a reset.
  void CallFinished() { resets_.Earn(1); }

  // The server sent HEADERS or DATA, which clients may answer with pings and window updates.
  void SentUseful() {
    pings_.Fill();
    window_updates_.Earn(kWindowUpdatesPerFrame);
  }

  // The client sent its preface and all of its first SETTINGS.
  bool greeted() const { return greeted_; }
  // Whether a frame or a header block is incomplete.
  bool mid_frame() const { return header_bytes_ > 0 || payload_left_ > 0 || in_header_block_; }
  bool in_header_block() const { return in_header_block_; }
  // Complete frame headers so far.
  uint64_t frames() const { return frames_; }

 private:
  static constexpr size_t kFrameHeader = 9;
  static constexpr size_t kPreface = 24;
  static constexpr int32_t kWindowUpdatesPerFrame = 8;
  static constexpr int kMaxContinuations = 8;

  struct SkippedRange {
    int32_t first = 0;
    int32_t last = -1;
  };

  // Checks the frame header in header_. Returns false, with `verdict`, if it ends the connection.
  bool Check(int64_t now_ns, Verdict* verdict);
  bool CheckHeaders(int32_t stream_id, uint8_t flags, Verdict* verdict);
  bool ClosedByPeer(int32_t stream_id) const;

  size_t preface_left_ = kPreface;
  size_t header_bytes_ = 0;
  size_t payload_left_ = 0;
  uint64_t frames_ = 0;
  bool greeted_ = false;
  bool in_header_block_ = false;
  // A RST_STREAM passed within this Scan; nghttp2 has not reported yet what it closed.
  bool closes_pending_ = false;
  int continuations_ = 0;
  int32_t last_stream_id_ = 0;
  // The stream of the last HEADERS, until it ends: its DATA frames need no look-up.
  int32_t current_ = 0;
  uint8_t header_[kFrameHeader];

  // The latest 64 streams that the client ended; 0: none.
  std::array<int32_t, 64> closed_{};
  uint32_t closed_next_ = 0;
  int32_t newest_closed_ = 0;  // the highest id among them
  // The latest 16 ranges of skipped odd ids.
  std::array<SkippedRange, 16> skipped_{};
  uint32_t skipped_next_ = 0;

  Budget pings_;
  Budget settings_;
  Budget priorities_;
  Budget resets_;
  Budget window_updates_;
  Budget empty_data_;
  Budget unknown_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_HTTP2_FRAME_SCANNER_H_
