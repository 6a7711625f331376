// A unary call in steady state allocates nothing: not from us, not from nghttp2.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/echo_methods.h"
#include "tests/support/h2_peer.h"

namespace {
uint64_t allocations = 0;
}  // namespace

// glibc's own names for what malloc and its kin do: these replace them in the whole program.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* block, size_t size) {
  ++allocations;
  return __libc_realloc(block, size);
}
}

namespace sluice::transport::h2 {
namespace {

// Requests as they come once the client's header table is warm, recorded from a client that is
// ahead of the server: their bytes are fed while counting.
TEST(AllocationTest, AUnaryCallInSteadyStateAllocatesNothing) {
  testing::EchoMethod echo;
  testing::H2Server server;
  server.methods.AddUnary("/t.T/Echo", echo);
  testing::H2Client client(server);
  client.Pump();
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < 32; ++j) client.Call("/t.T/Echo", testing::Framed("0123456789"));
    client.Pump();
  }
  ASSERT_EQ(echo.calls, 3200);

  constexpr int kRounds = 20;
  std::string requests[kRounds];
  for (std::string& round : requests) {
    for (int j = 0; j < 32; ++j) client.Call("/t.T/Echo", testing::Framed("0123456789"));
    round = client.TakeOutput();
  }
  client.connection.stream.output.reserve(1 << 20);

  const uint64_t before = allocations;
  for (const std::string& round : requests) client.connection.Feed(round);
  const uint64_t after = allocations;
  EXPECT_EQ(echo.calls, 3200 + 32 * kRounds);
  EXPECT_EQ(after - before, 0u) << "in " << 32 * kRounds << " calls";
}

}  // namespace
}  // namespace sluice::transport::h2
