// Fuzzes Envoy's rate-limit configuration: no bytes crash the parser; every error is printable and
// begins with the file; what is accepted can be compiled, its limits can be applied, and look-ups
// in it end.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/envoy/limit_specs.h"
#include "server/envoy/load.h"
#include "server/envoy/matcher.h"
#include "server/limits/limit_registry.h"
#include "tests/unit/limits/recording_store.h"

namespace {

using sluice::envoy::Descriptor;
using sluice::envoy::Entry;
using sluice::envoy::Matcher;

void Require(bool ok, const char* what, absl::string_view said = "") {
  if (ok) return;
  std::fprintf(stderr, "not so: %s: %.*s\n", what, static_cast<int>(said.size()), said.data());
  std::abort();
}

void CheckError(absl::string_view message) {
  Require(message.substr(0, 7) == "f.yaml:", "an error begins with the file", message);
  for (const char c : message) {
    Require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "an error is printable", message);
  }
}

// Looks up each descriptor by its own text.
void FindAll(const Matcher::Level& domain, const std::vector<Descriptor>& descriptors,
             std::vector<Entry>* path) {
  for (const Descriptor& one : descriptors) {
    path->push_back({one.key, one.value});
    sluice::envoy::BucketKey key;
    (void)Matcher::Find(domain, *path, &key);
    FindAll(domain, one.descriptors, path);
    path->pop_back();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  sluice::envoy::LoadedTree loaded;
  absl::Status status = sluice::envoy::AddText(text, "f.yaml", &loaded);
  if (status.ok()) status = sluice::envoy::Check(loaded.tree, {});
  if (!status.ok()) {
    CheckError(status.message());
    return 0;
  }
  for (const std::string& warning : loaded.warnings) CheckError(warning);
  const auto matcher = std::make_shared<const Matcher>(loaded.tree, sluice::envoy::Overrides());
  std::vector<Entry> path;
  for (const sluice::envoy::Domain& domain : loaded.tree.domains) {
    FindAll(*matcher->FindDomain(domain.name), domain.descriptors, &path);
  }
  sluice::limits::RecordingStore store;
  sluice::limits::LimitRegistry registry(&store);
  const auto applied =
      registry.ApplyEnvoy(sluice::envoy::MakeSpecs(*matcher), loaded.version, matcher);
  Require(applied.ok(), "accepted limits can be applied", applied.status().message());
  return 0;
}
