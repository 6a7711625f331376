// ReadResources: turns the resources of a management server into a DescriptorTree.
#ifndef SLUICE_SERVER_ENVOY_XDS_RATE_LIMIT_RESOURCES_H_
#define SLUICE_SERVER_ENVOY_XDS_RATE_LIMIT_RESOURCES_H_

#include "absl/status/statusor.h"
#include "envoy/service/discovery/v3/ads.pb.h"
#include "server/envoy/descriptor_tree.h"

namespace sluice::envoy {

inline constexpr char kRateLimitConfigType[] =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

// Frees each resource of the response once it is read: the tree and the response together would
// hold it twice. INVALID_ARGUMENT: a resource has another type, is no RateLimitConfig, has the name
// of another one, or breaks a bound; the error names it. Pure otherwise; does not Check the tree.
absl::StatusOr<DescriptorTree> ReadResources(
    ::envoy::service::discovery::v3::DiscoveryResponse* response);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_XDS_RATE_LIMIT_RESOURCES_H_
