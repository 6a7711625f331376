// What the codecs of sluice.v1's messages share.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_CODEC_PARTS_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_CODEC_PARTS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/protobuf_wire.h"
#include "common/rate_limiter_fields.h"
#include "common/strings.h"

namespace sluice::transport {

inline absl::Status Broken(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      common::ToAbsl(what), ": the bytes are not a protobuf message of sluice.v1's definition"));
}

// A Charge, or a QueryRequest.Bucket, which has its first two fields.
struct ChargeFields {
  std::string_view limit;
  std::string_view key;
  uint64_t permits = 1;

  bool Read(std::string_view bytes) {
    common::WireReader reader(bytes);
    while (reader.Next()) {
      if (reader.field() == common::fields::Charge::kLimit) {
        reader.ReadBytes(&limit);
      } else if (reader.field() == common::fields::Charge::kKey) {
        reader.ReadBytes(&key);
      } else if (reader.field() == common::fields::Charge::kPermits) {
        reader.ReadVarint(&permits);
      }
    }
    return reader.ok();
  }
};

// Durations of answers are never negative.
inline common::WireWriter WriteDuration(uint32_t field, int64_t signed_ns, common::WireWriter out) {
  constexpr uint64_t kNsPerSecond = 1'000'000'000;
  const auto ns = static_cast<uint64_t>(signed_ns);
  uint8_t* const mark = out.BeginMessage(field);
  uint64_t nanos = ns;
  if (ns >= kNsPerSecond) {
    out.Varint(common::fields::Duration::kSeconds, ns / kNsPerSecond);
    nanos = ns % kNsPerSecond;
  }
  if (nanos != 0) out.Varint(common::fields::Duration::kNanos, nanos);
  out.EndShortMessage(mark);  // at most 17 bytes
  return out;
}

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_CODEC_PARTS_H_
