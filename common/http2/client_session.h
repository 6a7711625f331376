// ClientSession: the client's end of an HTTP/2 connection (session.h).
//
// Beside what both roles do, it refuses malformed responses (response_rules.h), skips 1xx
// responses, and tells which requests the server has not processed.
#ifndef SLUICE_COMMON_HTTP2_CLIENT_SESSION_H_
#define SLUICE_COMMON_HTTP2_CLIENT_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/http2/response_rules.h"
#include "common/http2/session.h"

namespace sluice::http2 {

class ClientSession final : public Session {
 public:
  // Called from within Receive and Send only. May call any function of the session but these two.
  class Handler {
   public:
    virtual ~Handler() = default;
    // The session no longer uses the stream. Not called for streams that are open when the session
    // ends or is destroyed: their user ends them.
    virtual void OnStreamClosed(Stream& stream, const StreamEnd& end) = 0;
    // The server's SETTINGS apply. The first ones: it speaks HTTP/2.
    virtual void OnSettings() {}
    // The server ends the connection: no stream can be opened. OnStreamClosed (kNotProcessed)
    // follows for streams above `last_stream_id`; the others go on. `text` is valid until this
    // returns.
    virtual void OnGoaway(int32_t last_stream_id, ErrorCode code, std::string_view text) {}
    virtual void OnPingAck(uint64_t payload) {}
  };

  // The preface and its SETTINGS are the first output. `first_id` is the id of its first stream.
  // REQUIRES: the handler outlives it; first_id is odd.
  ClientSession(const SessionOptions& options, Handler& handler, int64_t now_ns,
                int32_t first_id = 1);

  void Receive(absl::Span<const uint8_t> data, int64_t now_ns) { TakeInput(data, now_ns); }

  // Whether Submit is allowed: the server has not ended the connection, accepts one more stream at
  // once (100, until its SETTINGS arrive), and stream ids are left.
  bool can_open() const {
    return !going_away_ && !ended() && open_streams() < peer_max_streams() && next_id_ > 0;
  }
  // Opens a stream: OnSendHeaders follows, in Send; and OnSendBody, if `has_body`. The stream stays
  // in use until OnStreamClosed. REQUIRES: can_open().
  void Submit(Stream& stream, bool has_body);

  void Ping(uint64_t payload) { WritePing(payload, kNoFlags); }

  // Streams that were reset count until they are closed.
  size_t open_streams() const { return streams().size(); }
  using Session::peer_max_streams;
  // Whether either side ends the connection.
  bool going_away() const { return going_away_; }
  // Nothing more will be read or written: close once the output is sent.
  bool finished() const {
    return !wants_send() && (ended() || (going_away_ && open_streams() == 0));
  }

 private:
  // ---- Session
  void OnHeaderBlock(const HeaderBlock& block) override;
  bool IsIdle(int32_t stream_id) const override;
  void OnDataOnClosed(int32_t stream_id) override {}
  void OnResetReceived(Stream& stream, ErrorCode code) override;
  void OnGoawayReceived(int32_t last_stream_id, ErrorCode code, std::string_view text) override;
  void OnPingAckReceived(uint64_t payload) override { handler_.OnPingAck(payload); }
  void OnSettingsReceived() override { handler_.OnSettings(); }
  void OnEndReceived(Stream& stream) override;
  void OnEndSent(Stream& stream) override {}
  void OnClosed(Stream& stream, const StreamEnd& end) override;
  int32_t last_peer_stream() const override { return 0; }

  void TakeResponse(Stream& stream, const HeaderBlock& block);
  void TakeTrailers(Stream& stream, const HeaderBlock& block);

  Handler& handler_;
  ResponseRules rules_;
  int32_t next_id_;  // negative: none is left
  bool going_away_ = false;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_CLIENT_SESSION_H_
