// LD_PRELOAD: kills the process before its n-th call that changes the folder $KILL_FOLDER or a file
// in it, or waits for the disk. $KILL_AT is n, from 1.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

std::atomic<int> calls{0};

void Count(std::string_view path) {
  static const char* const folder = std::getenv("KILL_FOLDER");
  static const char* const at = std::getenv("KILL_AT");
  if (folder == nullptr || at == nullptr || !path.starts_with(folder)) return;
  if (++calls == std::atoi(at)) kill(getpid(), SIGKILL);
}

void CountOf(int fd) {
  std::array<char, 32> link;
  std::array<char, PATH_MAX> path;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link.data(), path.data(), path.size());
  if (size > 0) Count({path.data(), static_cast<size_t>(size)});
}

// `path` is relative to the folder `fd`.
void CountAt(int fd, const char* path) { *path == '/' ? Count(path) : CountOf(fd); }

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & (O_CREAT | O_TRUNC)) != 0) Count(path);
  static const auto next = Next<int (*)(const char*, int, ...)>("open");
  return next(path, flags, mode);
}

int openat(int fd, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & (O_CREAT | O_TRUNC)) != 0) CountAt(fd, path);
  static const auto next = Next<int (*)(int, const char*, int, ...)>("openat");
  return next(fd, path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  CountOf(fd);
  static const auto next = Next<ssize_t (*)(int, const void*, size_t)>("write");
  return next(fd, bytes, size);
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  CountOf(fd);
  static const auto next = Next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return next(fd, bytes, size, offset);
}

int ftruncate(int fd, off_t size) noexcept {
  CountOf(fd);
  static const auto next = Next<int (*)(int, off_t)>("ftruncate");
  return next(fd, size);
}

int fsync(int fd) {
  CountOf(fd);
  static const auto next = Next<int (*)(int)>("fsync");
  return next(fd);
}

int fdatasync(int fd) {
  CountOf(fd);
  static const auto next = Next<int (*)(int)>("fdatasync");
  return next(fd);
}

int renameat(int from_fd, const char* from, int to_fd, const char* to) noexcept {
  CountAt(to_fd, to);
  static const auto next = Next<int (*)(int, const char*, int, const char*)>("renameat");
  return next(from_fd, from, to_fd, to);
}

int rename(const char* from, const char* to) noexcept {
  Count(to);
  static const auto next = Next<int (*)(const char*, const char*)>("rename");
  return next(from, to);
}

int unlink(const char* path) noexcept {
  Count(path);
  static const auto next = Next<int (*)(const char*)>("unlink");
  return next(path);
}

int mkdir(const char* path, mode_t mode) noexcept {
  Count(path);
  static const auto next = Next<int (*)(const char*, mode_t)>("mkdir");
  return next(path, mode);
}

}  // extern "C"
