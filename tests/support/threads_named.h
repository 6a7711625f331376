// ThreadsNamed: counts the threads of this program that have a name.
#ifndef SLUICE_TESTS_SUPPORT_THREADS_NAMED_H_
#define SLUICE_TESTS_SUPPORT_THREADS_NAMED_H_

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace sluice::testing {

inline size_t ThreadsNamed(std::string_view name) {
  size_t count = 0;
  std::error_code ended;
  for (std::filesystem::directory_iterator task("/proc/self/task"), end; task != end;
       task.increment(ended)) {
    std::string line;
    std::getline(std::ifstream(task->path() / "comm"), line);
    count += line == name ? 1 : 0;
  }
  return count;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_THREADS_NAMED_H_
