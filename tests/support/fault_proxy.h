// A proxy between nodes and Redis, on a Unix socket, that injects the faults of a bad network.
#ifndef SLUICE_TESTS_SUPPORT_FAULT_PROXY_H_
#define SLUICE_TESTS_SUPPORT_FAULT_PROXY_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/pass_time.h"

namespace sluice::testing {

// Thread-safe. Runs a thread of its own.
class FaultProxy {
 public:
  enum class Fault : uint8_t {
    kNone,
    kDelay,      // a reply, and all replies behind it, are 300 ms late
    kBlackHole,  // a request and all bytes after it are dropped; the connection stays open
    kLoseReply,  // a reply is dropped, and its connection is closed: the request was executed
    kCutReply,   // half of a reply is delivered, and its connection is closed
    kReset,      // a connection is closed before a request passes
  };

  FaultProxy(const std::string& server, const std::string& listen)
      : server_(server), listener_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    const sockaddr_un address = AddressOf(listen);
    bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ::listen(listener_, 16);
    thread_ = std::thread([this] { Run(); });
  }
  ~FaultProxy() {
    stop_.store(true);
    thread_.join();
  }

  // Injects the fault into the next `times` requests or replies, after `skipped` others.
  void Inject(Fault fault, int times = 1, int skipped = 0) {
    fault_.store(fault);
    skip_.store(skipped);
    left_.store(times);
  }
  // Whether the last Inject has taken effect as often as it was to.
  bool injected() const { return left_.load() <= 0; }
  // Returns false if it has not within 20 s.
  bool AwaitInjected() const {
    for (int i = 0; !injected(); ++i) {
      if (i > 20'000) return false;
      PassTime(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  struct Link {
    int client;
    int server;
    bool silent = false;
  };

  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return address;
  }

  static void SendAll(int to, const char* bytes, ssize_t size) {
    for (ssize_t sent = 0; sent < size;) {
      const ssize_t n = send(to, bytes + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += n;
    }
  }

  // The fault for bytes that have just arrived.
  Fault Take(bool from_server) {
    if (left_.load() <= 0) return Fault::kNone;
    const Fault fault = fault_.load();
    const bool on_reply =
        fault == Fault::kDelay || fault == Fault::kLoseReply || fault == Fault::kCutReply;
    if (on_reply != from_server) return Fault::kNone;
    if (skip_.load() > 0) {
      skip_.fetch_sub(1);
      return Fault::kNone;
    }
    left_.fetch_sub(1);
    return fault;
  }

  // Returns false if the link must be closed.
  bool Pass(Link& link, bool from_server) {
    char buffer[65536];
    const ssize_t size = read(from_server ? link.server : link.client, buffer, sizeof(buffer));
    if (size <= 0) return false;
    if (link.silent) return true;
    const int to = from_server ? link.client : link.server;
    switch (Take(from_server)) {
      case Fault::kNone:
        break;
      case Fault::kDelay:
        PassTime(std::chrono::milliseconds(300));
        break;
      case Fault::kBlackHole:
        link.silent = true;
        return true;
      case Fault::kCutReply:
        SendAll(to, buffer, size / 2);
        return false;
      case Fault::kLoseReply:
      case Fault::kReset:
        return false;
    }
    SendAll(to, buffer, size);
    return true;
  }

  void Run() {
    std::vector<Link> links;
    while (!stop_.load()) {
      std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
      for (const Link& link : links) {
        polled.push_back({link.client, POLLIN, 0});
        polled.push_back({link.server, POLLIN, 0});
      }
      poll(polled.data(), polled.size(), 10);
      for (size_t i = links.size(); i-- > 0;) {
        const bool good = (polled[1 + 2 * i].revents == 0 || Pass(links[i], false)) &&
                          (polled[2 + 2 * i].revents == 0 || Pass(links[i], true));
        if (good) continue;
        close(links[i].client);
        close(links[i].server);
        links.erase(links.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[0].revents == 0) continue;
      const int client = accept(listener_, nullptr, nullptr);
      const int server = socket(AF_UNIX, SOCK_STREAM, 0);
      const sockaddr_un address = AddressOf(server_);
      if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
        links.push_back({client, server});
      } else {
        close(client);
        close(server);
      }
    }
    for (const Link& link : links) {
      close(link.client);
      close(link.server);
    }
    close(listener_);
  }

  const std::string server_;
  const int listener_;
  std::atomic<bool> stop_{false};
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<int> skip_{0};
  std::atomic<int> left_{0};
  std::thread thread_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_FAULT_PROXY_H_
