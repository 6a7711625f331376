// RateLimitRequest: a request of Envoy's or Kuadrant's rate-limit service as views into its bytes.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_REQUEST_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/envoy/descriptor_tree.h"
#include "server/envoy/matcher.h"
#include "server/service/validation.h"

namespace sluice::transport {

// A limit that a descriptor brings along.
struct RequestedLimit {
  uint32_t requests_per_unit = 0;
  uint32_t unit_multiplier = 1;
  bool has_multiplier = false;  // else 1
  // As it came: a number that is no unit is not checked yet.
  int32_t unit = 0;
};

struct RequestedDescriptor {
  uint32_t first_entry = 0;  // in RateLimitRequest::entries
  uint32_t entries = 0;
  bool has_limit = false;
  bool has_hits = false;
  bool negative_hits = false;
  RequestedLimit limit;
  uint64_t hits = 0;
};

// Reusable: once its vectors have grown, it allocates nothing.
struct RateLimitRequest {
  std::string_view domain;
  std::vector<RequestedDescriptor> descriptors;
  std::vector<envoy::Entry> entries;  // of all descriptors
  uint32_t hits_addend = 0;

  // Of Kuadrant's Reserve: amount, ttl (0: absent); of its Commit: actual_amount, reservation_id.
  uint64_t amount = 0;
  service::WireDuration ttl;
  std::string_view reservation_id;

  void Clear() {
    domain = {};
    descriptors.clear();
    entries.clear();
    hits_addend = 0;
    amount = 0;
    ttl = {};
    reservation_id = {};
  }
  absl::Span<const envoy::Entry> EntriesOf(const RequestedDescriptor& descriptor) const {
    return absl::MakeConstSpan(entries).subspan(descriptor.first_entry, descriptor.entries);
  }
  uint64_t HitsOf(const RequestedDescriptor& descriptor) const {
    return descriptor.has_hits ? descriptor.hits : std::max<uint64_t>(1, hits_addend);
  }
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_REQUEST_H_
