#include "common/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice::common {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// MemTotal of /proc/meminfo: "MemTotal:       16316412 kB".
int64_t MemTotal(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  return file >> name >> kib && name == "MemTotal:" && kib > 0 ? kib * 1024 : kUnlimited;
}

// The number in a cgroup's file; v2 writes "max" for no limit, v1 a number near 2^63.
int64_t LimitIn(const std::string& file_name) {
  std::ifstream file(file_name);
  std::string text;
  int64_t bytes = 0;
  return file >> text && absl::SimpleAtoi(text, &bytes) && bytes > 0 ? bytes : kUnlimited;
}

// The least limit of a cgroup and those around it. Within a container /proc may name a path that
// is not visible; then the container's own group is the mount's root.
int64_t LeastLimit(const std::string& mount, std::string path, const std::string& file) {
  int64_t least = LimitIn(absl::StrCat(mount, "/", file));
  while (path.size() > 1) {
    least = std::min(least, LimitIn(absl::StrCat(mount, path, "/", file)));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

int64_t MachineMemory(const std::string& root) {
  int64_t least = MemTotal(root);
  const std::string mount = root + "/sys/fs/cgroup";
  // "0::/path" (v2), "9:memory:/path" (v1).
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[1].empty()) least = std::min(least, LeastLimit(mount, parts[2], "memory.max"));
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller != "memory") continue;
      least = std::min(least, LeastLimit(mount + "/memory", parts[2], "memory.limit_in_bytes"));
    }
  }
  return least;
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  return file >> pages >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace sluice::common
