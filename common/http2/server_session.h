// ServerSession: the server's end of an HTTP/2 connection (session.h).
//
// Beside what both roles do, it refuses malformed requests (request_rules.h) and streams above its
// bounds, ends connections whose clients go on with what they have closed, and keeps time-outs:
// for the greeting and for frames, keepalive, idle and age limits, and the order of a graceful end
// (shutdown notice, wait, final GOAWAY).
//
// At next_wake_ns(): session.OnTime(now_ns), then Send.
#ifndef SLUICE_COMMON_HTTP2_SERVER_SESSION_H_
#define SLUICE_COMMON_HTTP2_SERVER_SESSION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "common/http2/request_rules.h"
#include "common/http2/session.h"

namespace sluice::http2 {

struct ServerOptions : SessionOptions {
  // Streams that a client may have open at once.
  uint32_t max_concurrent_streams = common::bounds::kMaxStreamsPerConnection;

  // From the start to the end of the client's first SETTINGS.
  int64_t greeting_timeout_ns = common::bounds::kGreetingTimeoutNs;
  // From the start of a frame or a header block to its end.
  int64_t frame_timeout_ns = common::bounds::kFrameTimeoutNs;
  // A connection that received nothing for this long is sent a PING, and closed unless it receives
  // something within the time-out. 0: never.
  int64_t keepalive_ns = common::bounds::kKeepaliveNs;
  int64_t keepalive_timeout_ns = common::bounds::kKeepaliveTimeoutNs;
  // A connection without streams for this long is drained. 0: never.
  int64_t max_idle_ns = common::bounds::kMaxIdleNs;
  // A connection of this age is drained, and aborted after the grace. 0: never.
  int64_t max_age_ns = 0;
  int64_t max_age_grace_ns = int64_t{30} * 1'000'000'000;
  // A drain's longest pause between the shutdown notice and the final GOAWAY, in which streams that
  // the client has already opened still arrive. The answer to a PING ends the pause.
  int64_t drain_notice_ns = int64_t{1} * 1'000'000'000;
};

class ServerSession final : public Session {
 public:
  // Creates and ends the streams. Called from within Receive and Send only.
  class Handler {
   public:
    virtual ~Handler() = default;
    // A request begins. The stream stays valid until OnStreamClosed.
    virtual Stream& OnRequest() = 0;
    // The session no longer uses the stream. Not called for streams that are open when the session
    // is destroyed.
    virtual void OnStreamClosed(Stream& stream) = 0;
  };

  // Its SETTINGS are the first output. REQUIRES: options and handler outlive it.
  ServerSession(const ServerOptions& options, Handler& handler, int64_t now_ns);

  void Receive(absl::Span<const uint8_t> data, int64_t now_ns);

  // The response begins: OnSendHeaders follows, in Send; and OnSendBody, if `has_body`. If the
  // response ends before the request, the stream is reset with NO_ERROR.
  void Submit(Stream& stream, bool has_body) { BeginSending(stream, has_body); }

  // Ends gracefully: accepts no new streams, finishes the open ones.
  // The notice takes at most `most_notice_ns`, and at most ServerOptions::drain_notice_ns.
  void Drain(int64_t now_ns, int64_t most_notice_ns = std::numeric_limits<int64_t>::max());
  bool draining() const { return drain_ != DrainState::kNone; }
  // Nothing more will be read or written: close once the output is sent.
  bool finished() const;

  // When to call OnTime; changes only within Receive, Drain and OnTime. INT64_MAX: never.
  int64_t next_wake_ns() const { return next_wake_ns_; }
  // Returns false if the connection must be aborted, for abort_text(): keepalive failed, or the age
  // grace passed.
  bool OnTime(int64_t now_ns);
  std::string_view abort_text() const { return abort_text_; }

 private:
  enum class DrainState : uint8_t { kNone, kNotified, kFinal };
  struct SkippedRange {
    int32_t first = 0;
    int32_t last = -1;
  };

  // ---- Session
  void OnHeaderBlock(const HeaderBlock& block) override;
  bool IsIdle(int32_t stream_id) const override;
  void OnDataOnClosed(int32_t stream_id) override;
  void OnResetReceived(Stream& stream, ErrorCode code) override;
  void OnGoawayReceived(int32_t last_stream_id, ErrorCode code, std::string_view text) override;
  void OnPingAckReceived(uint64_t payload) override;
  void OnSettingsReceived() override {}
  void OnEndReceived(Stream& stream) override;
  void OnEndSent(Stream& stream) override;
  void OnClosed(Stream& stream, const StreamEnd& end) override;
  int32_t last_peer_stream() const override { return last_handled_; }

  void TakeRequest(const HeaderBlock& block);
  void TakeTrailers(Stream& stream, const HeaderBlock& block);
  // HEADERS on a stream that is neither open nor new.
  void TakeLateHeaders(const HeaderBlock& block);
  // Drops HEADERS that no stream takes. Few bytes of them can insert 64 KB into the HPACK table, so
  // they have the budget of resets: honest clients send one for each stream that we reset, and some
  // requests before they know that we end the connection.
  void DropHeaders(const HeaderBlock& block);
  bool ClosedByPeer(int32_t stream_id) const;

  void SendFinalGoaway();
  // When something was received: the start of what is unfinished.
  void WatchUnfinishedFrame();
  void PlanWake();
  // What OnTime does for a connection that is drained, or not. Returns what it returns.
  bool OnDrainTime(int64_t now_ns);

  const ServerOptions& options_;
  Handler& handler_;
  RequestRules rules_;
  int32_t last_stream_id_ = 0;  // the highest that the client has opened
  int32_t last_handled_ = 0;    // and that a handler has seen
  // Frames on a stream that the client itself has ended are its fault. Those on other closed
  // streams may have been sent before our reset. The latest 64; 0: none.
  std::array<int32_t, 64> closed_by_peer_{};
  uint32_t closed_next_ = 0;
  int32_t newest_closed_ = 0;  // the highest among them
  // Ids that the client has skipped, which is valid (some begin at 13), and must not use. The
  // latest 16 ranges.
  std::array<SkippedRange, 16> skipped_{};
  uint32_t skipped_next_ = 0;

  DrainState drain_ = DrainState::kNone;
  bool age_drain_ = false;
  bool final_goaway_due_ = false;  // the client has seen the shutdown notice
  bool goaway_received_ = false;
  // The last stream that is served, as the final GOAWAY names it. Streams above it must not be
  // served: their clients will send them again.
  int32_t last_served_ = kMaxStreamId;
  std::string_view abort_text_;

  int64_t started_ns_;
  int64_t received_ns_;    // last input
  int64_t idle_since_ns_;  // no streams since
  uint64_t frames_seen_ = 0;
  int64_t frame_since_ns_ = 0;  // start of the unfinished frame or header block; 0: none
  int64_t ping_sent_ns_ = 0;    // keepalive PING without an answer; 0: none
  int64_t drained_ns_ = 0;      // Drain was called
  int64_t notice_ns_ = 0;       // how long its notice may take
  int64_t next_wake_ns_ = 0;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_SERVER_SESSION_H_
