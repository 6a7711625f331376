#include "client/cli/show.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/text.h"

namespace sluice::cli {

void WriteStatus(const Status& status, Json* json) {
  json->Open('{')
      .Field("code", StatusCodeName(status.code()))
      .Field("message", status.message())
      .Field("may_have_executed", status.may_have_executed())
      .Close();
}

void WriteDecision(const Acquisition& acquisition, const Decision& decision, Json* json) {
  json->Open('{');
  json->Field("granted", decision.granted).Field("source", SourceName(decision.source));
  json->Field("retry_after_ns", decision.retry_after).Field("wait_ns", decision.wait);
  if (!acquisition.request_id.empty() || decision.repeated)
    json->Field("repeated", decision.repeated);
  json->Name("charges").Open('[');
  for (size_t i = 0; i < decision.charges.size(); ++i) {
    const ChargeStatus& charge = decision.charges[i];
    const bool requested = i < acquisition.charges.size() && charge.limit.empty();
    json->Open('{');
    json->Field("limit", requested ? acquisition.charges[i].limit : charge.limit);
    json->Field("key", requested ? acquisition.charges[i].key : std::string());
    if (requested) json->Field("permits", acquisition.charges[i].permits);
    json->Field("requested", requested);
    json->Field("remaining", charge.remaining).Field("capacity", charge.capacity);
    json->Field("reset_after_ns", charge.reset_after).Field("reason", ReasonName(charge.reason));
    if (acquisition.force) json->Field("forgiven", charge.forgiven);
    if (charge.held_for.count() > 0) json->Field("held_for_ns", charge.held_for);
    json->Close();
  }
  json->Close();
  if (!decision.receipt.empty()) json->Field("receipt", ToBase64Url(decision.receipt));
  if (!decision.status.ok()) {
    json->Name("status");
    WriteStatus(decision.status, json);
  }
  json->Close();
}

namespace {

void WriteBucket(const BucketStatus& bucket, Json* json) {
  json->Open('{').Field("limit", bucket.limit).Field("key", bucket.key);
  if (!bucket.status.ok()) {
    json->Name("error");
    WriteStatus(bucket.status, json);
  } else {
    json->Field("remaining", bucket.remaining).Field("capacity", bucket.capacity);
    json->Field("reset_after_ns", bucket.reset_after);
    json->Field("next_permit_after_ns", bucket.next_permit_after);
    json->Field("exists", bucket.exists).Field("waiting", bucket.waiting);
    json->Field("next_grant_after_ns", bucket.next_grant_after);
    json->Field("open_receipts", bucket.open_receipts).Field("refundable", bucket.refundable);
    json->Field("holds", bucket.holds).Field("next_end_after_ns", bucket.next_end_after);
    json->Field("source", SourceName(bucket.source));
  }
  json->Close();
}

std::string ReasonText(Reason reason) {
  switch (reason) {
    case Reason::kNone:
      return "";
    case Reason::kNotEnough:
      return "not enough permits";
    case Reason::kWaitingBound:
      return "too many reservations wait";
    case Reason::kStoreUnavailable:
      return "the shared store is unavailable";
    case Reason::kOverflow:
      return "the server's bucket table is full";
    case Reason::kShadowDenied:
      return "shadow: would have been denied";
    case Reason::kDeadlineTooShort:
      return "the grant time is after the call's deadline";
    case Reason::kShareTooSmall:
      return "more than the node's share of the limit can hold";
  }
  return "";
}

}  // namespace

std::string DecisionLine(const Acquisition& acquisition, const Decision& decision) {
  std::string line = decision.granted ? "granted" : "denied ";
  if (decision.source == Source::kUnavailable) {
    for (const Charge& charge : acquisition.charges) {
      line += "  " + charge.limit + (charge.key.empty() ? "" : " " + ShowKey(charge.key));
    }
    line += "  (no server decided: " + decision.status.ToString() + ")";
    // The message may say so already.
    if (decision.status.may_have_executed() &&
        decision.status.message().find("may have been taken") == std::string::npos) {
      line += " (permits may have been taken)";
    }
    return line;
  }
  if (decision.granted && decision.wait.count() > 0) {
    line += ", proceed in " + FormatDuration(decision.wait);
  }
  if (decision.repeated) line += ", as before";
  if (!decision.granted) line += "  retry after " + FormatDuration(decision.retry_after);
  for (size_t i = 0; i < decision.charges.size(); ++i) {
    const ChargeStatus& charge = decision.charges[i];
    const bool requested = i < acquisition.charges.size() && charge.limit.empty();
    line += i == 0 ? "  " : "; ";
    line += requested ? acquisition.charges[i].limit : charge.limit;
    if (requested && !acquisition.charges[i].key.empty()) {
      line += " " + ShowKey(acquisition.charges[i].key);
    }
    line += ": " + std::to_string(charge.remaining) + " of " + std::to_string(charge.capacity) +
            " left";
    if (charge.reset_after.count() > 0) {
      line += ", full in " + FormatDuration(charge.reset_after);
    }
    if (charge.forgiven > 0) line += ", " + std::to_string(charge.forgiven) + " forgiven";
    if (charge.held_for.count() > 0) line += ", held for " + FormatDuration(charge.held_for);
    if (charge.reason != Reason::kNone) line += " (" + ReasonText(charge.reason) + ")";
  }
  return line;
}

void PrintDecision(const Acquisition& acquisition, const Decision& decision) {
  std::printf("%s\n", DecisionLine(acquisition, decision).c_str());
  if (!decision.receipt.empty()) {
    std::printf("receipt  %s\n", ToBase64Url(decision.receipt).c_str());
  }
}

Json BucketsJson(const std::vector<BucketStatus>& buckets) {
  Json json;
  json.Open('{').Name("buckets").Open('[');
  for (const BucketStatus& bucket : buckets) WriteBucket(bucket, &json);
  json.Close().Close();
  return json;
}

std::string BucketTable(const std::vector<BucketStatus>& buckets) {
  const auto any = [&](uint64_t BucketStatus::* count) {
    return std::any_of(buckets.begin(), buckets.end(), [count](const BucketStatus& one) {
      return one.status.ok() && one.*count > 0;
    });
  };
  const bool any_wait = any(&BucketStatus::waiting);
  const bool any_open = std::any_of(buckets.begin(), buckets.end(), [](const BucketStatus& one) {
    return one.status.ok() && one.holds == 0 && one.open_receipts > 0;
  });
  const bool any_held = any(&BucketStatus::holds);
  std::vector<std::vector<std::string>> rows = {
      {"LIMIT", "KEY", ">LEFT", ">OF", ">NEXT", ">FULL IN", ""}};
  // Two columns each, only if there are reservations that wait, slots that are held, or open
  // receipts.
  const auto add = [&](bool shown, std::string first, std::string second) {
    if (shown) rows.back().insert(rows.back().end() - 1, {std::move(first), std::move(second)});
  };
  add(any_wait, ">WAITING", ">NEXT GRANT");
  add(any_held, ">HOLDS", ">NEXT END");
  add(any_open, ">RECEIPTS", ">REFUNDABLE");
  for (const BucketStatus& bucket : buckets) {
    if (!bucket.status.ok()) {
      rows.push_back(
          {bucket.limit, ShowKey(bucket.key), "-", "-", "-", "-", bucket.status.ToString()});
      add(any_wait, "-", "-");
      add(any_held, "-", "-");
      add(any_open, "-", "-");
      continue;
    }
    const std::string next =
        bucket.next_permit_after.count() > 0 ? FormatDuration(bucket.next_permit_after) : "now";
    const std::string full =
        bucket.reset_after.count() > 0 ? FormatDuration(bucket.reset_after) : "full";
    rows.push_back({bucket.limit, ShowKey(bucket.key), std::to_string(bucket.remaining),
                    std::to_string(bucket.capacity), next, full,
                    bucket.exists ? "" : "(not in use)"});
    add(any_wait, std::to_string(bucket.waiting),
        bucket.waiting > 0 ? FormatDuration(bucket.next_grant_after) : "-");
    add(any_held, std::to_string(bucket.holds),
        bucket.holds > 0 ? FormatDuration(bucket.next_end_after) : "-");
    add(any_open, std::to_string(bucket.open_receipts), std::to_string(bucket.refundable));
  }
  return FormatTable(std::move(rows));
}

}  // namespace sluice::cli
