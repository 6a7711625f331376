// Fuzzes the server's HTTP/2 session with a client's bytes: as a whole, and in pieces between which
// it sends. What a session does must not depend on how its input is split.
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/support/http2_sessions.h"

namespace {

using sluice::testing::ParseFrames;
using sluice::testing::ServerEnd;

constexpr size_t kMaxMemory = size_t{256} << 10;

void Check(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  sluice::http2::ServerOptions options;
  options.max_concurrent_streams = 8;
  const auto prepare = [](ServerEnd& server) {
    server.answer = {{{":status", "200"}}, std::string(20'000, 'b'), {{"grpc-status", "0"}}};
  };
  ServerEnd whole(options);
  prepare(whole);
  whole.Feed(input);
  const std::string output = whole.Take();
  Check(whole.session().memory() <= kMaxMemory);
  Check(whole.open() <= options.max_concurrent_streams);

  ServerEnd split(options);
  prepare(split);
  split.FeedInPieces(input, 1 + size % 7);
  Check(split.Take() == output);
  Check(split.events == whole.events);

  // Sends in between: other events follow, and the bounds hold.
  ServerEnd sending(options);
  prepare(sending);
  for (std::string_view rest = input; !rest.empty() && !sending.session().finished();) {
    const size_t piece = 1 + rest.size() % 61;
    sending.Feed(rest.substr(0, piece));
    rest.remove_prefix(std::min(piece, rest.size()));
    sending.now_ns += 1'000'000;
    for (const auto& frame : ParseFrames(sending.Take(5'000))) Check(frame.header.length <= 16'384);
    Check(sending.session().memory() <= kMaxMemory);
  }
  sending.session().Drain(sending.now_ns);
  sending.session().OnTime(sending.now_ns + int64_t{100} * 1'000'000'000);
  sending.Take();
  return 0;
}
