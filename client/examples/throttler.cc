// An embedded throttler: sends at most 5 messages in any second, and at most 2 of them to one
// domain. Prints when each message was sent.
#include "sluice/throttler.h"

#include <chrono>
#include <cstdio>
#include <future>
#include <string>
#include <vector>

#include "sluice/embedded.h"

using std::chrono::milliseconds;
using std::chrono::seconds;

int main() {
  const auto embedded = sluice::Embedded::Create(
      {{.name = "mail", .algorithm = "sliding_log", .rate = {5, seconds(1)}},
       {.name = "domain",
        .algorithm = "sliding_log",
        .rate = {2, seconds(1)},
        .charges = {"mail"}}});
  if (!embedded.ok()) {
    std::fprintf(stderr, "%s\n", embedded.status().ToString().c_str());
    return 1;
  }
  const auto throttler = sluice::Throttler::Create(*embedded, {.limit = "mail"});
  if (!throttler.ok()) {
    std::fprintf(stderr, "%s\n", throttler.status().ToString().c_str());
    return 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto send = [&](const std::string& what) {
    const auto at = std::chrono::steady_clock::now() - begin;
    std::printf("%4lld ms  %s\n",
                static_cast<long long>(std::chrono::duration_cast<milliseconds>(at).count()),
                what.c_str());
  };

  // Runs later, in order, on the throttler's thread: two to each domain at once, the others a
  // second later.
  std::vector<std::future<sluice::Status>> sent;
  for (const char* domain : {"example.com", "example.net"}) {
    const auto channel = throttler->Channel("domain", domain);
    if (!channel.ok()) return 1;
    for (int i = 1; i <= 3; ++i) {
      sent.push_back(channel->Submit(
          [&send, text = std::string(domain) + " #" + std::to_string(i)] { send(text); }));
    }
  }
  // Runs now on this thread, or not at all: the fifth message of this second.
  const auto sleep = throttler->TryRun([&] { send("now"); });
  if (!sleep.ok()) return 1;
  // Blocks until its grant time, then runs it on this thread.
  const sluice::Status status = throttler->Run([&] { send("as soon as there was room"); });
  if (!status.ok()) return 1;
  for (auto& one : sent) {
    if (!one.get().ok()) return 1;
  }
  return 0;
}
