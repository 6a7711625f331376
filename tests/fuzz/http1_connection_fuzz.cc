// Fuzzes an HTTP/1.1 connection with a client's bytes, in pieces of any size, while its output is
// read or stalled, and time passes. The first four bytes of the input select how. The bytes are
// also given in one piece to a second connection: how a request arrives must not change its answer.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/support/http_peer.h"

namespace sluice::testing {
namespace {

// A malformed request ends the connection. If it has several faults, the one that is found first
// depends on how it arrived.
std::string WithoutReason(std::string answers) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  const size_t close = answers.rfind("connection: close");
  if (close == answers.npos) return answers;
  const size_t status = answers.rfind(kVersion, close) + kVersion.size();
  if (answers[status] == '4' || answers[status] == '5') answers.resize(status);
  return answers;
}

// What the server wrote, without what depends on the moment.
std::string Answers(HttpUnderTest& server, std::string_view bytes, size_t piece) {
  HttpPeer peer(server);
  peer.FeedInPieces(bytes, piece);
  // The parser waits for the shortest last chunk, unless the bytes arrive with others before them.
  peer.Feed("\r\n\r\n\r\n");
  // Held requests are answered last in both.
  while (!server.held.held.empty()) {
    server.held.Answer();
    peer.RunTurns();
  }
  return WithoutReason(peer.Take());
}

void Disturb(std::string_view bytes, uint8_t flags, size_t piece, uint8_t stall_at,
             uint8_t time_at) {
  HttpUnderTest server;
  {
    HttpPeer peer(server);
    for (int step = 0; !bytes.empty() && !peer.ended(); ++step) {
      peer.Feed(bytes.substr(0, piece));
      bytes.remove_prefix(std::min(piece, bytes.size()));
      if (step == stall_at) peer.stream.stalled = true;
      if (step == stall_at + 5) {
        peer.stream.stalled = false;
        peer.Take();
        peer.Writable();
      }
      if (!peer.stream.stalled) peer.Take();
      if (step == time_at) server.Advance(int64_t{15} * 1'000'000'000);
      if ((flags & 1) != 0 && !server.held.held.empty()) server.held.Answer();
      if ((flags & 2) != 0 && server.stream.open != nullptr) {
        server.stream.open->Write("data: 1\n\n");
      }
      if ((flags & 4) != 0 && server.stream.open != nullptr) {
        auto* const open = server.stream.open;
        server.stream.open = nullptr;
        open->EndStream();
      }
      if ((flags & 8) != 0 && step == 3) server.server.Drain();
    }
    if ((flags & 16) != 0) peer.PeerEnds();
  }
  // Whatever the input, the connection is closed and each exchange was finished or cancelled.
  if (server.server.connections() != 0 || !server.held.held.empty()) __builtin_trap();
}

}  // namespace
}  // namespace sluice::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::testing;
  if (size < 4) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 4, size - 4);
  const size_t piece = size_t{1} + data[1];
  Disturb(bytes, data[0], piece, data[2], data[3]);
  // Beast finds a malformed header early if it arrives in one piece, else at the end of all
  // headers.
  const std::string ended = std::string(bytes) + "\r\n\r\n";
  HttpUnderTest one;
  HttpUnderTest other;
  if (Answers(one, ended, piece) != Answers(other, ended, ended.size())) __builtin_trap();
  return 0;
}
