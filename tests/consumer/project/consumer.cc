// A program of a user: it has nothing of Sluice but the installed files. Without an argument
// it asks a fake connection, with HOST:PORT a server whose limit "api" stores 2 permits.
#include <sluice/client.h>
#include <sluice/fake_connection.h>

#include <cstdio>
#include <memory>

namespace {

int Ask(sluice::Client& client) {
  for (const bool expected : {true, true, false}) {
    const auto decision = client.Acquire("api", "consumer");
    if (!decision.ok() || decision->granted != expected) {
      std::printf("unexpected: %s\n", decision.status().ToString().c_str());
      return 1;
    }
  }
  auto stream = client.OpenStream();
  const auto answer = stream.Submit(sluice::Acquisition("api", "streamed")).get();
  if (!answer.ok() || !answer->granted) return 1;
  std::printf("as expected\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    auto client =
        sluice::Client::Create({.servers = {argv[1]}, .deadline = std::chrono::seconds(20)});
    return client.ok() ? Ask(*client) : 1;
  }
  auto fake = std::make_shared<sluice::FakeConnection>();
  fake->SetPermits("api", "consumer", 2);
  sluice::Client client(fake);
  return Ask(client);
}
