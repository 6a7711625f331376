// State files: records, with checksums, that are replaced as a whole.
//
//   8 B  "SLUICEST"
//   4 B  version of the format; 4 B CRC-32 of these 12 bytes; integers are little-endian
//   blocks: 4 B size of its records, 4 B CRC-32 of the size and the records, records
//     a record: its length as a varint, its kind (1 B), its fields (fields.h)
//   the last block has one record, kEnd: the number of the records before it, and the CRC-32 of the
//   checksums of all blocks before it
//
// So a reader detects a file that is truncated, changed, or has extra bytes at its end.
#ifndef SLUICE_SERVER_STATE_STATE_FILE_H_
#define SLUICE_SERVER_STATE_STATE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/fields.h"

namespace sluice::state {

// 1: a record kRemembered has nothing behind its end. Files of all versions up to this one are
// read.
inline constexpr uint32_t kStateVersion = 2;

enum class RecordKind : uint8_t {
  kHead = 1,      // of which process, and when
  kRule,          // the parameters of the buckets that name it
  kTokens,        // a token bucket that is its TAT alone
  kBucket,        // any other bucket
  kRefunded,      // receipts that were refunded
  kRemembered,    // a grant with its request id
  kLimitName,     // of all limits that ever existed, in the order of their ids
  kAdminLimit,    // a limit as an admin made it
  kDeletedLimit,  // a limit of the file that an admin deleted
  kTail,          // ids and versions
  kEnd,
  kClosedSlots,  // until when slots are closed after a crash
  kHoldTerms,    // of a file of its own: for how long slots may have been promised
};

// Called before each step that changes the disk, so that a test can end the process there.
using BeforeStep = std::function<void()>;

// Writes one file. Not thread-safe. Blocks on the disk.
class StateFileWriter {
 public:
  // Replaces the file if there is one. `before_step` may be null.
  static absl::StatusOr<std::unique_ptr<StateFileWriter>> Create(std::string path,
                                                                 BeforeStep before_step);
  // Writes to an empty file that is open, and stays the caller's. `name` is for errors.
  static absl::StatusOr<std::unique_ptr<StateFileWriter>> To(int fd, std::string name);
  ~StateFileWriter();
  StateFileWriter(const StateFileWriter&) = delete;
  StateFileWriter& operator=(const StateFileWriter&) = delete;

  // Adds a record to the next block. Does not touch the disk. `fields`: as a FieldWriter made them.
  void Add(RecordKind kind, std::string_view fields);
  // Writes the block if it is large. Errors name the path.
  absl::Status WriteIfLarge();
  // Writes the rest and the end, and waits until all is on the disk.
  absl::Status Finish();

  uint64_t bytes() const { return bytes_; }

 private:
  StateFileWriter(std::string path, BeforeStep before_step)
      : path_(std::move(path)), before_step_(std::move(before_step)) {}
  absl::Status Begin();
  absl::Status WriteBlock();
  absl::Status WriteAll(std::string_view bytes);

  const std::string path_;
  const BeforeStep before_step_;
  int fd_ = -1;
  std::string block_;  // its head, then records
  uint64_t records_ = 0;
  uint32_t checksums_ = 0;  // of the blocks
  uint64_t bytes_ = 0;
};

// Calls visit(kind, fields) for each record but the end. The file is right only if this returns OK.
// Blocks on the disk; takes as much memory as the largest block.
//   DATA_LOSS: torn or changed, or `visit` left the fields unread: the message says where;
//   INVALID_ARGUMENT: not a state file; UNIMPLEMENTED: of a newer version;
//   what `visit` returned; NOT_FOUND and other codes of the system.
absl::Status ReadStateFile(const std::string& path,
                           absl::FunctionRef<absl::Status(RecordKind, FieldReader*)> visit);

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_STATE_FILE_H_
