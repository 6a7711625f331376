// Fuzzes the server's side of TLS with a client's bytes, over a real socket, in pieces of any size.
// The first bytes of the input select the mode:
//   0, raw: the client sends the rest from the first byte on;
//   1, after hello: a valid handshake comes first, then the rest as it is, below the records;
//   2, changed: a valid client, of whose bytes one is changed on the way;
//   3, honest: a valid client sends the rest: all of it must arrive, and come back.
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/socket_stream.h"
#include "common/net/tls_context.h"
#include "common/net/tls_stream.h"
#include "tests/support/test_certificates.h"

namespace {

using namespace sluice;

void Require(bool ok) {
  if (!ok) __builtin_trap();
}

// Echoes its input.
class Echo final : public net::StreamHandler {
 public:
  explicit Echo(bool pauses) : pauses_(pauses) {}
  net::StreamHandler* Accept(net::Stream& stream) {
    stream_ = &stream;
    return this;
  }
  void OnData(absl::Span<const uint8_t> data) override {
    Require(stream_ != nullptr);
    heard.append(reinterpret_cast<const char*>(data.data()), data.size());
    stream_->Write(data);
    if (pauses_) stream_->PauseReading();
  }
  void OnEnd() override { stream_->CloseAfterWrite(1'000'000'000); }
  void OnClosed(const absl::Status&) override { stream_ = nullptr; }
  void Resume() {
    if (stream_ != nullptr) stream_->ResumeReading();
  }
  std::string heard;

 private:
  const bool pauses_;
  net::Stream* stream_ = nullptr;
};

struct World {
  World() {
    const testing::TestCertificate certificate = authority.Issue();
    net::TlsOptions options;
    options.certificate_chain_file = files.Write("chain", certificate.chain_pem);
    options.private_key_file = files.Write("key", certificate.key_pem);
    auto made = net::TlsContext::Create(net::TlsContext::Role::kServer, options);
    Require(made.ok());
    server = *made;
    auto made_loop = net::EventLoop::Create(clock);
    Require(made_loop.ok());
    loop = *std::move(made_loop);
  }
  common::FakeClock clock;
  testing::TestAuthority authority;
  testing::TestFiles files;
  std::shared_ptr<net::TlsContext> server;
  std::unique_ptr<net::EventLoop> loop;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> client{SSL_CTX_new(TLS_client_method()),
                                                                 &SSL_CTX_free};
};

// The client's end of the socket.
class Peer {
 public:
  Peer(World& world, size_t piece, size_t change_at, uint8_t change_by)
      : world_(world), piece_(piece), change_at_(change_at), change_by_(change_by) {
    int ends[2];
    Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    fd_ = ends[0];
    served_ = ends[1];
  }
  ~Peer() {
    if (fd_ >= 0) close(fd_);
  }
  int TakeServed() { return served_; }

  void Send(std::string_view bytes) {
    for (; !bytes.empty() && !gone_; bytes.remove_prefix(std::min(piece_, bytes.size()))) {
      std::string piece(bytes.substr(0, piece_));
      if (change_by_ != 0 && change_at_ >= sent_ && change_at_ < sent_ + piece.size()) {
        piece[change_at_ - sent_] ^= static_cast<char>(change_by_);
      }
      sent_ += piece.size();
      gone_ = send(fd_, piece.data(), piece.size(), MSG_NOSIGNAL) < 0;
      world_.loop->RunOnce(0);
      Receive();
    }
  }
  // Reads the bytes that the server sent meanwhile.
  void Receive() {
    char buffer[65536];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) received.append(buffer, n);
  }
  void Close() { close(std::exchange(fd_, -1)); }
  std::string received;

 private:
  World& world_;
  const size_t piece_;
  const size_t change_at_;
  const uint8_t change_by_;
  size_t sent_ = 0;
  bool gone_ = false;
  int fd_ = -1;
  int served_ = -1;
};

// An honest client whose bytes pass through the peer.
class Client {
 public:
  Client(World& world, Peer& peer, bool tls12)
      : world_(world), peer_(peer), ssl_(SSL_new(world.client.get()), &SSL_free) {
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    if (tls12) SSL_set_max_proto_version(ssl_.get(), TLS1_2_VERSION);
    const unsigned char alpn[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl_.get(), alpn, sizeof(alpn));
    SSL_set_connect_state(ssl_.get());
  }
  bool Handshake() {
    for (int turns = 0; turns < 20; ++turns) {
      ERR_clear_error();
      const bool done = SSL_do_handshake(ssl_.get()) == 1;
      Carry();
      if (done) return true;
    }
    return false;
  }
  void Say(std::string_view text) {
    ERR_clear_error();
    if (!text.empty()) SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
    Carry();
  }
  void End() {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    Carry();
  }
  std::string Hear() {
    Carry();
    std::string heard;
    char buffer[16384];
    ERR_clear_error();
    for (int n; (n = SSL_read(ssl_.get(), buffer, sizeof(buffer))) > 0;) heard.append(buffer, n);
    return heard;
  }

 private:
  void Carry() {
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(SSL_get_wbio(ssl_.get()), &bytes);
    const std::string out(bytes, static_cast<size_t>(size));
    BIO_reset(SSL_get_wbio(ssl_.get()));
    peer_.Send(out);
    world_.loop->RunOnce(0);
    peer_.Receive();
    BIO_write(SSL_get_rbio(ssl_.get()), peer_.received.data(),
              static_cast<int>(peer_.received.size()));
    peer_.received.clear();
  }
  World& world_;
  Peer& peer_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* const world = new World;
  if (size < 4) return 0;
  const uint8_t mode = data[0] & 3;
  const bool tls12 = (data[0] & 4) != 0;
  const bool pauses = (data[0] & 8) != 0;
  const size_t piece = (data[0] & 16) != 0 ? data[1] + 1 : (data[1] + 1) * 64;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 4, size - 4);
  const bool changed = mode == 2;
  const size_t change_at = (size_t{data[2]} << 2) + data[3] % 4;

  Echo echo(pauses);
  Peer peer(*world, piece, change_at, changed ? static_cast<uint8_t>(data[3] | 1) : 0);
  auto* const socket =
      net::SocketStream::FromConnected(*world->loop, peer.TakeServed(), net::SocketAddress(),
                                       net::TlsStream::SocketOptions(), nullptr);
  net::TlsStream::Serve(socket, *world->server, 10'000'000'000, net::StreamOptions{},
                        [&echo](net::Stream& stream) { return echo.Accept(stream); }, {});
  if (mode == 0) {
    peer.Send(rest);
  } else {
    Client client(*world, peer, tls12);
    const bool open = client.Handshake();
    Require(open || changed);
    if (mode == 1) {
      peer.Send(rest);
    } else if (open) {
      std::string_view left = rest;
      for (size_t say = 1; !left.empty(); say = say * 3 + 1) {
        client.Say(left.substr(0, say));
        left.remove_prefix(std::min(say, left.size()));
        echo.Resume();
      }
      std::string heard;
      for (int turns = 0; turns < 200 && heard.size() < rest.size(); ++turns) {
        world->loop->RunOnce(0);
        echo.Resume();
        heard += client.Hear();
        if (changed) break;
      }
      // A changed byte may end the connection, and must not change the data.
      Require(rest.substr(0, echo.heard.size()) == echo.heard);
      Require(rest.substr(0, heard.size()) == heard);
      if (mode == 3) Require(heard.size() == rest.size());
      client.End();
    }
  }
  // A client that closes or goes silent leaves nothing behind.
  if ((data[0] & 32) != 0) {
    world->clock.Advance(11'000'000'000);
    world->loop->RunOnce(0);
  }
  peer.Close();
  for (int turns = 0; turns < 50 && world->loop->counters().streams.value() != 0; ++turns) {
    world->loop->RunOnce(0);
    echo.Resume();
  }
  Require(world->loop->counters().streams.value() == 0);
  ERR_clear_error();
  return 0;
}
