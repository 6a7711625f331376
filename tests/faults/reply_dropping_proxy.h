// Stands between a node and Redis, on a Unix socket, and loses answers when told to: what was
// asked is executed, and the node never hears of it.
#ifndef SLUICE_TESTS_FAULTS_REPLY_DROPPING_PROXY_H_
#define SLUICE_TESTS_FAULTS_REPLY_DROPPING_PROXY_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace sluice::testing {

class ReplyDroppingProxy {
 public:
  ReplyDroppingProxy(const std::string& server, const std::string& listen)
      : server_(server), listener_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    const sockaddr_un address = AddressOf(listen);
    bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    ::listen(listener_, 16);
    thread_ = std::thread([this] { Run(); });
  }
  ~ReplyDroppingProxy() {
    stop_.store(true);
    thread_.join();
  }

  // The next answers, or those after so many, vanish, and the connection that they were for breaks.
  void LoseNextAnswer(int after = 0) { lose_.store(after + 1); }
  bool lost() const { return lose_.load() == 0; }

 private:
  struct Link {
    int client;
    int server;
  };

  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    return address;
  }

  void Run() {
    std::vector<Link> links;
    char buffer[65536];
    while (!stop_.load()) {
      std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
      for (const Link& link : links) {
        polled.push_back({link.client, POLLIN, 0});
        polled.push_back({link.server, POLLIN, 0});
      }
      poll(polled.data(), polled.size(), 10);
      for (size_t i = links.size(); i-- > 0;) {
        bool broken = false;
        for (const bool from_server : {false, true}) {
          const pollfd& one = polled[1 + 2 * i + (from_server ? 1 : 0)];
          if (broken || one.revents == 0) continue;
          const ssize_t size = read(one.fd, buffer, sizeof(buffer));
          broken = size <= 0 || (from_server && lose_.load() > 0 && lose_.fetch_sub(1) == 1);
          if (broken) continue;
          const int to = from_server ? links[i].client : links[i].server;
          for (ssize_t sent = 0; sent < size;) {
            const ssize_t n =
                send(to, buffer + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
            if (n <= 0) break;
            sent += n;
          }
        }
        if (!broken) continue;
        close(links[i].client);
        close(links[i].server);
        links.erase(links.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[0].revents != 0) {
        const int client = accept(listener_, nullptr, nullptr);
        const int server = socket(AF_UNIX, SOCK_STREAM, 0);
        const sockaddr_un address = AddressOf(server_);
        if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
          close(client);
          close(server);
          continue;
        }
        links.push_back({client, server});
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
  std::atomic<int> lose_{0};
  std::thread thread_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_FAULTS_REPLY_DROPPING_PROXY_H_
