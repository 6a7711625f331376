// FrameScanner: reads the 9-byte frame headers of what a client sends, before nghttp2 does.
//
// nghttp2 says nothing of frames that it ignores, and limits few of those that cost the server
// more than the client. The scanner fills both gaps, for a few nanoseconds a frame:
//  - frames on streams that the client itself has closed: STREAM_CLOSED;
//  - HEADERS with a stream id below the greatest one that was never used: PROTOCOL_ERROR. (A gap
//    as such is right: real clients begin at 13.)
//  - budgets for what no honest client does much of: PING, SETTINGS, PRIORITY, RST_STREAM,
//    WINDOW_UPDATE, CONTINUATION, unknown and empty DATA frames: ENHANCE_YOUR_CALM.
//
// Not thread-safe; one per connection.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP2_FRAME_SCANNER_H_
#define SLUICE_SERVER_TRANSPORT_HTTP2_FRAME_SCANNER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "server/transport/http2/budget.h"

namespace sluice::transport {

class FrameScanner {
 public:
  struct Verdict {
    // Bytes at the front of what was scanned that may be handed on now.
    size_t pass = 0;
    // Not 0: an error code with which the connection ends, after `pass` bytes were handed on.
    uint32_t error = 0;
    const char* text = "";
  };

  explicit FrameScanner(int64_t now_ns);

  // Scans `data`, the next bytes of the connection. When it returns less than all, the caller
  // hands on what passed, reports the streams that this closed, and scans the rest.
  Verdict Scan(absl::Span<const uint8_t> data, int64_t now_ns);

  // The client ended `stream_id` itself (END_STREAM or RST_STREAM), and it is closed now: nothing
  // may come on it any more.
  void StreamClosedByPeer(int32_t stream_id) {
    closed_[closed_next_++ % closed_.size()] = stream_id;
    newest_closed_ = std::max(newest_closed_, stream_id);
  }

  // We reset a stream because of what the client sent on it. False: too many.
  bool StreamFault(int32_t weight, int64_t now_ns) { return resets_.Spend(weight, now_ns); }

  // The client reset a stream. One that had lived for a while (a caller that waited and gave up,
  // a proxy's client that went away) costs nothing: the flood is opening and resetting at once.
  bool StreamResetByPeer(bool short_lived, int64_t now_ns) {
    return !short_lived || resets_.Spend(1, now_ns);
  }

  // A stream ended as it should.
  void CallFinished() { resets_.Earn(1); }

  // We sent HEADERS or DATA: pings and window updates may answer that.
  void SentUseful() {
    pings_.Fill();
    window_updates_.Earn(kWindowUpdatesPerFrame);
  }

  // The client sent its preface and all of its first SETTINGS.
  bool greeted() const { return greeted_; }
  // In the middle of a frame or a header block: the peer owes us its rest.
  bool mid_frame() const { return header_bytes_ > 0 || payload_left_ > 0 || in_header_block_; }
  bool in_header_block() const { return in_header_block_; }
  // Frame headers that were seen in full.
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

  // Judges the frame header in header_; fills `verdict` and returns false when it is bad.
  bool Judge(int64_t now_ns, Verdict* verdict);
  bool JudgeHeaders(int32_t stream_id, uint8_t flags, Verdict* verdict);
  bool ClosedByPeer(int32_t stream_id) const;

  size_t preface_left_ = kPreface;
  size_t header_bytes_ = 0;
  size_t payload_left_ = 0;
  uint64_t frames_ = 0;
  bool greeted_ = false;
  bool in_header_block_ = false;
  // A RST_STREAM passed within this Scan: what it closed is not known yet.
  bool closes_pending_ = false;
  int continuations_ = 0;
  int32_t last_stream_id_ = 0;
  // The stream whose HEADERS came last, as long as it has not ended: its DATA needs no look-up.
  int32_t current_ = 0;
  uint8_t header_[kFrameHeader];

  // Streams that the client ended, the latest 64; 0 matches none.
  std::array<int32_t, 64> closed_{};
  uint32_t closed_next_ = 0;
  int32_t newest_closed_ = 0;  // streams above it are not among them
  // Ranges of odd ids that were skipped, the latest 16.
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
