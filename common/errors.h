// Errors of RPCs: one factory for each, so that every error names the field, the value and the
// remedy, and no error is worded twice.
//
// Not here: errors that quote a limit's field (server/limits/spec_check.h), a place in the limits
// file (server/config/) or a flag (server/flags.cc), and errors of one component that only its
// callers in the process see.
//
// Codes: INVALID_ARGUMENT for a request that can never succeed, NOT_FOUND for a name that is not
// configured, FAILED_PRECONDITION, RESOURCE_EXHAUSTED and UNAVAILABLE for a request that may
// succeed later.
//
// `field` is the full name of a request's field: "acquisitions[3].charges[0].key".
#ifndef SLUICE_COMMON_ERRORS_H_
#define SLUICE_COMMON_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bounds.h"
#include "common/execution_mark.h"
#include "common/strings.h"
#include "common/utf8.h"

namespace sluice::common::errors {

// Marks a refusal that took and changed nothing; the transports pass the mark on to the caller.
inline absl::Status NotExecuted(absl::Status status) {
  status.SetPayload(kExecutedMetadata, absl::Cord(kNotExecuted));
  return status;
}
inline bool WasNotExecuted(const absl::Status& status) {
  return status.GetPayload(kExecutedMetadata).has_value();
}

// About the bytes of memory that an error takes; 0 for OK.
inline size_t MemoryOf(const absl::Status& status) {
  constexpr size_t kStatusBytes = 96;  // without its text
  return status.ok() ? 0 : kStatusBytes + status.message().size();
}

// Of the statuses of ClientOverBound.
inline constexpr char kClientBoundPayload[] = "sluice-client-bound";

// A value from outside, made fit for a message: escaped, and cut between two characters after
// `most` bytes.
inline std::string Shown(std::string_view value, size_t most = 128) {
  size_t size = value.size();
  if (size > most) {
    size = most;
    while (size > 0 && (static_cast<unsigned char>(value[size]) & 0xC0) == 0x80) --size;
  }
  const std::string_view cut = value.substr(0, size);
  return absl::StrCat(
      IsUtf8(cut) ? absl::Utf8SafeCHexEscape(ToAbsl(cut)) : absl::CHexEscape(ToAbsl(cut)),
      size < value.size() ? "..." : "");
}

// INVALID_ARGUMENT: the name of the field, then `parts`.
template <typename... Parts>
absl::Status Invalid(std::string_view field, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": ", parts...));
}

// ---- Buckets and permits ----

// `nearest`: a name that the caller may have meant; empty: none.
inline absl::Status NoLimitNamed(std::string_view field, std::string_view name,
                                 std::string_view nearest) {
  std::string message = absl::StrCat(ToAbsl(field), ": no limit is named \"", Shown(name), "\"");
  if (!nearest.empty()) absl::StrAppend(&message, "; did you mean \"", ToAbsl(nearest), "\"?");
  return absl::NotFoundError(message);
}

inline absl::Status LimitNotDirect(std::string_view field, std::string_view name) {
  return Invalid(field, "\"", Shown(name), "\" is charged only by other limits (direct: false); ",
                 "charge a limit whose `charges` name it");
}

inline absl::Status KeyTooLong(std::string_view field, size_t bytes) {
  return Invalid(field, bytes, " bytes; a key has at most ", bounds::kMaxKeyBytes, " bytes");
}

inline absl::Status NotUtf8(std::string_view field) {
  return Invalid(field, "not valid UTF-8; encode binary values, for instance in hex");
}

inline absl::Status PermitsZero(std::string_view field) {
  return Invalid(field, "0; permits must be at least 1 (leave the field out for 1)");
}

// One charge asks for more than the limit can ever grant at once. `bound` names the parameters that
// the bound is made of: "burst + debt = 200".
inline absl::Status PermitsNeverGranted(std::string_view field, uint64_t permits,
                                        std::string_view limit, std::string_view bound) {
  return Invalid(field, permits, "; limit \"", ToAbsl(limit),
                 "\" could never grant more at once than its ", ToAbsl(bound));
}

// Several charges on one bucket add up to more. `permits`: UINT64_MAX stands for any greater sum.
inline absl::Status PermitsSumNeverGranted(std::string_view field, uint64_t permits,
                                           std::string_view limit, std::string_view bound) {
  return Invalid(field, "the charges on one bucket of limit \"", ToAbsl(limit), "\" add up to ",
                 permits, permits == UINT64_MAX ? " (2^64-1) or more" : "",
                 " permits; it could never grant more at once than its ", ToAbsl(bound));
}

inline absl::Status NoCharges(std::string_view field) {
  return Invalid(field, "none given; name at least one limit");
}

// `charges` includes those that the limits' own `charges` add.
inline absl::Status TooManyCharges(std::string_view field, size_t charges) {
  return Invalid(field, charges, " in one acquisition, counting those that the limits' own ",
                 "`charges` add; at most ", bounds::kMaxCharges);
}

inline absl::Status TooManyAcquisitions(size_t acquisitions) {
  return Invalid("acquisitions", acquisitions, " in one batch; send at most ", bounds::kMaxBatch);
}

inline absl::Status AcquisitionTooLarge(size_t acquisition, size_t bytes) {
  return Invalid(absl::StrCat("acquisitions[", acquisition, "]"), bytes, " bytes; at most ",
                 bounds::kMaxAcquisitionBytes);
}

inline absl::Status SettlementTooLarge(size_t settlement, size_t bytes) {
  return Invalid(absl::StrCat("settlements[", settlement, "]"), bytes, " bytes; at most ",
                 bounds::kMaxAcquisitionBytes);
}

inline absl::Status NoBuckets() { return Invalid("buckets", "none given; name at least one"); }

inline absl::Status TooManyBuckets(size_t buckets) {
  return Invalid("buckets", buckets, "; ask for at most ", bounds::kMaxQueryBuckets);
}

// ---- max_wait and hold ----

// A duration whose nanos are out of range or have another sign than its seconds.
inline absl::Status BadDuration(std::string_view field, int64_t seconds, int32_t nanos) {
  return Invalid(field, "seconds ", seconds, " with nanos ", nanos,
                 " is no duration; nanos lie within 0 to 999999999 and have the sign of seconds");
}

inline absl::Status MaxWaitOutOfBounds(std::string_view field, int64_t max_wait_ns) {
  return Invalid(field, absl::FormatDuration(absl::Nanoseconds(max_wait_ns)),
                 "; at most 24 h; 0 or absent means now or denied");
}

inline absl::Status HoldInBatch(std::string_view field) {
  return Invalid(
      field,
      "true; a batch or a stream cannot hold one answer back without those behind it; use "
      "Acquire");
}

inline absl::Status HoldWithoutMaxWait(std::string_view field) {
  return Invalid(field, "true without max_wait; say how long to hold at most");
}

inline absl::Status HoldUnimplemented(std::string_view field) {
  return absl::UnimplementedError(
      absl::StrCat(ToAbsl(field), ": not in this version; leave it out and proceed after `wait`"));
}

// `other`: "max_wait" or "hold".
inline absl::Status ForceDoesNotWait(std::string_view field, std::string_view other) {
  return Invalid(field, "true with ", ToAbsl(other), ", but a forced debit is granted now; leave ",
                 ToAbsl(other), " out");
}

inline absl::Status ForceNotAllowed(std::string_view field, std::string_view limit) {
  return Invalid(field, "limit \"", ToAbsl(limit),
                 "\" has no max_owed, so force is not allowed on it; say in the limit how many "
                 "permits may be owed, or leave force out");
}

// A limit with algorithm concurrency.
inline absl::Status SlotsDoNotForce(std::string_view field, std::string_view limit) {
  return Invalid(field, "true, but limit \"", ToAbsl(limit),
                 "\" has algorithm concurrency, and slots cannot be owed; leave force out");
}
inline absl::Status SlotsNeedHold(std::string_view field, std::string_view limit) {
  return Invalid(field, "limit \"", ToAbsl(limit),
                 "\" has algorithm concurrency, and it is not known when slots will be free; say "
                 "hold: true to be answered when they are, or leave max_wait out and ask again "
                 "after retry_after");
}

inline absl::Status SlotsNeedReceipt(std::string_view field, std::string_view limit) {
  return Invalid(field, "slots of limit \"", ToAbsl(limit),
                 "\", which has algorithm concurrency, are ended with the receipt of the grant; "
                 "say body=1 to get it, or ask /v1/acquire");
}

// `slots` has algorithm concurrency.
inline absl::Status SlotsDoNotSplit(std::string_view field, std::string_view split,
                                    std::string_view slots) {
  return Invalid(field, "limit \"", ToAbsl(split),
                 "\" says sharing: split, so another node could not settle or refund what this one "
                 "granted together with the slots of limit \"",
                 ToAbsl(slots), "\"; have \"", ToAbsl(split),
                 "\" say sharing: exact or relaxed, or ask for the two separately");
}

inline absl::Status NoSlots(std::string_view field, std::string_view limit,
                            std::string_view algorithm) {
  return Invalid(field, "limit \"", ToAbsl(limit), "\" has algorithm ", ToAbsl(algorithm),
                 ", which has no holds; name a limit with algorithm concurrency");
}

// `sharing` is the limit's: "split".
inline absl::Status SharingDoesNotForce(std::string_view field, std::string_view limit,
                                        std::string_view sharing) {
  return Invalid(field, "true, but limit \"", ToAbsl(limit),
                 "\", which is charged too, says sharing: ", ToAbsl(sharing),
                 ", which has no forced debits; have it say sharing: exact, or "
                 "leave force out");
}

inline absl::Status StoreDoesNotBook(std::string_view field) {
  return absl::UnimplementedError(absl::StrCat(
      ToAbsl(field),
      ": each node decides a charged limit (sharing: split, or on_store_failure: split) "
      "and does not book ahead; leave max_wait out and try again after retry_after"));
}

// `setting` is the limit's: "sharing: split".
inline absl::Status SharingDoesNotBook(std::string_view field, std::string_view limit,
                                       std::string_view setting) {
  return Invalid(field, "limit \"", ToAbsl(limit), "\" says ", ToAbsl(setting),
                 ", which does not book ahead; leave max_wait out, or have the limit say "
                 "sharing: exact and on_store_failure: deny or allow");
}

// `option` is the field of the request that needs its buckets in one slot: "max_wait".
inline absl::Status InSeveralSlots(std::string_view field, std::string_view option,
                                   std::string_view limit, std::string_view key,
                                   std::string_view other_limit, std::string_view other_key) {
  return Invalid(field, "the buckets of limit \"", ToAbsl(limit), "\", key \"", Shown(key),
                 "\" and of limit \"", ToAbsl(other_limit), "\", key \"", Shown(other_key),
                 "\" are in different slots of the Redis Cluster, and ", ToAbsl(option),
                 " needs them in one; give their keys the same tag, as user:{42}, or these limits "
                 "the same hash_tag, or leave ",
                 ToAbsl(option), " out");
}

// ---- request_id ----

inline absl::Status BadRequestId(std::string_view field, size_t bytes) {
  return Invalid(field, bytes,
                 " bytes; a request id has exactly 16 random bytes; leave it out if "
                 "the request need not be executed once");
}

inline absl::Status OnceDoesNotHold(std::string_view field) {
  return Invalid(field,
                 "set with hold, but an answer that is held back cannot be repeated; leave "
                 "hold out and proceed after `wait`, or leave request_id out");
}

// `setting` is the limit's: "sharing: split".
inline absl::Status SharingDoesNotRemember(std::string_view field, std::string_view limit,
                                           std::string_view setting) {
  return Invalid(field, "limit \"", ToAbsl(limit), "\" says ", ToAbsl(setting),
                 ", so one node does not know what another has granted; leave request_id out, or "
                 "have the limit say sharing: exact and on_store_failure: deny or allow");
}

inline absl::Status OtherRequestWithId(std::string_view field) {
  return Invalid(field,
                 "granted within the last 60 s to a request with other charges or options; use a "
                 "new random id for each request, and the same one only to repeat it unchanged");
}

inline absl::Status GrantHasEnded(std::string_view field) {
  return absl::FailedPreconditionError(
      absl::StrCat(ToAbsl(field),
                   ": the acquisition that was granted under this id has ended: it was refunded, ",
                   "or its slots were taken back; nothing was taken now; use a new random id for a "
                   "new request"));
}

inline absl::Status NoRoomToRemember(std::string_view field) {
  return NotExecuted(absl::ResourceExhaustedError(absl::StrCat(
      ToAbsl(field), ": this server, this limit or this connection has as many grants of the last ",
      "60 s to remember as it may; nothing was taken; try again later, or leave request_id out")));
}

// ---- Outcomes of calls ----

inline absl::Status LimitsKeepChanging() {
  return NotExecuted(absl::UnavailableError(
      "the limits changed again and again while this was decided; nothing was debited, try again"));
}

inline absl::Status PastDeadline() {
  return NotExecuted(absl::DeadlineExceededError(
      "the deadline had passed before the decision; nothing was debited"));
}

inline absl::Status CancelledWhileWaiting() {
  return absl::CancelledError(
      "the call was cancelled while it waited; its permits were given back");
}

inline absl::Status Draining() {
  return NotExecuted(absl::UnavailableError(
      "the server is shutting down; call another server, or try again later"));
}

// The store was not asked, or refused.
inline absl::Status StoreUnavailable() {
  // Built once: while the store is unavailable, it answers every call.
  static const absl::Status* const status = new absl::Status(NotExecuted(absl::UnavailableError(
      "the shared store is unavailable or refuses (`sluice config` and the server's log say why), "
      "and the limit says deny; nothing was taken")));
  return *status;
}

// The store was asked.
inline absl::Status StoreAnswerLost() {
  return absl::UnavailableError(
      "the shared store was asked and its answer is lost; the permits may have been taken");
}

inline absl::Status RefundUnanswered() {
  return absl::UnavailableError(
      "the shared store is unavailable, or its answer is lost; the permits may have been given "
      "back; call Refund again: a receipt is redeemed once");
}

inline absl::Status RenewUnanswered() {
  return absl::UnavailableError(
      "the shared store is unavailable, or its answer is lost; the slots may have been renewed; "
      "call Renew again, and count on the time that the last answer gave");
}

inline absl::Status HoldsUnanswered() {
  return absl::UnavailableError(
      "the shared store is unavailable, or its answer is lost; a hold may have been ended");
}

inline absl::Status BucketNotKnown() {
  return absl::UnavailableError("the shared store is unavailable; what is left is not known");
}

// ---- Receipts ----

inline absl::Status BadReceiptCount(size_t receipts) {
  return Invalid("receipts", receipts, "; 1 to ", bounds::kMaxRenewedReceipts);
}

inline absl::Status BadReceipt(size_t bytes) {
  return Invalid("receipt", bytes,
                 " bytes that this server did not issue, or that were changed or cut; pass "
                 "AcquireResponse.receipt unchanged");
}

inline absl::Status ForeignReceipt() {
  return Invalid("receipt",
                 "issued by another server, or before this one was restarted; it is worth nothing "
                 "here");
}

inline absl::Status SettledBefore() {
  return Invalid(
      "receipt",
      "its acquisition was settled, so its work ran; only one that was never settled can "
      "be refunded");
}

// ---- Estimates ----

inline absl::Status SettleWithinOutOfBounds(std::string_view field, int64_t settle_within_ns) {
  return Invalid(field, absl::FormatDuration(absl::Nanoseconds(settle_within_ns)),
                 "; more than 0, at most 24 h");
}

// `setting` is the limit's: "sharing: split".
inline absl::Status SharingHasNoEstimates(std::string_view field, std::string_view limit,
                                          std::string_view setting) {
  return Invalid(field, "limit \"", ToAbsl(limit), "\" says ", ToAbsl(setting),
                 ", so another node could not settle what this one granted; leave settle_within "
                 "out, or have the limit say sharing: exact and on_store_failure: deny or allow");
}

inline absl::Status SettleInSeveralSlots(std::string_view field) {
  return Invalid(field,
                 "the acquisition's buckets are in different slots of the Redis Cluster, so only "
                 "its concurrency slots can be settled; leave actual out, or give the keys the "
                 "same tag, as user:{42}");
}

inline absl::Status NoRoomForEstimate(std::string_view field) {
  return NotExecuted(absl::ResourceExhaustedError(
      absl::StrCat(ToAbsl(field),
                   ": there is no room for another estimate in one of the buckets; "
                   "nothing was taken; try again when others are over, ten minutes "
                   "after their settle_within")));
}

inline absl::Status TooManySettlements(size_t settlements) {
  return Invalid("settlements", settlements, "; at most ", bounds::kMaxBatch);
}

inline absl::Status NotAnEstimate(std::string_view field) {
  return Invalid(field,
                 "of an acquisition without settle_within and without slots; Refund gives its "
                 "permits back");
}

inline absl::Status MoreWithoutSettleWithin(std::string_view field) {
  return Invalid(field,
                 "true, but the acquisition had no settle_within, so it is settled once; set "
                 "settle_within, or settle when the work is done");
}

inline absl::Status ActualOfSlots(std::string_view field, std::string_view limit) {
  return Invalid(field, "\"", Shown(limit),
                 "\" has algorithm concurrency; slots end when the work is done, and have no "
                 "actual; leave this charge out");
}

inline absl::Status NoRoomToSettle(std::string_view field) {
  return NotExecuted(absl::ResourceExhaustedError(absl::StrCat(
      ToAbsl(field),
      ": the acquisition had no settle_within, and there is no room for its account in one of the "
      "buckets; nothing was changed; leave actual out, or try again later")));
}

inline absl::Status ActualTooLarge(std::string_view field, uint64_t permits) {
  return Invalid(field, permits, "; at most 2^63-1");
}

inline absl::Status ActualNotCharged(std::string_view field, std::string_view limit,
                                     std::string_view key) {
  return Invalid(
      field, "\"", Shown(limit), "\" \"", Shown(key),
      "\": the request of this receipt had no such charge; name the limit and the key of "
      "one of its charges");
}

inline absl::Status ActualTwice(std::string_view field, std::string_view limit,
                                std::string_view key) {
  return Invalid(field, "\"", Shown(limit), "\" \"", Shown(key),
                 "\" twice; add the permits up into one");
}

inline absl::Status ActualFalls(std::string_view field, uint64_t permits, uint64_t before) {
  return Invalid(field, permits, ", but ", before,
                 " before; say all that the work took so far, which never falls");
}

inline absl::Status SettleTooEarly() {
  return absl::FailedPreconditionError(
      "receipt: its grant time has not come; settle when the work has begun, or give the "
      "reservation up with Refund");
}

inline absl::Status RefundedBefore() {
  return Invalid("receipt", "its acquisition was refunded, so there is nothing to settle");
}

inline absl::Status SettleUnanswered() {
  return absl::UnavailableError(
      "the shared store is unavailable, or its answer is lost; the acquisition may have been "
      "settled; call Settle again: the same call changes nothing twice");
}

// ---- Watch ----

inline absl::Status BadMinInterval(int64_t interval_ns) {
  return Invalid("min_interval", absl::FormatDuration(absl::Nanoseconds(interval_ns)),
                 "; 10 ms to 1 h, or absent for 1 s");
}

// The watches of one connection hold too much memory.
inline absl::Status TooManyWatchedBuckets() {
  return NotExecuted(absl::ResourceExhaustedError(
      absl::StrCat("buckets: the watches of this connection would hold more than ",
                   bounds::kMaxConnectionWatchBytes, " bytes, or those of the port more than ",
                   bounds::kMaxPortWatchBytes, "; watch fewer buckets")));
}

inline absl::Status TooManyWatches() {
  return absl::ResourceExhaustedError(absl::StrCat(
      "as many watches are open as this server allows (", bounds::kMaxWatches, "); close one"));
}

// ---- Admin ----

inline absl::Status TooManyLimits(size_t limits) {
  return absl::ResourceExhaustedError(
      absl::StrCat("limits: there would be ", limits, "; at most ", bounds::kMaxLimits));
}

inline absl::Status TooManyLimitNames() {
  return absl::ResourceExhaustedError(absl::StrCat(
      "limits: more than ", bounds::kMaxLimitNames,
      " names were used since the start, those of deleted limits included; reuse names, or "
      "restart"));
}

// DeleteLimit: `by` and `others` more limits charge the limit.
inline absl::Status LimitIsCharged(std::string_view limit, std::string_view by, size_t others) {
  return absl::FailedPreconditionError(
      absl::StrCat("limit \"", ToAbsl(limit), "\" is charged by \"", ToAbsl(by), "\"",
                   others == 0 ? std::string() : absl::StrCat(" and ", others, " more"),
                   "; take it out of their charges first"));
}

inline absl::Status BucketNotReset() {
  return NotExecuted(absl::UnavailableError(
      "the shared store is unavailable or refuses (`sluice config` and the server's log say why); "
      "the bucket is as it was; reset it again when the store is back"));
}

inline absl::Status ResetAnswerLost() {
  return absl::UnavailableError(
      "the shared store was asked and its answer is lost; the bucket may have been reset; reset it "
      "again to be sure");
}

inline absl::Status NoFloors() {
  return absl::FailedPreconditionError(
      "this server keeps its buckets in its memory; only buckets in Redis have floors");
}

inline absl::Status FloorNotLifted() {
  return absl::UnavailableError(
      "Redis is unavailable, or a primary of its Cluster (`sluice config` and the server's log say "
      "why); the floor may stand at some primaries; lift it again when Redis is back");
}

// The change was not made.
inline absl::Status NotAuditable(std::string_view error) {
  return absl::InternalError(
      absl::StrCat("nothing was done, since --audit_log cannot be written: ", ToAbsl(error)));
}

// The change was made.
inline absl::Status NotAudited(std::string_view error) {
  return absl::InternalError(absl::StrCat(
      "the call was executed, but could not be written to --audit_log: ", ToAbsl(error)));
}

inline absl::Status NotAuthenticated() {
  return absl::UnauthenticatedError(
      "the admin port asks for a token; send the metadata `authorization: Bearer TOKEN`");
}

// ---- Clients ----

// `calls`, `limits`, `domains`: those that the clients file allows.
inline absl::Status CallNotAllowed(std::string_view client, std::string_view call,
                                   std::string_view calls) {
  return absl::PermissionDeniedError(absl::StrCat("client \"", ToAbsl(client), "\" may not ",
                                                  ToAbsl(call), "; its calls are ", ToAbsl(calls)));
}

inline absl::Status LimitNotAllowed(std::string_view field, std::string_view client,
                                    std::string_view limit, std::string_view limits) {
  return absl::PermissionDeniedError(
      absl::StrCat(ToAbsl(field), ": client \"", ToAbsl(client), "\" may not use the limit \"",
                   Shown(limit), "\"; its limits are ", limits.empty() ? "none" : Shown(limits)));
}

inline absl::Status DomainNotAllowed(std::string_view client, std::string_view domain,
                                     std::string_view domains) {
  return absl::PermissionDeniedError(absl::StrCat(
      "domain: client \"", ToAbsl(client), "\" may not use the domain \"", Shown(domain),
      "\"; its domains are ", domains.empty() ? "none" : Shown(domains)));
}

// The client has used up one of its bounds. HTTP answers it with 429 (IsOverClientBound), since the
// caller asks for too much, and not with 503, as when the server is busy.
inline absl::Status ClientOverBound(std::string_view client, std::string_view bound,
                                    uint64_t most) {
  absl::Status status = NotExecuted(absl::ResourceExhaustedError(
      absl::StrCat("client \"", ToAbsl(client), "\" has reached ", ToAbsl(bound), ": ", most,
                   "; nothing was done; call later, or raise it in the clients file")));
  status.SetPayload(kClientBoundPayload, absl::Cord());
  return status;
}
inline bool IsOverClientBound(const absl::Status& status) {
  return status.GetPayload(kClientBoundPayload).has_value();
}

// ---- Health ----

inline absl::Status NoSuchService(std::string_view service) {
  return absl::NotFoundError(absl::StrCat("service: no service is named \"", Shown(service),
                                          "\"; empty for the server as a whole"));
}

}  // namespace sluice::common::errors

#endif  // SLUICE_COMMON_ERRORS_H_
