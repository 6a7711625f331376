#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/json_string.h"
#include "common/strings.h"

namespace sluice::access {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted;
  common::AppendJsonString(text, &quoted);
  return quoted;
}

absl::string_view OrNull(const std::string& json) {
  return json.empty() ? absl::string_view("null") : absl::string_view(json);
}

// Puts the name of a new file on disk.
absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  return synced ? absl::OkStatus() : absl::ErrnoToStatus(error, folder);
}

// Whether the file has bytes after its last line's end. False if it cannot be read.
bool EndsWithinALine(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return false;
  const off_t size = lseek(fd, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && pread(fd, &last, 1, size - 1) != 1) last = '\n';
  close(fd);
  return last != '\n';
}

}  // namespace

std::string ActorOf(const net::PeerIdentity& peer) {
  if (!peer.subject.empty()) return absl::StrCat("subject ", peer.subject);
  if (!peer.uris.empty()) return absl::StrCat("URI ", peer.uris[0]);
  if (!peer.dns_names.empty()) return absl::StrCat("DNS ", peer.dns_names[0]);
  return peer.uid.has_value() ? absl::StrCat("uid ", *peer.uid) : "";
}

std::string AuditLog::LineOf(const AuditRecord& record, int64_t wall_ns) {
  const absl::Status& outcome = record.outcome;
  return absl::StrCat(
      "{\"time\":",
      Quoted(absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixNanos(wall_ns),
                              absl::UTCTimeZone())),
      ",\"client\":", record.client.empty() ? "null" : Quoted(record.client),
      ",\"actor\":", record.actor.empty() ? "null" : Quoted(record.actor),
      ",\"peer\":", Quoted(record.peer), ",\"call\":", Quoted(record.call),
      ",\"request\":", OrNull(record.request), ",\"before\":", OrNull(record.before),
      ",\"after\":", OrNull(record.after), ",\"outcome\":",
      record.started ? "\"STARTED\"" : Quoted(absl::StatusCodeToString(outcome.code())),
      ",\"error\":", outcome.ok() ? "null" : Quoted(common::ToStd(outcome.message())), "}\n");
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(std::string path,
                                                         const common::Clock& clock) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(path), clock));
  const common::MutexLock lock(&log->mu_);
  if (absl::Status status = log->Reopen(); !status.ok()) return status;
  return log;
}

AuditLog::~AuditLog() {
  if (fd_ > STDERR_FILENO) close(fd_);
}

absl::Status AuditLog::Reopen() {
  if (path_ == "-") {
    fd_ = STDERR_FILENO;
    return absl::OkStatus();
  }
  struct stat named = {};
  struct stat open_file = {};
  if (fd_ >= 0 && stat(path_.c_str(), &named) == 0 && fstat(fd_, &open_file) == 0 &&
      named.st_ino == open_file.st_ino && named.st_dev == open_file.st_dev) {
    return absl::OkStatus();
  }
  const int fd = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640);
  if (fd < 0) return absl::ErrnoToStatus(errno, path_);
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  torn_ = EndsWithinALine(path_);
  return SyncFolderOf(path_);
}

absl::Status AuditLog::AppendLine(const AuditRecord& record) {
  if (absl::Status status = Reopen(); !status.ok()) return status;
  const std::string line = absl::StrCat(torn_ ? "\n" : "", LineOf(record, clock_.WallNs()));
  absl::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, path_);
    rest.remove_prefix(static_cast<size_t>(written));
    torn_ = !rest.empty();
  }
  return absl::OkStatus();
}

absl::Status AuditLog::Append(const AuditRecord& record) {
  const common::MutexLock lock(&mu_);
  return AppendLine(record);
}

absl::Status AuditLog::Write(const AuditRecord& record) {
  const common::MutexLock lock(&mu_);
  if (absl::Status status = AppendLine(record); !status.ok()) return status;
  // Stderr may be a pipe or a terminal, which cannot be synced.
  if (fd_ != STDERR_FILENO && fdatasync(fd_) != 0) return absl::ErrnoToStatus(errno, path_);
  return absl::OkStatus();
}

}  // namespace sluice::access
