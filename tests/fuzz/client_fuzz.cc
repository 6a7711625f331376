// Fuzzes the whole client against a hostile server: the input is what the server sends, over real
// sockets, while calls of every kind are open. Each call ends by itself, once, and the client's
// memory is bounded.
//
// The input: a byte of flags, then pieces, each with its length in two bytes. The server sends the
// next piece once the client has sent something, or after a millisecond, and closes at the end.
#include <poll.h>
#include <sanitizer/allocator_interface.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "client/src/transport/http2_connection.h"
#include "sluice/connection.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): the client's names
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// The calls' bytes, two connections of a session each, and buffers of 16 KiB; far below what the
// lengths in a few bytes of input could announce.
constexpr size_t kMaxMemory = size_t{1} << 20;
// An input with more pieces takes too long.
constexpr size_t kMaxPieces = 8;
// Connections of one client that get the pieces; later ones are closed at once.
constexpr int kPlayed = 2;

enum Flag : uint8_t {
  kShortDeadlines = 1,
  kCancelsStreams = 2,  // while they are open
};

void Check(bool holds) {
  if (!holds) __builtin_trap();
}

std::vector<std::string> Pieces(std::string_view input) {
  std::vector<std::string> pieces;
  while (input.size() > 2 && pieces.size() < kMaxPieces) {
    const size_t size = static_cast<uint8_t>(input[0]) << 8 | static_cast<uint8_t>(input[1]);
    input.remove_prefix(2);
    pieces.emplace_back(input.substr(0, size));
    input.remove_prefix(pieces.back().size());
  }
  return pieces;
}

// One thread that accepts connections, one after the other, for all inputs.
class HostileServer {
 public:
  HostileServer() : name_("sluice-fuzz-" + std::to_string(getpid())) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data(), name_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    Check(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    Check(listen(listener_, 16) == 0);
    std::thread([this] { Run(); }).detach();
  }

  std::string address() const { return "unix:@" + name_; }

  void Begin(std::vector<std::string> pieces) {
    const std::lock_guard<std::mutex> lock(mu_);
    pieces_ = std::move(pieces);
    played_ = 0;
    running_ = true;
    changed_.notify_all();
  }
  // Returns when no connection is left.
  void End() {
    eventfd_write(end_, 1);
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return !running_; });
  }

 private:
  void Run() {
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mu_);
        changed_.wait(lock, [&] { return running_; });
      }
      while (Await(listener_, /*timeout_ms=*/-1)) {
        const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) continue;
        if (played_++ < kPlayed) Play(fd);
        close(fd);
      }
      // What is still in the queue belongs to this input.
      int fd = -1;
      while ((fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        close(fd);
      }
      eventfd_t ignored;
      eventfd_read(end_, &ignored);
      const std::lock_guard<std::mutex> lock(mu_);
      running_ = false;
      changed_.notify_all();
    }
  }

  // Returns false once End was called.
  bool Await(int fd, int timeout_ms) {
    pollfd polled[] = {{fd, POLLIN, 0}, {end_, POLLIN, 0}};
    poll(polled, 2, timeout_ms);
    return polled[1].revents == 0;
  }

  void Play(int fd) {
    char bytes[4096];
    for (const std::string& piece : pieces_) {
      if (!Await(fd, 1)) return;
      ssize_t n = 0;
      while ((n = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
      }
      if (n == 0) return;  // the client has closed it
      static_cast<void>(send(fd, piece.data(), piece.size(), MSG_NOSIGNAL));
    }
    Await(fd, 1);
  }

  const std::string name_;
  const int listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int end_ = eventfd(0, EFD_CLOEXEC);
  std::mutex mu_;
  std::condition_variable changed_;
  bool running_ = false;
  std::vector<std::string> pieces_;  // of the running input
  int played_ = 0;
};

size_t Threads() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// Callbacks that have to come.
class Expected {
 public:
  explicit Expected(size_t memory) : memory_(memory) {}

  template <typename T>
  Callback<T> One() {
    return [this, over = Add()](const Result<T>&) { Over(over); };
  }
  std::function<void(Status)> Close() {
    return [this, over = Add()](const Status&) { Over(over); };
  }
  void CheckMemory() const {
    Check(__sanitizer_get_current_allocated_bytes() <= memory_ + kMaxMemory);
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return open_ == 0; });
  }

 private:
  std::shared_ptr<std::atomic<bool>> Add() {
    const std::lock_guard<std::mutex> lock(mu_);
    ++open_;
    return std::make_shared<std::atomic<bool>>(false);
  }
  void Over(const std::shared_ptr<std::atomic<bool>>& over) {
    Check(!over->exchange(true));
    CheckMemory();
    const std::lock_guard<std::mutex> lock(mu_);
    if (--open_ == 0) changed_.notify_all();
  }

  const size_t memory_;
  std::mutex mu_;
  std::condition_variable changed_;
  int open_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Never destroyed: its thread does not end.
  static auto& server = *new HostileServer();
  static const size_t threads = Threads();
  if (size == 0) return 0;
  const uint8_t flags = data[0];
  server.Begin(Pieces({reinterpret_cast<const char*>(data) + 1, size - 1}));

  Expected expected(__sanitizer_get_current_allocated_bytes());
  {
    const std::shared_ptr<Connection> connection =
        *client_internal::MakeHttp2Connection(server.address(), {}, "token");
    const bool hurried = (flags & kShortDeadlines) != 0;
    const Call call = {steady_clock::now() + (hurried ? milliseconds(5) : milliseconds(60'000))};
    const Acquisition one("api", "k");
    const std::vector<Acquisition> batch(3, one);
    const std::vector<Bucket> buckets = {{"api", "k"}, {"api", "l"}};
    // Their streams are 1, 3, 5, 7, 9, 11, then 13 and on.
    connection->Acquire(one, call, expected.One<Decision>());
    connection->AcquireBatch(batch, call, expected.One<BatchDecisions>());
    connection->Query(buckets, call, expected.One<std::vector<BucketStatus>>());
    connection->Refund("receipt", call, expected.One<RefundResult>());
    const auto stream =
        connection->OpenStream({.on_answers = [&](const auto&) { expected.CheckMemory(); },
                                .on_closed = expected.Close()});
    stream->Send(batch);
    const auto watch = connection->Watch(
        buckets, {},
        {.on_change = [&](const auto&) { expected.CheckMemory(); }, .on_closed = expected.Close()});
    static_cast<void>(connection->AcquireBlocking(one, call));
    if ((flags & kCancelsStreams) != 0) {
      stream->Cancel();
      watch->Cancel();
    }
    stream->Send(batch);
    static_cast<void>(connection->AcquireBatchBlocking(batch, call));
    static_cast<void>(connection->QueryBlocking(buckets, call));
    static_cast<void>(connection->RefundBlocking("receipt", call));
    expected.CheckMemory();
    // The server closes its connections, so nothing may wait for a deadline.
    expected.Await();
    connection->Shutdown();
  }
  server.End();
  // The thread that connected ends by itself; until then its memory would seem to leak.
  while (Threads() > threads) std::this_thread::yield();
  return 0;
}
