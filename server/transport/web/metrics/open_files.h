// OpenFiles: counts the open file descriptors of the process, in pieces: a server with 100,000
// connections has as many, and older kernels have no way but to list them.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_OPEN_FILES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_OPEN_FILES_H_

#include <dirent.h>

#include <cstdint>
#include <memory>

namespace sluice::metrics {

// Not thread-safe.
class OpenFiles {
 public:
  // Counts a few hundred more. Returns false once all are counted.
  bool CountPiece();
  uint64_t count() const { return count_; }

 private:
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };

  std::unique_ptr<DIR, Close> folder_;
  uint64_t count_ = 0;
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_OPEN_FILES_H_
