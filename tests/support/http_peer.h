// HttpUnderTest and HttpPeer: an HTTP server on virtual time and without sockets, and the bytes of
// one connection to it.
#ifndef SLUICE_TESTS_SUPPORT_HTTP_PEER_H_
#define SLUICE_TESTS_SUPPORT_HTTP_PEER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/net/event_loop.h"
#include "common/strings.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/http_server.h"
#include "server/transport/http1/route.h"
#include "tests/support/fake_stream.h"

namespace sluice::testing {

// Answers with the method, the path, the parameters and the body.
class EchoHandler final : public http1::Handler {
 public:
  void OnRequest(http1::Exchange& exchange) override {
    const http1::Request& request = exchange.request();
    std::string text = absl::StrCat(common::ToAbsl(http1::NameOf(request.method())), " ",
                                    common::ToAbsl(request.path()));
    for (size_t i = 0; i < request.parameters(); ++i) {
      absl::StrAppend(&text, " ", common::ToAbsl(request.parameter(i).name), "=",
                      common::ToAbsl(request.parameter(i).value));
    }
    exchange.body().Append(std::string_view(text));
    exchange.body().Append(std::string_view(" "));
    exchange.body().Append(request.body());
    exchange.Finish();
  }
};

// Keeps the exchanges, and answers when the test says so.
class HeldHandler final : public http1::Handler {
 public:
  void OnRequest(http1::Exchange& exchange) override {
    if (ends_with_peer) exchange.EndWithPeer();
    held.push_back(&exchange);
  }
  void OnCancelled(http1::Exchange& exchange) override {
    held.erase(std::find(held.begin(), held.end(), &exchange));
    ++cancelled;
  }
  void Answer() {
    http1::Exchange* const one = held.back();
    held.pop_back();
    one->Finish({.body = http1::SharedBytes::Constant("late")});
  }

  std::vector<http1::Exchange*> held;
  int cancelled = 0;
  bool ends_with_peer = false;
};

// Begins a stream; the test writes to it.
class StreamOfTest final : public http1::Handler {
 public:
  void OnRequest(http1::Exchange& exchange) override {
    exchange.BeginStream("text/event-stream");
    open = &exchange;
  }
  void OnCancelled(http1::Exchange&) override { open = nullptr; }
  void OnWritable(http1::Exchange&) override { ++writable; }
  void OnDrain(http1::Exchange& exchange) override {
    open = nullptr;
    exchange.EndStream();
  }

  http1::Exchange* open = nullptr;
  int writable = 0;
};

class HttpUnderTest {
 public:
  explicit HttpUnderTest(const http1::ServerOptions& options = {})
      : loop(std::move(net::EventLoop::Create(clock)).value()),
        server(routes, clock, metrics, options) {
    routes.Add("/echo", echo,
               {.methods = {http1::Method::kGet, http1::Method::kPost}, .max_body_bytes = 1000});
    routes.Add("/call", echo, {.shed_when_late = true});
    routes.Add("/held", held, {});
    routes.Add("/stream", stream, {});
    routes.AddPrefix("/files/", echo, {});
  }
  void Start() {
    if (started_) return;
    started_ = true;
    server.AddLoop(*loop);
    loop->RunOnce(0);
  }
  void Advance(int64_t by_ns) {
    clock.Advance(by_ns);
    loop->RunOnce(0);
  }

  common::FakeClock clock;
  common::Metrics metrics;
  std::unique_ptr<net::EventLoop> loop;
  EchoHandler echo;
  HeldHandler held;
  StreamOfTest stream;
  http1::RouteTable routes;
  http1::HttpServer server;

 private:
  bool started_ = false;
};

// The server's end of one connection; the test feeds it bytes.
class HttpPeer {
 public:
  explicit HttpPeer(HttpUnderTest& server) : server_(server), stream(*server.loop) {
    server.Start();
    handler_ = server.server.Accept(stream);
    if (handler_ != nullptr) handler_->OnOpen();
    server.loop->RunOnce(0);
  }
  ~HttpPeer() { Close(); }

  bool accepted() const { return handler_ != nullptr; }
  // As one read, and all turns that its work takes.
  void Feed(std::string_view bytes) {
    if (handler_ == nullptr || ended()) return;
    handler_->OnData({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    handler_->OnReadsDone();
    RunTurns();
  }
  void FeedInPieces(std::string_view bytes, size_t piece) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
      Feed(bytes.substr(0, piece));
    }
  }
  void RunTurns() {
    do {
      server_.loop->RunOnce(0);
    } while (!server_.loop->work().empty());
  }
  void PeerEnds() {
    if (!ended()) handler_->OnEnd();
    RunTurns();
  }
  void Writable() {
    if (!ended()) handler_->OnWritable();
    RunTurns();
  }
  void Close() {
    if (handler_ != nullptr) std::exchange(handler_, nullptr)->OnClosed(absl::OkStatus());
    RunTurns();
  }
  std::string Take() { return std::exchange(stream.output, std::string()); }
  bool ended() const { return stream.closing || stream.aborted; }

 private:
  HttpUnderTest& server_;
  net::StreamHandler* handler_ = nullptr;

 public:
  FakeStream stream;
};

// The statuses of the responses in `output`, which have a Content-Length each, and "?" for what is
// none. "100" is an interim one.
inline std::vector<std::string> StatusesOf(std::string_view output, bool heads_only = false) {
  std::vector<std::string> found;
  while (!output.empty()) {
    const size_t end = output.find("\r\n\r\n");
    if (output.substr(0, 9) != "HTTP/1.1 " || end == output.npos) {
      found.emplace_back("?");
      break;
    }
    const std::string_view head = output.substr(0, end + 2);
    found.emplace_back(head.substr(9, 3));
    constexpr std::string_view kLength = "\r\ncontent-length: ";
    const size_t at = head.find(kLength);
    size_t body = 0;
    if (at != head.npos && !heads_only) {
      body = std::stoul(std::string(head.substr(at + kLength.size())));
    }
    output.remove_prefix(std::min(output.size(), end + 4 + body));
  }
  return found;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_HTTP_PEER_H_
