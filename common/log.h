// Log: writes one line per event:
//
//   time=2026-11-21T06:30:00.123Z level=info event=reload version=9f3c limits=12
//
// Values with spaces, quotes or control characters are quoted and escaped, so that no value from
// the wire can forge a line. Each event name may write kLinesPerSecond; the next line after that
// says how many were suppressed. A line that the reader of the log has no room for is dropped; the
// next line that is written says how many were.
#ifndef SLUICE_COMMON_LOG_H_
#define SLUICE_COMMON_LOG_H_

#include <atomic>
#include <climits>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace sluice::common {

enum class LogLevel : uint8_t { kInfo = 0, kWarning, kError };

// "info", "warning", "error".
bool ParseLogLevel(std::string_view text, LogLevel* level);

// Thread-safe. Writes under a lock: not for the hot path. Does not wait for the reader of a pipe, a
// terminal or a socket.
class Log {
 public:
  struct Field {
    std::string_view name;
    absl::AlphaNum value;
  };
  static constexpr uint32_t kLinesPerSecond = bounds::kMaxLogLinesPerSecond;
  // Longer lines are cut: up to this size a pipe takes all of a line or none of it.
  static constexpr size_t kMaxLineBytes = PIPE_BUF;

  // Writes to `fd`, which the caller owns.
  Log(const Clock& clock, LogLevel level, int fd);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void Write(LogLevel level, std::string_view event, std::initializer_list<Field> fields);
  void Info(std::string_view event, std::initializer_list<Field> fields) {
    Write(LogLevel::kInfo, event, fields);
  }
  void Warning(std::string_view event, std::initializer_list<Field> fields) {
    Write(LogLevel::kWarning, event, fields);
  }
  void Error(std::string_view event, std::initializer_list<Field> fields) {
    Write(LogLevel::kError, event, fields);
  }

  // Lines not written since the start: suppressed or dropped.
  uint64_t suppressed() const { return suppressed_.load(std::memory_order_relaxed); }

 private:
  struct Event {
    int64_t second = -1;
    uint32_t lines = 0;
    uint64_t suppressed = 0;
  };

  const Clock& clock_;
  const LogLevel level_;
  const int fd_;
  const int own_fd_;                     // -1: none; then fd_ is used
  std::atomic<uint64_t> suppressed_{0};  // relaxed: orders nothing
  Mutex mu_;
  // Event names are constants of the program, so callers cannot make this grow.
  absl::flat_hash_map<std::string, Event> events_ ABSL_GUARDED_BY(mu_);
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;  // since the last line that was written
};

}  // namespace sluice::common

#endif  // SLUICE_COMMON_LOG_H_
