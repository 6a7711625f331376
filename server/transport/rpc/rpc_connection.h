// RpcConnection: one client's connection: a net::Stream, an HTTP/2 session on it, and the calls.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_CONNECTION_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_CONNECTION_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/http2/http2_session.h"
#include "server/transport/rpc/rpc_server.h"
#include "server/transport/rpc/server_call.h"

namespace sluice::transport {

// Used on its loop only. Destroys itself in OnClosed.
class RpcConnection final : public net::StreamHandler, private Http2Session::Handler {
 public:
  RpcConnection(GrpcLoop& grpc, net::Stream& stream);
  ~RpcConnection() override;

  void Drain();

  // net::StreamHandler
  void OnOpen() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnReadsDone() override;
  void OnEnd() override;
  void OnWritable() override;
  void OnClosed(const absl::Status& why) override;

  const Http2Session& session() const { return session_; }
  // Bytes of the calls that are open.
  size_t CallMemory() const;

 private:
  friend class ServerCall;
  friend class GrpcLoop;

  // Http2Session::Handler
  void* OnRequest(int32_t stream_id) override;
  bool OnHeader(void* stream, std::string_view name, std::string_view value) override;
  void OnHeadersDone(void* stream, bool end) override;
  void OnHeadersTooLarge(void* stream) override;
  void OnData(void* stream, absl::Span<const uint8_t> data) override;
  void OnEnd(void* stream) override;
  void OnStreamClosed(void* stream, bool reset) override;
  Http2Session::Body OnSendBody(void* stream, size_t room) override;
  int64_t StartedNs(void* stream) const override;
  int64_t& ContentLeft(void* stream) override;

  // An answer was submitted: it is sent when the input was handled, or the iteration ends.
  void MarkDirty() {
    if (!busy_) grpc_.MarkDirty(this);
  }
  void Flush();
  // A call with a complete request, or a stream with messages or its end, is decided when all that
  // one readiness event brought was parsed (RunReady): a reset further back in the same bytes comes
  // in time.
  void QueueReady(ServerCall* call);
  void RemoveReady(ServerCall* call);
  void RunReady();
  void QueueResume(ServerCall* call);
  void RunResumes();
  void ConsiderTimers();
  void CancelCalls();
  void TellStreamsToDrain();
  void PlanWake();
  void OnWake();
  const Method* FindMethod(std::string_view path);

  GrpcLoop& grpc_;
  net::Stream& stream_;
  Http2Session session_;
  const Method* last_method_ = nullptr;
  ServerCall* calls_ = nullptr;  // newest first
  ServerCall* resumes_ = nullptr;
  ServerCall* ready_ = nullptr;  // the first to be decided
  ServerCall** ready_end_ = &ready_;
  int64_t arrived_ns_ = 0;  // of the input that is being handled
  size_t buffered_bytes_ = 0;
  size_t unsent_bytes_ = 0;
  bool busy_ = false;  // within OnData, RunReady or Flush
  bool told_to_drain_ = false;
  bool closing_ = false;  // CloseAfterWrite or Abort was called
  int64_t wake_armed_ns_;
  net::Timer wake_;
  // The loop's connections, and those of them that have something to send.
  RpcConnection* next_ = nullptr;
  RpcConnection** previous_ = nullptr;
  RpcConnection* next_dirty_ = nullptr;
  RpcConnection** previous_dirty_ = nullptr;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_CONNECTION_H_
