#include "server/state/state_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace sluice::state {
namespace {

// More than a start writes.
constexpr size_t kProbeBytes = size_t{16} << 10;

absl::Status SystemError(absl::string_view what) { return absl::ErrnoToStatus(errno, what); }

// The first bytes of a small file; as many as fit.
absl::StatusOr<std::string> ReadSmall(int fd) {
  std::array<char, 128> bytes;
  const ssize_t size = pread(fd, bytes.data(), bytes.size(), 0);
  if (size < 0) return SystemError("pread");
  return std::string(bytes.data(), static_cast<size_t>(size));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFolder>> StateFolder::Open(std::string path,
                                                               BeforeStep before_step, int lock) {
  std::unique_ptr<StateFolder> folder(new StateFolder(std::move(path), std::move(before_step)));
  if (absl::Status status = folder->Make(); !status.ok()) return status;
  if (absl::Status status = folder->Lock(lock); !status.ok()) return status;
  if (absl::Status status = folder->ReadLastRun(); !status.ok()) return status;
  if (absl::Status status = folder->ReadFailedCopies(); !status.ok()) return status;
  return folder;
}

absl::Status StateFolder::Probe(const std::string& path) {
  StateFolder folder(path, nullptr);
  if (absl::Status status = folder.Make(); !status.ok()) return status;
  const std::string probe = path + "/probe.new";
  auto file = StateFileWriter::Create(probe, nullptr);
  absl::Status status = file.status();
  if (status.ok()) {
    (*file)->Add(RecordKind::kLimitName, std::string(kProbeBytes, '\0'));
    status = (*file)->Finish();
  }
  unlink(probe.c_str());
  return status;
}

absl::Status StateFolder::Make() {
  const bool made = mkdir(path_.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return SystemError("cannot make the folder");
  folder_fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd_ < 0) return SystemError("cannot open the folder");
  if (!made) return absl::OkStatus();
  // Else it might be gone after a power failure, and buckets would be full.
  const int parent = openat(folder_fd_, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = parent >= 0 && fsync(parent) == 0;
  absl::Status status = synced ? absl::OkStatus() : SystemError("cannot sync its parent");
  if (parent >= 0) close(parent);
  return status;
}

StateFolder::~StateFolder() {
  for (const int fd : {lock_fd_, folder_fd_}) {
    if (fd >= 0) close(fd);
  }
}

int StateFolder::ShareLock() const { return fcntl(lock_fd_, F_DUPFD_CLOEXEC, 0); }

absl::Status StateFolder::Lock(int lock) {
  struct stat ours;
  struct stat given;
  lock_was_given_ = lock >= 0 && fstatat(folder_fd_, "lock", &ours, AT_SYMLINK_NOFOLLOW) == 0 &&
                    fstat(lock, &given) == 0 && ours.st_dev == given.st_dev &&
                    ours.st_ino == given.st_ino;
  // Locks are of the open file: a given one is held together with the process that gave it.
  lock_fd_ = lock_was_given_
                 ? fcntl(lock, F_DUPFD_CLOEXEC, 0)
                 : openat(folder_fd_, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) return SystemError("cannot write to the folder: lock");
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("cannot lock the folder");
    const std::string process = ReadSmall(lock_fd_).value_or("");
    return absl::FailedPreconditionError(
        absl::StrCat("another server uses it (process ",
                     process.empty() ? "unknown" : absl::StripTrailingAsciiWhitespace(process),
                     "); give each server a folder of its own"));
  }
  const std::string process = absl::StrCat(getpid(), "\n");
  // In place, so that it needs no room on the disk.
  const bool written =
      pwrite(lock_fd_, process.data(), process.size(), 0) == static_cast<ssize_t>(process.size()) &&
      ftruncate(lock_fd_, static_cast<off_t>(process.size())) == 0;
  // It is only for the message above. A process that took its state back goes on without it.
  return written || lock_was_given_ ? absl::OkStatus()
                                    : SystemError("cannot write to the folder: lock");
}

absl::Status StateFolder::ReadLastRun() {
  const int fd = openat(folder_fd_, "running", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : SystemError("cannot open running");
  const std::string text = ReadSmall(fd).value_or("");
  close(fd);
  Run run;
  const std::vector<absl::string_view> ids = absl::StrSplit(absl::StripSuffix(text, "\n"), ' ');
  const bool whole =
      absl::EndsWith(text, "\n") && ids.size() == 3 && absl::SimpleHexAtoi(ids[0], &run.id) &&
      absl::SimpleHexAtoi(ids[1], &run.trusted[0]) && absl::SimpleHexAtoi(ids[2], &run.trusted[1]);
  last_run_ = whole ? run : Run();
  return absl::OkStatus();
}

absl::Status StateFolder::ReadFailedCopies() {
  const int fd = openat(folder_fd_, "failed", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : SystemError("cannot open failed");
  const absl::StatusOr<std::string> text = ReadSmall(fd);
  close(fd);
  // It is empty if a process ended between its first two steps.
  if (!text.ok() || (!text->empty() && !absl::SimpleAtoi(*text, &failed_copies_))) {
    failed_copies_ = std::numeric_limits<int>::max();
  }
  return absl::OkStatus();
}

absl::Status StateFolder::NoteFailedCopies(int failed) {
  Step();
  const int fd = openat(folder_fd_, "failed", O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return SystemError("failed");
  const std::string text = absl::StrCat(absl::Dec(failed, absl::kZeroPad2), "\n");
  Step();
  const bool written =
      pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      ftruncate(fd, static_cast<off_t>(text.size())) == 0 && fsync(fd) == 0 &&
      fsync(folder_fd_) == 0;
  const absl::Status status = written ? absl::OkStatus() : SystemError("failed");
  close(fd);
  if (written) failed_copies_ = failed;
  return status;
}

bool StateFolder::HasState() const { return faccessat(folder_fd_, "state", F_OK, 0) == 0; }

absl::Status StateFolder::NoteRun(const Run& run) {
  Step();
  const int fd = openat(folder_fd_, "running.new",
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return SystemError("running.new");
  const std::string text = absl::StrCat(absl::Hex(run.id, absl::kZeroPad16), " ",
                                        absl::Hex(run.trusted[0], absl::kZeroPad16), " ",
                                        absl::Hex(run.trusted[1], absl::kZeroPad16), "\n");
  Step();
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const absl::Status status = written ? absl::OkStatus() : SystemError("running.new");
  close(fd);
  return status.ok() ? Replace("running.new", "running") : status;
}

absl::StatusOr<std::string> StateFolder::MoveAside(int64_t wall_ns) {
  const std::string name = absl::StrCat(
      "state.unusable-",
      absl::FormatTime("%Y%m%dT%H%M%SZ", absl::FromUnixNanos(wall_ns), absl::UTCTimeZone()));
  if (absl::Status status = Replace("state", name); !status.ok()) return status;
  return absl::StrCat(path_, "/", name);
}

absl::Status StateFolder::Replace(const std::string& from, const std::string& to) {
  Step();
  if (renameat(folder_fd_, from.c_str(), folder_fd_, to.c_str()) != 0) return SystemError(from);
  Step();
  return fsync(folder_fd_) == 0 ? absl::OkStatus() : SystemError(to);
}

}  // namespace sluice::state
