// Whole conversations, split at every byte: what a session does must not depend on where its input
// is cut. The server gets what h2spec and gRPC's interop client sent to it, the client what the
// server answered; both are recorded in tests/fuzz/corpus.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/http2_sessions.h"

namespace sluice::http2 {
namespace {

using ::sluice::testing::ClientEnd;
using ::sluice::testing::Fields;
using ::sluice::testing::ServerEnd;

std::map<std::string, std::string> Recorded(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(CONVERSATIONS "/" + folder)) {
    std::ifstream in(file.path(), std::ios::binary);
    files[file.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

// What a session did: its events and its output.
struct Result {
  std::vector<std::string> events;
  std::string output;
  bool operator==(const Result&) const = default;
};

void ExpectSameHoweverSplit(
    const std::map<std::string, std::string>& conversations,
    const std::function<Result(const std::vector<std::string_view>&)>& run) {
  for (const auto& [name, bytes] : conversations) {
    const std::string_view all = bytes;
    const Result whole = run({all});
    for (size_t cut = 0; cut <= all.size(); ++cut) {
      ASSERT_EQ(run({all.substr(0, cut), all.substr(cut)}), whole) << name << " cut at " << cut;
    }
    std::vector<std::string_view> single;
    single.reserve(all.size());
    for (size_t at = 0; at < all.size(); ++at) single.push_back(all.substr(at, 1));
    ASSERT_EQ(run(single), whole) << name << " in single bytes";
  }
}

TEST(ConversationsTest, ServerDoesTheSameHoweverInputIsSplit) {
  const auto conversations = Recorded("http2_server");
  ASSERT_GE(conversations.size(), 100u);
  ExpectSameHoweverSplit(conversations, [](const std::vector<std::string_view>& pieces) {
    ServerEnd server;
    server.answer = {{{":status", "200"}}, "answer", {{"grpc-status", "0"}}};
    for (const std::string_view piece : pieces) server.Feed(piece);
    std::string output = server.Take();
    return Result{server.events, output};
  });
}

TEST(ConversationsTest, ClientDoesTheSameHoweverInputIsSplit) {
  const auto conversations = Recorded("http2_client");
  ASSERT_GE(conversations.size(), 10u);
  ExpectSameHoweverSplit(conversations, [](const std::vector<std::string_view>& pieces) {
    ClientEnd client;
    const Fields headers = {
        {":method", "POST"}, {":scheme", "http"}, {":path", "/p"}, {":authority", "a"}};
    for (int i = 0; i < 6; ++i) client.Request({headers, "body", {}});
    client.Take();
    for (const std::string_view piece : pieces) client.Feed(piece);
    std::string output = client.Take();
    return Result{client.events, output};
  });
}

}  // namespace
}  // namespace sluice::http2
