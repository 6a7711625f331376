// Limits from YAML text: what docs/limits.md describes, or an error that says where and what to
// write instead.
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

// Parses and checks everything that can be known from the text alone: what this accepts,
// LimitRegistry::ApplyFile accepts, unless it does not go together with limits that the admin put.
// `filename` is for messages and LimitSpec::defined_at only.
//   INVALID_ARGUMENT: "FILE:LINE:COLUMN: limits[2].rate: \"5\": say permits per period, ..."
//   (lines and columns count from 1).
// Thread-safe.
absl::StatusOr<std::vector<limits::LimitSpec>> ParseLimits(std::string_view text,
                                                           std::string_view filename);

// Reads and parses a file. Blocks on the disk. A file over bounds::kMaxLimitsFileBytes is refused
// before it is read.
//   NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (a directory, too large, bad limits),
//   UNAVAILABLE (cannot be read now). All begin with the path.
absl::StatusOr<LimitsFile> LoadFile(const std::string& path);

}  // namespace sluice::config

#endif  // SLUICE_SERVER_CONFIG_LOAD_H_
