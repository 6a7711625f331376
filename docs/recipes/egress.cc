// Forwards TCP connections to an origin. Each client's address receives so many bytes a second.
//
//   egress PORT ORIGIN_HOST ORIGIN_PORT SLUICE_HOST:PORT
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "sluice/client.h"

using namespace std::chrono_literals;

namespace {

constexpr uint64_t kBlock = 256 << 10;        // bytes of an estimate
constexpr int kPauseMs = 100;                 // an origin that is silent for so long ends a block
constexpr timeval kStalled = {.tv_sec = 60};  // a client that takes nothing for so long is dropped

int Connect(const char* host, const char* port) {
  addrinfo hints = {.ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host, port, &hints, &found) != 0) return -1;
  int fd = -1;
  for (const addrinfo* one = found; one != nullptr && fd < 0; one = one->ai_next) {
    fd = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
    if (connect(fd, one->ai_addr, one->ai_addrlen) != 0) {
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

// Receives at most `most` bytes, sends them on, and adds them to `sent`. False: the connection
// ended.
bool Forward(int from, int to, uint64_t most, uint64_t* sent) {
  char buffer[64 << 10];
  const ssize_t received = recv(from, buffer, std::min<uint64_t>(most, sizeof(buffer)), 0);
  for (ssize_t done = 0; done < received;) {
    const ssize_t written = send(to, buffer + done, received - done, MSG_NOSIGNAL);
    if (written <= 0) return false;
    done += written;
    *sent += written;
  }
  return received > 0;
}

bool Readable(int fd, int timeout_ms) {
  pollfd ready = {.fd = fd, .events = POLLIN};
  return poll(&ready, 1, timeout_ms) > 0;
}

// Sends the next bytes of the origin to the client, at most a block. False: the connection ended.
bool SendBlock(sluice::Client& limits, const std::string& address, int origin, int client) {
  if (!Readable(origin, -1)) return false;
  sluice::Acquisition estimate("egress", address, kBlock);
  estimate.settle_within = 10min;
  estimate.max_wait = 30s;
  estimate.hold = true;  // the answer comes when the bytes may be sent
  const auto decision = limits.Acquire(estimate);
  if (!decision.ok()) {  // for example a limit whose burst is less than a block
    std::fprintf(stderr, "%s\n", decision.status().ToString().c_str());
    return false;
  }
  if (!decision->granted) {  // too many wait, or no server answers: the client waits
    std::this_thread::sleep_for(decision->retry_after);
    return true;
  }
  uint64_t sent = 0;
  bool open = true;
  while (open && sent < kBlock && Readable(origin, kPauseMs)) {
    open = Forward(origin, client, kBlock - sent, &sent);
  }
  const auto settled =
      limits.Settle(*decision, {{"egress", address, sent}}, {.deadline = std::chrono::seconds(10)});
  if (!settled.ok()) {  // the block stays charged
    std::fprintf(stderr, "not settled: %s\n", settled.status().ToString().c_str());
  }
  return open;
}

void Serve(sluice::Client& limits, const std::string& address, int client, int origin) {
  std::thread upload([=] {
    for (uint64_t sent = 0; Forward(client, origin, ~uint64_t{0}, &sent);) {
    }
    shutdown(origin, SHUT_WR);
  });
  while (SendBlock(limits, address, origin, client)) {
  }
  shutdown(client, SHUT_RDWR);
  shutdown(origin, SHUT_RDWR);
  upload.join();
  close(client);
  close(origin);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5)
    return std::fputs("usage: egress PORT ORIGIN_HOST ORIGIN_PORT SLUICE\n", stderr), 2;
  std::signal(SIGPIPE, SIG_IGN);
  auto limits = sluice::Client::Create({.servers = {argv[4]}});
  if (!limits.ok()) {
    std::fprintf(stderr, "%s\n", limits.status().ToString().c_str());
    return 2;
  }
  sockaddr_in address = {.sin_family = AF_INET,
                         .sin_port = htons(static_cast<uint16_t>(std::atoi(argv[1])))};
  socklen_t size = sizeof(address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, SOMAXCONN) != 0) {
    return std::perror("listen"), 1;
  }
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::printf("listening on port %d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (;;) {
    const int client = accept(listener, reinterpret_cast<sockaddr*>(&address), &size);
    if (client < 0) continue;
    const int origin = Connect(argv[2], argv[3]);
    if (origin < 0) {
      close(client);
      continue;
    }
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &kStalled, sizeof(kStalled));
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    std::thread(Serve, std::ref(*limits), std::string(text), client, origin).detach();
  }
}
