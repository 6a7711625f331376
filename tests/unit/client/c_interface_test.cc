// The C interface against a scripted server: who owns what, and that every submission is answered.
// (tests/integration/c_interface has a C program and the real server.)
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdint>
#include <set>
#include <string>

#include "sluice/sluice.h"
#include "tests/support/scripted_server.h"

namespace sluice {
namespace {

using namespace sluice::testing;  // NOLINT(google-build-using-namespace): the script's words

constexpr sluice_charge kCharge = {"api", "k", 1, 1};
constexpr sluice_acquisition kAcquisition = {&kCharge, 1, 0, 0, 0, 0};

sluice_client* Connect(const ScriptedServer& server) {
  const std::string address = server.address();
  sluice_options options = {};
  options.size = sizeof(options);
  options.servers = address.c_str();
  options.deadline_ns = INT64_MAX;
  return sluice_create(&options, nullptr, 0);
}

TEST(CInterfaceTest, ResultsLiveUntilTheyAreCleared) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    peer.Send(Refusal(peer.AwaitRequest(), "5", "no limit"));
    peer.Send(Refusal(peer.AwaitRequest(), "13", "broken"));
    peer.Send(Refusal(peer.AwaitRequest(), "13", "broken"));
    peer.Send(Answer(peer.AwaitRequest(), "\x08\x01"));
    peer.AwaitEnd();
  });
  sluice_client* const client = Connect(server);
  ASSERT_NE(client, nullptr);
  sluice_decision decisions[2];
  EXPECT_EQ(sluice_acquire(client, &kAcquisition, &decisions[0]), SLUICE_OK);
  EXPECT_EQ(decisions[0].granted, 1);
  EXPECT_EQ(sluice_acquire(client, &kAcquisition, &decisions[1]), SLUICE_NOT_FOUND);
  EXPECT_STREQ(decisions[1].message, "no limit");
  for (sluice_decision& decision : decisions) sluice_decision_clear(&decision);

  const sluice_acquisition batch[] = {kAcquisition, kAcquisition};
  EXPECT_EQ(sluice_acquire_batch(client, batch, 2, 0, decisions), SLUICE_INTERNAL);
  for (sluice_decision& decision : decisions) {
    EXPECT_STREQ(decision.message, "broken");
    EXPECT_EQ(decision.may_have_executed, 1);
    sluice_decision_clear(&decision);
  }
  const sluice_bucket buckets[] = {{"api", "k", 1}, {"api", nullptr, 0}};
  sluice_bucket_status statuses[2];
  EXPECT_EQ(sluice_query(client, buckets, 2, statuses), SLUICE_INTERNAL);
  for (sluice_bucket_status& status : statuses) {
    EXPECT_STREQ(status.message, "broken");
    sluice_bucket_status_clear(&status);
  }
  sluice_refund_result refund;
  EXPECT_EQ(sluice_refund(client, "receipt", 7, 0, &refund), SLUICE_OK);
  EXPECT_EQ(refund.outcome, SLUICE_REFUNDED);
  sluice_refund_result_clear(&refund);
  sluice_destroy(client);
}

TEST(CInterfaceTest, ShowsHowLongSlotsAreHeld) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    // granted, charges: { remaining: -1, held_for: { seconds: 30 } }
    peer.Send(Answer(peer.AwaitRequest(), "\x08\x01\x22\x06\x08\x01\x3a\x02\x08\x1e"));
    peer.AwaitEnd();
  });
  sluice_client* const client = Connect(server);
  ASSERT_NE(client, nullptr);
  sluice_decision decision;
  ASSERT_EQ(sluice_acquire(client, &kAcquisition, &decision), SLUICE_OK);
  ASSERT_EQ(decision.charge_count, 1u);
  EXPECT_EQ(decision.charges[0].remaining, -1);
  EXPECT_EQ(decision.charges[0].held_for_ns, 30'000'000'000);
  sluice_decision_clear(&decision);
  sluice_destroy(client);
}

TEST(CInterfaceTest, EachSubmissionIsAnsweredOnce) {
  ScriptedServer server([](Peer& peer, int) {
    if (peer.Greet()) peer.Serve();
  });
  sluice_client* const client = Connect(server);
  ASSERT_NE(client, nullptr);
  constexpr uint64_t kCount = 100;
  for (uint64_t tag = 0; tag < kCount; ++tag) sluice_submit(client, &kAcquisition, tag);
  std::set<uint64_t> answered;
  while (answered.size() < kCount) {
    pollfd polled = {sluice_fd(client), POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, -1), 1);
    sluice_completion completions[7];
    const size_t count = sluice_poll(client, completions, 7);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(completions[i].decision.granted, 1);
      EXPECT_TRUE(answered.insert(completions[i].tag).second);
      sluice_decision_clear(&completions[i].decision);
    }
  }
  sluice_destroy(client);
}

TEST(CInterfaceTest, DestroysAClientWithCallsAndCompletions) {
  ScriptedServer server([](Peer& peer, int) {
    if (!peer.Greet()) return;
    peer.Send(Answer(peer.AwaitRequest(), kGranted));
    peer.AwaitEnd();
  });
  sluice_client* const client = Connect(server);
  ASSERT_NE(client, nullptr);
  for (uint64_t tag = 0; tag < 3; ++tag) sluice_submit(client, &kAcquisition, tag);
  pollfd polled = {sluice_fd(client), POLLIN, 0};
  ASSERT_EQ(poll(&polled, 1, -1), 1);  // one decision is never taken
  sluice_destroy(client);
}

}  // namespace
}  // namespace sluice
