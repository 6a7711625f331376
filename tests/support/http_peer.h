// HttpUnderTest and HttpPeer: an HTTP server on virtual time and without sockets, and the bytes of
// one connection to it.
#ifndef SLUICE_TESTS_SUPPORT_HTTP_PEER_H_
#define SLUICE_TESTS_SUPPORT_HTTP_PEER_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/http_server.h"
#include "server/transport/http1/route.h"
#include "tests/support/port_peer.h"

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
  void Answer(http1::SharedBytes body = http1::SharedBytes::Constant("late")) {
    http1::Exchange* const one = held.back();
    held.pop_back();
    one->Finish({.body = std::move(body)});
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

class HttpUnderTest final : public PortUnderTest {
 public:
  explicit HttpUnderTest(const http1::ServerOptions& options = {})
      : server(routes, clock, metrics, options) {
    routes.Add("/echo", echo,
               {.methods = {http1::Method::kGet, http1::Method::kPost}, .max_body_bytes = 1000});
    routes.Add("/large", echo,
               {.methods = {http1::Method::kPost}, .max_body_bytes = size_t{1} << 20});
    routes.Add("/call", echo, {.shed_when_late = true});
    routes.Add("/held", held, {});
    routes.Add("/stream", stream, {});
    routes.AddPrefix("/files/", echo, {});
  }
  transport::PortAcceptor& acceptor() override { return server; }

  EchoHandler echo;
  HeldHandler held;
  StreamOfTest stream;
  http1::RouteTable routes;
  http1::HttpServer server;
};

using HttpPeer = PortPeer;

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
