// acquire, query, refund.
#include <cstdio>
#include <thread>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

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
  return acquisition;
}

}  // namespace

int RunAcquire(const Session& session) {
  const Result<Acquisition> acquisition = AcquisitionOf(session);
  if (!acquisition.ok()) return session.Fail(acquisition.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  const Result<Decision> decision = client->Acquire(*acquisition);
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

}  // namespace sluice::cli
