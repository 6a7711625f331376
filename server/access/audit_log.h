// AuditLog: admin changes as lines of JSON, one on disk before the change is made and one before it
// is confirmed; and calls that were refused.
#ifndef SLUICE_SERVER_ACCESS_AUDIT_LOG_H_
#define SLUICE_SERVER_ACCESS_AUDIT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/net/peer_identity.h"

namespace sluice::access {

// What a connection proves about its peer, as one text: "subject CN=ops,O=Example"; of a
// certificate without a subject "URI spiffe://example.org/ops" or "DNS ops.example.org"; "uid
// 1000". Empty: nothing.
std::string ActorOf(const net::PeerIdentity& peer);

struct AuditRecord {
  std::string client;  // empty: the server has no clients file
  std::string actor;   // ActorOf; empty: the connection proves nothing
  std::string peer;
  std::string call;  // "PutLimit"
  // JSON. Empty: null.
  std::string request;
  std::string before;
  std::string after;
  bool started = false;  // the change is about to be made: it has no outcome yet
  absl::Status outcome;
};

// Thread-safe. Write and Append block on the file system, and Write on the disk.
class AuditLog {
 public:
  // Opens the file to append to it, and makes it, readable by its owner and group only. "-":
  // stderr. The error begins with the path. `clock` outlives the log.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(std::string path,
                                                        const common::Clock& clock);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // Appends a line, and waits until it is on disk. If the file was renamed or removed since (log
  // rotation), it is made again first.
  absl::Status Write(const AuditRecord& record);
  // The same without waiting for the disk: a crash of the machine may lose the line.
  absl::Status Append(const AuditRecord& record);

  // The line of a record, with its end.
  static std::string LineOf(const AuditRecord& record, int64_t wall_ns);

 private:
  AuditLog(std::string path, const common::Clock& clock) : path_(std::move(path)), clock_(clock) {}

  // Opens path_ if what it names is not what is open.
  absl::Status Reopen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AppendLine(const AuditRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const common::Clock& clock_;
  common::Mutex mu_;
  int fd_ ABSL_GUARDED_BY(mu_) = -1;
  // Whether the file ends within a line, as after a write to a full disk.
  bool torn_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_AUDIT_LOG_H_
