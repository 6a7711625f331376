// DescribedFiles: the .proto files of a port's services and of all that they import, by file name
// and by symbol.
//
// protobuf's own pool is not asked about names that a caller sends: it takes quadratic time for
// some long names, under its mutex, and keeps each unknown name for ever.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_DESCRIBED_FILES_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_DESCRIBED_FILES_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "google/protobuf/descriptor.h"

namespace sluice::transport {

// Thread-safe: immutable.
class DescribedFiles {
 public:
  // A file after all files that it imports, each as a serialized FileDescriptorProto.
  using Files = std::vector<std::string>;

  // `services`: full names. Those that are not linked into the program are left out.
  explicit DescribedFiles(const std::vector<std::string>& services);
  DescribedFiles(const DescribedFiles&) = delete;
  DescribedFiles& operator=(const DescribedFiles&) = delete;

  // Null: unknown. The time does not depend on the files, and nothing is kept of the name.
  const Files* FindFile(std::string_view name) const { return Find(by_name_, name); }
  // `symbol`: the full name of a service, method, message, field, enum or enum value.
  const Files* FindSymbol(std::string_view symbol) const { return Find(by_symbol_, symbol); }
  bool HasMessage(std::string_view name) const {
    return messages_.contains(absl::string_view(name.data(), name.size()));
  }

 private:
  // All symbols of a file share its Files.
  using Map = absl::flat_hash_map<std::string, std::shared_ptr<const Files>>;

  static const Files* Find(const Map& map, std::string_view name) {
    const auto it = map.find(absl::string_view(name.data(), name.size()));
    return it == map.end() ? nullptr : it->second.get();
  }
  void Add(const google::protobuf::FileDescriptor& file);
  void AddMessage(const google::protobuf::Descriptor& message,
                  const std::shared_ptr<const Files>& files);
  void AddEnum(const google::protobuf::EnumDescriptor& type,
               const std::shared_ptr<const Files>& files);

  Map by_name_;
  Map by_symbol_;
  absl::flat_hash_set<std::string> messages_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_DESCRIBED_FILES_H_
