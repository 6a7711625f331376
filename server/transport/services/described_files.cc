#include "server/transport/services/described_files.h"

#include <memory>
#include <set>

#include "google/protobuf/descriptor.pb.h"

namespace sluice::transport {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

void AppendFile(const FileDescriptor& file, std::set<const FileDescriptor*>* done,
                DescribedFiles::Files* files) {
  if (!done->insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) AppendFile(*file.dependency(i), done, files);
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  files->push_back(proto.SerializeAsString());
}

}  // namespace

DescribedFiles::DescribedFiles(const std::vector<std::string>& services) {
  const auto& pool = *google::protobuf::DescriptorPool::generated_pool();
  for (const std::string& service : services) {
    const ServiceDescriptor* const found = pool.FindServiceByName(service);
    if (found != nullptr) Add(*found->file());
  }
}

void DescribedFiles::Add(const FileDescriptor& file) {
  if (by_name_.contains(file.name())) return;
  Files all;
  std::set<const FileDescriptor*> done;
  AppendFile(file, &done, &all);
  const auto files = std::make_shared<const Files>(std::move(all));
  by_name_.emplace(file.name(), files);
  for (int i = 0; i < file.message_type_count(); ++i) AddMessage(*file.message_type(i), files);
  for (int i = 0; i < file.enum_type_count(); ++i) AddEnum(*file.enum_type(i), files);
  for (int i = 0; i < file.service_count(); ++i) {
    const ServiceDescriptor& service = *file.service(i);
    by_symbol_.emplace(service.full_name(), files);
    for (int m = 0; m < service.method_count(); ++m) {
      by_symbol_.emplace(service.method(m)->full_name(), files);
    }
  }
  for (int i = 0; i < file.dependency_count(); ++i) Add(*file.dependency(i));
}

void DescribedFiles::AddMessage(const Descriptor& message,
                                const std::shared_ptr<const Files>& files) {
  by_symbol_.emplace(message.full_name(), files);
  messages_.emplace(message.full_name());
  for (int i = 0; i < message.field_count(); ++i) {
    by_symbol_.emplace(message.field(i)->full_name(), files);
  }
  for (int i = 0; i < message.nested_type_count(); ++i) AddMessage(*message.nested_type(i), files);
  for (int i = 0; i < message.enum_type_count(); ++i) AddEnum(*message.enum_type(i), files);
}

void DescribedFiles::AddEnum(const EnumDescriptor& type,
                             const std::shared_ptr<const Files>& files) {
  by_symbol_.emplace(type.full_name(), files);
  for (int i = 0; i < type.value_count(); ++i)
    by_symbol_.emplace(type.value(i)->full_name(), files);
}

}  // namespace sluice::transport
