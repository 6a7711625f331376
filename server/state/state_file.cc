#include "server/state/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice::state {
namespace {

constexpr std::string_view kMagic = "SLUICEST";
constexpr size_t kPreambleBytes = 16;
constexpr size_t kBlockHeadBytes = 8;
// A block is written once it has that many bytes: large enough for the disk, small enough that one
// write does not take long.
constexpr size_t kBlockBytes = size_t{256} << 10;

void AppendFixed(uint32_t value, std::string* out) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint32_t FixedAt(const char* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  return value;
}

uint32_t Crc(uint32_t crc, const char* bytes, size_t size) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(bytes), size));
}

uint32_t Crc(uint32_t crc, uint32_t value) {
  std::string bytes;
  AppendFixed(value, &bytes);
  return Crc(crc, bytes.data(), bytes.size());
}

absl::Status SystemError(const std::string& path) { return absl::ErrnoToStatus(errno, path); }

// The bytes of an open file, in order.
class Input {
 public:
  Input(int fd, const std::string& path) : fd_(fd), path_(path) {}
  ~Input() { close(fd_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  absl::Status Open() {
    struct stat info = {};
    if (fstat(fd_, &info) != 0) return SystemError(path_);
    size_ = static_cast<uint64_t>(info.st_size);
    return absl::OkStatus();
  }
  // DATA_LOSS: there are not as many.
  absl::Status Read(char* to, size_t size) {
    if (size > left()) return Torn();
    while (size > 0) {
      const ssize_t got = read(fd_, to, size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError(path_);
      if (got == 0) return Torn();
      to += got;
      size -= static_cast<size_t>(got);
      at_ += static_cast<uint64_t>(got);
    }
    return absl::OkStatus();
  }
  uint64_t at() const { return at_; }
  uint64_t left() const { return size_ - std::min(size_, at_); }
  absl::Status Damaged(uint64_t at, absl::string_view why) const {
    return absl::DataLossError(absl::StrCat(path_, ": damaged at byte ", at, ": ", why));
  }

 private:
  absl::Status Torn() const {
    return absl::DataLossError(
        absl::StrCat(path_, ": torn: ends after ", size_, " bytes, without its end"));
  }

  const int fd_;
  const std::string& path_;
  uint64_t size_ = 0;
  uint64_t at_ = 0;
};

absl::Status ReadPreamble(Input* input, const std::string& path) {
  std::array<char, kPreambleBytes> preamble;
  if (input->left() < kPreambleBytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": torn: ends after ", input->left(), " bytes, without its end"));
  }
  if (absl::Status status = input->Read(preamble.data(), preamble.size()); !status.ok()) {
    return status;
  }
  if (std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a state file of Sluice"));
  }
  if (Crc(0, preamble.data(), 12) != FixedAt(preamble.data() + 12)) {
    return input->Damaged(0, "its checksum is wrong");
  }
  const uint32_t version = FixedAt(preamble.data() + kMagic.size());
  if (version > kStateVersion) {
    return absl::UnimplementedError(
        absl::StrCat(path, ": has version ", version,
                     " of the format; this server reads versions up to ", kStateVersion));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateFileWriter>> StateFileWriter::Create(std::string path,
                                                                         BeforeStep before_step) {
  std::unique_ptr<StateFileWriter> writer(
      new StateFileWriter(std::move(path), std::move(before_step)));
  if (writer->before_step_) writer->before_step_();
  // It has the key of receipts.
  writer->fd_ =
      open(writer->path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (absl::Status status = writer->Begin(); !status.ok()) return status;
  return writer;
}

absl::StatusOr<std::unique_ptr<StateFileWriter>> StateFileWriter::To(int fd, std::string name) {
  std::unique_ptr<StateFileWriter> writer(new StateFileWriter(std::move(name), nullptr));
  writer->fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (absl::Status status = writer->Begin(); !status.ok()) return status;
  return writer;
}

absl::Status StateFileWriter::Begin() {
  if (fd_ < 0) return SystemError(path_);
  std::string preamble(kMagic);
  AppendFixed(kStateVersion, &preamble);
  AppendFixed(Crc(0, preamble.data(), preamble.size()), &preamble);
  block_.assign(kBlockHeadBytes, '\0');
  return WriteAll(preamble);
}

StateFileWriter::~StateFileWriter() {
  if (fd_ >= 0) close(fd_);
}

void StateFileWriter::Add(RecordKind kind, std::string_view fields) {
  FieldWriter(&block_).Number(fields.size() + 1);
  block_.push_back(static_cast<char>(kind));
  block_.append(fields);
  ++records_;
}

absl::Status StateFileWriter::WriteIfLarge() {
  return block_.size() < kBlockBytes ? absl::OkStatus() : WriteBlock();
}

absl::Status StateFileWriter::WriteBlock() {
  const size_t size = block_.size() - kBlockHeadBytes;
  if (size == 0) return absl::OkStatus();
  std::string head;
  AppendFixed(static_cast<uint32_t>(size), &head);
  const uint32_t crc = Crc(Crc(0, head.data(), head.size()), block_.data() + kBlockHeadBytes, size);
  AppendFixed(crc, &head);
  std::memcpy(block_.data(), head.data(), head.size());
  checksums_ = Crc(checksums_, crc);
  absl::Status status = WriteAll(block_);
  block_.assign(kBlockHeadBytes, '\0');
  return status;
}

absl::Status StateFileWriter::WriteAll(std::string_view bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (before_step_) before_step_();
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(path_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status StateFileWriter::Finish() {
  if (absl::Status status = WriteBlock(); !status.ok()) return status;
  std::string end;
  FieldWriter fields(&end);
  fields.Number(records_);
  fields.Number(checksums_);
  Add(RecordKind::kEnd, end);
  if (absl::Status status = WriteBlock(); !status.ok()) return status;
  if (before_step_) before_step_();
  if (fsync(fd_) != 0) return SystemError(path_);
  return absl::OkStatus();
}

absl::Status ReadStateFile(const std::string& path,
                           absl::FunctionRef<absl::Status(RecordKind, FieldReader*)> visit) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return SystemError(path);
  Input input(fd, path);
  if (absl::Status status = input.Open(); !status.ok()) return status;
  if (absl::Status status = ReadPreamble(&input, path); !status.ok()) return status;
  uint64_t records = 0;
  uint32_t checksums = 0;
  std::string block;
  while (true) {
    const uint64_t at = input.at();
    std::array<char, kBlockHeadBytes> head;
    if (absl::Status status = input.Read(head.data(), head.size()); !status.ok()) return status;
    const size_t size = FixedAt(head.data());
    if (size > input.left()) block.clear();
    block.resize(std::min<uint64_t>(size, input.left()));
    if (block.size() < size) {
      // Torn, or its size is wrong: it cannot be told apart.
      return input.Damaged(at, absl::StrCat("a block of ", size, " bytes is not whole"));
    }
    if (absl::Status status = input.Read(block.data(), size); !status.ok()) return status;
    const uint32_t crc = Crc(Crc(0, head.data(), 4), block.data(), size);
    if (crc != FixedAt(head.data() + 4)) return input.Damaged(at, "its checksum is wrong");
    FieldReader rest{std::string_view(block)};
    while (!rest.done()) {
      std::string_view record = rest.Text();
      if (!rest.ok() || record.empty()) return input.Damaged(at, "a record is not whole");
      const auto kind = static_cast<RecordKind>(record.front());
      FieldReader fields(record.substr(1));
      if (kind == RecordKind::kEnd) {
        const bool right = fields.Number() == records && fields.Number() == checksums;
        if (!right || !fields.done() || !rest.done()) return input.Damaged(at, "its end is wrong");
        if (input.left() != 0) return input.Damaged(input.at(), "more follows behind its end");
        return absl::OkStatus();
      }
      ++records;
      if (absl::Status status = visit(kind, &fields); !status.ok()) return status;
      if (!fields.done()) {
        return input.Damaged(
            at, absl::StrCat("a record of kind ", static_cast<int>(kind), " cannot be read"));
      }
    }
    checksums = Crc(checksums, crc);
  }
}

}  // namespace sluice::state
