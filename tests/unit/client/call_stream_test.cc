#include "client/src/transport/call_stream.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::client_internal {
namespace {

// A request to which messages are added while it is open.
class OpenEndedCall final : public CallStream {
 public:
  OpenEndedCall() : CallStream(Method::kAcquireStream, /*blocking=*/false) {}
  void OnFinished(Status) override {}

 private:
  Status OnMessage(std::string_view) override { return Status(); }
  bool request_ends() const override { return false; }
};

TEST(CallStreamTest, OpenEndedRequestThatIsNeverSentWhollyForgetsWhatWasSent) {
  constexpr size_t kTotal = size_t{4} << 20;
  constexpr size_t kPart = 1000;
  OpenEndedCall call;
  http2::Stream& stream = call;
  std::string sent;
  std::string expected;
  for (char next = 'a'; expected.size() < kTotal; next = next == 'z' ? 'a' : next + 1) {
    const std::string part(kPart, next);
    call.request += part;
    expected += part;
    // Half a part stays unsent.
    const http2::Body body = stream.OnSendBody(expected.size() == kPart ? kPart / 2 : kPart);
    EXPECT_EQ(body.then, http2::Body::Then::kMore);
    sent.append(reinterpret_cast<const char*>(body.bytes.data()), body.bytes.size());
    stream.OnBodySent();
    ASSERT_LT(call.request.size(), size_t{256} << 10);
  }
  EXPECT_EQ(sent, expected.substr(0, expected.size() - kPart / 2));
}

}  // namespace
}  // namespace sluice::client_internal
