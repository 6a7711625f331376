// A proxy for the bus of a Redis Cluster that can cut servers off. Clients and replication use
// other connections.
//
// Server i connects to the others from SourceOf(i) (bind-source-addr) and announces port(i) as its
// bus port (cluster-announce-bus-port).
#ifndef SLUICE_TESTS_SUPPORT_CLUSTER_BUS_H_
#define SLUICE_TESTS_SUPPORT_CLUSTER_BUS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace sluice::testing {

// CutOff and Heal may be called by any thread. `buses`: the bus port of each server.
class ClusterBus {
 public:
  explicit ClusterBus(const std::vector<uint16_t>& buses) : buses_(buses) {
    for (size_t i = 0; i < buses_.size(); ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = Loopback(0);
      if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
          listen(fd, 64) != 0) {
        std::perror("no port for the Cluster bus");
        std::abort();
      }
      socklen_t size = sizeof(address);
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
      listeners_.push_back(fd);
      ports_.push_back(ntohs(address.sin_port));
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~ClusterBus() {
    stop_.store(true);
    thread_.join();
    for (const int fd : listeners_) close(fd);
  }
  ClusterBus(const ClusterBus&) = delete;
  ClusterBus& operator=(const ClusterBus&) = delete;

  uint16_t port(size_t server) const { return ports_[server]; }
  static std::string SourceOf(size_t server) { return "127.0.0." + std::to_string(2 + server); }

  // Server `i` and the others receive nothing from each other until Heal.
  void CutOff(size_t server) { cut_.store(static_cast<int>(server)); }
  void Heal() { cut_.store(-1); }

 private:
  struct Link {
    int from_fd;
    int to_fd;
    int from;
    int to;
  };

  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  // Returns false if the link has ended.
  static bool Pass(int from_fd, int to_fd) {
    char bytes[16 * 1024];
    const ssize_t size = recv(from_fd, bytes, sizeof(bytes), 0);
    for (ssize_t sent = 0; sent < size;) {
      const ssize_t now = send(to_fd, bytes + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += now;
    }
    return size > 0;
  }

  void Accept(size_t server, std::vector<Link>* links) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    const int from_fd = accept(listeners_[server], reinterpret_cast<sockaddr*>(&peer), &size);
    if (from_fd < 0) return;
    const int from = static_cast<int>(ntohl(peer.sin_addr.s_addr) & 0xff) - 2;
    const int to_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(buses_[server]);
    const Link link = {from_fd, to_fd, from, static_cast<int>(server)};
    if (IsCut(link) ||
        connect(to_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      close(from_fd);
      close(to_fd);
      return;
    }
    links->push_back(link);
  }

  bool IsCut(const Link& link) const {
    const int cut = cut_.load();
    return cut >= 0 && (link.from == cut || link.to == cut);
  }

  void Run() {
    constexpr int kLookEveryMs = 5;
    std::vector<Link> links;
    while (!stop_.load()) {
      std::vector<pollfd> polled;
      for (const int fd : listeners_) polled.push_back({fd, POLLIN, 0});
      for (const Link& link : links) {
        polled.push_back({link.from_fd, POLLIN, 0});
        polled.push_back({link.to_fd, POLLIN, 0});
      }
      poll(polled.data(), polled.size(), kLookEveryMs);
      std::vector<Link> left;
      for (size_t i = 0; i < links.size(); ++i) {
        const size_t at = listeners_.size() + 2 * i;
        const Link& link = links[i];
        const bool good = !IsCut(link) &&
                          (polled[at].revents == 0 || Pass(link.from_fd, link.to_fd)) &&
                          (polled[at + 1].revents == 0 || Pass(link.to_fd, link.from_fd));
        if (good) {
          left.push_back(link);
        } else {
          close(link.from_fd);
          close(link.to_fd);
        }
      }
      links = std::move(left);
      for (size_t i = 0; i < listeners_.size(); ++i) {
        if (polled[i].revents != 0) Accept(i, &links);
      }
    }
    for (const Link& link : links) {
      close(link.from_fd);
      close(link.to_fd);
    }
  }

  const std::vector<uint16_t> buses_;
  std::vector<int> listeners_;
  std::vector<uint16_t> ports_;
  std::atomic<bool> stop_{false};
  std::atomic<int> cut_{-1};
  std::thread thread_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_CLUSTER_BUS_H_
