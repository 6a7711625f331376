// Reads limits from YAML (docs/limits.md). Errors say where the problem is and what to write.
#ifndef SLUICE_SERVER_CONFIG_LOAD_H_
#define SLUICE_SERVER_CONFIG_LOAD_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/limits/limit_spec.h"

namespace sluice::config {

struct LimitsFile {
  std::vector<limits::LimitSpec> specs;
  // SHA-256 of the file's bytes, in hex.
  std::string version;
};

// Parses and checks all that can be checked from the text alone: LimitRegistry::ApplyFile accepts
// the result unless it contradicts limits of the admin. `filename` is only for messages and
// LimitSpec::defined_at.
//   INVALID_ARGUMENT: "FILE:LINE:COLUMN: limits[2].rate: \"5\": say permits per period, ..."
//   (lines and columns count from 1).
// Thread-safe.
absl::StatusOr<std::vector<limits::LimitSpec>> ParseLimits(std::string_view text,
                                                           std::string_view filename);

// The bytes of a configuration file, as LoadFile reads them, with its errors.
absl::StatusOr<std::string> ReadWhole(const std::string& path);

// SHA-256 of a text, in hex.
std::string Sha256Hex(std::string_view text);

// Reads and parses a file. Blocks on the disk. A file over bounds::kMaxLimitsFileBytes is refused
// without reading it.
//   NOT_FOUND, PERMISSION_DENIED and other codes of the system; INVALID_ARGUMENT: a directory, too
//   large, bad limits; UNAVAILABLE: changed while it was read. All begin with the path.
absl::StatusOr<LimitsFile> LoadFile(const std::string& path);

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_LOAD_H_
