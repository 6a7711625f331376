#include "common/log.h"

#include <unistd.h>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "common/strings.h"

namespace sluice::common {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};

bool NeedsQuotes(absl::string_view value) {
  return value.empty() || absl::c_any_of(value, [](char c) {
           return c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f;
         });
}

}  // namespace

bool ParseLogLevel(std::string_view text, LogLevel* level) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text != kNames[i]) continue;
    *level = static_cast<LogLevel>(i);
    return true;
  }
  return false;
}

void Log::Write(LogLevel level, std::string_view event, std::initializer_list<Field> fields) {
  if (level < level_) return;
  const int64_t wall_ns = clock_.WallNs();
  std::string line = absl::StrCat(
      "time=",
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixNanos(wall_ns), absl::UTCTimeZone()),
      " level=", ToAbsl(kNames[static_cast<size_t>(level)]), " event=", ToAbsl(event));
  for (const Field& field : fields) {
    const absl::string_view value = field.value.Piece();
    absl::StrAppend(&line, " ", ToAbsl(field.name), "=");
    if (NeedsQuotes(value)) {
      absl::StrAppend(&line, "\"", absl::Utf8SafeCEscape(value), "\"");
    } else {
      absl::StrAppend(&line, value);
    }
  }

  MutexLock lock(&mu_);
  Event& seen = events_[ToAbsl(event)];
  const int64_t second = clock_.NowNs() / 1'000'000'000;
  if (seen.second != second) {
    seen.second = second;
    seen.lines = 0;
  }
  if (++seen.lines > kLinesPerSecond) {
    ++seen.suppressed;
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (seen.suppressed > 0) {
    absl::StrAppend(&line, " suppressed=", seen.suppressed);
    seen.suppressed = 0;
  }
  line += '\n';
  // One write, so that lines of several processes on one pipe stay whole. An error cannot be
  // reported anywhere.
  [[maybe_unused]] const ssize_t written = write(fd_, line.data(), line.size());
}

}  // namespace sluice::common
