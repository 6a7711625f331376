// JsonCodec: proto3's JSON mapping, between JSON and the bytes of our messages.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_JSON_CODEC_H_
#define SLUICE_SERVER_TRANSPORT_WEB_JSON_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/type_resolver.h"

namespace sluice::web {

// Thread-safe.
class JsonCodec {
 public:
  JsonCodec();
  ~JsonCodec();
  JsonCodec(const JsonCodec&) = delete;
  JsonCodec& operator=(const JsonCodec&) = delete;

  // Writes the message's bytes. Empty text is the empty message. INVALID_ARGUMENT: the text is not
  // JSON, or not of this message; names the field. The caller bounds the text: parsing takes 18
  // bytes of memory for a byte of the worst one.
  absl::Status Parse(std::string_view json, const google::protobuf::Descriptor& type,
                     std::string* bytes) const;

  // Fields with a default value are written too, absent ones are not.
  std::string Print(std::string_view bytes, const google::protobuf::Descriptor& type) const;
  // Units of work (net::WorkQueue) that it takes to print so many bytes: about 40 ns each.
  static int64_t PrintUnits(size_t bytes) { return static_cast<int64_t>(bytes / 3); }

 private:
  const std::unique_ptr<google::protobuf::util::TypeResolver> types_;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_JSON_CODEC_H_
