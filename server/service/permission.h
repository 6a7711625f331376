// What a call's caller may do, as the clients file says. A null caller may do everything.
#ifndef SLUICE_SERVER_SERVICE_PERMISSION_H_
#define SLUICE_SERVER_SERVICE_PERMISSION_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/access/caller.h"
#include "server/limits/limit_table.h"
#include "server/service/receipt.h"
#include "server/service/validation.h"
#include "server/store/store.h"

namespace sluice::service {

// PERMISSION_DENIED or UNAUTHENTICATED: the caller may not use this limit. `path`: the message that
// has the field `limit`.
absl::Status CheckMayUse(const access::Caller* caller, const FieldPath& path,
                         std::string_view limit);

// As CheckMayUse, for all limits of a receipt. Those that the `charges` of another one of them add
// need no permission of their own; a limit that was deleted adds none. `field`: the receipt's.
absl::Status CheckMayRedeem(const access::Caller* caller, std::string_view field,
                            absl::Span<const ReceiptCharge> charges,
                            const limits::LimitTable& table);

// Whose buckets an operation of this caller makes. Without bounds for callers that are no client's.
store::BucketMaker MakerFor(const access::CallerPtr& caller);

}  // namespace sluice::service

#endif  // SLUICE_SERVER_SERVICE_PERMISSION_H_
