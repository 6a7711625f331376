// The headers RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10), the older
// X-RateLimit headers, and Retry-After, of one decision.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_RATE_LIMIT_HEADERS_H_
#define SLUICE_SERVER_TRANSPORT_WEB_RATE_LIMIT_HEADERS_H_

#include <cstdint>

#include "common/buffer.h"
#include "server/algorithm/rate.h"
#include "server/service/acquire_call.h"

namespace sluice::web {

// A quota as the headers state it: so many permits in so many whole seconds.
struct Quota {
  uint64_t permits = 0;
  uint64_t window_s = 1;
};

// The bucket's capacity, and how long it takes to fill. If that is less than a second, which the
// headers cannot state: the permits of a second.
Quota QuotaOf(const algorithm::Rate& rate, uint64_t capacity);

// Appends the headers of the call's only acquisition, one item for each of its charges.
// `x_ratelimit`: also the older ones, for the charge with the least left. REQUIRES:
// call.result(0).status is OK.
void AppendRateLimitHeaders(const service::AcquireCall& call, bool x_ratelimit,
                            common::Buffer* out);

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_RATE_LIMIT_HEADERS_H_
