// Requests, right and wrong, by the sections of RFC 9112 (HTTP/1.1) and RFC 9110 (HTTP semantics).
// Each is sent in one piece, byte by byte, and behind another request.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/http_peer.h"

namespace sluice::testing {
namespace {

using Statuses = std::vector<std::string>;

struct Case {
  const char* section;
  const char* name;
  std::string request;
  Statuses statuses;
  bool closes = false;
};

std::string Get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
}
std::string Post(const std::string& headers, const std::string& body) {
  return "POST /echo HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body;
}
std::string Chunked(const std::string& body) {
  return Post("Transfer-Encoding: chunked\r\n", body);
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      // ---- What is right.
      {"9112 2.2", "EmptyLineBeforeRequest", "\r\n\r\n" + Get("/echo"), {"200"}},
      {"9112 3.2.1", "OriginForm", Get("/echo?a=1&b=%2F"), {"200"}},
      {"9112 3.2.2", "AbsoluteForm", Get("http://a:80/echo?x"), {"200"}},
      {"9112 3.2.2", "AbsoluteFormWithoutPath", Get("http://a"), {"404"}},
      {"9112 5.1", "SpaceAroundValue", Get("/echo", "X:  \t v \t\r\n"), {"200"}},
      {"9112 5.1", "EmptyValue", Get("/echo", "X:\r\n"), {"200"}},
      {"9112 6.2", "ContentLength", Post("Content-Length: 3\r\n", "abc"), {"200"}},
      {"9112 6.2", "ContentLengthZero", Post("Content-Length: 0\r\n", ""), {"200"}},
      {"9112 7.1", "Chunked", Chunked("3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"), {"200"}},
      {"9112 7.1.1", "ChunkExtension", Chunked("3;a=b;c=\"d\"\r\nabc\r\n0;e\r\n\r\n"), {"200"}},
      {"9112 7.1.2", "Trailers", Chunked("1\r\na\r\n0\r\nHost: b\r\nX: y\r\n\r\n"), {"200"}},
      {"9112 9.3", "CloseAfterAnswer", Get("/echo", "Connection: close\r\n"), {"200"}, true},
      {"9112 9.3", "CloseAmongOptions", Get("/echo", "Connection: x, Close\r\n"), {"200"}, true},
      {"9112 9.3", "Http10Closes", "GET /echo HTTP/1.0\r\n\r\n", {"200"}, true},
      {"9112 9.3",
       "Http10KeepAlive",
       "GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
       {"200"}},
      {"9112 9.3.2",
       "Pipelining",
       Get("/echo") + Get("/files/x") + Get("/no"),
       {"200", "200", "404"}},
      {"9110 9.3.7", "OptionsOfServer", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", {"404"}},
      {"9110 10.1.1",
       "ExpectContinue",
       Post("Expect: 100-continue\r\nContent-Length: 3\r\n", "abc"),
       {"100", "200"}},
      {"9110 10.1.1",
       "ExpectContinueWithoutBody",
       Get("/echo", "Expect: 100-continue\r\n"),
       {"200"}},
      {"9110 7.2", "HostWithPort", "GET /echo HTTP/1.1\r\nHost: [::1]:7202\r\n\r\n", {"200"}},
      // ---- What is refused, and the connection goes on.
      {"9110 15.5.5", "UnknownPath", Get("/nowhere"), {"404"}},
      {"9110 15.5.5",
       "BodyOfUnknownPath",
       "POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
       {"404"}},
      {"9110 15.5.6", "MethodNotAllowed", "DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n", {"405"}},
      {"9110 15.6.2", "UnknownMethod", "BREW /echo HTTP/1.1\r\nHost: a\r\n\r\n", {"501"}},
      {"9110 9.3.8", "Trace", "TRACE /echo HTTP/1.1\r\nHost: a\r\n\r\n", {"501"}},
      // ---- What is refused, and the connection ends.
      {"9112 2.2", "BareLineFeeds", "GET /echo HTTP/1.1\nHost: a\n\n", {"400"}, true},
      {"9112 2.2",
       "BareCarriageReturn",
       "GET /echo HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
       {"400"},
       true},
      {"9112 2.2",
       "SpaceBeforeFirstHeader",
       "GET /echo HTTP/1.1\r\n Host: a\r\n\r\n",
       {"400"},
       true},
      {"9112 2.3", "Http2Preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {"505"}, true},
      {"9112 2.3", "Version", "GET /echo HTTP/3.0\r\nHost: a\r\n\r\n", {"505"}, true},
      {"9112 2.3", "LowerCaseVersion", "GET /echo http/1.1\r\nHost: a\r\n\r\n", {"505"}, true},
      {"9112 3", "NoVersion", "GET /echo\r\n\r\n", {"400"}, true},
      {"9112 3", "TwoSpaces", "GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n", {"400"}, true},
      {"9112 3", "TabInRequestLine", "GET\t/echo HTTP/1.1\r\nHost: a\r\n\r\n", {"400"}, true},
      {"9112 3", "NotHttp", "\x16\x03\x01\x02 hello\r\n\r\n", {"400"}, true},
      {"9112 3.2", "NoHost", "GET /echo HTTP/1.1\r\n\r\n", {"400"}, true},
      {"9112 3.2", "TwoHosts", "GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", {"400"}, true},
      {"9112 3.2", "HostWithPath", "GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n", {"400"}, true},
      {"9112 3.2", "HostWithUser", "GET /echo HTTP/1.1\r\nHost: u@a\r\n\r\n", {"400"}, true},
      {"9112 3.2", "HostList", "GET /echo HTTP/1.1\r\nHost: a, b\r\n\r\n", {"400"}, true},
      {"9112 3.2", "HostWithBadPort", "GET /echo HTTP/1.1\r\nHost: a:x\r\n\r\n", {"400"}, true},
      {"9112 3.2", "TargetWithFragment", Get("/echo#x"), {"400"}, true},
      {"9112 3.2", "TargetWithHighByte", Get("/echo\xC3\xA4"), {"400"}, true},
      {"9112 3.2", "TargetWithoutSlash", Get("echo"), {"400"}, true},
      {"9112 3.2", "BadPercent", Get("/echo?a=%2"), {"400"}, true},
      {"9112 3.2.3", "AuthorityForm", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", {"400"}, true},
      {"9112 5.1", "SpaceBeforeColon", Get("/echo", "X : y\r\n"), {"400"}, true},
      {"9112 5.1", "EmptyName", Get("/echo", ": y\r\n"), {"400"}, true},
      {"9112 5.1", "NameWithHighByte", Get("/echo", "X\xE9: y\r\n"), {"400"}, true},
      {"9112 5", "ValueWithNul", Get("/echo", std::string("X: a\0b\r\n", 8)), {"400"}, true},
      {"9112 5", "NoColon", Get("/echo", "X\r\n"), {"400"}, true},
      {"9112 6.1",
       "TwoTransferEncodings",
       Post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
       {"400"},
       true},
      {"9112 6.1",
       "UnknownTransferEncoding",
       Post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
       {"501"},
       true},
      {"9112 6.1",
       "GzipThenChunked",
       Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
       {"501"},
       true},
      {"9112 6.1",
       "IdentityTransferEncoding",
       Post("Transfer-Encoding: identity\r\nContent-Length: 1\r\n", "a"),
       {"501"},
       true},
      {"9112 6.1",
       "ChunkedInHttp10",
       "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       {"400"},
       true},
      {"9112 6.3",
       "LengthAndChunked",
       Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
       {"400"},
       true},
      {"9112 6.3",
       "ChunkedAndLength",
       Post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n"),
       {"400"},
       true},
      {"9112 6.3",
       "TwoLengths",
       Post("Content-Length: 3\r\nContent-Length: 4\r\n", "abc"),
       {"400"},
       true},
      {"9112 6.3",
       "TwoEqualLengths",
       Post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"),
       {"400"},
       true},
      {"9112 6.3", "ListOfLengths", Post("Content-Length: 3, 3\r\n", "abc"), {"400"}, true},
      {"9112 6.3", "SignedLength", Post("Content-Length: +3\r\n", "abc"), {"400"}, true},
      {"9112 6.3", "NegativeLength", Post("Content-Length: -1\r\n", ""), {"400"}, true},
      {"9112 6.3", "HexLength", Post("Content-Length: 0x3\r\n", "abc"), {"400"}, true},
      {"9112 6.3", "EmptyLength", Post("Content-Length: \r\n", ""), {"400"}, true},
      {"9112 6.3",
       "HugeLength",
       Post("Content-Length: 99999999999999999999\r\n", ""),
       {"400"},
       true},
      {"9112 7.1", "NoChunkSize", Chunked("\r\nabc\r\n0\r\n\r\n"), {"400"}, true},
      {"9112 7.1", "ChunkSizeWithPrefix", Chunked("0x3\r\nabc\r\n0\r\n\r\n"), {"400"}, true},
      {"9112 7.1", "NegativeChunkSize", Chunked("-3\r\nabc\r\n0\r\n\r\n"), {"400"}, true},
      {"9112 7.1", "HugeChunkSize", Chunked("FFFFFFFFFFFFFFFFF\r\n"), {"400"}, true},
      {"9112 7.1", "ChunkLongerThanItsSize", Chunked("3\r\nabcd\r\n0\r\n\r\n"), {"400"}, true},
      {"9112 7.1", "ChunkEndsWithLineFeed", Chunked("3\nabc\r\n0\r\n\r\n"), {"400"}, true},
      {"9112 7.1.1", "BadChunkExtension", Chunked("3;=\r\nabc\r\n0\r\n\r\n"), {"400"}, true},
      {"9112 7.1.2", "LengthInTrailers", Chunked("0\r\nContent-Length: 3\r\n\r\n"), {"400"}, true},
      {"9110 10.1.1", "UnknownExpectation", Get("/echo", "Expect: coffee\r\n"), {"417"}, true},
      {"9110 15.5.14", "BodyTooLarge", Post("Content-Length: 100000000\r\n", ""), {"413"}, true},
      {"9110 15.5.14",
       "ChunksTooLarge",
       Chunked("400\r\n" + std::string(1024, 'x') + "\r\n0\r\n\r\n"),
       {"413"},
       true},
      {"9110 15.5.14",
       "BodyOfGet",
       "GET /held HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
       {"413"},
       true},
      {"9110 10.1.1",
       "RefusedBeforeContinue",
       "POST /no HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
       {"404"},
       true},
      {"6585 5",
       "HeadersTooLarge",
       Get("/echo", "X: " + std::string(20000, 'x') + "\r\n"),
       {"431"},
       true},
      {"6585 5", "TargetTooLarge", Get("/echo?" + std::string(20000, 'x')), {"431"}, true},
      {"6585 5",
       "TooManyHeaders",
       [] {
         std::string headers;
         for (int i = 0; i < 1000; ++i) headers += "X: y\r\n";
         return Get("/echo", headers);
       }(),
       {"431"},
       true},
      {"3986 3.4",
       "TooManyParameters",
       [] {
         std::string query = "/echo?a";
         for (int i = 0; i < 200; ++i) query += "&a";
         return Get(query);
       }(),
       {"414"},
       true},
  };
  return cases;
}

class ConformanceTest : public ::testing::TestWithParam<Case> {
 protected:
  // What comes before the connection ended, and whether it did.
  void Expect(HttpPeer& peer, const Statuses& statuses) {
    EXPECT_EQ(StatusesOf(peer.Take()), statuses) << GetParam().request;
    EXPECT_EQ(peer.ended(), GetParam().closes);
  }

  HttpUnderTest server_;
};

TEST_P(ConformanceTest, AnswersInOnePiece) {
  HttpPeer peer(server_);
  peer.Feed(GetParam().request);
  Expect(peer, GetParam().statuses);
}

TEST_P(ConformanceTest, AnswersByteByByte) {
  HttpPeer peer(server_);
  peer.FeedInPieces(GetParam().request, 1);
  Expect(peer, GetParam().statuses);
}

TEST_P(ConformanceTest, AnswersBehindAnotherRequest) {
  HttpPeer peer(server_);
  peer.Feed(Get("/echo") + GetParam().request);
  Statuses statuses = GetParam().statuses;
  statuses.insert(statuses.begin(), "200");
  Expect(peer, statuses);
}

// What follows a request that is refused for its form is never taken for a request.
TEST_P(ConformanceTest, HandlesNothingAfterTheEnd) {
  if (!GetParam().closes) return;
  HttpPeer peer(server_);
  peer.Feed(GetParam().request + Get("/held"));
  EXPECT_TRUE(server_.held.held.empty());
  EXPECT_TRUE(peer.ended());
}

INSTANTIATE_TEST_SUITE_P(Rfc, ConformanceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::testing
