// Fuzzes the client's HTTP/2 session with the bytes of a hostile server: as a whole, and in pieces
// between which it sends.
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/support/http2_sessions.h"

namespace {

using sluice::testing::ClientEnd;
using sluice::testing::Fields;

constexpr size_t kMaxMemory = size_t{256} << 10;

void Check(bool holds) {
  if (!holds) __builtin_trap();
}

// Requests of all kinds: without a body, with a small one, with one that waits for the window.
void Open(ClientEnd& client) {
  const Fields headers = {
      {":method", "POST"}, {":scheme", "http"}, {":path", "/p"}, {":authority", "a"}};
  client.Request({headers, "", {}});
  client.Request({headers, "body", {}});
  client.Request({headers, std::string(100'000, 'b'), {}});
  client.Request({headers, "more follows", {}, /*body_ends=*/false});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  ClientEnd whole;
  Open(whole);
  whole.Take();
  whole.Feed(input);
  const std::string output = whole.Take();
  Check(whole.session().memory() <= kMaxMemory);

  ClientEnd split;
  Open(split);
  split.Take();
  split.FeedInPieces(input, 1 + size % 7);
  Check(split.Take() == output);
  Check(split.events == whole.events);

  ClientEnd sending;
  Open(sending);
  sending.Take();
  for (std::string_view rest = input; !rest.empty() && !sending.session().finished();) {
    const size_t piece = 1 + rest.size() % 61;
    sending.Feed(rest.substr(0, piece));
    rest.remove_prefix(std::min(piece, rest.size()));
    sending.now_ns += 1'000'000;
    sending.Take(5'000);
    if (rest.size() % 3 == 0 && sending.HasStream(7)) {
      sending.session().Reset(sending.stream(7), sluice::http2::ErrorCode::kCancel);
    }
    if (sending.session().can_open() && sending.open() < 8) Open(sending);
    Check(sending.session().memory() <= kMaxMemory);
  }
  return 0;
}
