// Reads Envoy's rate-limit configuration from YAML, as envoyproxy/ratelimit does (docs/envoy.md).
// Errors say where the problem is and what to write.
#ifndef SLUICE_SERVER_ENVOY_LOAD_H_
#define SLUICE_SERVER_ENVOY_LOAD_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/envoy/descriptor_tree.h"

namespace sluice::envoy {

struct LoadedTree {
  DescriptorTree tree;
  // SHA-256 over the names and bytes of the files, in hex.
  std::string version;
  // "FILE:LINE:COLUMN: ...": fields that have no effect where they are written.
  std::vector<std::string> warnings;
};

// Adds a file's text as another source of `loaded`. Checks the form alone: Check
// (descriptor_tree.h) checks the meaning. Pure; thread-safe.
//   INVALID_ARGUMENT: "FILE:LINE:COLUMN: descriptors[2].rate_limit.unit: ..."
absl::Status AddText(std::string_view text, std::string_view filename, LoadedTree* loaded);

// Reads a file, or every file of a folder and its subfolders in the order of their names, whatever
// they are called. Follows symlinks to files. `ignore_dot_files`: leaves out names that begin with
// a dot; those that begin with two (of Kubernetes' volumes) always. Blocks on the disk.
//   As config::LoadFile; INVALID_ARGUMENT also if there are too many files.
absl::StatusOr<LoadedTree> LoadPath(const std::string& path, bool ignore_dot_files);

// Whether a text looks like Envoy's configuration, and not like a limits file: its root has
// `domain` or `descriptors`.
bool LooksLikeEnvoy(std::string_view text);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_LOAD_H_
