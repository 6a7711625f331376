#include "server/transport/http2/frame_scanner.h"

#include <nghttp2/nghttp2.h>

#include <cstring>

namespace sluice::transport {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;

}  // namespace

// Each budget is far above the needs of honest clients:
//  PING: gRPC clients send one per bandwidth estimate, which follows our DATA (and fills the
//    budget), and keepalives, which are seconds apart.
//  SETTINGS: one, seldom a few more.
//  PRIORITY: browsers send a handful at the start; gRPC clients none.
//  resets: few at once, compared with finished calls.
//  WINDOW_UPDATE: a few per DATA frame of ours.
//  empty DATA and unknown frames: none, except that some clients send unknown frames on purpose
//    (RFC 8701, GREASE).
FrameScanner::FrameScanner(int64_t now_ns)
    : pings_(10, 5 * kSecond, now_ns),
      settings_(32, kSecond, now_ns),
      priorities_(256, 100 * kMs, now_ns),
      resets_(2000, 2 * kMs, now_ns),
      window_updates_(512, 10 * kMs, now_ns),
      empty_data_(128, 100 * kMs, now_ns),
      unknown_(128, 100 * kMs, now_ns) {}

FrameScanner::Verdict FrameScanner::Scan(absl::Span<const uint8_t> data, int64_t now_ns) {
  Verdict verdict;
  const uint8_t* const begin = data.data();
  const uint8_t* at = begin;
  const uint8_t* const end = begin + data.size();
  closes_pending_ = false;
  if (preface_left_ > 0) {
    // nghttp2 checks it.
    const size_t taken = std::min<size_t>(preface_left_, end - at);
    preface_left_ -= taken;
    at += taken;
  }
  while (at < end) {
    if (payload_left_ > 0) {
      const size_t taken = std::min<size_t>(payload_left_, end - at);
      payload_left_ -= taken;
      at += taken;
      if (payload_left_ == 0) greeted_ = true;
      continue;
    }
    // The header may be here as a whole, or arrive in pieces.
    const size_t taken = std::min<size_t>(kFrameHeader - header_bytes_, end - at);
    std::memcpy(header_ + header_bytes_, at, taken);
    if (header_bytes_ + taken < kFrameHeader) {
      header_bytes_ += taken;
      at = end;
      break;
    }
    if (closes_pending_) {
      const uint8_t type = header_[3];
      if (type == NGHTTP2_DATA || type == NGHTTP2_HEADERS) {
        // nghttp2 must read the RST_STREAM first: it may have closed this frame's stream.
        verdict.pass = at - begin;
        return verdict;
      }
    }
    if (!Check(now_ns, &verdict)) {
      // nghttp2 may have read the first part of this header with an earlier piece. It never gets
      // the rest, as the connection ends.
      verdict.pass = at - begin;
      return verdict;
    }
    header_bytes_ = 0;
    ++frames_;
    at += taken;
    if (payload_left_ == 0) greeted_ = true;
  }
  verdict.pass = data.size();
  return verdict;
}

bool FrameScanner::Check(int64_t now_ns, Verdict* verdict) {
  const size_t length = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
  const uint8_t type = header_[3];
  const uint8_t flags = header_[4];
  const auto stream_id =
      static_cast<int32_t>((uint32_t{header_[5]} & 0x7f) << 24 | uint32_t{header_[6]} << 16 |
                           uint32_t{header_[7]} << 8 | header_[8]);
  payload_left_ = length;
  const auto too_many = [verdict](bool within, const char* text) {
    if (within) return true;
    verdict->error = NGHTTP2_ENHANCE_YOUR_CALM;
    verdict->text = text;
    return false;
  };
  switch (type) {
    case NGHTTP2_DATA:
      if (stream_id == current_) {
        if (flags & NGHTTP2_FLAG_END_STREAM) current_ = 0;
      } else if (ClosedByPeer(stream_id)) {
        verdict->error = NGHTTP2_STREAM_CLOSED;
        verdict->text = "DATA on a closed stream";
        return false;
      }
      if (length <= 1 && (flags & NGHTTP2_FLAG_END_STREAM) == 0) {
        if (length == 0 || (flags & NGHTTP2_FLAG_PADDED)) {
          return too_many(empty_data_.Spend(1, now_ns), "too_many_empty_data");
        }
      }
      return true;
    case NGHTTP2_HEADERS:
      return CheckHeaders(stream_id, flags, verdict);
    case NGHTTP2_CONTINUATION:
      if (flags & NGHTTP2_FLAG_END_HEADERS) in_header_block_ = false;
      return too_many(++continuations_ <= kMaxContinuations, "too_many_continuations");
    case NGHTTP2_PRIORITY:
      return too_many(priorities_.Spend(1, now_ns), "too_many_priorities");
    case NGHTTP2_RST_STREAM:
      closes_pending_ = true;
      if (stream_id == current_) current_ = 0;
      return true;
    case NGHTTP2_SETTINGS:
      return too_many(settings_.Spend(1, now_ns), "too_many_settings");
    case NGHTTP2_PING:
      if (flags & NGHTTP2_FLAG_ACK) {
        return too_many(unknown_.Spend(1, now_ns), "too_many_ping_acks");
      }
      return too_many(pings_.Spend(1, now_ns), "too_many_pings");
    case NGHTTP2_WINDOW_UPDATE:
      return too_many(window_updates_.Spend(1, now_ns), "too_many_window_updates");
    default:
      return too_many(unknown_.Spend(1, now_ns), "too_many_unknown_frames");
  }
}

bool FrameScanner::CheckHeaders(int32_t stream_id, uint8_t flags, Verdict* verdict) {
  in_header_block_ = (flags & NGHTTP2_FLAG_END_HEADERS) == 0;
  continuations_ = 0;
  if (stream_id > last_stream_id_) {
    if ((stream_id & 1) != 0) {
      const int32_t expected = last_stream_id_ == 0 ? 1 : last_stream_id_ + 2;
      if (stream_id > expected) {
        skipped_[skipped_next_++ % skipped_.size()] = {expected, stream_id - 2};
      }
      last_stream_id_ = stream_id;
      // Clients enlarge a stream's window when they open the stream. If calls are held for long,
      // thousands of these updates arrive before the first response.
      window_updates_.Earn(kWindowUpdatesPerFrame);
    }
    current_ = (flags & NGHTTP2_FLAG_END_STREAM) ? 0 : stream_id;
    return true;
  }
  if (stream_id == current_ && (flags & NGHTTP2_FLAG_END_STREAM)) current_ = 0;
  if ((stream_id & 1) != 0) {
    for (const SkippedRange& range : skipped_) {
      if (stream_id >= range.first && stream_id <= range.last) {
        verdict->error = NGHTTP2_PROTOCOL_ERROR;
        verdict->text = "HEADERS with a stream id that was skipped";
        return false;
      }
    }
    if (ClosedByPeer(stream_id)) {
      verdict->error = NGHTTP2_STREAM_CLOSED;
      verdict->text = "HEADERS on a closed stream";
      return false;
    }
  }
  return true;
}

bool FrameScanner::ClosedByPeer(int32_t stream_id) const {
  return stream_id != 0 && stream_id <= newest_closed_ &&
         std::find(closed_.begin(), closed_.end(), stream_id) != closed_.end();
}

}  // namespace sluice::transport
