// FileStatus: what became of the limits file.
#ifndef SLUICE_SERVER_LIMITS_FILE_STATUS_H_
#define SLUICE_SERVER_LIMITS_FILE_STATUS_H_

#include <cstdint>
#include <string>

namespace sluice::limits {

// Times are nanoseconds since 1970 UTC; 0: never.
struct FileStatus {
  std::string path = {};     // empty: there is no file
  std::string version = {};  // SHA-256 of the active file's bytes, in hex; empty: none is active
  int64_t active_since_wall_ns = 0;
  std::string last_error = {};  // why the file as it is now is not active; empty: it is
  int64_t last_error_at_wall_ns = 0;
  uint64_t reloads = 0;  // changes of the file that took effect, the first load included
  uint64_t failed_reloads = 0;
};

}  // namespace sluice::limits

#endif  // SLUICE_SERVER_LIMITS_FILE_STATUS_H_
