// ServerCall: one gRPC call, as its handler sees it.
//
// Used on its connection's event loop only. It lives until it was finished by the handler, or
// OnCancelled was called, whichever comes first; it must not be touched after that. Calls, and
// the buffers in them, are pooled per loop: a unary call in steady state allocates nothing.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_SERVER_CALL_H_
#define SLUICE_SERVER_TRANSPORT_RPC_SERVER_CALL_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/stream.h"
#include "common/net/timer_wheel.h"
#include "server/transport/http2/buffer.h"
#include "server/transport/http2/request_rules.h"
#include "server/transport/rpc/method.h"

namespace sluice::transport {

class RpcConnection;

class ServerCall {
 public:
  static constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

  ServerCall();
  ~ServerCall();
  ServerCall(const ServerCall&) = delete;
  ServerCall& operator=(const ServerCall&) = delete;

  // ---- What was asked.
  const Method& method() const { return *method_; }
  // On Clock::NowNs. Counts from when the call can have arrived at the earliest.
  int64_t deadline_ns() const { return deadline_ns_; }
  int64_t arrived_ns() const { return arrived_ns_; }
  // The caller is gone (in OnCancelled).
  bool cancelled() const { return cancelled_; }
  // Its deadline passed (in OnCancelled).
  bool deadline_passed() const { return deadline_passed_; }
  // Metadata as it came over the wire (of "-bin" names: base64, see DecodeBinary); the first of
  // that name. Names are lower case. Of the reserved ones only user-agent and authority are here.
  std::optional<std::string_view> metadata(std::string_view name) const;
  size_t metadata_count() const { return metadata_.size(); }
  std::pair<std::string_view, std::string_view> metadata_at(size_t i) const;
  const net::PeerIdentity& peer() const;
  std::string peer_address() const;
  net::EventLoop& loop() const;
  // Which of the server's loops this is: 0, 1, ...
  size_t loop_index() const;

  // ---- Answering.
  // The response that is being built: append, or Reserve and Commit. Holds what is unsent of a
  // stream, too: write at the end only.
  Buffer& response() {
    if (!message_begun_) StartMessage();
    return out_;
  }

  // Metadata that precedes the first response, and that follows the last. Binary values are to
  // be encoded by the caller (EncodeBinary). `name` in lower case.
  void AddInitialMetadata(std::string_view name, std::string_view value);
  void AddTrailingMetadata(std::string_view name, std::string_view value);

  // Unary: sends response() as the one response, with OK.
  void Finish();
  // Ends the call. Unary: without a response, unless code is OK. Streams: after what was sent.
  void Finish(absl::StatusCode code, std::string_view message);
  void Finish(const absl::Status& status);

  // Streams: what was written to response() since the last Send is one message.
  void Send();
  // Sends the initial metadata now, ahead of any message.
  void SendInitialMetadata();
  size_t unsent_bytes() const { return message_at_; }
  // Streams: whether so much is unsent that no request is delivered until OnWritable.
  bool congested() const { return congested_; }
  // Streams: OnMessage is not called between the two; what the client may send ahead is bounded.
  void PauseReading() { paused_ = true; }
  void ResumeReading();

  // Unary, in OnCancelled: moves the request's bytes into `into`; views of them stay valid. For a
  // handler that has handed views to work that it cannot stop.
  void KeepRequest(Buffer* into);

  // What the handler keeps for the call. Null at the start.
  void* state() const { return state_; }
  void set_state(void* state) { state_ = state; }

 private:
  friend class RpcConnection;
  friend class GrpcLoop;

  struct MetadataEntry {
    uint32_t name_at;
    uint32_t name_size;
    uint32_t value_size;  // the value follows the name
  };
  struct CustomMetadata {
    std::vector<std::pair<std::string, std::string>> initial;
    std::vector<std::pair<std::string, std::string>> trailing;
  };
  enum class Encoding : uint8_t { kIdentity, kGzip, kUnknown };

  static constexpr size_t kPrefix = 5;
  // Unsent bytes of one call above which its requests wait, and below which they go on.
  static constexpr size_t kCongestedBytes = 64 << 10;
  static constexpr size_t kFlowingBytes = 16 << 10;
  // Bytes of memory that a pooled call keeps in each buffer.
  static constexpr size_t kKeepBytes = 16 << 10;
  // DATA bytes after which the client is given its stream window back.
  static constexpr size_t kConsumeBytes = 16 << 10;

  void Begin(RpcConnection* connection, int32_t stream_id, int64_t arrived_ns);
  void Recycle();
  void Expired();

  void OnHeader(std::string_view name, std::string_view value);
  void OnHeadersDone(bool end);
  void OnData(absl::Span<const uint8_t> data);
  void OnEnd();
  void Cancel();

  // An error found in the headers; the first one counts. http_status 200: in gRPC's way.
  void Fault(int http_status, absl::StatusCode code, const char* message);
  void AnswerFault();
  bool MayStart();
  // Decides what the connection's input brought (RpcConnection::RunReady).
  void Ready();
  void Dispatch();
  // What was paused or congested goes on.
  void Resumed();
  void ArmTimer(int64_t now_ns);
  void Deliver();
  // And lets the client send on, once it has sent `least` bytes since it was last let.
  void DeliverAndTakeMore(size_t least);
  size_t DeliverFrom(absl::Span<const uint8_t> data);
  // Checks a message's prefix. False: the call was finished with an error.
  bool CheckPrefix(const uint8_t* prefix, uint32_t* size);
  // The message itself, unfolded if need be; nullopt: the call was finished with an error.
  std::optional<absl::Span<const uint8_t>> Unfold(bool compressed, absl::Span<const uint8_t> body);
  void EndOfRequests();
  void FailWithCode(absl::StatusCode code, std::string_view message);
  void MarkNotExecuted();
  void StartMessage();
  void SealMessage();
  void SubmitTrailersOnly();
  void SubmitTrailers();
  void RecordFinish(absl::StatusCode code);
  void UpdateCharges();
  // The next bytes to be sent, at most `room`. They stay until something is written to out_.
  absl::Span<const uint8_t> TakeBody(size_t room);

  // ---- The first line of the object is what a unary call in steady state touches.
  RpcConnection* connection_ = nullptr;
  const Method* method_ = nullptr;
  int32_t stream_id_ = 0;
  Encoding encoding_ = Encoding::kIdentity;
  bool headers_done_ = false;
  bool headers_sent_ = false;
  bool started_ = false;       // the handler knows of it
  bool finished_ = false;      // answered: the handler no longer does
  bool plain_answer_ = false;  // an HTTP answer, which has no trailers
  bool remote_ended_ = false;
  bool requests_done_ = false;  // OnRequestsDone was called
  bool cancelled_ = false;
  bool deadline_passed_ = false;
  bool paused_ = false;
  bool congested_ = false;
  bool body_waits_ = false;  // nghttp2 waits for ResumeBody
  // There is a prefix for the message that is being built. Of a unary call only once there is an
  // answer: thousands may wait for theirs.
  bool message_begun_ = false;
  bool in_delivery_ = false;
  bool resume_queued_ = false;
  bool timer_considered_ = false;
  bool post_ = false;
  bool te_trailers_ = false;
  bool grpc_content_ = false;
  int64_t arrived_ns_ = 0;
  int64_t deadline_ns_ = kNoDeadline;
  void* state_ = nullptr;
  Buffer in_;              // requests, framed, not yet delivered
  Buffer out_;             // responses, framed, not yet sent
  size_t message_at_ = 0;  // where in out_ the message begins that is being built
  int64_t content_left_ = RequestRules::kNotAnnounced;  // the session's
  size_t unconsumed_ = 0;  // DATA bytes whose stream window was not given back
  size_t charged_in_ = 0;  // of the connection's bounds
  size_t charged_out_ = 0;
  absl::StatusCode status_ = absl::StatusCode::kOk;

  // An error found in the headers.
  int fault_http_ = 0;
  absl::StatusCode fault_code_ = absl::StatusCode::kOk;
  const char* fault_text_ = nullptr;

  std::vector<MetadataEntry> metadata_;
  Buffer metadata_bytes_;
  std::string message_;  // of the status, encoded
  std::string path_;     // of an unknown method
  CustomMetadata custom_;

  // The calls of a connection, newest first; then the loop's free list.
  ServerCall* next_ = nullptr;
  ServerCall** previous_ = nullptr;
  ServerCall* next_resume_ = nullptr;
  // The connection's calls that are to be decided, in order of arrival.
  ServerCall* next_ready_ = nullptr;
  ServerCall** previous_ready_ = nullptr;  // null: not among them
  net::Timer timer_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_SERVER_CALL_H_
