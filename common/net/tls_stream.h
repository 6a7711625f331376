// TlsStream: TLS over a SocketStream, itself a Stream.
//
// Input is decrypted into the loop's buffer and delivered in one piece per readiness event. Output
// is encrypted at the end of the iteration, into as few records as possible. At most
// kMaxEncryptedBytes are encrypted and unsent; the rest waits as plaintext.
//
// A stream belongs to its loop: it is destroyed after OnClosed has returned.
#ifndef SLUICE_COMMON_NET_TLS_STREAM_H_
#define SLUICE_COMMON_NET_TLS_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/net/event_loop.h"
#include "common/net/socket_stream.h"
#include "common/net/stream.h"
#include "common/net/tls_context.h"

namespace sluice::net {

class TlsStream final : public Stream, private StreamHandler, private IterationHook {
 public:
  // Encrypted bytes that wait for the kernel, at most (plus one record).
  static constexpr size_t kMaxEncryptedBytes = size_t{64} << 10;
  // Bytes of the peer's handshake, at most: enough for a long chain of certificates.
  static constexpr size_t kMaxHandshakeBytes = size_t{128} << 10;

  // Memory of a handshake, at most, once the peer's first record is complete: OpenSSL's state and
  // buffers. Before, there is only what the peer has sent.
  static constexpr size_t kHandshakeMemory = size_t{64} << 10;

  // Called once when the handshake is complete. Returns the stream's handler, whose OnOpen follows;
  // null refuses the stream.
  using Accept = absl::AnyInvocable<StreamHandler*(Stream&)>;

  // For a server that gives its handshakes turns.
  struct HandshakeCallbacks {
    // Input arrived. If handshake_turn_due(), call ContinueHandshake later. Null: the handshake
    // continues at once.
    absl::AnyInvocable<void()> input;
    // The handshake ended in either way; until then the stream may be aborted. Called once.
    absl::AnyInvocable<void()> done;
  };

  // Options for the socket underneath.
  static StreamOptions SocketOptions();

  // The server's side, over `socket`, which is connected and not opened. If the handshake fails or
  // takes longer than handshake_timeout_ns, the stream is closed and counted, and `accept` is never
  // called.
  static TlsStream* Serve(SocketStream* socket, const TlsContext& context,
                          int64_t handshake_timeout_ns, const StreamOptions& options, Accept accept,
                          HandshakeCallbacks callbacks);

  // The client's side, over `socket`, which is not opened and need not be connected. The server's
  // certificate must be for `name`, a DNS name or an IP address. The handler's OnOpen follows, or
  // its OnClosed with UNAUTHENTICATED or another error.
  static TlsStream* Connect(SocketStream* socket, const TlsContext& context,
                            const std::string& name, int64_t handshake_timeout_ns,
                            const StreamOptions& options, StreamHandler* handler);

  void Write(absl::Span<const uint8_t> data) override;
  size_t pending_output() const override { return plain_.size() + socket_->pending_output(); }
  size_t buffer_memory() const override {
    return plain_.memory() + held_.memory() + socket_->buffer_memory();
  }
  OutputProgress output_progress() const override {
    OutputProgress progress = socket_->output_progress();
    progress.outstanding += plain_.size();
    return progress;
  }
  void PauseReading() override;
  void ResumeReading() override;
  void CloseAfterWrite(int64_t linger_ns) override;
  void Abort(absl::Status why) override;
  void SetIdle(bool idle) override { socket_->SetIdle(idle); }
  std::string peer_address() const override { return socket_->peer_address(); }
  uint64_t peer() const override { return socket_->peer(); }
  bool encrypted() const override { return true; }
  PeerIdentity peer_identity() const override;
  EventLoop& loop() override { return loop_; }
  int64_t ready_since_ns() const override { return socket_->ready_since_ns(); }
  int64_t round_trip_ns() const override { return socket_->round_trip_ns(); }

  // ---- During a server's handshake.
  // Whether the peer has sent nothing.
  bool silent() const { return handshake_bytes_ == 0; }
  bool handshake_turn_due() const { return turn_due_; }
  size_t handshake_memory() const {
    return ssl_ != nullptr ? kHandshakeMemory : waiting_.capacity();
  }
  // Handles the input. Returns whether it was answered, which takes up to a millisecond.
  bool ContinueHandshake();

  // REQUIRES for these two: the handshake is complete.
  // "TLSv1.3", and whether a session was resumed. For logs and tests.
  std::string protocol() const;
  bool resumed() const;

 private:
  TlsStream(SocketStream* socket, const TlsContext& context, int64_t handshake_timeout_ns,
            const StreamOptions& options);
  ~TlsStream() override;

  // StreamHandler, of the socket.
  void OnOpen() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnReadsDone() override;
  void OnEnd() override;
  void OnWritable() override;
  void OnClosed(const absl::Status& why) override;

  void OnIterationEnd() override;
  void OnTimeout();

  // The BIO through which OpenSSL reads input_ and writes to the socket.
  static BIO_METHOD* BioMethod();
  static int BioRead(BIO* bio, char* to, int size);
  static int BioWrite(BIO* bio, const char* from, int size);
  static long BioControl(BIO* bio, int command, long number, void* pointer);
  static void OnTlsMessage(int write, int version, int content_type, const void* bytes, size_t size,
                           SSL* ssl, void* self);

  void MakeSsl();
  void ReceiveHandshake(absl::Span<const uint8_t> data);
  // Whether OpenSSL may have the input. False: the first record is not complete, or refused.
  bool CheckFirstRecord();
  void DoHandshake();
  void HandshakeDone();
  void Decrypt();
  void Deliver(absl::Span<const uint8_t> plain);
  void DeliverHeld();
  void Encrypt();
  // Notes whether the pending output has reached the high-water mark. Call it whenever it grew.
  void NoteHighWater();
  void UpdateReading();
  void DeliverEnd();
  void Fail(absl::Status why);
  // Frees what a failed one has.
  void EndHandshake();
  absl::Status TlsError(absl::string_view what) const;

  SocketStream* const socket_;  // lives until OnClosed has returned
  EventLoop& loop_;
  const StreamOptions options_;
  // Null before a server has its peer's first record: a silent peer costs nothing of TLS.
  TlsContext::SslPtr ssl_;
  const std::shared_ptr<const TlsContext> context_;
  StreamHandler* handler_ = nullptr;
  Accept accept_;
  HandshakeCallbacks handshake_;
  std::string waiting_;              // input of the handshake
  OutputBuffer plain_;               // to be encrypted
  OutputBuffer held_;                // decrypted while the handler was paused
  absl::Span<const uint8_t> input_;  // encrypted, not read by OpenSSL; within OnData only
  Timer timer_{Timer::To<&TlsStream::OnTimeout>, this};  // of the handshake, then of the closing
  const int64_t handshake_timeout_ns_;
  int64_t linger_ns_ = 0;
  size_t handshake_bytes_ = 0;
  // Bytes of data that pay for the peer's messages of TLS itself (key updates, tickets). Negative:
  // it sent too many.
  int64_t message_credit_;
  absl::Status failure_;
  const bool is_server_;
  bool turn_due_ = false;  // input waits for ContinueHandshake
  bool open_ = false;
  bool failed_ = false;         // only OnClosed follows
  bool closing_ = false;        // CloseAfterWrite was called
  bool peer_done_ = false;      // the peer sent close_notify, or closed
  bool end_delivered_ = false;  // OnEnd was called
  bool delivered_ = false;      // OnData was called since the last OnReadsDone
  bool paused_ = false;         // by the handler
  bool above_high_water_ = false;
  bool closed_ = false;  // OnClosed was called; a scheduled hook destroys the stream
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_TLS_STREAM_H_
