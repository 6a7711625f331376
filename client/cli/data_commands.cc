// acquire, query, refund, renew, settle.
#include <cctype>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

// Returns false if the text is not hex.
bool FromHex(std::string_view hex, std::string* bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  bytes->clear();
  for (size_t i = 0; i < hex.size(); ++i) {
    const size_t digit = kDigits.find(static_cast<char>(std::tolower(hex[i])));
    if (digit == std::string_view::npos) return false;
    if (i % 2 == 0) bytes->push_back('\0');
    bytes->back() = static_cast<char>(static_cast<size_t>(bytes->back()) << 4 | digit);
  }
  return hex.size() % 2 == 0;
}

// LIMIT [KEY] and every --charge.
Result<Acquisition> AcquisitionOf(const Session& session) {
  Acquisition acquisition;
  const Result<uint64_t> permits = session.Number("permits", 1);
  if (!permits.ok()) return permits.status();
  if (!session.Argument(0).empty()) {
    acquisition.charges.push_back({session.Argument(0), session.Argument(1), *permits});
  } else if (session.arguments().Has("permits")) {
    return BadUsage("--permits goes with LIMIT; in --charge the permits are the third word");
  }
  for (const std::string& text : session.arguments().All("charge")) {
    Result<Acquisition> charge = ParseAcquisition(text);
    if (!charge.ok()) return BadUsage("--charge: " + charge.status().message());
    for (Charge& one : charge->charges) acquisition.charges.push_back(std::move(one));
  }
  if (acquisition.charges.empty()) return BadUsage("acquire needs LIMIT [KEY], or --charge");
  acquisition.want_receipt = session.arguments().Has("receipt");
  acquisition.force = session.arguments().Has("force");
  const auto settle_within = session.Duration("settle-within", std::chrono::nanoseconds(0));
  if (!settle_within.ok()) return settle_within.status();
  acquisition.settle_within = *settle_within;
  if (acquisition.force && session.arguments().Has("wait")) {
    return BadUsage("--force is granted now; leave --wait out");
  }
  const auto wait = session.Duration("wait", std::chrono::nanoseconds(0));
  if (!wait.ok()) return wait.status();
  acquisition.max_wait = *wait;
  acquisition.hold = session.arguments().Has("hold");
  for (const char* flag : {"hold", "no-sleep"}) {
    if (session.arguments().Has(flag) && !session.arguments().Has("wait")) {
      return BadUsage("--" + std::string(flag) + " goes with --wait=TIME");
    }
  }
  if (const auto id = session.arguments().Get("request-id"); id.has_value()) {
    if (!FromHex(*id, &acquisition.request_id) || acquisition.request_id.size() != 16) {
      return BadUsage("--request-id=" + *id + ": give 16 random bytes as 32 hex digits");
    }
  }
  return acquisition;
}

// RECEIPT [LIMIT KEY ACTUAL]...
Result<Settlement> SettlementOf(const Session& session) {
  const std::vector<std::string>& words = session.arguments().positional;
  if (words.size() % 3 != 1) {
    return BadUsage(
        "settle needs RECEIPT, then LIMIT KEY ACTUAL for each charge; write '' for an "
        "empty key");
  }
  Result<std::string> receipt = FromBase64Url(words[0]);
  if (!receipt.ok()) return receipt.status();
  Settlement settlement;
  settlement.receipt = *std::move(receipt);
  settlement.more = session.arguments().Has("more");
  for (size_t i = 1; i < words.size(); i += 3) {
    const Result<uint64_t> permits = ParseNumber(words[i + 2]);
    if (!permits.ok()) return BadUsage("ACTUAL: " + permits.status().message());
    settlement.actual.push_back({words[i], words[i + 1], *permits});
  }
  return settlement;
}

}  // namespace

int RunAcquire(const Session& session) {
  const Result<Acquisition> acquisition = AcquisitionOf(session);
  if (!acquisition.ok()) return session.Fail(acquisition.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  CallOptions options;
  if (session.arguments().Has("exactly-once")) options.exactly_once = true;
  const Result<Decision> decision = client->Acquire(*acquisition, options);
  const auto answered = std::chrono::steady_clock::now();
  if (!decision.ok()) return session.Fail(decision.status());
  if (session.json()) {
    Json json;
    WriteDecision(*acquisition, *decision, &json);
    session.Print(json);
  } else {
    PrintDecision(*acquisition, *decision);
  }
  if (decision->granted) {
    // The wait counts from the decision. Counting from the later answer is never early.
    if (decision->wait.count() > 0 && !session.arguments().Has("no-sleep")) {
      std::fflush(stdout);
      std::this_thread::sleep_until(answered + decision->wait);
    }
    return kExitDone;
  }
  return decision->source == Source::kUnavailable ? kExitUnavailable : kExitDenied;
}

int RunQuery(const Session& session) {
  const auto buckets = session.Buckets("query");
  if (!buckets.ok()) return session.Fail(buckets.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  const auto answers = client->Query(*buckets);
  if (!answers.ok()) return session.Fail(answers.status());
  if (session.json()) {
    session.Print(BucketsJson(*answers));
  } else {
    std::fputs(BucketTable(*answers).c_str(), stdout);
  }
  return kExitDone;
}

int RunRefund(const Session& session) {
  const Result<std::string> receipt = FromBase64Url(session.Argument(0));
  if (!receipt.ok()) return session.Fail(receipt.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  const Result<RefundResult> result = client->Refund(*receipt);
  if (!result.ok()) return session.Fail(result.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("outcome", RefundOutcomeName(result->outcome));
    json.Field("attempts", result->attempts);
    json.Name("charges").Open('[');
    for (const RefundedCharge& charge : result->charges) {
      json.Open('{').Field("limit", charge.limit).Field("key", charge.key);
      json.Field("permits", charge.permits).Close();
    }
    json.Close().Close();
    session.Print(json);
  } else {
    switch (result->outcome) {
      case RefundOutcome::kRefunded:
        std::printf("refunded\n");
        break;
      case RefundOutcome::kAlreadyRefunded:
        std::printf("refunded before; nothing changed%s\n",
                    result->attempts > 1 ? " (perhaps by an earlier attempt of this command)" : "");
        break;
      case RefundOutcome::kExpired:
        std::printf("expired: nothing is left to refund\n");
        break;
    }
    for (const RefundedCharge& charge : result->charges) {
      std::printf("  %s  %s  %lu permits\n", charge.limit.c_str(), ShowKey(charge.key).c_str(),
                  charge.permits);
    }
  }
  return result->outcome == RefundOutcome::kRefunded ? kExitDone : kExitDenied;
}

int RunRenew(const Session& session) {
  std::vector<std::string> receipts;
  for (const std::string& text : session.arguments().positional) {
    Result<std::string> receipt = FromBase64Url(text);
    if (!receipt.ok()) return session.Fail(receipt.status());
    receipts.push_back(*std::move(receipt));
  }
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  const auto renewals = client->Renew(receipts);
  if (!renewals.ok()) return session.Fail(renewals.status());
  Json json;
  json.Open('{').Name("results").Open('[');
  bool all = true;
  for (const Renewal& renewal : *renewals) {
    all &= renewal.status.ok() && renewal.outcome == RenewOutcome::kRenewed;
    json.Open('{');
    if (!renewal.status.ok()) {
      json.Name("error");
      WriteStatus(renewal.status, &json);
    } else {
      json.Field("outcome", RenewOutcomeName(renewal.outcome));
      json.Field("held_for_ns", renewal.held_for);
    }
    json.Close();
    if (session.json()) continue;
    if (!renewal.status.ok()) {
      std::printf("%s\n", renewal.status.ToString().c_str());
    } else if (renewal.outcome == RenewOutcome::kRenewed) {
      std::printf("renewed: held for %s\n", FormatDuration(renewal.held_for).c_str());
    } else {
      std::printf("gone: the slots are not held any more\n");
    }
  }
  if (session.json()) {
    json.Close().Close();
    session.Print(json);
  }
  return all ? kExitDone : kExitDenied;
}

int RunSettle(const Session& session) {
  const Result<Settlement> settlement = SettlementOf(session);
  if (!settlement.ok()) return session.Fail(settlement.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  const Result<SettleResult> result = client->Settle(*settlement);
  if (!result.ok()) return session.Fail(result.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("outcome", SettleOutcomeName(result->outcome));
    json.Name("charges").Open('[');
    for (const SettledCharge& charge : result->charges) {
      json.Open('{').Field("limit", charge.limit).Field("key", charge.key);
      json.Field("given_back", charge.given_back).Field("charged", charge.charged);
      json.Field("forgiven", charge.forgiven).Close();
    }
    json.Close().Close();
    session.Print(json);
  } else {
    switch (result->outcome) {
      case SettleOutcome::kSettled:
        std::printf("settled\n");
        break;
      case SettleOutcome::kAlreadySettled:
        std::printf("settled before, with another ACTUAL; nothing changed\n");
        break;
      case SettleOutcome::kLate:
        std::printf("late: nothing is given back\n");
        break;
      case SettleOutcome::kUnknown:
        std::printf("unknown: the server has forgotten this acquisition\n");
        break;
    }
    for (const SettledCharge& charge : result->charges) {
      std::printf("  %s  %s  %lu given back, %lu charged, %lu forgiven\n", charge.limit.c_str(),
                  ShowKey(charge.key).c_str(), charge.given_back, charge.charged, charge.forgiven);
    }
  }
  const bool settled =
      result->outcome == SettleOutcome::kSettled || result->outcome == SettleOutcome::kLate;
  return settled ? kExitDone : kExitDenied;
}

}  // namespace sluice::cli
