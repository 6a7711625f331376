// acquire, query, watch, refund, batch.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <iostream>
#include <thread>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

// LIMIT [KEY] and every --charge.
Result<Acquisition> AcquisitionOf(const Session& session) {
  Acquisition acquisition;
  const Result<uint64_t> permits = session.Number("permits", 1);
  if (!permits.ok()) return permits.status();
  if (!session.Argument(0).empty()) {
    acquisition.charges.push_back({session.Argument(0), session.Argument(1), *permits});
  } else if (session.arguments().Has("permits")) {
    return Bad("--permits goes with LIMIT; in --charge the permits are the third word");
  }
  for (const std::string& text : session.arguments().All("charge")) {
    Result<Acquisition> charge = ParseAcquisition(text);
    if (!charge.ok()) return Bad("--charge: " + charge.status().message());
    for (Charge& one : charge->charges) acquisition.charges.push_back(std::move(one));
  }
  if (acquisition.charges.empty()) return Bad("acquire needs LIMIT [KEY], or --charge");
  acquisition.want_receipt = session.arguments().Has("receipt");
  const auto wait = session.Duration("wait", std::chrono::nanoseconds(0));
  if (!wait.ok()) return wait.status();
  acquisition.max_wait = *wait;
  acquisition.hold = session.arguments().Has("hold");
  for (const char* flag : {"hold", "no-sleep"}) {
    if (session.arguments().Has(flag) && !session.arguments().Has("wait")) {
      return Bad("--" + std::string(flag) + " goes with --wait=TIME");
    }
  }
  return acquisition;
}

// LIMIT [KEY] and every --bucket.
Result<std::vector<Bucket>> BucketsOf(const Session& session, const char* command) {
  std::vector<Bucket> buckets;
  if (!session.Argument(0).empty()) buckets.push_back({session.Argument(0), session.Argument(1)});
  for (const std::string& text : session.arguments().All("bucket")) {
    Result<Acquisition> parsed = ParseAcquisition(text);
    if (!parsed.ok()) return Bad("--bucket: " + parsed.status().message());
    for (Charge& one : parsed->charges) {
      buckets.push_back({std::move(one.limit), std::move(one.key)});
    }
  }
  if (buckets.empty()) return Bad(std::string(command) + " needs LIMIT [KEY], or --bucket");
  return buckets;
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
    std::printf("%s\n", DecisionLine(*acquisition, *decision).c_str());
    if (!decision->receipt.empty()) {
      std::printf("receipt  %s\n", ToBase64Url(decision->receipt).c_str());
    }
  }
  if (decision->granted) {
    // The wait counts from the server's decision, which came before its answer: never early.
    if (decision->wait.count() > 0 && !session.arguments().Has("no-sleep")) {
      std::fflush(stdout);
      std::this_thread::sleep_until(answered + decision->wait);
    }
    return kExitDone;
  }
  return decision->source == Source::kUnavailable ? kExitUnavailable : kExitDenied;
}

int RunQuery(const Session& session) {
  const auto buckets = BucketsOf(session, "query");
  if (!buckets.ok()) return session.Fail(buckets.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());
  const auto answers = client->Query(*buckets);
  if (!answers.ok()) return session.Fail(answers.status());
  if (session.json()) {
    Json json;
    json.Open('{').Name("buckets").Open('[');
    for (const BucketStatus& bucket : *answers) WriteBucket(bucket, &json);
    json.Close().Close();
    session.Print(json);
  } else {
    std::fputs(BucketTable(*answers).c_str(), stdout);
  }
  return kExitDone;
}

int RunWatch(const Session& session) {
  const auto buckets = BucketsOf(session, "watch");
  if (!buckets.ok()) return session.Fail(buckets.status());
  const auto interval = session.Duration("interval", std::chrono::seconds(1));
  if (!interval.ok()) return session.Fail(interval.status());
  const auto count = session.Number("count", 0);
  if (!count.ok()) return session.Fail(count.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());

  const bool redraw = !session.json() && isatty(STDOUT_FILENO) != 0;
  std::vector<BucketStatus> shown;  // touched by on_change alone, whose calls do not overlap
  uint64_t seen = 0;
  size_t lines = 0;
  auto ended = std::make_shared<std::promise<Status>>();
  std::atomic<bool> over{false};
  const auto end = [ended, &over](Status status) {
    if (!over.exchange(true)) ended->set_value(std::move(status));
  };
  WatchEvents events;
  events.on_change = [&](std::vector<BucketStatus> changed) {
    if (over) return;
    ++seen;
    if (session.json()) {
      Json json;
      json.Open('{').Name("buckets").Open('[');
      for (const BucketStatus& bucket : changed) WriteBucket(bucket, &json);
      json.Close().Close();
      session.Print(json);
    } else if (redraw) {
      for (BucketStatus& bucket : changed) {
        auto at = std::find_if(shown.begin(), shown.end(), [&](const BucketStatus& one) {
          return one.limit == bucket.limit && one.key == bucket.key;
        });
        if (at == shown.end()) {
          shown.push_back(std::move(bucket));
        } else {
          *at = std::move(bucket);
        }
      }
      // Up to where the last picture began, and everything below away.
      if (lines > 0) std::printf("\x1b[%zuA\x1b[J", lines);
      std::fputs(BucketTable(shown).c_str(), stdout);
      lines = shown.size() + 1;
      std::fflush(stdout);
    } else {
      for (const BucketStatus& bucket : changed) {
        if (bucket.status.ok()) {
          std::string line = bucket.limit + "  " + ShowKey(bucket.key) + "  " +
                             std::to_string(bucket.remaining) + " of " +
                             std::to_string(bucket.capacity) + " left";
          if (bucket.waiting > 0) {
            line += ", " + std::to_string(bucket.waiting) + " waiting, the first for " +
                    FormatDuration(bucket.next_grant_after);
          }
          std::printf("%s\n", line.c_str());
        } else {
          std::printf("%s  %s  %s\n", bucket.limit.c_str(), ShowKey(bucket.key).c_str(),
                      bucket.status.ToString().c_str());
        }
      }
      std::fflush(stdout);
    }
    if (*count > 0 && seen >= *count) end(Status());
  };
  events.on_closed = [end](Status status) {
    if (status.ok()) status = Status(StatusCode::kUnavailable, "the server ended the watch");
    end(std::move(status));
  };
  auto watch = client->Watch(*buckets, {.min_interval = *interval}, std::move(events));
  const Status status = ended->get_future().get();
  watch.reset();
  // The callbacks above look at this function's variables: none may run after it.
  {
    const Client gone = *std::move(client);
  }
  return status.ok() ? kExitDone : session.Fail(status);
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
                    result->attempts > 1 ? " (perhaps by this command's own first attempt)" : "");
        break;
      case RefundOutcome::kExpired:
        std::printf("expired: nothing is left to give back\n");
        break;
    }
    for (const RefundedCharge& charge : result->charges) {
      std::printf("  %s  %s  %lu permits\n", charge.limit.c_str(), ShowKey(charge.key).c_str(),
                  charge.permits);
    }
  }
  return result->outcome == RefundOutcome::kRefunded ? kExitDone : kExitDenied;
}

int RunBatch(const Session& session) {
  const std::string path = session.Argument(0);
  std::ifstream file;
  if (!path.empty() && path != "-") {
    file.open(path);
    if (!file.is_open()) return session.Fail(Bad("cannot read \"" + path + "\""));
  }
  std::istream& in = file.is_open() ? file : std::cin;
  const auto size = session.Number("batch", 1024);
  if (!size.ok()) return session.Fail(size.status());
  if (*size < 1 || *size > 4096) {
    return session.Fail(Bad("--batch=" + std::to_string(*size) + ": write 1 to 4096"));
  }
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());

  uint64_t granted = 0;
  uint64_t denied = 0;
  uint64_t unavailable = 0;
  uint64_t errors = 0;
  uint64_t line_number = 0;
  const bool receipts = session.arguments().Has("receipt");
  std::string line;
  bool more = true;
  // Lines that cannot be read stand among the others, in their order.
  struct Entry {
    uint64_t line;
    Result<Acquisition> acquisition;
  };
  while (more) {
    std::vector<Entry> entries;
    std::vector<Acquisition> batch;
    while (batch.size() < *size && entries.size() < *size * 2) {
      more = static_cast<bool>(std::getline(in, line));
      if (!more) break;
      ++line_number;
      const size_t first = line.find_first_not_of(" \t\r");
      if (first == std::string::npos || line[first] == '#') continue;
      Result<Acquisition> parsed = ParseAcquisition(line);
      if (parsed.ok()) {
        if (receipts) parsed->want_receipt = true;
        batch.push_back(*parsed);
      }
      entries.push_back({line_number, std::move(parsed)});
    }
    BatchDecisions decisions;
    if (!batch.empty()) {
      Result<BatchDecisions> answered = client->AcquireBatch(batch);
      if (!answered.ok()) return session.Fail(answered.status());
      decisions = *std::move(answered);
    }
    size_t next = 0;
    for (const Entry& entry : entries) {
      Status error = entry.acquisition.status();
      const Decision* decision = nullptr;
      if (entry.acquisition.ok()) {
        const Result<Decision>& result = decisions[next++];
        error = result.status();
        if (result.ok()) decision = &result.value();
      }
      if (decision == nullptr) {
        ++errors;
      } else if (decision->source == Source::kUnavailable) {
        ++unavailable;
      } else {
        ++(decision->granted ? granted : denied);
      }
      if (session.json()) {
        Json json;
        json.Open('{').Field("line", entry.line);
        if (decision != nullptr) {
          json.Name("decision");
          WriteDecision(*entry.acquisition, *decision, &json);
        } else {
          json.Name("error");
          WriteStatus(error, &json);
        }
        json.Close();
        session.Print(json);
      } else if (decision != nullptr) {
        std::printf("%s\n", DecisionLine(*entry.acquisition, *decision).c_str());
        if (!decision->receipt.empty()) {
          std::printf("receipt  %s\n", ToBase64Url(decision->receipt).c_str());
        }
      } else {
        std::printf("error    line %lu: %s\n", entry.line, error.ToString().c_str());
      }
    }
  }
  if (!session.json()) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s granted, %s denied, %s undecided, %s errors\n",
                 FormatCount(granted).c_str(), FormatCount(denied).c_str(),
                 FormatCount(unavailable).c_str(), FormatCount(errors).c_str());
  }
  if (errors > 0) return kExitUsage;
  if (unavailable > 0 && session.client_options().on_unavailable == OnUnavailable::kDeny) {
    return kExitUnavailable;
  }
  return denied > 0 ? kExitDenied : kExitDone;
}

}  // namespace sluice::cli
