#include "common/net/tls_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/memory_account.h"
#include "common/net/connector.h"
#include "common/net/listener.h"
#include "common/net/listening_socket.h"
#include "common/net/loop_group.h"
#include "tests/support/test_certificates.h"
#include "tests/unit/common/net/net_testing.h"

namespace sluice::net {
namespace {

using ::sluice::testing::TestAuthority;
using ::sluice::testing::TestCertificate;
using ::sluice::testing::TestFiles;
using ::sluice::testing::TestSubject;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

// OpenSSL's client on a socket, for behaviour that our client does not have.
class RawClient {
 public:
  RawClient(const SocketAddress& address, SSL_CTX* ctx) : RawClient(ConnectTo(address), ctx) {}
  RawClient(RawSocket raw, SSL_CTX* ctx) : raw_(std::move(raw)) {
    raw_.Nonblocking();
    ssl_ = SSL_new(ctx);
    SSL_set_fd(ssl_, raw_.fd());
    SSL_set_connect_state(ssl_);
  }
  ~RawClient() {
    SSL_shutdown(ssl_);  // else OpenSSL holds its session to be unfit for resumption
    ERR_clear_error();
    SSL_free(ssl_);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Handshake() {
    ERR_clear_error();
    return Note(SSL_do_handshake(ssl_)) == 1;
  }
  std::string Read() {
    std::string data(70'000, '\0');
    ERR_clear_error();
    const int n = Note(SSL_read(ssl_, data.data(), static_cast<int>(data.size())));
    data.resize(std::max(n, 0));
    return data;
  }
  int Write(std::string_view data) {
    ERR_clear_error();
    return Note(SSL_write(ssl_, data.data(), static_cast<int>(data.size())));
  }
  SSL* ssl() { return ssl_; }
  RawSocket& raw() { return raw_; }
  int error = SSL_ERROR_NONE;

 private:
  int Note(int result) {
    error = result > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_, result);
    return result;
  }
  RawSocket raw_;
  SSL* ssl_;
};

using CtxPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

CtxPtr RawContext() {
  CtxPtr ctx(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_security_level(ctx.get(), 0);
  SSL_CTX_set_mode(ctx.get(), SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return ctx;
}

class TlsStreamTest : public ::testing::Test, public Acceptor {
 protected:
  // Each accepted stream has its own handler.
  struct Served {
    RecordingHandler handler;
    Stream* stream;
  };

  StreamHandler* Accept(Stream& stream) override {
    if (refuse_) return nullptr;
    Served& served = served_.emplace_back();
    served.stream = &stream;
    if (on_accept_) on_accept_(served);
    return &served.handler;
  }

  std::shared_ptr<TlsContext> Context(TlsContext::Role role, const TestCertificate* certificate,
                                      const TestAuthority* trusted) {
    TlsOptions options;
    const std::string prefix = std::to_string(++contexts_);
    if (certificate != nullptr) {
      options.certificate_chain_file = files_.Write(prefix + "chain", certificate->chain_pem);
      options.private_key_file = files_.Write(prefix + "key", certificate->key_pem);
    }
    if (trusted != nullptr) {
      options.trusted_ca_file = files_.Write(prefix + "ca", trusted->certificate_pem());
    }
    auto context = TlsContext::Create(role, options);
    EXPECT_TRUE(context.ok()) << context.status();
    return *context;
  }

  void Serve(const TestCertificate& certificate, const TestAuthority* clients = nullptr,
             ListenerOptions options = {}) {
    server_ = Context(TlsContext::Role::kServer, &certificate, clients);
    options.tls = server_;
    auto sockets = *ListeningSockets::Open(*Address::Parse("127.0.0.1:0"), 1, {});
    address_ = sockets.address();
    listener_ = std::make_unique<Listener>(*loop_, sockets.Release(0), *this, options);
  }

  Stream* ConnectTls(RecordingHandler& handler, std::shared_ptr<TlsContext> context,
                     const std::string& name = "localhost") {
    ConnectOptions options;
    options.tls = std::move(context);
    options.server_name = name;
    options.timeout_ns = 60 * kSecond;
    return Connect(*loop_, *Address::Parse(address_.ToString()), resolver_, options, handler);
  }
  std::shared_ptr<TlsContext> ClientContext() {
    return Context(TlsContext::Role::kClient, nullptr, &authority_);
  }

  // The loop calls handlers until it is destroyed, so they live longer.
  RecordingHandler& NewHandler() { return handlers_.emplace_back(); }

  bool Until(const std::function<bool()>& done) { return RunUntil(*loop_, done); }

  common::FakeClock clock_;
  std::unique_ptr<EventLoop> loop_ = *EventLoop::Create(clock_);
  Resolver resolver_;
  TestAuthority authority_;
  TestAuthority stranger_{"Stranger"};
  TestFiles files_;
  std::shared_ptr<TlsContext> server_;
  SocketAddress address_;
  std::unique_ptr<Listener> listener_;
  std::deque<Served> served_;
  std::deque<RecordingHandler> handlers_;
  std::function<void(Served&)> on_accept_;
  bool refuse_ = false;
  int contexts_ = 0;

  void TearDown() override {
    listener_.reset();
    loop_.reset();  // before the handlers that it tells
  }
};

TEST_F(TlsStreamTest, CarriesDataBothWays) {
  Serve(authority_.Issue());
  on_accept_ = [](Served& served) {
    served.handler.on_data = [&served](absl::Span<const uint8_t> data) {
      served.stream->Write(data);
    };
  };
  RecordingHandler& client = NewHandler();
  Stream* const stream = ConnectTls(client, ClientContext());
  stream->Write(Bytes("early "));  // before it is connected
  ASSERT_TRUE(Until([&] { return client.received == "early "; }));
  EXPECT_EQ(client.opens, 1);
  EXPECT_EQ(static_cast<TlsStream*>(stream)->protocol(), "TLSv1.3");
  std::string data(3 << 20, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * i >> 7);
  client.received.clear();
  for (size_t at = 0, size = 1; at < data.size(); at += size, size = size * 7 % 90'001) {
    stream->Write(Bytes(std::string_view(data).substr(at, size)));
  }
  ASSERT_TRUE(Until([&] { return client.received.size() == data.size(); }));
  EXPECT_TRUE(client.received == data);
  stream->CloseAfterWrite(kSecond);
  ASSERT_TRUE(Until([&] { return served_.front().handler.ends == 1; }));
  served_.front().stream->CloseAfterWrite(kSecond);
  ASSERT_TRUE(Until([&] { return client.closed && served_.front().handler.closed; }));
  EXPECT_TRUE(client.closed->ok()) << *client.closed;
  EXPECT_TRUE(served_.front().handler.closed->ok()) << *served_.front().handler.closed;
  EXPECT_EQ(loop_->counters().handshakes.value(), 2u);
  EXPECT_EQ(loop_->counters().streams.value(), 0u);
}

TEST_F(TlsStreamTest, WritesOfAnIterationShareRecordsAndASend) {
  Serve(authority_.Issue());
  RecordingHandler& client = NewHandler();
  Stream* const stream = ConnectTls(client, ClientContext());
  ASSERT_TRUE(Until([&] { return !served_.empty() && served_.front().handler.opens == 1; }));
  Settle(*loop_);
  const uint64_t writes = loop_->counters().writes.value();
  const uint64_t bytes = loop_->counters().bytes_out.value();
  for (int i = 0; i < 100; ++i) stream->Write(Bytes("0123456789"));
  ASSERT_TRUE(Until([&] { return served_.front().handler.received.size() == 1000; }));
  EXPECT_EQ(loop_->counters().writes.value(), writes + 1);
  EXPECT_LT(loop_->counters().bytes_out.value() - bytes, 1040u);  // one record
  EXPECT_EQ(served_.front().handler.reads_done, 1);
}

TEST_F(TlsStreamTest, AcceptsClientWithTrustedCertificate) {
  Serve(authority_.Issue(), &authority_);
  const TestCertificate certificate = authority_.Issue();
  RecordingHandler& client = NewHandler();
  ConnectTls(client, Context(TlsContext::Role::kClient, &certificate, &authority_));
  ASSERT_TRUE(Until([&] { return !served_.empty() && client.opens == 1; }));
}

TEST_F(TlsStreamTest, RefusesClientWithoutTrustedCertificate) {
  Serve(authority_.Issue(), &authority_);
  const TestCertificate foreign = stranger_.Issue();
  const auto contexts = {ClientContext(),
                         Context(TlsContext::Role::kClient, &foreign, &authority_)};
  for (const auto& context : contexts) {
    RecordingHandler& client = NewHandler();
    ConnectTls(client, context);
    ASSERT_TRUE(Until([&] { return client.closed.has_value(); }));
    EXPECT_EQ(client.closed->code(), absl::StatusCode::kUnauthenticated) << *client.closed;
  }
  EXPECT_TRUE(served_.empty());
  EXPECT_EQ(loop_->counters().handshake_failures.value(), 2u);
}

TEST_F(TlsStreamTest, ClientRefusesServerWithWrongNameOrAuthority) {
  struct Case {
    TestCertificate certificate;
    std::string name;
    std::string expected;  // empty: trusted
  };
  const Case cases[] = {
      {authority_.Issue(), "localhost", ""},
      {authority_.Issue(), "127.0.0.1", ""},
      {authority_.Issue(), "other.example", "hostname mismatch"},
      {authority_.Issue(), "127.0.0.2", "IP address mismatch"},
      {authority_.Issue({.alternative_names = "DNS:*.example.com"}), "a.example.com", ""},
      {authority_.Issue({.alternative_names = "DNS:*.example.com"}), "a.b.example.com", "mismatch"},
      {authority_.Issue({.from_s = 3600, .to_s = 7200}), "localhost", "not yet valid"},
      {stranger_.Issue(), "localhost", "unable to get local issuer"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name + " " + one.expected);
    served_.clear();
    Serve(one.certificate);
    RecordingHandler& client = NewHandler();
    Stream* const stream = ConnectTls(client, ClientContext(), one.name);
    ASSERT_TRUE(Until([&] { return client.closed || client.opens > 0; }));
    if (one.expected.empty()) {
      EXPECT_EQ(client.opens, 1);
      stream->Abort(absl::CancelledError());
    } else {
      ASSERT_TRUE(client.closed.has_value());
      EXPECT_EQ(client.opens, 0);
      EXPECT_EQ(client.closed->code(), absl::StatusCode::kUnauthenticated);
      EXPECT_THAT(std::string(client.closed->message()), HasSubstr(one.expected));
    }
    ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 0; }));
  }
}

TEST_F(TlsStreamTest, ClientRefusesExpiredCertificate) {
  // Our server refuses to load an expired certificate, but a loaded one expires in time.
  TestCertificate certificate = authority_.Issue({.from_s = -7200, .to_s = -10});
  CtxPtr ctx(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate_chain_file(ctx.get(),
                                               files_.Write("old", certificate.chain_pem).c_str()),
            1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey_file(
                ctx.get(), files_.Write("oldkey", certificate.key_pem).c_str(), SSL_FILETYPE_PEM),
            1);
  SocketPair pair = TcpPair();
  pair.peer.Nonblocking();
  SSL* const ssl = SSL_new(ctx.get());
  SSL_set_fd(ssl, pair.peer.fd());
  SSL_set_accept_state(ssl);
  RecordingHandler& client = NewHandler();
  auto* const socket = SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address,
                                                   TlsStream::SocketOptions(), nullptr);
  TlsStream::Connect(socket, *ClientContext(), "localhost", kSecond, {}, &client);
  socket->Open();
  ASSERT_TRUE(Until([&] {
    const int result = SSL_do_handshake(ssl);
    if (result != 1 && SSL_get_error(ssl, result) == SSL_ERROR_SSL) pair.peer.Close();
    ERR_clear_error();
    return client.closed.has_value();
  }));
  EXPECT_THAT(std::string(client.closed->message()), HasSubstr("expired"));
  SSL_free(ssl);
}

TEST_F(TlsStreamTest, RefusesOldTlsVersionsAndOtherAlpn) {
  Serve(authority_.Issue());
  struct Case {
    int min, max;
    std::string alpn;
    bool accepted;
  };
  const std::string h2("\x02h2", 3), http1("\x08http/1.1", 9);
  for (const Case& one :
       {Case{TLS1_2_VERSION, TLS1_2_VERSION, h2, true},
        Case{TLS1_3_VERSION, TLS1_3_VERSION, http1 + h2, true},
        Case{TLS1_VERSION, TLS1_1_VERSION, h2, false}, Case{TLS1_2_VERSION, 0, http1, false},
        Case{TLS1_2_VERSION, 0, "", true}}) {
    SCOPED_TRACE(one.alpn + std::to_string(one.max));
    CtxPtr ctx = RawContext();
    SSL_CTX_set_min_proto_version(ctx.get(), one.min);
    SSL_CTX_set_max_proto_version(ctx.get(), one.max);
    SSL_CTX_set_alpn_protos(ctx.get(), reinterpret_cast<const unsigned char*>(one.alpn.data()),
                            one.alpn.size());
    const size_t before = served_.size();
    RawClient client(address_, ctx.get());
    ASSERT_TRUE(Until([&] { return client.Handshake() || client.error == SSL_ERROR_SSL; }));
    Settle(*loop_);
    EXPECT_EQ(served_.size() - before, one.accepted ? 1u : 0u);
    const unsigned char* alpn = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(client.ssl(), &alpn, &size);
    const std::string_view chosen(reinterpret_cast<const char*>(alpn), size);
    EXPECT_EQ(chosen, one.accepted && !one.alpn.empty() ? "h2" : "");
  }
}

TEST_F(TlsStreamTest, RefusesKeyExchangesThatTakeLong) {
  Serve(authority_.Issue());
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    for (const auto& [groups, accepted] : std::map<std::string, bool>{{"X25519:P-256", true},
                                                                      {"P-256", true},
                                                                      {"P-384:P-256", true},
                                                                      {"P-384", false},
                                                                      {"P-521", false},
                                                                      {"X448", false},
                                                                      {"ffdhe2048", false},
                                                                      {"ffdhe8192", false}}) {
      SCOPED_TRACE(groups);
      CtxPtr ctx = RawContext();
      SSL_CTX_set_max_proto_version(ctx.get(), version);
      ASSERT_EQ(SSL_CTX_set1_groups_list(ctx.get(), groups.c_str()), 1);
      const size_t before = served_.size();
      RawClient client(address_, ctx.get());
      ASSERT_TRUE(Until([&] { return client.Handshake() || client.error == SSL_ERROR_SSL; }));
      Settle(*loop_);
      EXPECT_EQ(served_.size() - before, accepted ? 1u : 0u);
    }
  }
}

TEST_F(TlsStreamTest, ResumesSessionsUntilCertificatesAreReloaded) {
  Serve(authority_.Issue());
  on_accept_ = [](Served& served) {
    served.handler.on_open = [&served] { served.stream->Write(Bytes("hi")); };
  };
  CtxPtr ctx = RawContext();
  SSL_SESSION* session = nullptr;
  for (int round = 0; round < 3; ++round) {
    if (round == 2) {
      ASSERT_TRUE(server_->Reload().ok());
    }
    RawClient client(address_, ctx.get());
    if (session != nullptr) SSL_set_session(client.ssl(), session);
    ASSERT_TRUE(Until([&] { return client.Handshake(); }));
    ASSERT_TRUE(Until([&] { return client.Read() == "hi"; }));
    EXPECT_EQ(SSL_session_reused(client.ssl()), round == 1 ? 1 : 0);
    EXPECT_EQ(static_cast<TlsStream*>(served_.back().stream)->resumed(), round == 1);
    SSL_SESSION_free(session);
    session = SSL_get1_session(client.ssl());
  }
  SSL_SESSION_free(session);
}

TEST_F(TlsStreamTest, ReloadAffectsOnlyNewConnections) {
  Serve(authority_.Issue({.common_name = "old"}));
  CtxPtr ctx = RawContext();
  RawClient before(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return before.Handshake(); }));
  const TestCertificate next = authority_.Issue({.common_name = "new"});
  files_.Write("1chain", next.chain_pem);
  files_.Write("1key", next.key_pem);
  ASSERT_TRUE(*server_->ReloadIfChanged());
  RawClient after(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return after.Handshake(); }));
  char name[100];
  X509_NAME_oneline(X509_get_subject_name(SSL_get0_peer_certificate(after.ssl())), name, 100);
  EXPECT_STREQ(name, "/CN=new");
  ASSERT_TRUE(Until([&] { return served_.size() == 2; }));
  ASSERT_GT(before.Write("still here"), 0);
  ASSERT_TRUE(Until([&] { return served_.front().handler.received == "still here"; }));
}

TEST_F(TlsStreamTest, EndsStalledHandshakeInTime) {
  ListenerOptions options;
  options.handshake_timeout_ns = 10 * kSecond;
  options.max_handshakes = 3;
  Serve(authority_.Issue(), nullptr, options);
  std::vector<RawSocket> stalled;
  for (int i = 0; i < 3; ++i) {
    stalled.push_back(ConnectTo(address_));
    stalled.back().Send(std::string("\x16\x03\x01", i));
  }
  Settle(*loop_);
  EXPECT_EQ(loop_->counters().streams.value(), 3u);
  clock_.Advance(9 * kSecond);
  stalled[0].Send("\x16");  // a byte does not buy time
  Settle(*loop_);
  EXPECT_EQ(loop_->counters().streams.value(), 3u);
  clock_.Advance(2 * kSecond);
  ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 0; }));
  EXPECT_EQ(loop_->counters().handshake_failures.value(), 3u);
  EXPECT_TRUE(served_.empty());
  // There is room for another handshake.
  CtxPtr ctx = RawContext();
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
}

TEST_F(TlsStreamTest, NewHandshakeDisplacesTheOldestSilentOneOfThePeerThatHoldsMost) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  common::Log log(clock_, common::LogLevel::kInfo, pipe_fds[1]);
  ListenerOptions options;
  options.max_handshakes = 4;
  options.log = &log;
  Serve(authority_.Issue(), nullptr, options);
  std::vector<RawSocket> flood;
  for (int i = 0; i < 3; ++i) {
    flood.push_back(ConnectTo(address_));
    if (i == 0) flood[0].Send("\x16");
    Settle(*loop_);
  }
  RawSocket other = ConnectTo(address_, "127.0.0.2");
  Settle(*loop_);
  EXPECT_EQ(loop_->counters().streams.value(), 4u);
  clock_.Advance(kSecond / 2);

  flood.push_back(ConnectTo(address_));
  Settle(*loop_);
  EXPECT_TRUE(flood[1].Closed());
  flood.push_back(ConnectTo(address_, "127.0.0.3"));
  Settle(*loop_);
  EXPECT_TRUE(flood[2].Closed());
  EXPECT_FALSE(flood[0].Closed());
  EXPECT_FALSE(flood[3].Closed());
  EXPECT_FALSE(other.Closed());
  EXPECT_EQ(loop_->counters().streams.value(), 4u);
  EXPECT_EQ(loop_->counters().handshakes_displaced.value(), 2u);
  EXPECT_EQ(loop_->counters().refused.value(), 0u);

  {
    // An honest client of the flooding address still gets through.
    CtxPtr ctx = RawContext();
    RawClient client(address_, ctx.get());
    ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  }
  char text[4096];
  const std::string logged(text, std::max<ssize_t>(read(pipe_fds[0], text, sizeof(text)), 0));
  EXPECT_THAT(logged, HasSubstr("event=tls_handshakes_displaced peer=127.0.0.1:"));
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 1);  // of three, in one minute
  listener_.reset();
  loop_.reset();  // which use the log
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

// A client that has just connected may be too busy to send its first bytes at once.
TEST_F(TlsStreamTest, NewHandshakeDisplacesOneThatWaitsForLongBeforeOneThatHasJustBegun) {
  ListenerOptions options;
  options.max_handshakes = 3;
  Serve(authority_.Issue(), nullptr, options);
  RawSocket slow = ConnectTo(address_);
  slow.Send("\x16");
  Settle(*loop_);
  clock_.Advance(kSecond);
  CtxPtr ctx = RawContext();
  RawClient honest(address_, ctx.get());  // says nothing yet
  Settle(*loop_);
  std::vector<RawSocket> flood;
  for (int i = 0; i < 2; ++i) {
    flood.push_back(ConnectTo(address_));
    flood.back().Send("\x16");
    Settle(*loop_);
  }
  EXPECT_TRUE(slow.Closed());
  EXPECT_EQ(loop_->counters().handshakes_displaced.value(), 1u);
  ASSERT_TRUE(Until([&] { return honest.Handshake(); }));
}

// The first bytes of a client, recorded without a server.
std::string ClientHello() {
  CtxPtr ctx = RawContext();
  SSL* const ssl = SSL_new(ctx.get());
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, in, out);
  SSL_set_connect_state(ssl);
  SSL_do_handshake(ssl);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  std::string hello(data, size);
  SSL_free(ssl);
  return hello;
}

TEST_F(TlsStreamTest, AnswersOneHandshakeInAnIteration) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  std::deque<RawClient> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(address_, ctx.get()).Handshake();
  uint64_t answers = 0;
  for (int i = 0; i < 1000 && answers < 8; ++i) {
    loop_->RunOnce(0);
    const uint64_t now = loop_->counters().writes.value();
    EXPECT_LE(now, answers + 1);
    answers = now;
  }
  EXPECT_EQ(answers, 8u);
  ASSERT_TRUE(Until([&] {
    for (RawClient& client : clients) client.Handshake();
    return served_.size() == 8;
  }));
}

TEST_F(TlsStreamTest, CountsTheMemoryOfHandshakes) {
  common::MemoryBudget memory(1 << 30);
  ListenerOptions options;
  options.memory = &memory;
  Serve(authority_.Issue(), nullptr, options);
  constexpr int kCount = 16;
  std::vector<RawSocket> peers;
  for (int i = 0; i < kCount; ++i) peers.push_back(ConnectTo(address_));
  Settle(*loop_);
  EXPECT_EQ(loop_->counters().streams.value(), size_t{kCount});
  EXPECT_EQ(memory.held(), 0);  // they are silent
  for (RawSocket& peer : peers) peer.Send(ClientHello());
  // A chunk may not be reported yet.
  constexpr auto kHeld = static_cast<int64_t>(kCount * TlsStream::kHandshakeMemory);
  ASSERT_TRUE(Until([&] { return memory.held() > kHeld - common::MemoryPart::kChunk; }));
  peers.clear();
  ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 0; }));
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
  TearDown();  // before `memory`
}

// Its peer may still read the alert.
TEST_F(TlsStreamTest, FailedHandshakeGivesItsSlotAndItsMemoryBack) {
  common::MemoryBudget memory(1 << 30);
  ListenerOptions options;
  options.max_handshakes = 2;
  options.memory = &memory;
  Serve(authority_.Issue(), nullptr, options);
  std::vector<RawSocket> failed;
  for (int i = 0; i < 16; ++i) {
    failed.push_back(ConnectTo(address_));
    failed.back().Send("GET / HTTP/1.1\r\n\r\n");
    Settle(*loop_);
  }
  EXPECT_EQ(loop_->counters().streams.value(), 16u);
  EXPECT_EQ(loop_->counters().handshakes_displaced.value(), 0u);
  EXPECT_LT(memory.held(), common::MemoryPart::kChunk);
  clock_.Advance(2 * kSecond);
  ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 0; }));
  EXPECT_EQ(loop_->counters().handshake_failures.value(), 16u);
  TearDown();  // before `memory`
}

TEST_F(TlsStreamTest, RefusesHelloThatAnnouncesTooMuchOrIsCutTooSmall) {
  Serve(authority_.Issue());
  for (const std::string_view start : {std::string_view("\x16\x03\x01\x02\0\x01\x02\0\0", 9),
                                       std::string_view("\x16\x03\x01\x20\x05\x01\0\x20\x01", 9),
                                       std::string_view("\x16\x03\x01\0\x01\x01\x16\x03\x01", 9)}) {
    RawSocket peer = ConnectTo(address_);
    peer.Send(start);
    ASSERT_TRUE(Until([&] { return peer.Closed(); }));
  }
  EXPECT_TRUE(served_.empty());
}

TEST_F(TlsStreamTest, HandshakeCutAtAnyByteLeavesNothing) {
  Serve(authority_.Issue());
  const std::string hello = ClientHello();
  ASSERT_GT(hello.size(), 100u);
  for (size_t cut = 0; cut <= hello.size(); cut += cut < 20 ? 1 : 7) {
    RawSocket raw = ConnectTo(address_);
    raw.Send(hello.substr(0, cut));
    Settle(*loop_);
    if (cut % 2 == 0) {
      raw.Reset();
    } else {
      shutdown(raw.fd(), SHUT_WR);
      ASSERT_TRUE(Until([&] {
        raw.Receive();
        return raw.at_end || raw.error == ECONNRESET;
      }));
      raw.Close();
    }
    ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 0; })) << cut;
  }
  EXPECT_TRUE(served_.empty());
}

TEST_F(TlsStreamTest, RefusesRandomBytesAsHandshake) {
  Serve(authority_.Issue());
  for (const std::string& rubbish : {std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
                                     std::string(200'000, '\x16'), std::string(200'000, '\0')}) {
    RawSocket raw = ConnectTo(address_);
    ASSERT_TRUE(Until([&] {
      raw.Send(rubbish);
      raw.Receive();
      return raw.at_end || raw.error == ECONNRESET;
    }));
    raw.Close();
    ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 0; }));
  }
  EXPECT_EQ(loop_->counters().handshake_failures.value(), 3u);
}

TEST_F(TlsStreamTest, CorruptedHelloDoesNotAffectOtherConnections) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  RawClient honest(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return honest.Handshake(); }));
  const std::string hello = ClientHello();
  uint32_t random = 1;
  for (size_t at = 0; at < hello.size(); at += 3) {
    std::string changed = hello;
    random = random * 1664525 + 1013904223;
    changed[at] ^= static_cast<char>(1 + (random >> 16) % 255);
    RawSocket raw = ConnectTo(address_);
    raw.Send(changed);
    Settle(*loop_);
    raw.Reset();
  }
  ASSERT_TRUE(Until([&] { return loop_->counters().streams.value() == 1; }));
  ASSERT_GT(honest.Write("unharmed"), 0);
  ASSERT_TRUE(Until([&] { return served_.front().handler.received == "unharmed"; }));
}

TEST_F(TlsStreamTest, ClosesConnectionOnKeyUpdateFlood) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  ASSERT_TRUE(Until([&] { return served_.size() == 1; }));
  for (int i = 0; i < 30; ++i) {  // now and then is fine
    SSL_key_update(client.ssl(), SSL_KEY_UPDATE_REQUESTED);
    client.Write("x");
  }
  ASSERT_TRUE(Until([&] {
    client.Read();
    return served_[0].handler.received.size() == 30;
  }));
  EXPECT_FALSE(served_[0].handler.closed);
  for (int i = 0; i < 200; ++i) {
    SSL_key_update(client.ssl(), SSL_KEY_UPDATE_NOT_REQUESTED);
    SSL_do_handshake(client.ssl());
  }
  ERR_clear_error();
  ASSERT_TRUE(Until([&] {
    client.Read();
    if (client.error == SSL_ERROR_ZERO_RETURN || client.error == SSL_ERROR_SYSCALL) {
      client.raw().Close();
    }
    return served_[0].handler.closed.has_value();
  }));
  EXPECT_EQ(served_[0].handler.closed->code(), absl::StatusCode::kResourceExhausted);
}

// OpenSSL handles all messages of a read before it returns the data behind them.
TEST_F(TlsStreamTest, ClosesConnectionOnKeyUpdateFloodWithAByteOfDataNowAndThen) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  ASSERT_TRUE(Until([&] { return served_.size() == 1; }));
  Settle(*loop_);
  BIO* const output = BIO_new(BIO_s_mem());  // of many records, which are sent in one piece
  SSL_set0_wbio(client.ssl(), output);
  const uint64_t sent_before = loop_->counters().bytes_out.value();
  for (int round = 0; round < 20 && !served_[0].handler.closed; ++round) {
    for (int i = 0; i < 600; ++i) {
      SSL_key_update(client.ssl(), SSL_KEY_UPDATE_REQUESTED);
      SSL_do_handshake(client.ssl());
    }
    ASSERT_EQ(client.Write("x"), 1);
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(output, &bytes);
    ASSERT_GT(size, 600 * 22);
    client.raw().Send(std::string_view(bytes, static_cast<size_t>(size)));
    BIO_reset(output);
    Settle(*loop_);
    if (client.raw().Closed()) client.raw().Close();
    Settle(*loop_);
  }
  ASSERT_TRUE(served_[0].handler.closed);
  EXPECT_EQ(served_[0].handler.closed->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LT(loop_->counters().bytes_out.value() - sent_before, 1000u);  // some 30 answers
}

TEST_F(TlsStreamTest, KeepsPeerThatUpdatesItsKeysWithEachMegabyte) {
  Serve(authority_.Issue());
  size_t received = 0;
  on_accept_ = [&received](Served& served) {
    served.handler.on_data = [&received, &served](absl::Span<const uint8_t> data) {
      received += data.size();
      served.handler.received.clear();
    };
  };
  CtxPtr ctx = RawContext();
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  ASSERT_TRUE(Until([&] { return served_.size() == 1; }));
  const std::string chunk(16'000, 'x');
  size_t sent = 0;
  for (size_t update = 1; update <= 50; ++update) {
    SSL_key_update(client.ssl(), SSL_KEY_UPDATE_REQUESTED);  // goes before the next data
    while (sent < update * 1'000'000) {
      const int n = client.Write(chunk);
      if (n > 0) sent += static_cast<size_t>(n);
      loop_->RunOnce(0);
      ASSERT_FALSE(served_[0].handler.closed);
    }
  }
  ASSERT_TRUE(Until([&] { return received == sent; }));
  EXPECT_EQ(client.Read(), "");
  EXPECT_EQ(client.error, SSL_ERROR_WANT_READ);
}

TEST_F(TlsStreamTest, RefusesRenegotiation) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  SSL_CTX_set_max_proto_version(ctx.get(), TLS1_2_VERSION);
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  SSL_renegotiate(client.ssl());
  ASSERT_TRUE(Until([&] {
    client.Handshake();
    return client.error == SSL_ERROR_SSL;
  }));
  EXPECT_EQ(loop_->counters().handshakes.value(), 1u);
}

TEST_F(TlsStreamTest, StopsReadingFromPeerThatDoesNotRead) {
  ListenerOptions options;
  options.stream.high_water_bytes = 200'000;
  options.stream.low_water_bytes = 50'000;
  Serve(authority_.Issue(), nullptr, options);
  on_accept_ = [](Served& served) {
    served.handler.on_data = [&served](absl::Span<const uint8_t> data) {
      served.stream->Write(data);
    };
  };
  CtxPtr ctx = RawContext();
  SSL_CTX_set_mode(ctx.get(), SSL_MODE_ENABLE_PARTIAL_WRITE);
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  const std::string chunk(16'000, 'x');
  size_t sent = 0, most = 0;
  int idle = 0;
  while (idle < 50) {
    const int n = client.Write(chunk);
    if (n > 0) sent += n;
    idle = n > 0 ? 0 : idle + 1;
    loop_->RunOnce(0);
    if (!served_.empty()) most = std::max(most, served_[0].stream->pending_output());
  }
  EXPECT_GE(most, options.stream.high_water_bytes);
  // The mark, one read with the rest of a record, and the bytes that encryption adds.
  EXPECT_LE(most, options.stream.high_water_bytes + loop_->read_buffer().size() + 40'000);
  size_t got = 0;
  ASSERT_TRUE(Until([&] {
    got += client.Read().size();
    return got == sent;
  }));
  EXPECT_GE(served_[0].handler.writables, 1);
}

// A handler that finds the stream above the mark waits for OnWritable.
TEST_F(TlsStreamTest, CallsOnWritableIfOnlyEncryptionReachedTheHighWaterMark) {
  StreamOptions options;
  options.high_water_bytes = 200'000;
  options.low_water_bytes = 50'000;
  const TestCertificate certificate = authority_.Issue();
  server_ = Context(TlsContext::Role::kServer, &certificate, nullptr);
  SocketPair pair = UnixPair();  // takes no more bytes once it is full
  auto* const socket = SocketStream::FromConnected(*loop_, pair.ours.Release(), pair.peer_address,
                                                   TlsStream::SocketOptions(), nullptr);
  TlsStream::Serve(socket, *server_, kSecond, options,
                   [this](Stream& stream) { return Accept(stream); }, {});
  CtxPtr ctx = RawContext();
  RawClient client(std::move(pair.peer), ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  ASSERT_TRUE(Until([&] { return served_.size() == 1; }));
  Stream& stream = *served_[0].stream;
  size_t sent = 0;
  const auto write = [&](size_t size) {
    stream.Write(Bytes(std::string(size, 'x')));
    sent += size;
    Settle(*loop_);
  };
  while (stream.pending_output() == 0) write(10'000);
  write(options.high_water_bytes - 1 - stream.pending_output());
  ASSERT_GE(stream.pending_output(), options.high_water_bytes);
  size_t got = 0;
  ASSERT_TRUE(Until([&] {
    got += client.Read().size();
    return got == sent;
  }));
  Settle(*loop_);
  EXPECT_EQ(served_[0].handler.writables, 1);
}

TEST_F(TlsStreamTest, StreamPausedOnOpenDeliversNothingUntilResumed) {
  Serve(authority_.Issue());
  on_accept_ = [](Served& served) {
    served.handler.on_open = [&served] { served.stream->PauseReading(); };
  };
  CtxPtr ctx = RawContext();
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] {
    const bool done = client.Handshake();
    if (done) client.Write("with the handshake's last bytes");
    return done;
  }));
  SSL_shutdown(client.ssl());
  shutdown(client.raw().fd(), SHUT_WR);
  Settle(*loop_);
  ASSERT_EQ(served_.size(), 1u);
  EXPECT_EQ(served_[0].handler.received, "");
  EXPECT_EQ(served_[0].handler.ends, 0);
  served_[0].stream->ResumeReading();
  ASSERT_TRUE(Until([&] { return served_[0].handler.ends == 1; }));
  EXPECT_EQ(served_[0].handler.received, "with the handshake's last bytes");
  EXPECT_EQ(served_[0].handler.reads_done, 1);
}

TEST_F(TlsStreamTest, MayBeAbortedFromEveryCallback) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  for (int callback = 0; callback < 4; ++callback) {
    SCOPED_TRACE(callback);
    on_accept_ = [&](Served& served) {
      const auto abort = [&served] {
        served.stream->Write(Bytes("x"));
        served.stream->Abort(absl::InternalError("here"));
        served.stream->Write(Bytes("y"));
        served.stream->PauseReading();
        served.stream->ResumeReading();
        served.stream->CloseAfterWrite(1);
      };
      if (callback == 0) served.handler.on_open = abort;
      if (callback == 1) served.handler.on_data = [abort](absl::Span<const uint8_t>) { abort(); };
      if (callback == 2) served.handler.on_reads_done = abort;
      if (callback == 3) served.handler.on_end = abort;
    };
    RawClient client(address_, ctx.get());
    ASSERT_TRUE(Until([&] { return client.Handshake(); }));
    client.Write("data");
    SSL_shutdown(client.ssl());
    ASSERT_TRUE(Until([&] {
      return served_.size() == static_cast<size_t>(callback + 1) && served_.back().handler.closed;
    }));
    EXPECT_EQ(served_.back().handler.closed->message(), "here");
  }
  EXPECT_EQ(loop_->counters().streams.value(), 0u);
}

TEST_F(TlsStreamTest, ClosesRefusedStream) {
  refuse_ = true;
  Serve(authority_.Issue());
  RecordingHandler& client = NewHandler();
  ConnectTls(client, ClientContext());
  ASSERT_TRUE(Until([&] { return client.closed.has_value(); }));
  EXPECT_EQ(loop_->counters().streams.value(), 0u);
  EXPECT_EQ(loop_->counters().refused.value(), 1u);
}

TEST_F(TlsStreamTest, LoopStopClosesHandshakesAndStreams) {
  Serve(authority_.Issue());
  CtxPtr ctx = RawContext();
  RawClient client(address_, ctx.get());
  ASSERT_TRUE(Until([&] { return client.Handshake(); }));
  ASSERT_TRUE(Until([&] { return served_.size() == 1; }));
  RawSocket stalled = ConnectTo(address_);
  Settle(*loop_);
  loop_->Stop();
  loop_->Run();
  EXPECT_EQ(loop_->counters().streams.value(), 0u);
  EXPECT_EQ(served_[0].handler.closed->code(), absl::StatusCode::kCancelled);
}

// Echoes on each loop of a group, and deletes itself.
class GroupEcho final : public Acceptor {
 public:
  StreamHandler* Accept(Stream& stream) override { return new Echo(stream); }

 private:
  struct Echo final : StreamHandler {
    explicit Echo(Stream& stream) : stream(stream) {}
    void OnData(absl::Span<const uint8_t> data) override { stream.Write(data); }
    void OnEnd() override { stream.CloseAfterWrite(kSecond); }
    void OnClosed(const absl::Status&) override { delete this; }
    Stream& stream;
  };
};

TEST_F(TlsStreamTest, LoopsShareAContextDuringReloads) {
  common::SystemClock clock;
  const TestCertificate certificate = authority_.Issue();
  server_ = Context(TlsContext::Role::kServer, &certificate, nullptr);
  GroupEcho echo;
  auto group = *LoopGroup::Create(clock, {.threads = 2, .loop = {}});
  ListenerOptions options;
  options.tls = server_;
  const auto address = *group->Listen(*Address::Parse("127.0.0.1:0"), echo, options);
  group->Start();
  std::vector<std::thread> clients;
  std::atomic<int> echoed{0};
  for (int t = 0; t < 2; ++t) {
    clients.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        CtxPtr ctx = RawContext();
        RawClient client(address, ctx.get());
        const int flags = fcntl(client.raw().fd(), F_GETFL);
        fcntl(client.raw().fd(), F_SETFL, flags & ~O_NONBLOCK);
        if (client.Handshake() && client.Write("hello") == 5 && client.Read() == "hello") ++echoed;
      }
    });
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(server_->Reload().ok());
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(echoed, 40);
  group->Stop();
  uint64_t handshakes = 0;
  for (size_t i = 0; i < group->size(); ++i) {
    handshakes += group->loop(i).counters().handshakes.value();
    EXPECT_EQ(group->loop(i).counters().streams.value(), 0u);
  }
  EXPECT_EQ(handshakes, 40u);
}

}  // namespace
}  // namespace sluice::net
