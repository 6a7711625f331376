// Conversions between protobuf's message objects, bytes and nanoseconds.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_PROTOBUF_MESSAGES_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_PROTOBUF_MESSAGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "google/protobuf/message_lite.h"

namespace sluice::transport {

using common::Buffer;

// Returns false if the bytes are not such a message.
inline bool Parse(absl::Span<const uint8_t> bytes, google::protobuf::MessageLite* message) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

inline void Append(const google::protobuf::MessageLite& message, Buffer* out) {
  const size_t size = message.ByteSizeLong();
  message.SerializeWithCachedSizesToArray(out->Reserve(size));
  out->Commit(size);
}

// `out` is a google.protobuf.Duration or Timestamp. Accepts negative values.
template <typename Time>
void SetTime(int64_t ns, Time* out) {
  out->set_seconds(ns / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(ns % 1'000'000'000));
}

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_PROTOBUF_MESSAGES_H_
