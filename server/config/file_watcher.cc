#include "server/config/file_watcher.h"

#include <limits.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/strings.h"
#include "common/thread_priority.h"

namespace sluice::config {
namespace {

// No file of a path that is followed by name can be called so: names with a slash do not exist.
constexpr char kAnyName[] = "/";

// The kernel's own bound.
constexpr int kMaxSymlinks = 40;

constexpr uint32_t kFolderEvents = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                                   IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
// IN_ATTRIB: a change of permissions, or the removal of a file's last name.
constexpr uint32_t kFileEvents = IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB;

// Puts the names between the slashes of `path` in front of `rest`.
void Prepend(std::string_view path, std::deque<std::string>* rest) {
  const std::vector<std::string> names =
      absl::StrSplit(common::ToAbsl(path), '/',
                     [](absl::string_view name) { return !name.empty() && name != "."; });
  rest->insert(rest->begin(), names.begin(), names.end());
}

bool NoneLeft(int error) { return error == ENOSPC || error == ENOMEM; }

// The kernel's clock, not a Clock: the kernel also times the wait.
int64_t MonotonicNs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<InotifyPath>> InotifyPath::Create(const std::string& path,
                                                                 bool folder) {
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(path, ": the current folder is unknown: ", error.message()));
  }
  const int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": cannot be watched: ", std::strerror(errno),
                     "; raise fs.inotify.max_user_instances, or reload by SIGHUP"));
  }
  std::unique_ptr<InotifyPath> watched(new InotifyPath(fd, std::move(absolute), folder));
  if (absl::Status status = watched->Follow(); !status.ok()) return status;
  return watched;
}

absl::Status InotifyPath::Follow() {
  Watches found;
  absl::Status status;
  const std::string folder = FollowPath(path_, &found, &status);
  if (folder_ && !folder.empty()) FollowFolder(folder, &found, &status);
  for (const auto& [wd, names] : watches_) {
    // Fails if the kernel has already removed the watch.
    if (!found.contains(wd)) (void)inotify_rm_watch(fd_, wd);
  }
  watches_ = std::move(found);
  return status;
}

void InotifyPath::Add(const std::string& path, uint32_t events, const std::string& name,
                      Watches* found, absl::Status* status) const {
  const int wd = inotify_add_watch(fd_, path.c_str(), events | IN_MASK_ADD);
  if (wd >= 0) {
    (*found)[wd].insert(name);
  } else if (NoneLeft(errno)) {
    *status = absl::ResourceExhaustedError(
        absl::StrCat(path_, ": cannot be watched: ", std::strerror(errno),
                     "; raise fs.inotify.max_user_watches, or reload by SIGHUP"));
  }
}

std::string InotifyPath::FollowPath(const std::string& followed, Watches* found,
                                    absl::Status* status) const {
  // `folder` has no symlinks: they are followed here, one by one.
  std::string folder = "/";
  std::deque<std::string> rest;
  Prepend(followed, &rest);
  int symlinks = 0;
  while (!rest.empty()) {
    const std::string name = std::move(rest.front());
    rest.pop_front();
    if (name == "..") {
      folder.resize(folder.rfind('/'));
      if (folder.empty()) folder = "/";
      continue;
    }
    // Watch first, so that a change after lstat is reported.
    Add(folder, kFolderEvents, name, found, status);
    const std::string path = absl::StrCat(folder, folder == "/" ? "" : "/", name);
    struct stat info = {};
    if (lstat(path.c_str(), &info) != 0) return "";
    if (S_ISLNK(info.st_mode)) {
      char target[PATH_MAX];
      const ssize_t size = readlink(path.c_str(), target, sizeof(target));
      if (size <= 0 || ++symlinks > kMaxSymlinks) return "";
      if (target[0] == '/') folder = "/";
      Prepend(std::string_view(target, static_cast<size_t>(size)), &rest);
    } else if (S_ISDIR(info.st_mode)) {
      folder = path;
    } else {
      if (rest.empty()) Add(path, kFileEvents | IN_DONT_FOLLOW, "", found, status);
      return "";
    }
  }
  return folder;
}

void InotifyPath::FollowFolder(const std::string& folder, Watches* found,
                               absl::Status* status) const {
  // A watch on a folder reports what happens to its files too.
  constexpr uint32_t kEvents = kFolderEvents | kFileEvents;
  Add(folder, kEvents, kAnyName, found, status);
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(folder, error);
  for (; !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code gone;
    if (it->is_symlink(gone)) {
      (void)FollowPath(it->path(), found, status);
    } else if (it->is_directory(gone)) {
      Add(it->path(), kEvents, kAnyName, found, status);
    }
  }
}

bool InotifyPath::Drain() {
  bool matters = false;
  alignas(inotify_event) char buffer[1 << 14];
  while (true) {
    const ssize_t size = read(fd_, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    for (ssize_t at = 0; at < size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      if ((event->mask & IN_Q_OVERFLOW) != 0) {
        matters = true;
        continue;
      }
      const auto it = watches_.find(event->wd);
      if (it == watches_.end()) continue;
      const bool file_itself = event->len == 0;
      matters = matters || file_itself || it->second.contains(event->name) ||
                it->second.contains(kAnyName);
    }
  }
  // On an error, the folders before the unwatched one still report its changes.
  if (matters) (void)Follow();
  return matters;
}

absl::StatusOr<std::unique_ptr<FileWatcher>> FileWatcher::Start(const std::string& path,
                                                                std::function<void()> on_change,
                                                                FileWatcherOptions options) {
  auto watched = InotifyPath::Create(path, options.folder);
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
  common::LowerPriority();
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
