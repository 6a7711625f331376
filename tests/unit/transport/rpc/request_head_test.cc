#include "server/transport/rpc/request_head.h"

#include <string_view>
#include <utility>
#include <vector>

#include "common/http2/header_rules.h"
#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

using Headers = std::vector<std::pair<std::string_view, std::string_view>>;

// A request with the headers that gRPC requires, some of them replaced.
RequestHead HeadOf(const Headers& changed = {}) {
  RequestHead head;
  head.Take(http2::RecognizeHeader(":method"), "POST");
  head.Take(http2::RecognizeHeader("te"), "trailers");
  head.Take(http2::RecognizeHeader("content-type"), "application/grpc");
  for (const auto& [name, value] : changed)
    EXPECT_TRUE(head.Take(http2::RecognizeHeader(name), value)) << name;
  return head;
}

std::string_view HttpStatusOf(const Headers& changed) {
  RequestHead head = HeadOf(changed);
  const RequestHead::Fault* const fault = head.CheckComplete();
  return fault == nullptr ? "none" : fault->http_status;
}

TEST(RequestHeadTest, AcceptsWhatGrpcRequires) {
  EXPECT_EQ(HttpStatusOf({}), "none");
  EXPECT_EQ(HeadOf().timeout_ns(), RequestHead::kNoTimeout);
  EXPECT_EQ(HeadOf().encoding(), MessageReader::Encoding::kIdentity);
}

TEST(RequestHeadTest, LeavesOtherHeadersToTheHandler) {
  RequestHead head;
  for (const char* name :
       {"x", ":authority", "user-agent", "x-trace", "grpc-tracebin", "grpc-accept-encoding"}) {
    EXPECT_FALSE(head.Take(http2::RecognizeHeader(name), "value")) << name;
  }
  EXPECT_TRUE(head.Take(http2::RecognizeHeader(":scheme"), "http"));
}

TEST(RequestHeadTest, AnswersRequestsThatAreNotGrpcInHttp) {
  EXPECT_EQ(HttpStatusOf({{":method", "GET"}}), "405");
  EXPECT_EQ(HttpStatusOf({{"content-type", "application/grpc-web"}}), "415");
  EXPECT_EQ(HttpStatusOf({{"te", "gzip"}}), "400");
}

TEST(RequestHeadTest, HttpErrorsPrecedeGrpcErrors) {
  EXPECT_EQ(HttpStatusOf({{"grpc-timeout", "soon"}}), "200");
  EXPECT_EQ(HttpStatusOf({{"grpc-timeout", "soon"}, {":method", "GET"}}), "405");
}

TEST(RequestHeadTest, KeepsTheFirstGrpcError) {
  RequestHead head = HeadOf({{"grpc-timeout", "soon"}, {"grpc-encoding", "zstd"}});
  ASSERT_NE(head.CheckComplete(), nullptr);
  EXPECT_EQ(head.fault()->code, absl::StatusCode::kInternal);
  EXPECT_EQ(head.encoding(), MessageReader::Encoding::kUnsupported);
}

TEST(RequestHeadTest, ReadsTimeoutAndEncoding) {
  RequestHead head = HeadOf({{"grpc-timeout", "5m"}, {"grpc-encoding", "gzip"}});
  EXPECT_EQ(head.CheckComplete(), nullptr);
  EXPECT_EQ(head.timeout_ns(), 5'000'000);
  EXPECT_EQ(head.encoding(), MessageReader::Encoding::kGzip);
}

}  // namespace
}  // namespace sluice::transport
