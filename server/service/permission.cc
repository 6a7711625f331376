#include "server/service/permission.h"

#include <algorithm>

#include "common/errors.h"

namespace sluice::service {
namespace {

// Whether a charge that the caller may make adds this one: no receipt says which limit added it.
bool IsAdded(const access::Caller& caller, const ReceiptCharge& charge,
             absl::Span<const ReceiptCharge> charges, const limits::LimitTable& table) {
  if (!charge.key.empty()) return false;
  return std::any_of(charges.begin(), charges.end(), [&](const ReceiptCharge& by) {
    if (!caller.MayUseLimit(by.limit)) return false;
    const limits::Limit* const limit = table.Find(by.limit);
    // Once a limit is deleted, it is not known any more what it added.
    return limit != nullptr &&
           std::any_of(limit->parents().begin(), limit->parents().end(),
                       [&](const limits::Limit* parent) { return parent->name() == charge.limit; });
  });
}

absl::Status Refusal(const access::Caller& caller, std::string_view field, std::string_view limit) {
  // The client was taken out of the file while its call lasted.
  if (caller.client() == nullptr) return caller.Check(access::Call::kAcquire);
  return common::errors::LimitNotAllowed(field, caller.client()->name, limit,
                                         caller.client()->limits.ToString());
}

}  // namespace

absl::Status CheckMayUse(const access::Caller* caller, const FieldPath& path,
                         std::string_view limit) {
  if (caller == nullptr || caller->MayUseLimit(limit)) return absl::OkStatus();
  return Refusal(*caller, path.Field("limit"), limit);
}

absl::Status CheckMayRedeem(const access::Caller* caller, std::string_view field,
                            absl::Span<const ReceiptCharge> charges,
                            const limits::LimitTable& table) {
  if (caller == nullptr) return absl::OkStatus();
  for (const ReceiptCharge& charge : charges) {
    if (!caller->MayUseLimit(charge.limit) && !IsAdded(*caller, charge, charges, table)) {
      return Refusal(*caller, field, charge.limit);
    }
  }
  return absl::OkStatus();
}

store::BucketMaker MakerFor(const access::CallerPtr& caller) {
  access::ClientUse* const use = caller == nullptr ? nullptr : caller->use();
  if (use == nullptr) return {};
  return {.rate = use->new_keys(), .number = use->number(), .percent = use->table_share()};
}

}  // namespace sluice::service
