#include "server/config/file_watcher.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::config {
namespace {

// The kernel's clock, not a Clock: the kernel also times the wait.
int64_t MonotonicNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileWatcher>> FileWatcher::Start(const std::string& path,
                                                                std::function<void()> on_change,
                                                                FileWatcherOptions options) {
  auto watched = InotifyPath::Create(path);
  if (!watched.ok()) return watched.status();
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": cannot be watched: ", std::strerror(errno)));
  }
  return std::unique_ptr<FileWatcher>(
      new FileWatcher(*std::move(watched), stop_fd, std::move(on_change), options));
}

FileWatcher::FileWatcher(std::unique_ptr<InotifyPath> watched, int stop_fd,
                         std::function<void()> on_change, FileWatcherOptions options)
    : watched_(std::move(watched)),
      on_change_(std::move(on_change)),
      options_(options),
      stop_fd_(stop_fd),
      thread_([this] { Run(); }) {}

FileWatcher::~FileWatcher() {
  const uint64_t one = 1;
  // The first write to an eventfd cannot fail.
  (void)!write(stop_fd_, &one, sizeof(one));
  thread_.join();
  close(stop_fd_);
}

void FileWatcher::Run() {
  // Changes before the watch began count as an event.
  std::optional<int64_t> first_ns = MonotonicNs();
  int64_t last_ns = *first_ns;
  while (true) {
    pollfd fds[] = {{stop_fd_, POLLIN, 0}, {watched_->fd(), POLLIN, 0}};
    timespec wait = {};
    if (first_ns) {
      const int64_t due_ns =
          std::min(last_ns + options_.quiet_ns, *first_ns + options_.max_delay_ns);
      const int64_t left_ns = std::max<int64_t>(0, due_ns - MonotonicNs());
      wait.tv_sec = left_ns / 1'000'000'000;
      wait.tv_nsec = left_ns % 1'000'000'000;
      if (left_ns == 0) {
        first_ns.reset();
        on_change_();
        continue;
      }
    }
    const int ready = ppoll(fds, 2, first_ns ? &wait : nullptr, nullptr);
    if (ready < 0 && errno != EINTR) return;
    if (ready <= 0) continue;
    if (fds[0].revents != 0) return;
    if (fds[1].revents != 0 && watched_->Drain()) {
      last_ns = MonotonicNs();
      if (!first_ns) first_ns = last_ns;
    }
  }
}

}  // namespace sluice::config
