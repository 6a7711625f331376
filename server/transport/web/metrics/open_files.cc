#include "server/transport/web/metrics/open_files.h"

#include <sys/stat.h>

namespace sluice::metrics {
namespace {

constexpr char kFolder[] = "/proc/self/fd";
constexpr int kPiece = 256;

}  // namespace

bool OpenFiles::CountPiece() {
  if (folder_ == nullptr) {
    struct stat status{};
    // Since Linux 6.2, the size of the folder is the number.
    if (stat(kFolder, &status) == 0 && status.st_size > 0) {
      count_ = static_cast<uint64_t>(status.st_size);
      return false;
    }
    folder_.reset(opendir(kFolder));
    if (folder_ == nullptr) return false;
  }
  for (int i = 0; i < kPiece; ++i) {
    const dirent* const entry = readdir(folder_.get());
    if (entry == nullptr) {
      // The folder's own descriptor is none of the server's.
      --count_;
      return false;
    }
    if (entry->d_name[0] != '.') ++count_;
  }
  return true;
}

}  // namespace sluice::metrics
