// ReflectionService, and the files that it describes.
#include "server/transport/services/reflection_service.h"

#include <malloc.h>

#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "gtest/gtest.h"
#include "server/transport/services/described_files.h"
#include "sluice/v1/rate_limiter.pb.h"
#include "tests/support/h2_peer.h"

namespace sluice::transport {
namespace {

using Request = grpc::reflection::v1::ServerReflectionRequest;
using Response = grpc::reflection::v1::ServerReflectionResponse;
using ::sluice::testing::Framed;
using ::sluice::testing::H2Client;
using ::sluice::testing::H2Server;
using ::testing::ElementsAre;

constexpr char kPath[] = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
constexpr int kNotFound = 5;

TEST(DescribedFilesTest, FindsAFileAfterItsImports) {
  const DescribedFiles files({"sluice.v1.RateLimiter"});
  const DescribedFiles::Files* const found = files.FindFile("sluice/v1/rate_limiter.proto");
  ASSERT_NE(found, nullptr);
  std::vector<std::string> names;
  for (const std::string& bytes : *found) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  EXPECT_THAT(names,
              ElementsAre("google/protobuf/duration.proto", "google/protobuf/timestamp.proto",
                          "sluice/v1/rate_limiter.proto"));
  EXPECT_NE(files.FindFile("google/protobuf/duration.proto"), nullptr);
}

TEST(DescribedFilesTest, FindsSymbolsOfAllKinds) {
  const DescribedFiles files({"sluice.v1.RateLimiter", "no.such.Service"});
  const auto* const own = files.FindFile("sluice/v1/rate_limiter.proto");
  for (const char* symbol :
       {"sluice.v1.RateLimiter", "sluice.v1.RateLimiter.Acquire", "sluice.v1.AcquireRequest",
        "sluice.v1.AcquireRequest.charges", "sluice.v1.QueryRequest.Bucket", "sluice.v1.Reason",
        "sluice.v1.SOURCE_STORE"}) {
    EXPECT_EQ(files.FindSymbol(symbol), own) << symbol;
  }
  EXPECT_NE(files.FindSymbol("google.protobuf.Duration.seconds"), nullptr);
  EXPECT_TRUE(files.HasMessage("sluice.v1.QueryRequest.Bucket"));
}

TEST(DescribedFilesTest, DoesNotKnowTheRestOfTheProgram) {
  const DescribedFiles files({"sluice.v1.RateLimiter"});
  for (const char* symbol : {"", "sluice", "sluice.v1", "sluice.v1.RateLimiter.",
                             "grpc.reflection.v1.ServerReflection", "sluice.v1.LimitAdmin"}) {
    EXPECT_EQ(files.FindSymbol(symbol), nullptr) << symbol;
  }
  EXPECT_EQ(files.FindFile("grpc/reflection/v1/reflection.proto"), nullptr);
}

class ReflectionServiceTest : public ::testing::Test {
 protected:
  ReflectionServiceTest() {
    reflection_.Register(&server_.methods);
    Connect();
  }
  // Drops what the last client kept of its calls.
  void Connect() {
    client_.reset();
    client_ = std::make_unique<H2Client>(server_);
    client_->Pump();
  }
  Response Ask(const Request& request) {
    const int32_t id = client_->Call(kPath, Framed(request.SerializeAsString()));
    client_->Pump();
    Response response;
    EXPECT_EQ(client_->calls[id].status(), "0");
    const auto messages = client_->calls[id].messages();
    EXPECT_EQ(messages.size(), 1u);
    EXPECT_TRUE(!messages.empty() && response.ParseFromString(messages[0]));
    client_->calls.erase(id);
    return response;
  }

  H2Server server_;
  ReflectionService reflection_{{"sluice.v1.RateLimiter"}};
  std::unique_ptr<H2Client> client_;
};

TEST_F(ReflectionServiceTest, AnswersNotFoundForUnknownNames) {
  Request by_symbol;
  by_symbol.set_file_containing_symbol("no.such.Symbol");
  EXPECT_EQ(Ask(by_symbol).error_response().error_code(), kNotFound);
  Request by_file;
  by_file.set_file_by_filename("no/such.proto");
  EXPECT_EQ(Ask(by_file).error_response().error_code(), kNotFound);
  Request extension;
  extension.mutable_file_containing_extension()->set_containing_type("sluice.v1.AcquireRequest");
  EXPECT_EQ(Ask(extension).error_response().error_code(), kNotFound);
  Request numbers;
  numbers.set_all_extension_numbers_of_type("no.such.Type");
  EXPECT_EQ(Ask(numbers).error_response().error_code(), kNotFound);
  numbers.set_all_extension_numbers_of_type("sluice.v1.AcquireRequest");
  const Response known = Ask(numbers);
  EXPECT_EQ(known.all_extension_numbers_response().base_type_name(), "sluice.v1.AcquireRequest");
}

// protobuf's pool would keep each of them, and take quadratic time for so many dots.
TEST_F(ReflectionServiceTest, KeepsNothingOfInventedNames) {
  constexpr int kNames = 4000;
  const auto ask = [this](int i) {
    std::string name = std::to_string(i);
    while (name.size() < 2000) name += ".a";
    Request request;
    request.set_file_containing_symbol(name);
    EXPECT_EQ(Ask(request).error_response().error_code(), kNotFound);
    request.set_file_by_filename(name);
    EXPECT_EQ(Ask(request).error_response().error_code(), kNotFound);
  };
  ask(0);
  Connect();
  const size_t before = mallinfo2().uordblks;
  for (int i = 1; i <= kNames; ++i) {
    ask(i);
    if (i % 100 == 0) Connect();
  }
  EXPECT_LT(mallinfo2().uordblks, before + (size_t{1} << 20));
}

TEST_F(ReflectionServiceTest, RefusesLongRequests) {
  Request request;
  request.set_file_containing_symbol(std::string(4096, 'a'));
  const int32_t id = client_->Call(kPath, Framed(request.SerializeAsString()));
  client_->Pump();
  EXPECT_EQ(client_->calls[id].status(), "8");
}

}  // namespace
}  // namespace sluice::transport
