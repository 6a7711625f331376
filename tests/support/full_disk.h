// FullDisk: writes to files fail, as on a full disk.
#ifndef SLUICE_TESTS_SUPPORT_FULL_DISK_H_
#define SLUICE_TESTS_SUPPORT_FULL_DISK_H_

#include <signal.h>
#include <sys/resource.h>

namespace sluice::testing {

// Files of this process grow up to `bytes` while it lives.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes = 0) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  const sighandler_t handler_;
  rlimit before_ = {};
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_FULL_DISK_H_
