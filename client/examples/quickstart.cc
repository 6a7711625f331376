// A short tour of the client: quickstart [HOST:PORT]
#include <chrono>
#include <cstdio>

#include "sluice/client.h"

int main(int argc, char** argv) {
  auto client = sluice::Client::Create({.servers = {argc > 1 ? argv[1] : "127.0.0.1:7200"}});
  if (!client.ok()) {
    std::printf("%s\n", client.status().ToString().c_str());
    return 2;
  }

  // Acquire a permit before the limited work.
  auto decision = client->Acquire("api", "user:42");
  if (!decision.ok()) {  // for example an unknown limit, or a key that is too long
    std::printf("%s\n", decision.status().ToString().c_str());
    return 2;
  }
  if (decision->source == sluice::Source::kUnavailable) {  // decided by on_unavailable
    std::printf("no server decided: %s\n", decision->status.ToString().c_str());
    return 3;
  }
  if (!decision->granted) {
    std::printf("denied; try again in %.3f s\n",
                std::chrono::duration<double>(decision->retry_after).count());
    return 1;
  }
  std::printf("granted; %ld of %lu permits are left\n",
              static_cast<long>(decision->charges[0].remaining),
              static_cast<unsigned long>(decision->charges[0].capacity));

  // For many decisions, a stream sends batches, at a fraction of the cost of single calls.
  int granted = 0;  // used only by the stream's callbacks, until Drain returns
  auto stream = client->OpenStream();
  for (int i = 0; i < 100; ++i) {
    stream.Submit("api", "user:7", 1, [&granted](sluice::Result<sluice::Decision> answer) {
      if (answer.ok() && answer->granted) ++granted;
    });
  }
  stream.Drain(std::chrono::seconds(5));
  std::printf("%d of 100 were granted\n", granted);
  return 0;
}
