// Guards in one program, without a server: slots that are held while a function runs, and an
// estimate that is settled with what the work took.
#include <sluice/client.h>
#include <sluice/embedded_connection.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>

namespace {

// The number of tokens in a response; throws if the call fails.
int Call(bool fails) {
  if (fails) throw std::runtime_error("the call failed");
  return 813;
}

}  // namespace

int main() {
  auto embedded = sluice::Embedded::Create(
      {{.name = "tokens", .rate = {10'000, std::chrono::hours(24 * 365)}, .max_owed = 10'000},
       {.name = "in_flight", .algorithm = "concurrency", .permits = 1}});
  if (!embedded.ok()) {
    std::fprintf(stderr, "%s\n", embedded.status().ToString().c_str());
    return 1;
  }
  sluice::Client client(sluice::ConnectEmbedded(*embedded));

  sluice::Acquisition call("tokens", "user:42", 4000);
  call.charges.push_back({"in_flight", "user:42", 1});
  call.settle_within = std::chrono::minutes(2);
  for (const bool fails : {false, true}) {
    try {
      auto estimate = client.AcquireEstimate(call, {.if_dropped = sluice::IfDropped::kRefund});
      if (!estimate.ok() || !estimate->granted()) return 1;
      const auto second = client.AcquireEstimate(call);
      std::printf("another call at the same time: %s\n", second->granted() ? "granted" : "denied");
      const auto settled = estimate->Settle(Call(fails));
      std::printf("settled: %s\n", settled.ok() ? "yes" : settled.status().ToString().c_str());
    } catch (const std::runtime_error& error) {
      std::printf("%s: refunded\n", error.what());
    }
  }
  const std::vector<sluice::Bucket> tokens = {{"tokens", "user:42"}};
  const auto left = client.Query(tokens);
  if (!left.ok()) return 1;
  std::printf("tokens left: %ld\n", static_cast<long>(left->front().remaining));
  return left->front().remaining == 10'000 - 813 ? 0 : 1;
}
