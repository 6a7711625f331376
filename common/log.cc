#include "common/log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "common/strings.h"

namespace sluice::common {
namespace {

constexpr std::string_view kNames[] = {"info", "warning", "error"};

bool NeedsQuotes(absl::string_view value) {
  return value.empty() || absl::c_any_of(value, [](char c) {
           return c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f;
         });
}

// Opens a pipe or terminal once more, to write to it without blocking. O_NONBLOCK on `fd` itself
// would also hold for the other programs that write to it. -1: not possible, or not needed.
int OpenWithoutBlocking(int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0 || !(S_ISFIFO(file.st_mode) || S_ISCHR(file.st_mode))) return -1;
  return open(absl::StrCat("/proc/self/fd/", fd).c_str(),
              O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

// Returns false if there is no room for the line now. Never waits, except that without a descriptor
// of our own another program may take the last room between poll and write.
bool WriteLine(int fd, std::string_view line) {
  ssize_t written = send(fd, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written < 0 && errno == ENOTSOCK) {
    pollfd room = {.fd = fd, .events = POLLOUT, .revents = 0};
    if (poll(&room, 1, 0) == 0) return false;
    written = write(fd, line.data(), line.size());
  }
  return written >= 0;
}

}  // namespace

Log::Log(const Clock& clock, LogLevel level, int fd)
    : clock_(clock), level_(level), fd_(fd), own_fd_(OpenWithoutBlocking(fd)) {}

Log::~Log() {
  if (own_fd_ >= 0) close(own_fd_);
}

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
  std::string counts;
  if (seen.suppressed > 0) absl::StrAppend(&counts, " suppressed=", seen.suppressed);
  if (dropped_ > 0) absl::StrAppend(&counts, " dropped=", dropped_);
  line.resize(std::min(line.size(), kMaxLineBytes - counts.size() - 1));
  absl::StrAppend(&line, counts, "\n");
  if (!WriteLine(own_fd_ >= 0 ? own_fd_ : fd_, line)) {
    ++dropped_;
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  seen.suppressed = 0;
  dropped_ = 0;
}

}  // namespace sluice::common
