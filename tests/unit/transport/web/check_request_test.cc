// The parameters of /v1/check, from the query and from headers.
#include "server/transport/web/check_request.h"

#include <string>

#include "common/bounds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/transport/http1/request_parser.h"

namespace sluice::web {
namespace {

using ::testing::HasSubstr;

class CheckRequestTest : public ::testing::Test {
 protected:
  // Reads a request with this query and these lines of headers.
  absl::Status Read(const std::string& query, const std::string& headers = "") {
    const std::string text =
        "GET /v1/check?" + query + " HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
    request_.Clear(0);
    parser_.Begin(&request_);
    parser_.Parse({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    EXPECT_EQ(parser_.state(), http1::RequestParser::State::kHeadersDone);
    return check_.Read(request_);
  }
  std::string ErrorOf(const std::string& query, const std::string& headers = "") {
    return std::string(Read(query, headers).message());
  }
  std::string KeyOf(const std::string& query, const std::string& headers = "") {
    EXPECT_TRUE(Read(query, headers).ok());
    return std::string(check_.key());
  }

  http1::Request request_;
  http1::RequestParser parser_;
  CheckRequest check_;
};

TEST_F(CheckRequestTest, HasDefaults) {
  ASSERT_TRUE(Read("limit=api").ok());
  EXPECT_EQ(check_.limit(), "api");
  EXPECT_EQ(check_.key(), "");
  EXPECT_EQ(check_.permits(), 1u);
  EXPECT_EQ(check_.deny_status(), 429);
  EXPECT_FALSE(check_.x_ratelimit());
  EXPECT_FALSE(check_.body());
}

TEST_F(CheckRequestTest, ReadsEachParameter) {
  ASSERT_TRUE(Read("limit=api&key=u%201&permits=7&deny_status=403&x_ratelimit=1&body=1").ok());
  EXPECT_EQ(check_.key(), "u 1");
  EXPECT_EQ(check_.permits(), 7u);
  EXPECT_EQ(check_.deny_status(), 403);
  EXPECT_TRUE(check_.x_ratelimit());
  EXPECT_TRUE(check_.body());
}

TEST_F(CheckRequestTest, ReadsHeaders) {
  ASSERT_TRUE(Read("",
                   "Sluice-Limit: api\r\nSluice-Key: u\r\nSluice-Permits: 7\r\n"
                   "Sluice-Deny-Status: 503\r\n")
                  .ok());
  EXPECT_EQ(check_.limit(), "api");
  EXPECT_EQ(check_.key(), "u");
  EXPECT_EQ(check_.permits(), 7u);
  EXPECT_EQ(check_.deny_status(), 503);
}

TEST_F(CheckRequestTest, PrefersQueryToHeaders) {
  ASSERT_TRUE(Read("limit=api&key=mine&permits=2&deny_status=403",
                   "Sluice-Limit: other\r\nSluice-Key: theirs\r\nSluice-Permits: 9\r\n"
                   "Sluice-Deny-Status: 500\r\n")
                  .ok());
  EXPECT_EQ(check_.limit(), "api");
  EXPECT_EQ(check_.key(), "mine");
  EXPECT_EQ(check_.permits(), 2u);
  EXPECT_EQ(check_.deny_status(), 403);
}

TEST_F(CheckRequestTest, TakesKeyFromNamedHeader) {
  EXPECT_EQ(KeyOf("limit=api&key_header=X-Api-Key", "X-API-Key: secret\r\n"), "secret");
}

TEST_F(CheckRequestTest, JoinsKeysUnambiguously) {
  EXPECT_EQ(KeyOf("limit=a&key=x"), "x");
  EXPECT_EQ(KeyOf("limit=a&key=x&key=y"), "x,y");
  EXPECT_EQ(KeyOf("limit=a&key=x,y&key=z"), "x%2Cy,z");
  EXPECT_EQ(KeyOf("limit=a&key=x&key=y,z"), "x,y%2Cz");
  EXPECT_EQ(KeyOf("limit=a&key=x%252Cy&key=z"), "x%252Cy,z");
  EXPECT_EQ(KeyOf("limit=a&key=&key="), ",");
}

TEST_F(CheckRequestTest, KeepsPlaceOfHeaderThatIsAbsent) {
  EXPECT_EQ(KeyOf("limit=a&key_header=X-A&key_header=X-B", "X-B: b\r\n"), ",b");
  EXPECT_EQ(KeyOf("limit=a&key_header=X-A&key_header=X-B", "X-A: b\r\n"), "b,");
}

TEST_F(CheckRequestTest, RefusesKeyHeaderThatWasSentTwice) {
  EXPECT_THAT(ErrorOf("limit=a&key_header=X-A", "X-A: a\r\nx-a: b\r\n"),
              HasSubstr("key_header: the header \"X-A\" was sent twice"));
}

TEST_F(CheckRequestTest, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf("key=u"), HasSubstr("limit: not given"));
  EXPECT_THAT(ErrorOf("limit=a&limit=b"), HasSubstr("limit: given twice"));
  EXPECT_THAT(ErrorOf("limit=a&permits=x"), HasSubstr("permits: \"x\""));
  EXPECT_THAT(ErrorOf("limit=a&permits=-1"), HasSubstr("permits: \"-1\""));
  EXPECT_THAT(ErrorOf("limit=a&permits=99999999999999999999"), HasSubstr("permits"));
  EXPECT_THAT(ErrorOf("limit=a&deny_status=200"), HasSubstr("deny_status: \"200\""));
  EXPECT_THAT(ErrorOf("limit=a&body=yes"), HasSubstr("body: \"yes\"; write 0 or 1"));
  EXPECT_THAT(ErrorOf("limit=a&kez=u"), HasSubstr("\"kez\": no such parameter"));
  EXPECT_THAT(ErrorOf("", "Sluice-Limit: a\r\nSluice-Limit: b\r\n"),
              HasSubstr("sluice-limit: given twice"));
}

TEST_F(CheckRequestTest, BoundsKeyParts) {
  std::string query = "limit=a";
  for (int i = 0; i < 17; ++i) query += "&key=x";
  EXPECT_THAT(ErrorOf(query), HasSubstr("key: more than 16 parts"));
  const std::string part(common::bounds::kMaxKeyBytes, 'x');
  EXPECT_THAT(ErrorOf("limit=a&key=" + part + "&key="), HasSubstr("key: more than 512 bytes"));
  EXPECT_EQ(KeyOf("limit=a&key=" + part.substr(1) + "&key=").size(), part.size());
}

}  // namespace
}  // namespace sluice::web
