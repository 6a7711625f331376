// Descriptor: a file descriptor that is closed with its owner.
#ifndef SLUICE_COMMON_NET_DESCRIPTOR_H_
#define SLUICE_COMMON_NET_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace sluice::net {

// Not thread-safe.
class Descriptor {
 public:
  Descriptor() = default;
  // Owns `fd`; -1: none.
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  bool open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_DESCRIPTOR_H_
