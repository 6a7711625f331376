// Fuzzes a server connection with a client's bytes, in pieces of any size, while its output is read
// or stalled, and time passes. The first four bytes of the input select how; the client sends the
// rest after the preface.
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/support/echo_methods.h"
#include "tests/support/h2_peer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::testing;
  if (size < 4) return 0;
  const uint8_t flags = data[0];
  size_t piece = data[1] + 1;
  const uint8_t stall_at = data[2];
  const uint8_t time_at = data[3];
  std::string bytes;
  if ((flags & 1) == 0) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  bytes.append(reinterpret_cast<const char*>(data) + 4, size - 4);
  if ((flags & 2) != 0) piece *= 64;

  EchoMethod echo;
  HeldMethod held;
  EchoStream stream;
  sluice::transport::RpcServerOptions options;
  options.http2.max_concurrent_streams = 8;
  options.max_connection_buffered_bytes = 64 << 10;
  options.max_connection_unsent_bytes = 64 << 10;
  H2Server server(options);
  server.methods.AddUnary("/t.T/Echo", echo, {.max_request_bytes = 1 << 16});
  server.methods.AddUnary("/t.T/Held", held, {.max_request_bytes = 1 << 16});
  server.methods.AddStreaming("/t.T/Stream", stream, {.max_request_bytes = 1 << 16});
  stream.times = 3;
  stream.pause_after_each = (flags & 4) != 0;
  {
    H2Connection connection(server);
    std::string_view rest = bytes;
    for (int step = 0; !rest.empty() && !connection.ended(); ++step) {
      connection.Feed(rest.substr(0, piece));
      rest.remove_prefix(std::min(piece, rest.size()));
      if (step == stall_at) connection.stream.stalled = true;
      if (step == stall_at + 5) {
        connection.stream.stalled = false;
        if (!connection.ended()) connection.Writable();
      }
      if (!connection.stream.stalled) connection.Take();
      if (step == time_at) server.Advance(int64_t{40} * 1'000'000'000);
      if ((flags & 8) != 0 && !held.held.empty()) {
        auto* call = held.held.back();
        held.held.pop_back();
        call->response().Append(std::string_view("late"));
        call->Finish();
      }
      if ((flags & 16) != 0 && step == 3) server.server.Drain();
    }
    if ((flags & 32) != 0 && !connection.ended()) connection.PeerEnds();
  }
  // Whatever the input, the connection is closed and each call was finished or cancelled.
  if (server.server.connections() != 0 || !held.held.empty()) __builtin_trap();
  return 0;
}
