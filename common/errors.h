// Every error that a caller can see is made here, so that all of them name the field, the value
// and what would be right, and nobody words one twice.
//
// Codes: INVALID_ARGUMENT for what can never be right, NOT_FOUND for a name that is not
// configured, FAILED_PRECONDITION and UNAVAILABLE for what may be right later.
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
#include "common/bounds.h"
#include "common/executed.h"
#include "common/strings.h"

namespace sluice::common::errors {

// Marks a refusal after which everything is as if the call had never come: the transports say so
// to the caller (executed.h).
inline absl::Status NotExecuted(absl::Status status) {
  status.SetPayload(kExecutedMetadata, absl::Cord(kNotExecuted));
  return status;
}
inline bool WasNotExecuted(const absl::Status& status) {
  return status.GetPayload(kExecutedMetadata).has_value();
}

// permits: 0 in a charge.
inline absl::Status PermitsZero(std::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat("permits: 0 asked of limit '", ToAbsl(limit),
                                                 "'; ask for at least 1, or leave it out for 1"));
}

// More permits than the limit could ever grant at once.
inline absl::Status PermitsAboveCapacity(std::string_view limit, uint64_t permits, uint64_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat("permits: ", permits, " asked of limit '", ToAbsl(limit),
                   "', which can never grant more than ", most, " at once; ask for at most ", most,
                   ", or raise the limit's burst or debt"));
}

// Charges of one acquisition on the same bucket whose sum does not fit a number of permits.
inline absl::Status PermitsSumOverflow(std::string_view limit, uint64_t most) {
  return absl::InvalidArgumentError(absl::StrCat("permits: the charges on limit '", ToAbsl(limit),
                                                 "' add up to more than 2^64-1; ask for at most ",
                                                 most, " in all"));
}

inline absl::Status NoCharges() {
  return absl::InvalidArgumentError("charges: none given; name at least one limit");
}

// `charges` counts those that the limits' own `charges` add.
inline absl::Status TooManyCharges(size_t charges, size_t most) {
  return absl::InvalidArgumentError(absl::StrCat(
      "charges: ", charges, " in one acquisition, counting those that the limits' own ",
      "`charges` add; at most ", most));
}

// ---- Requests. `path` is the field's, as in "acquisitions[3].charges[0]". ----

// What came over the wire, fit for a message: escaped, and cut where it is long.
inline std::string Shown(std::string_view value) {
  constexpr size_t kMost = 128;
  std::string shown = absl::Utf8SafeCHexEscape(ToAbsl(value.substr(0, kMost)));
  if (value.size() > kMost) absl::StrAppend(&shown, "...");
  return shown;
}

inline absl::Status UnknownLimit(std::string_view path, std::string_view name,
                                 std::string_view nearest) {
  std::string message =
      absl::StrCat(ToAbsl(path), ".limit: no limit is named \"", Shown(name), "\"");
  if (!nearest.empty()) absl::StrAppend(&message, "; did you mean \"", ToAbsl(nearest), "\"?");
  return absl::NotFoundError(message);
}

inline absl::Status KeyTooLong(std::string_view path, size_t bytes) {
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(path), ".key: ", bytes, " bytes; a key has at most ", bounds::kMaxKeyBytes, " bytes"));
}

inline absl::Status NotUtf8(std::string_view path) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(path), ": not valid UTF-8; encode binary values, for instance in hex"));
}

inline absl::Status PermitsZeroAt(std::string_view path) {
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(path), ".permits: 0; permits must be at least 1 (leave the field out for 1)"));
}

// `sum` says what the bound is made of, as in "burst + debt = 200".
inline absl::Status PermitsNeverGranted(std::string_view path, uint64_t permits,
                                        std::string_view limit, std::string_view sum) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(path), ".permits: ", permits, "; limit \"", ToAbsl(limit),
                   "\" could never grant more at once than its ", ToAbsl(sum)));
}

// An error of the acquisition as a whole, which names no path by itself.
inline absl::Status WithPath(std::string_view path, const absl::Status& status) {
  if (path.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(ToAbsl(path), status.message()));
}

inline absl::Status TooManyAcquisitions(size_t acquisitions) {
  return absl::InvalidArgumentError(absl::StrCat(
      "acquisitions: ", acquisitions, " in one batch; send at most ", bounds::kMaxBatch));
}

// A duration whose nanos are out of range or of another sign than its seconds.
inline absl::Status BadDuration(std::string_view path, int64_t seconds, int32_t nanos) {
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(path), ": seconds ", seconds, " with nanos ", nanos,
      " is no duration; nanos lie within 0 to 999999999 and have the sign of seconds"));
}

inline absl::Status MaxWaitNegative(std::string_view path) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(path), "max_wait: negative; 0 or absent means now or denied"));
}

inline absl::Status MaxWaitTooLong(std::string_view path, int64_t seconds) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(path), "max_wait: ", seconds, " s; at most 24 h (86400 s)"));
}

inline absl::Status HoldInBatch(std::string_view path) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(path),
                   "hold: true; a batch or a stream cannot hold one answer back without those "
                   "behind it; use Acquire"));
}

inline absl::Status HoldWithoutMaxWait(std::string_view path) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(path), "hold: true without max_wait; say how long to hold at most"));
}

inline absl::Status HoldUnimplemented(std::string_view path) {
  return absl::UnimplementedError(absl::StrCat(
      ToAbsl(path), "hold: not in this version; leave it out and proceed after `wait`"));
}

inline absl::Status LeaseUnimplemented() {
  return absl::UnimplementedError("Lease is not in this version; use Acquire or AcquireStream");
}

inline absl::Status LimitsKeepChanging() {
  return NotExecuted(absl::UnavailableError(
      "the limits changed again and again while this was decided; nothing was debited, try again"));
}

inline absl::Status PastDeadline() {
  return NotExecuted(absl::DeadlineExceededError(
      "the deadline had passed before the decision; nothing was debited"));
}

inline absl::Status CancelledBeforeDecision() {
  return NotExecuted(
      absl::CancelledError("the call was cancelled before its decision; nothing was debited"));
}

inline absl::Status CancelledWhileWaiting() {
  return absl::CancelledError(
      "the call was cancelled while it waited; its permits were given back");
}

inline absl::Status StoreDoesNotBook(std::string_view path) {
  return absl::UnimplementedError(
      absl::StrCat(ToAbsl(path),
                   "max_wait: this server shares its buckets through Redis and does not book ahead "
                   "there yet; leave max_wait out and try again after retry_after"));
}

inline absl::Status SharingDoesNotBook(std::string_view path, std::string_view limit,
                                       std::string_view setting) {
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(path), "max_wait: limit '", ToAbsl(limit), "' says ", ToAbsl(setting),
      ", which does not book ahead; leave max_wait out, or have the limit say sharing: exact and "
      "on_store_failure: deny or allow"));
}

inline absl::Status ReservationInSeveralSlots(std::string_view path, std::string_view limit,
                                              std::string_view key, std::string_view other_limit,
                                              std::string_view other_key) {
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(path), "max_wait: the buckets of limit \"", ToAbsl(limit), "\", key \"",
      ToAbsl(Shown(key)), "\" and of limit \"", ToAbsl(other_limit), "\", key \"",
      ToAbsl(Shown(other_key)),
      "\" are in different slots of the Redis Cluster, where nothing is booked ahead together; "
      "give their keys the same tag, as user:{42}, or these limits the same hash_tag, or leave "
      "max_wait out"));
}

// The store was not asked, or refused.
inline absl::Status StoreAway() {
  // Made once: it is the answer to each call while the store is away.
  static const absl::Status* const status = new absl::Status(NotExecuted(absl::UnavailableError(
      "the shared store is away or refuses (`sluice config` and the server's log say why), and the "
      "limit says deny; nothing was taken")));
  return *status;
}

// The store was asked.
inline absl::Status StoreAnswerLost() {
  return absl::UnavailableError(
      "the shared store was asked and its answer is lost; the permits may have been taken");
}

inline absl::Status RefundUnanswered() {
  return absl::UnavailableError(
      "the shared store is away, or its answer is lost; whether the permits were given back is not "
      "known; call Refund again: a receipt is redeemed once");
}

// Of ResetKey.
inline absl::Status NotReset() {
  return NotExecuted(absl::UnavailableError(
      "the shared store is away or refuses (`sluice config` and the server's log say why); the "
      "bucket is as it was; reset it again when the store is back"));
}
inline absl::Status ResetAnswerLost() {
  return absl::UnavailableError(
      "the shared store was asked and its answer is lost; the bucket may have been reset; reset it "
      "again to be sure");
}

inline absl::Status BucketNotKnown() {
  return absl::UnavailableError("the shared store is away; what is left is not known");
}

inline absl::Status Draining() {
  return NotExecuted(
      absl::UnavailableError("the server is shutting down; call another, or again later"));
}

inline absl::Status NoBuckets() {
  return absl::InvalidArgumentError("buckets: none given; name at least one");
}

inline absl::Status TooManyBuckets(size_t buckets) {
  return absl::InvalidArgumentError(
      absl::StrCat("buckets: ", buckets, "; ask for at most ", bounds::kMaxQueryBuckets));
}

inline absl::Status BadMinInterval() {
  return absl::InvalidArgumentError("min_interval: out of bounds; 10 ms to 1 h, or absent for 1 s");
}

inline absl::Status TooManyWatches() {
  return absl::ResourceExhaustedError(absl::StrCat(
      "as many watches are open as this server allows (", bounds::kMaxWatches, "); close one"));
}

// ---- Receipts ----

inline absl::Status BadReceipt(size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("receipt: ", bytes,
                   " bytes that this server did not issue, or that were changed or cut; pass "
                   "AcquireResponse.receipt as it came"));
}

inline absl::Status ForeignReceipt() {
  return absl::InvalidArgumentError(
      "receipt: of another server, or from before this one was restarted; it is worth nothing "
      "here");
}

// ---- Admin ----

inline absl::Status NoLimitNamed(std::string_view field, std::string_view name,
                                 std::string_view nearest) {
  std::string message = absl::StrCat(ToAbsl(field), ": no limit is named \"", Shown(name), "\"");
  if (!nearest.empty()) absl::StrAppend(&message, "; did you mean \"", ToAbsl(nearest), "\"?");
  return absl::NotFoundError(message);
}

inline absl::Status FieldMissing(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": absent; ", ToAbsl(what)));
}

inline absl::Status FieldOutOfBounds(std::string_view field, const absl::AlphaNum& value,
                                     std::string_view right) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": ", value, "; ", ToAbsl(right)));
}

// Of a health check.
inline absl::Status NoSuchService(std::string_view service) {
  return absl::NotFoundError(absl::StrCat("service: no service is named \"", Shown(service),
                                          "\"; empty for the server as a whole"));
}

inline absl::Status NotAuthenticated() {
  return absl::UnauthenticatedError(
      "the admin port asks for a token; send the metadata `authorization: Bearer TOKEN`");
}

}  // namespace sluice::common::errors

#endif  // SLUICE_COMMON_ERRORS_H_
