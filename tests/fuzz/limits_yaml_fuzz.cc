// Fuzzes the limits file: no bytes crash the parser; every error names a place and is printable;
// accepted limits can be applied, and applying them again changes no rule.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/config/load.h"
#include "server/config/yaml_tree.h"
#include "server/limits/limit_registry.h"
#include "tests/unit/limits/recording_store.h"

namespace {

void Require(bool ok, const char* what, absl::string_view said = "") {
  if (ok) return;
  std::fprintf(stderr, "not so: %s: %.*s\n", what, static_cast<int>(said.size()), said.data());
  std::abort();
}

void CheckError(absl::string_view message) {
  constexpr std::string_view kStart = "f.yaml:";
  Require(message.size() > kStart.size() &&
              message.substr(0, kStart.size()) == absl::string_view(kStart.data(), kStart.size()),
          "an error begins with the file", message);
  Require(message[kStart.size()] >= '1' && message[kStart.size()] <= '9',
          "an error has a line from 1 up", message);
  for (const char c : message) {
    Require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "an error is printable", message);
  }
  // Messages are sent in protobuf strings, so they must be UTF-8.
  const std::string quoted(message.data(), message.size());
  const auto utf8 = sluice::config::ParseYaml("# " + quoted, "f");
  Require(utf8.ok(), "an error is UTF-8", message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto specs = sluice::config::ParseLimits(text, "f.yaml");
  if (!specs.ok()) {
    CheckError(specs.status().message());
    return 0;
  }
  sluice::limits::RecordingStore store;
  sluice::limits::LimitRegistry registry(&store);
  const auto applied = registry.ApplyFile(*specs, "v1");
  Require(applied.ok(), "what is accepted can be applied", applied.status().message());
  Require(registry.Current()->limits().size() == specs->size(), "every limit runs");
  const size_t rules = store.rules().size();
  Require(registry.ApplyFile(*specs, "v2").ok(), "it can be applied again");
  Require(store.rules().size() == rules, "applied again it changes no rule");
  return 0;
}
