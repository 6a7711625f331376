// Recognition of callers, what they may do, and the cache of a connection.
#include "server/access/caller.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/net/event_loop.h"
#include "common/net/stream.h"

namespace sluice::access {
namespace {

// A stream that proves an identity, and counts how often it is asked for it.
class ProvingStream final : public net::Stream {
 public:
  explicit ProvingStream(net::PeerIdentity identity) : identity_(std::move(identity)) {}

  net::PeerIdentity peer_identity() const override {
    ++asked;
    return identity_;
  }
  void Write(absl::Span<const uint8_t>) override {}
  size_t pending_output() const override { return 0; }
  void PauseReading() override {}
  void ResumeReading() override {}
  void CloseAfterWrite(int64_t) override {}
  void Abort(absl::Status) override {}
  int64_t ready_since_ns() const override { return 0; }
  int64_t round_trip_ns() const override { return 0; }
  std::string peer_address() const override { return "test"; }
  net::EventLoop& loop() override { std::abort(); }

  mutable int asked = 0;

 private:
  const net::PeerIdentity identity_;
};

const CallerPtr& CallerOf(CallerCache& cache, const net::Stream& stream,
                          std::string_view authorization) {
  if (!cache.Has(authorization)) cache.Recognise(stream, authorization);
  return cache.last();
}

Client Checkout() {
  Client client;
  client.name = "checkout";
  client.known_by.tokens = {DigestOf("the token of checkout")};
  client.known_by.subjects = {"CN=checkout"};
  client.limits = NamePatterns({"api", "orders.*"});
  client.domains = NamePatterns({"mesh"});
  client.calls.Add(Call::kAcquire);
  client.calls.Add(Call::kQuery);
  return client;
}

Client Anonymous() {
  Client client;
  client.name = "anonymous";
  client.limits = NamePatterns({"public"});
  client.calls.Add(Call::kAcquire);
  return client;
}

std::shared_ptr<const ClientTable> TableOf(std::vector<Client> clients) {
  return std::make_shared<const ClientTable>(std::move(clients));
}

constexpr char kToken[] = "Bearer the token of checkout";

TEST(CallerTest, ClientMayMakeItsCallsUnderItsLimits) {
  const Clients clients(TableOf({Checkout()}));
  CallerCache cache(&clients);
  const ProvingStream stream({});
  const CallerPtr& caller = CallerOf(cache, stream, kToken);
  EXPECT_TRUE(caller->Check(Call::kAcquire).ok());
  EXPECT_TRUE(caller->MayUseLimit("orders.eu"));
  EXPECT_FALSE(caller->MayUseLimit("other"));
  EXPECT_TRUE(caller->MayUseDomain("mesh"));
  EXPECT_FALSE(caller->MayUseDomain("api"));
  EXPECT_EQ(caller->Check(Call::kAdminChange),
            absl::PermissionDeniedError("client \"checkout\" may not admin_change; its calls are "
                                        "acquire, query"));
}

TEST(CallerTest, RemembersLimitsByTheirIdsAndNoOthers) {
  const Clients clients(TableOf({Checkout()}));
  CallerCache cache(&clients);
  const ProvingStream stream({});
  const CallerPtr& caller = CallerOf(cache, stream, kToken);
  // Ids that share a place, as any two of nine do.
  for (int round = 0; round < 2; ++round) {
    for (uint32_t id = 0; id < 32; ++id) {
      EXPECT_TRUE(caller->MayUseLimit("orders." + std::to_string(id), id));
      EXPECT_FALSE(caller->MayUseLimit("other", 32 + id));
    }
    EXPECT_FALSE(caller->MayUseLimit("other", UINT32_MAX)) << "its mark is that of no limit";
  }
}

TEST(CallerTest, OnlyATokenThatNoClientHasIsWrong) {
  const Clients clients(TableOf({Checkout()}));
  CallerCache cache(&clients);
  const ProvingStream stream({});
  EXPECT_FALSE(CallerOf(cache, stream, kToken)->has_wrong_token());
  EXPECT_FALSE(CallerOf(cache, stream, "")->has_wrong_token());
  EXPECT_TRUE(CallerOf(cache, stream, "Bearer guess")->has_wrong_token());
  EXPECT_TRUE(CallerOf(cache, stream, "guess")->has_wrong_token());
}

TEST(CallerTest, UnknownCallerIsToldWhatIsMissing) {
  const Clients clients(TableOf({Checkout()}));
  const auto refusal = [&](net::PeerIdentity identity, std::string_view authorization) {
    CallerCache cache(&clients);
    const ProvingStream stream(std::move(identity));
    const absl::Status status = CallerOf(cache, stream, authorization)->Check(Call::kAcquire);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({}, ""),
            "only known clients are served; send the metadata `authorization: Bearer TOKEN`, or "
            "show a client certificate");
  EXPECT_EQ(refusal({}, "Bearer guess"), "authorization: no client has this token");
  EXPECT_EQ(refusal({}, "Basic eDp5"), "authorization: must be `Bearer TOKEN`, at most 1024 bytes");
  EXPECT_EQ(refusal({}, "Bearer " + std::string(1018, 'x')),
            "authorization: must be `Bearer TOKEN`, at most 1024 bytes");
  EXPECT_EQ(refusal({.subject = "CN=b\n"}, ""), "no client has this certificate (subject CN=b\\n)");
  EXPECT_EQ(refusal({.subject = "CN=b", .dns_names = {"b.example"}}, ""),
            "no client has this certificate (DNS b.example)");
  EXPECT_EQ(refusal({.uid = 12}, ""), "no client has the uid 12");
  // A certificate does not help a caller whose token is wrong.
  EXPECT_EQ(refusal({.subject = "CN=checkout"}, "Bearer guess"),
            "authorization: no client has this token");
}

TEST(CallerTest, WrongTokenIsNotAnonymous) {
  const Clients clients(TableOf({Checkout(), Anonymous()}));
  CallerCache cache(&clients);
  const ProvingStream stream({});
  EXPECT_EQ(CallerOf(cache, stream, "")->client()->name, "anonymous");
  EXPECT_EQ(CallerOf(cache, stream, "Bearer guess")->client(), nullptr);
  EXPECT_EQ(CallerOf(cache, stream, "bearer  the token of checkout ")->client()->name, "checkout");
}

TEST(CallerCacheTest, RecognisesAgainOnlyIfTheHeaderDiffers) {
  const Clients clients(TableOf({Checkout(), Anonymous()}));
  CallerCache cache(&clients);
  const ProvingStream stream({});
  const CallerPtr first = CallerOf(cache, stream, kToken);
  EXPECT_EQ(CallerOf(cache, stream, kToken), first);
  EXPECT_EQ(stream.asked, 1);
  EXPECT_NE(CallerOf(cache, stream, ""), first);
  EXPECT_EQ(CallerOf(cache, stream, "")->client()->name, "anonymous");
  EXPECT_EQ(stream.asked, 1) << "a certificate is read once";
}

// A header over the bound is not kept as a whole, and so must not pass for a shorter one.
TEST(CallerCacheTest, HeaderOverTheBoundIsNobodys) {
  const std::string token(1017, 'x');  // with "Bearer ", the bound
  Client client = Checkout();
  client.known_by.tokens = {DigestOf(token), DigestOf(token + "x")};
  const Clients clients(TableOf({client}));
  CallerCache cache(&clients);
  const ProvingStream stream({});
  EXPECT_NE(CallerOf(cache, stream, "Bearer " + token)->client(), nullptr);
  EXPECT_EQ(CallerOf(cache, stream, "Bearer " + token + "x")->client(), nullptr);
  EXPECT_EQ(CallerOf(cache, stream, "Bearer " + token + "xy")->client(), nullptr);
  EXPECT_NE(CallerOf(cache, stream, "Bearer " + token)->client(), nullptr);
}

TEST(CallerCacheTest, RecognisesAgainAfterAReload) {
  Clients clients(TableOf({Checkout()}));
  CallerCache cache(&clients);
  const ProvingStream stream({.subject = "CN=checkout"});
  const CallerPtr before = CallerOf(cache, stream, "");
  EXPECT_TRUE(before->Check(Call::kAcquire).ok());
  clients.Replace(TableOf({Anonymous()}));
  EXPECT_EQ(CallerOf(cache, stream, "")->client()->name, "anonymous");
  // A call that has begun keeps its caller until it asks.
  EXPECT_EQ(before->client()->name, "checkout");
  EXPECT_EQ(Clients::Current(before)->client()->name, "anonymous");
  clients.Replace(TableOf({}));
  EXPECT_EQ(Clients::Current(before)->client(), nullptr);
}

TEST(CallerCacheTest, WithoutClientsThereIsNoCaller) {
  CallerCache cache(nullptr);
  const ProvingStream stream({});
  EXPECT_EQ(CallerOf(cache, stream, kToken), nullptr);
  EXPECT_EQ(Clients::Current(nullptr), nullptr);
  EXPECT_EQ(stream.asked, 0);
}

}  // namespace
}  // namespace sluice::access
