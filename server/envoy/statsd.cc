#include "server/envoy/statsd.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace sluice::envoy {
namespace {

// What a packet holds on a path of Ethernet, so that no router divides it.
constexpr size_t kMaxPacketBytes = 1400;
// Of one interval, 5 MB of lines: what is more waits for the next one.
constexpr size_t kMaxPackets = 4096;
// The socket's buffer holds some hundred packets.
constexpr size_t kPacketsAtOnce = 64;
constexpr std::chrono::milliseconds kPauseOfPackets{1};

// Returns a socket that is connected to the server, or -1.
int OpenSocket(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return -1;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int fd = socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    if (connect(fd, one->ai_addr, one->ai_addrlen) == 0) return fd;
    close(fd);
  }
  return -1;
}

// A name in a line: ':' and '|' end it there, and a line ends with the line.
std::string SafeName(std::string name) {
  for (char& c : name) {
    if (c == ':' || c == '|' || c == '@' || static_cast<unsigned char>(c) <= ' ') c = '_';
  }
  return name;
}

}  // namespace

Statsd::Statsd(Options options, const Statistics& statistics)
    : options_(std::move(options)), statistics_(statistics), thread_([this] { Run(); }) {}

void Statsd::Stop() {
  {
    const common::MutexLock lock(&mu_);
    stop_ = true;
    stopped_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Statsd::Run() {
  for (bool stop = false; !stop;) {
    const auto next = std::chrono::steady_clock::now() + options_.interval;
    {
      const common::MutexLock lock(&mu_);
      while (!stop_) {
        const auto left = next - std::chrono::steady_clock::now();
        if (left.count() <= 0) break;
        stopped_.WaitFor(&mu_, left);
      }
      stop = stop_;
    }
    Send();
  }
}

void Statsd::Send() {
  const int fd = OpenSocket(options_.host, options_.port);
  if (fd < 0) return;
  const auto close_socket = absl::MakeCleanup([fd] { close(fd); });
  std::string packet;
  size_t packets = 0;
  const auto send_packet = [&] {
    if (packet.empty()) return;
    send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
    packet.clear();
    if (++packets % kPacketsAtOnce == 0) std::this_thread::sleep_for(kPauseOfPackets);
  };
  for (const auto& [name, value] : statistics_.Read()) {
    uint64_t& sent = sent_[name];
    // A limit that was removed and came back may count from less.
    if (value <= sent) {
      sent = value;
      continue;
    }
    const std::string line = absl::StrCat(SafeName(name), ":", value - sent, "|c");
    if (packet.size() + line.size() + 1 > kMaxPacketBytes) send_packet();
    if (packets == kMaxPackets) return;
    absl::StrAppend(&packet, packet.empty() ? "" : "\n", line);
    sent = value;
  }
  send_packet();
}

}  // namespace sluice::envoy
