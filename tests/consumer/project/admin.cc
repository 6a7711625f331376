// A program of a user that administers a server: with HOST:PORT it lists the limits of its admin
// port.
#include <sluice/admin_client.h>

#include <chrono>
#include <cstdio>

int main(int argc, char** argv) {
  auto bad = sluice::AdminClient::Create({.server = "no address"});
  if (bad.ok()) return 1;
  if (argc < 2) return 0;
  auto admin =
      sluice::AdminClient::Create({.server = argv[1], .deadline = std::chrono::seconds(20)});
  if (!admin.ok()) return 1;
  const auto limits = admin->ListLimits();
  if (!limits.ok()) {
    std::printf("unexpected: %s\n", limits.status().ToString().c_str());
    return 1;
  }
  return limits->size() == 1 ? 0 : 1;
}
