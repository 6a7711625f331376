// Link: one HTTP/2 connection of a client: the channel, the session on it, its calls, and the bytes
// that are on their way out.
//
// The lock of its Http2Core guards it, except where a comment says otherwise. One thread at a time
// reads from it: its leader.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_LINK_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_LINK_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "client/src/transport/call_stream.h"
#include "client/src/transport/channel.h"
#include "client/src/transport/dialer.h"
#include "client/src/transport/transport_options.h"
#include "common/buffer.h"
#include "common/http2/client_session.h"
#include "common/intrusive_list.h"

namespace sluice::client_internal {

using Calls = common::IntrusiveList<CallStream, CallsOfLink>;

class Link final : public http2::ClientSession::Handler {
 public:
  // Told what the session says about calls. Called within Receive and Output.
  class Events {
   public:
    virtual ~Events() = default;
    // The call left the link's lists.
    virtual void OnCallClosed(CallStream& call, const http2::StreamEnd& end) = 0;
    // More calls may be opened, or none any more.
    virtual void OnRoomChanged(Link& link) = 0;
  };

  Link(Events& events, const RequestHeaders& headers, const TransportOptions& options,
       std::unique_ptr<Channel> channel);
  ~Link() override;

  // Sends our SETTINGS and waits for the server's. By the thread that made the link, before others
  // know it. UNAVAILABLE: the server does not speak HTTP/2, or is too slow.
  Status Greet(TimePoint deadline, const DialCancel& cancel);

  // ---- Calls

  // Whether a call may be opened now.
  bool has_room() const;
  // Whether calls will ever be opened again.
  bool usable() const;
  // REQUIRES: has_room().
  void Open(CallStream& call);
  void Leave(CallStream& call);
  Calls& calls(bool blocking) { return blocking ? blocking_ : callbacks_; }
  const Calls& calls(bool blocking) const { return blocking ? blocking_ : callbacks_; }
  bool idle() const { return blocking_.empty() && callbacks_.empty(); }
  http2::ClientSession& session() { return *session_; }
  const RequestHeaders& headers() const { return headers_; }

  // ---- Output

  // Moves what the session has to say to the output.
  void CollectOutput();
  // Whether Flush has something to do.
  bool has_output() const {
    if (broken() || writing || blocked || write_failed) return false;
    return session_->wants_send() || !output_.empty() || !in_flight.empty();
  }
  // The position in the link's output of the next byte.
  uint64_t output_position() const { return collected_ + output_.size(); }
  // All bytes before this position may have reached the server.
  uint64_t written() const { return written_; }

  // ---- Input

  void Receive(std::span<const uint8_t> bytes, TimePoint now);
  // Sends a PING after a call without an answer in time, at most one in 5 s (or in the keepalive's
  // timeout, if that is less). Returns false if nothing arrived since the last one: the connection
  // is to be considered dead.
  bool NoteTimeout(TimePoint now);
  TimePoint last_received() const { return last_received_; }
  // When KeepAlive has something to do if nothing arrives before; max: never.
  TimePoint keepalive_at() const;
  // Sends a PING if it is due. Returns false if the last one was left without an answer for too
  // long: the connection is to be considered dead. Its leader calls it when nothing has arrived.
  bool KeepAlive(TimePoint now);

  // Destroys the session: its calls are no longer open. Their owner ends them.
  void Break(std::string cause);
  bool broken() const { return session_ == nullptr; }
  const std::string& cause() const { return cause_; }

  // ---- Shared with the threads that read and write; see Http2Core

  const std::unique_ptr<Channel> channel;
  bool leader = false;        // a thread reads
  bool writing = false;       // a thread writes `in_flight`, without the lock if there is no TLS
  bool blocked = false;       // the socket takes no more: the leader waits until it is writable
  bool write_failed = false;  // reading will tell why
  const int wake_fd;          // an eventfd: the leader also waits for it
  common::Buffer in_flight;
  // Read without the lock, by the leader.
  std::array<uint8_t, 16 << 10> input;
  int expected = 0;  // threads that were woken and will probably send soon

  // The leader, or else the next one, looks at `blocked` again and sends what there is to send.
  void WakeLeader();
  // Moves the output to `in_flight`, as written. Returns false if there is none.
  bool TakeOutput();
  // `bytes` of in_flight were not written after all.
  void Untake(size_t bytes) { written_ -= bytes; }

 private:
  void OnStreamClosed(http2::Stream& stream, const http2::StreamEnd& end) override;
  void OnSettings() override;
  void OnGoaway(int32_t last_stream_id, http2::ErrorCode code, std::string_view text) override;
  void OnPingAck(uint64_t) override { ping_open_ = false; }

  // Whether nothing has arrived since the last PING.
  bool unanswered() const { return ping_open_ && last_received_ <= ping_sent_; }
  void Ping(TimePoint now);

  Events& events_;
  const RequestHeaders& headers_;
  const KeepaliveOptions keepalive_;
  std::unique_ptr<http2::ClientSession> session_;
  Calls blocking_;
  Calls callbacks_;
  common::Buffer output_;
  uint64_t collected_ = 0;  // bytes that left output_
  uint64_t written_ = 0;
  TimePoint last_received_;
  TimePoint ping_sent_{};   // the last one
  bool ping_open_ = false;  // it has no answer
  bool greeted_ = false;
  std::string cause_;
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_LINK_H_
