// ServerCall: one gRPC call as its handler sees it: the request's metadata, deadline and peer, and
// the functions that answer.
//
// Used on its connection's event loop only. A handler may use a call until it finishes it or
// OnCancelled returns, whichever comes first. Calls and their buffers are pooled per loop: a unary
// call in steady state allocates nothing.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_SERVER_CALL_H_
#define SLUICE_SERVER_TRANSPORT_RPC_SERVER_CALL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/buffer.h"
#include "common/http2/stream.h"
#include "common/net/stream.h"
#include "server/access/caller.h"
#include "server/transport/port/connection_state.h"
#include "server/transport/rpc/message_reader.h"
#include "server/transport/rpc/method.h"
#include "server/transport/rpc/request_head.h"
#include "server/transport/rpc/response_writer.h"

namespace sluice::transport {

class RpcConnection;

class ServerCall : public http2::Stream {
 public:
  static constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

  ServerCall(const ServerCall&) = delete;
  ServerCall& operator=(const ServerCall&) = delete;

  // ---- The request.
  const Method& method() const { return *method_; }
  // On Clock::NowNs. Counts from the earliest time at which the call can have arrived.
  int64_t deadline_ns() const { return deadline_ns_; }
  // In OnCancelled: why.
  bool deadline_passed() const { return deadline_passed_; }
  // The first value of that name, as it came over the wire ("-bin" names: base64). REQUIRES:
  // MethodOptions::metadata has the name.
  std::optional<std::string_view> metadata(std::string_view name) const;
  std::string peer_address() const;
  // As net::Stream::peer_identity.
  net::PeerIdentity peer_identity() const;
  // The caller, which may make this call (MethodOptions::call). Null: the server has no clients
  // file, or the method is open to all.
  const access::CallerPtr& caller() const { return caller_; }
  // Unary: the caller, which the call needs no longer.
  access::CallerPtr TakeCaller() { return std::move(caller_); }
  net::EventLoop& loop() const;
  // Which of the server's loops this is: 0, 1, ...
  size_t loop_index() const;

  // What the service keeps for the connection; null at first. Shared, since calls may outlive it.
  std::shared_ptr<ConnectionState>& connection_state() const;

  // ---- Answering.
  // The response message that is being written: append, or Reserve and Commit. Unsent messages may
  // precede it.
  Buffer& response() { return writer_.message(); }

  // Metadata that precedes the first response, and that follows the last. Binary values are
  // base64 already. `name` in lower case.
  void AddInitialMetadata(std::string_view name, std::string_view value) {
    writer_.AddInitialMetadata(name, value);
  }
  void AddTrailingMetadata(std::string_view name, std::string_view value) {
    writer_.AddTrailingMetadata(name, value);
  }

  // Unary: sends response() as the one response, with OK.
  void Finish() { Finish(absl::StatusCode::kOk, ""); }
  // Ends the call. Unary: without a response, unless code is OK. Streams: after the sent messages.
  void Finish(absl::StatusCode code, std::string_view message);
  void Finish(const absl::Status& status);
  // Ends the call because its caller may not make it. Refusals of admin calls are recorded. After a
  // wrong token the caller may learn it late (access::TokenGuesses), or its connection is closed;
  // the handler forgets the call at once.
  void Refuse(const absl::Status& status, bool wrong_token);

  // Streams: sends the bytes that were written to response() since the last Send as one message.
  void Send();
  // Sends the initial metadata now, ahead of any message.
  void SendInitialMetadata();
  size_t unsent_bytes() const { return writer_.ready_bytes(); }
  // Streams: whether so much is unsent that no request is delivered until OnWritable.
  bool congested() const { return congested_; }
  // Streams: OnMessage is not called between the two; what the client may send ahead is bounded.
  void PauseReading() { paused_ = true; }
  void ResumeReading();

  // Unary, in OnCancelled: moves the request's bytes into `into`; views of them stay valid. For a
  // handler that has handed views to work that it cannot stop.
  void KeepRequest(Buffer* into);
  // Streams, in OnMessage: moves the message into `into`, and returns it there. The handler counts
  // the memory of `into`.
  absl::Span<const uint8_t> KeepMessage(absl::Span<const uint8_t> message, Buffer* into);
  // In OnCancelled: counts these bytes, and those of SetPendingBytes, until the result is
  // destroyed, on any thread. For such work, too: the connection's next calls wait as if the call
  // were open.
  std::shared_ptr<void> HoldCancelledBytes(size_t bytes);

  // ---- Long work. A connection has a turn in each iteration of its loop. A handler counts what it
  // does, in units of about 100 ns (net::WorkQueue), and stops between two steps when the turn has
  // ended.
  void Spend(int64_t units);
  bool turn_ended() const;
  // OnTurn follows in a later turn; until then the connection's other requests wait. A reset of the
  // stream, the deadline or the end of the connection still end the call.
  void ContinueLater();

  // The handler holds `bytes` of memory for the call until it is decided, beside the response that
  // is being written; replaces the number that was set before. While they and the unsent answers
  // exceed the connection's share, its next calls wait. Ends with the call.
  void SetPendingBytes(size_t bytes);
  size_t pending_bytes() const { return pending_bytes_; }
  // The same for a call that lasts (a watch), for which no other call waits. Returns false, and
  // sets nothing, if all such calls of the connection, or of its loop, would hold more than
  // bounds::kMaxConnectionWatchBytes or ConnectionOptions::max_loop_lasting_bytes.
  bool TrySetLastingBytes(size_t bytes);
  // The same for what may outlive the call: until the result is destroyed, on any thread. Null:
  // there is no room.
  std::shared_ptr<void> HoldLastingBytes(size_t bytes);

  // What the handler keeps for the call. Null at the start.
  void* state() const { return state_; }
  void set_state(void* state) { state_ = state; }

 protected:
  enum class Phase : uint8_t {
    kReceiving,  // the handler does not know the call
    kStarted,    // the handler has the call
    kAborting,   // OnCancelled is being called; an error response follows
    kRefused,    // the handler does not know the call, and a refusal follows at deadline_ns_
    kFinished,   // the response is complete, or cannot be sent
  };
  enum class RequestState : uint8_t {
    kHeaders,    // until the headers are complete
    kBody,       // until the client ends the request
    kEnded,      // all has arrived
    kDelivered,  // OnRequestsDone was called
  };
  enum class ResponseState : uint8_t {
    kNotSubmitted,
    kOpen,          // headers are submitted; messages and trailers follow
    kStalled,       // as kOpen; the session waits for ResumeBody
    kTrailersOnly,  // headers with the status are submitted
    kPlain,         // an HTTP response without trailers
  };

  // Bytes of memory that a pooled call keeps in each buffer, and that a stream without unsent
  // messages keeps: thousands may be idle.
  static constexpr size_t kKeepBytes = 4 << 10;
  static constexpr size_t kIdleKeepBytes = 256;
  // Unsent bytes of one call above which its requests wait, and below which they go on.
  static constexpr size_t kCongestedBytes = 64 << 10;
  static constexpr size_t kFlowingBytes = 16 << 10;

  ServerCall() = default;
  ~ServerCall() = default;

  bool finished() const { return phase_ == Phase::kFinished; }
  // Ends the call with an error. A handler that has the call must know.
  void Fail(absl::StatusCode code, std::string_view message);
  void RecordFinish(absl::StatusCode code);
  // Tells the connection how many bytes the call holds now.
  void UpdateHeldBytes();
  size_t buffer_memory() const { return reader_.capacity() + writer_.memory(); }

  RpcConnection* connection_ = nullptr;
  const Method* method_ = nullptr;
  Phase phase_ = Phase::kReceiving;
  RequestState request_state_ = RequestState::kHeaders;
  ResponseState response_state_ = ResponseState::kNotSubmitted;
  bool deadline_passed_ = false;
  bool paused_ = false;
  bool congested_ = false;
  bool delivering_ = false;  // within OnMessage
  bool continues_ = false;   // OnTurn is due
  int64_t deadline_ns_ = kNoDeadline;
  void* state_ = nullptr;
  // As the connection knows them.
  size_t held_in_ = 0;
  size_t held_out_ = 0;
  size_t held_memory_ = 0;
  size_t pending_bytes_ = 0;
  size_t lasting_bytes_ = 0;
  int64_t unsent_since_ns_ = 0;  // when the peer last took a part of the unsent bytes
  MessageReader reader_;
  ResponseWriter writer_;
  std::vector<std::pair<std::string_view, std::string>> metadata_;
  access::CallerPtr caller_;
  access::ClientPlace stream_place_;  // until the stream ends

 private:
  // Submits the end of the call, whose messages are complete.
  void End(absl::StatusCode code, std::string_view message);
  // Lets the session send the ready bytes.
  void SubmitReady();
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_SERVER_CALL_H_
