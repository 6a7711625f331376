#include "common/net/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::net {
namespace {

// Messages of TLS itself after the handshake: key updates, tickets, refused renegotiations. A key
// update costs us a key derivation and an answer (up to 30 us), and its sender next to nothing. So
// each is paid for with this many bytes of data. Peers update their keys once in many megabytes.
constexpr int64_t kBytesPerMessage = int64_t{64} << 10;
// So many may come at once. They take up to a millisecond.
constexpr int64_t kMaxMessageCredit = 32 * kBytesPerMessage;

// Bytes of a ClientHello, at most: real ones have up to 2 KB, and 2 KB more with a ticket. OpenSSL
// takes the memory when they are announced, and would accept 128 KiB. It looks each share of a key
// up in the list of groups: 16 KiB of both takes 2 ms.
constexpr size_t kMaxHelloBytes = size_t{8} << 10;

// After a failure: how long the peer may take to read the alert.
constexpr int64_t kAlertLingerNs = 1'000'000'000;

// More is encrypted when fewer encrypted bytes than this wait for the kernel.
constexpr size_t kSocketLowWaterBytes = size_t{16} << 10;

// The DNS names and URIs of a certificate.
void AddAlternativeNames(const X509& certificate, PeerIdentity* identity) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const text = name->d.ia5;
    auto& of_kind = name->type == GEN_DNS ? identity->dns_names : identity->uris;
    of_kind.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                         static_cast<size_t>(ASN1_STRING_length(text)));
  }
}

}  // namespace

StreamOptions TlsStream::SocketOptions() {
  // Marks so low that each progress calls OnWritable; TlsStream itself enforces the bounds.
  return {.high_water_bytes = 1,
          .low_water_bytes = kSocketLowWaterBytes,
          .max_output_bytes = SIZE_MAX,
          .pause_when_high = false};
}

TlsStream::TlsStream(SocketStream* socket, const TlsContext& context, int64_t handshake_timeout_ns,
                     const StreamOptions& options)
    : socket_(socket),
      loop_(socket->loop()),
      options_(options),
      context_(context.shared_from_this()),
      plain_(loop_.buffers()),
      held_(loop_.buffers()),
      handshake_timeout_ns_(handshake_timeout_ns),
      message_credit_(kMaxMessageCredit),
      is_server_(context.role() == TlsContext::Role::kServer) {
  socket_->SetHandler(this);
  // Armed from the start: a client's time-out includes connecting.
  loop_.ArmIn(timer_, handshake_timeout_ns_);
}

TlsStream::~TlsStream() = default;

void TlsStream::MakeSsl() {
  ssl_ = context_->NewSsl();
  BIO* const bio = BIO_new(BioMethod());
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  is_server_ ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
}

TlsStream* TlsStream::Serve(SocketStream* socket, const TlsContext& context,
                            int64_t handshake_timeout_ns, const StreamOptions& options,
                            Accept accept, HandshakeCallbacks callbacks) {
  auto* const stream = new TlsStream(socket, context, handshake_timeout_ns, options);
  stream->accept_ = std::move(accept);
  stream->handshake_ = std::move(callbacks);
  socket->Open();
  return stream;
}

TlsStream* TlsStream::Connect(SocketStream* socket, const TlsContext& context,
                              const std::string& name, int64_t handshake_timeout_ns,
                              const StreamOptions& options, StreamHandler* handler) {
  auto* const stream = new TlsStream(socket, context, handshake_timeout_ns, options);
  stream->MakeSsl();
  SSL* const ssl = stream->ssl_.get();
  stream->handler_ = handler;
  // An IP address is compared with the certificate's addresses, and not sent as SNI (RFC 6066, 3).
  const bool is_ip = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) == 1;
  if (!is_ip) {
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (name.empty() || SSL_set1_host(ssl, name.c_str()) != 1 ||
        SSL_set_tlsext_host_name(ssl, name.c_str()) != 1) {
      stream->Fail(absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is not a name that a TLS certificate can have")));
    }
  }
  ERR_clear_error();
  return stream;
}

BIO_METHOD* TlsStream::BioMethod() {
  static BIO_METHOD* const kMethod = [] {
    BIO_METHOD* const method =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sluice stream");
    BIO_meth_set_read(method, &TlsStream::BioRead);
    BIO_meth_set_write(method, &TlsStream::BioWrite);
    BIO_meth_set_ctrl(method, &TlsStream::BioControl);
    return method;
  }();
  return kMethod;
}

int TlsStream::BioRead(BIO* bio, char* to, int size) {
  auto& self = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const size_t n = std::min(self.input_.size(), static_cast<size_t>(std::max(size, 0)));
  // Without credit OpenSSL gets no more input: one SSL_read_ex would handle all of its messages.
  if (n == 0 || self.message_credit_ < 0) {
    BIO_set_retry_read(bio);
    return -1;
  }
  std::memcpy(to, self.input_.data(), n);
  self.input_.remove_prefix(n);
  return static_cast<int>(n);
}

int TlsStream::BioWrite(BIO* bio, const char* from, int size) {
  auto& self = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  self.socket_->Write({reinterpret_cast<const uint8_t*>(from), static_cast<size_t>(size)});
  return size;
}

long TlsStream::BioControl(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

void TlsStream::OnTlsMessage(int write, int, int content_type, const void*, size_t, SSL*,
                             void* self) {
  if (write == 0 && content_type == SSL3_RT_HANDSHAKE) {
    static_cast<TlsStream*>(self)->message_credit_ -= kBytesPerMessage;
  }
}

void TlsStream::OnOpen() {
  if (!is_server_ && !failed_) DoHandshake();
}

void TlsStream::OnData(absl::Span<const uint8_t> data) {
  if (failed_) return;
  if (!open_) return ReceiveHandshake(data);
  input_ = data;
  Decrypt();
  input_ = {};
}

void TlsStream::ReceiveHandshake(absl::Span<const uint8_t> data) {
  handshake_bytes_ += data.size();
  waiting_.append(reinterpret_cast<const char*>(data.data()), data.size());
  turn_due_ = ssl_ != nullptr || CheckFirstRecord();
  if (failed_) return;
  if (handshake_.input != nullptr) {
    if (turn_due_) socket_->PauseReading();
    handshake_.input();
  } else if (turn_due_) {
    ContinueHandshake();
  }
}

bool TlsStream::CheckFirstRecord() {
  const auto byte = [this](size_t at) { return static_cast<uint8_t>(waiting_[at]); };
  if (byte(0) != SSL3_RT_HANDSHAKE) return true;  // OpenSSL knows the error
  constexpr size_t kRecordHeader = SSL3_RT_HEADER_LENGTH;
  if (waiting_.size() < kRecordHeader + SSL3_HM_HEADER_LENGTH) return false;
  const size_t record_bytes = size_t{byte(3)} << 8 | byte(4);
  const size_t hello_bytes = size_t{byte(6)} << 16 | size_t{byte(7)} << 8 | byte(8);
  if (record_bytes < SSL3_HM_HEADER_LENGTH || hello_bytes > kMaxHelloBytes) {
    Fail(absl::ResourceExhaustedError("the TLS handshake begins with too small or large a record"));
    return false;
  }
  return waiting_.size() >= kRecordHeader + std::min<size_t>(record_bytes, kMaxHelloBytes);
}

bool TlsStream::ContinueHandshake() {
  turn_due_ = false;
  if (failed_) return false;
  const std::string input = std::exchange(waiting_, std::string());
  const size_t unsent = socket_->pending_output();
  if (ssl_ == nullptr) MakeSsl();
  input_ = {reinterpret_cast<const uint8_t*>(input.data()), input.size()};
  DoHandshake();
  if (!open_ && !failed_ && handshake_bytes_ > kMaxHandshakeBytes) {
    Fail(absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxHandshakeBytes, " bytes for a TLS handshake")));
  }
  if (open_ && !failed_) Decrypt();
  input_ = {};
  OnReadsDone();
  const bool answered = socket_->pending_output() > unsent;
  if (!failed_) UpdateReading();
  return answered;
}

void TlsStream::DoHandshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return HandshakeDone();
  if (SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ) Fail(TlsError("handshake"));
}

void TlsStream::HandshakeDone() {
  open_ = true;
  timer_.Cancel();
  loop_.counters().handshakes.Add();
  SSL_set_msg_callback(ssl_.get(), &TlsStream::OnTlsMessage);
  SSL_set_msg_callback_arg(ssl_.get(), this);
  EndHandshake();
  if (is_server_) {
    handler_ = accept_(*this);
    accept_ = nullptr;
    if (handler_ == nullptr) {
      loop_.counters().refused.Add();
      return Abort(absl::UnavailableError("refused"));
    }
  }
  if (!plain_.empty()) loop_.AtIterationEnd(*this);
  handler_->OnOpen();
}

void TlsStream::EndHandshake() {
  if (!open_) {
    ssl_ = nullptr;
    waiting_ = std::string();
  }
  handshake_.input = nullptr;
  if (handshake_.done != nullptr) std::exchange(handshake_.done, nullptr)();
}

void TlsStream::Decrypt() {
  const absl::Span<uint8_t> buffer = loop_.plaintext_buffer();
  for (;;) {
    size_t filled = 0;
    int result = 1;
    ERR_clear_error();
    while (filled < buffer.size()) {
      size_t n = 0;
      result = SSL_read_ex(ssl_.get(), buffer.data() + filled, buffer.size() - filled, &n);
      if (result != 1) break;
      filled += n;
      message_credit_ = std::min(message_credit_ + static_cast<int64_t>(n), kMaxMessageCredit);
    }
    NoteHighWater();  // OpenSSL has written its answers to the socket
    const int error = result == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), result);
    // Read OpenSSL's errors, which are per thread, before a handler uses another stream.
    absl::Status broken;
    if (error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ && error != SSL_ERROR_ZERO_RETURN) {
      broken = TlsError("connection");
    }
    if (filled > 0) Deliver(buffer.first(filled));
    if (failed_) return;
    if (!broken.ok()) return Fail(std::move(broken));
    if (message_credit_ < 0) {
      return Fail(absl::ResourceExhaustedError("too many TLS messages for so little data"));
    }
    if (error == SSL_ERROR_ZERO_RETURN) return DeliverEnd();
    if (error == SSL_ERROR_WANT_READ) return;
  }
}

void TlsStream::Deliver(absl::Span<const uint8_t> plain) {
  if (closing_ || end_delivered_) return;
  if (paused_) return held_.Append(plain);
  delivered_ = true;
  handler_->OnData(plain);
}

void TlsStream::DeliverHeld() {
  if (!held_.empty() && !paused_) {
    // A copy, since an Abort within OnData clears held_.
    const std::vector<uint8_t> held(held_.front().begin(), held_.front().end());
    held_.Clear();
    handler_->OnData(held);
    if (!failed_ && !closing_) handler_->OnReadsDone();
  }
  if (peer_done_) DeliverEnd();
}

void TlsStream::OnReadsDone() {
  if (!std::exchange(delivered_, false) || failed_ || closing_) return;
  handler_->OnReadsDone();
}

void TlsStream::OnEnd() {
  if (failed_) return;
  if (!open_) return Fail(absl::UnavailableError("the peer closed during the TLS handshake"));
  DeliverEnd();
}

void TlsStream::DeliverEnd() {
  peer_done_ = true;
  if (end_delivered_ || failed_ || closing_ || !held_.empty()) return;
  end_delivered_ = true;
  handler_->OnEnd();
}

void TlsStream::OnWritable() {
  if (!failed_) loop_.AtIterationEnd(*this);
}

void TlsStream::OnClosed(const absl::Status& why) {
  timer_.Cancel();
  if (!open_) {
    (is_server_ ? loop_.counters().handshake_failures : loop_.counters().connect_failures).Add();
    EndHandshake();
  }
  failed_ = true;
  closed_ = true;
  if (handler_ != nullptr) handler_->OnClosed(failure_.ok() ? why : failure_);
  if (!scheduled()) delete this;
}

void TlsStream::Write(absl::Span<const uint8_t> data) {
  if (failed_ || closing_ || data.empty()) return;
  if (pending_output() + data.size() > options_.max_output_bytes) {
    return Abort(absl::ResourceExhaustedError(
        absl::StrCat("more than ", options_.max_output_bytes, " bytes wait for the peer to read")));
  }
  plain_.Append(data);
  NoteHighWater();
  loop_.AtIterationEnd(*this);
}

void TlsStream::NoteHighWater() {
  if (pending_output() >= options_.high_water_bytes) above_high_water_ = true;
}

void TlsStream::OnIterationEnd() {
  if (closed_) {
    delete this;
    return;
  }
  if (failed_ || !open_) return;
  if (!closing_) DeliverHeld();
  if (!failed_) Encrypt();
  if (failed_) return;
  if (closing_ && plain_.empty()) {
    timer_.Cancel();
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    socket_->CloseAfterWrite(linger_ns_);
    return;
  }
  const bool relieved = above_high_water_ && pending_output() <= std::max(options_.low_water_bytes,
                                                                          kSocketLowWaterBytes);
  if (relieved) above_high_water_ = false;
  UpdateReading();
  if (relieved && !closing_) handler_->OnWritable();
}

void TlsStream::Encrypt() {
  ERR_clear_error();
  while (!plain_.empty() && socket_->pending_output() < kMaxEncryptedBytes) {
    const absl::Span<const uint8_t> front = plain_.front();
    size_t n = 0;
    if (SSL_write_ex(ssl_.get(), front.data(), front.size(), &n) != 1) {
      return Fail(TlsError("connection"));
    }
    plain_.Consume(n);
    if (closing_) loop_.ArmIn(timer_, linger_ns_);
  }
  NoteHighWater();  // a record is larger than its data
}

void TlsStream::UpdateReading() {
  const bool pause = !closing_ && (paused_ || (above_high_water_ && options_.pause_when_high));
  pause ? socket_->PauseReading() : socket_->ResumeReading();
}

void TlsStream::PauseReading() {
  if (failed_) return;
  paused_ = true;
  UpdateReading();
}

void TlsStream::ResumeReading() {
  if (failed_ || !paused_) return;
  paused_ = false;
  UpdateReading();
  loop_.AtIterationEnd(*this);
}

void TlsStream::CloseAfterWrite(int64_t linger_ns) {
  if (failed_ || closing_) return;
  if (!open_) return Abort(absl::CancelledError("closed before it was connected"));
  closing_ = true;
  linger_ns_ = linger_ns;
  loop_.ArmIn(timer_, linger_ns_);
  loop_.AtIterationEnd(*this);
}

void TlsStream::OnTimeout() {
  Abort(absl::DeadlineExceededError(open_ ? "the peer does not read the last bytes"
                                          : "the TLS handshake took too long"));
}

void TlsStream::Abort(absl::Status why) {
  if (closed_) return;
  // It may wait for a peer that takes the last bytes slowly.
  if (failed_) return socket_->Abort(failure_);
  failed_ = true;
  failure_ = std::move(why);
  plain_.Clear();
  held_.Clear();
  EndHandshake();
  socket_->Abort(failure_);
}

void TlsStream::Fail(absl::Status why) {
  if (failed_) return;
  failed_ = true;
  failure_ = std::move(why);
  plain_.Clear();
  held_.Clear();
  timer_.Cancel();
  if (!open_) EndHandshake();
  // OpenSSL has written an alert: let the peer read it.
  socket_->CloseAfterWrite(kAlertLingerNs);
}

absl::Status TlsStream::TlsError(absl::string_view what) const {
  const unsigned long error = ERR_peek_error();
  const char* const reason = error != 0 ? ERR_reason_error_string(error) : nullptr;
  const long verified = SSL_get_verify_result(ssl_.get());
  if (!open_ && verified != X509_V_OK) {
    return absl::UnauthenticatedError(absl::StrCat(
        "TLS ", what,
        ": the peer's certificate is not trusted: ", X509_verify_cert_error_string(verified)));
  }
  return absl::UnauthenticatedError(
      absl::StrCat("TLS ", what, " failed: ", reason != nullptr ? reason : "unknown reason"));
}

std::string TlsStream::protocol() const { return SSL_get_version(ssl_.get()); }
PeerIdentity TlsStream::peer_identity() const {
  PeerIdentity identity = socket_->peer_identity();
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      SSL_get1_peer_certificate(ssl_.get()), &X509_free);
  if (certificate == nullptr) return identity;
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new(BIO_s_mem()), &BIO_free);
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate.get()), 0, XN_FLAG_RFC2253);
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(text.get(), &bytes);
  identity.subject.assign(bytes, static_cast<size_t>(size));
  AddAlternativeNames(*certificate, &identity);
  return identity;
}
bool TlsStream::resumed() const { return SSL_session_reused(ssl_.get()) == 1; }

}  // namespace sluice::net
