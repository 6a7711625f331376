// batch: decides many acquisitions, one on each line of the input.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

struct Totals {
  uint64_t granted = 0;
  uint64_t denied = 0;
  uint64_t unavailable = 0;
  uint64_t errors = 0;

  void Count(const Result<Decision>& result) {
    if (!result.ok()) {
      ++errors;
    } else if (result->source == Source::kUnavailable) {
      ++unavailable;
    } else {
      ++(result->granted ? granted : denied);
    }
  }
};

// One line of the input, also if it cannot be parsed.
struct Entry {
  uint64_t line;
  Result<Acquisition> acquisition;
};

// Reads acquisitions until a batch is full or the input ends.
class Reader {
 public:
  Reader(std::istream& in, size_t batch_size) : in_(in), batch_size_(batch_size) {}

  std::vector<Entry> Next() {
    std::vector<Entry> entries;
    size_t good = 0;
    std::string line;
    while (good < batch_size_ && entries.size() < batch_size_ * 2 && std::getline(in_, line)) {
      ++line_number_;
      const size_t first = line.find_first_not_of(" \t\r");
      if (first == std::string::npos || line[first] == '#') continue;
      Result<Acquisition> parsed = ParseAcquisition(line);
      if (parsed.ok()) ++good;
      entries.push_back({line_number_, std::move(parsed)});
    }
    return entries;
  }

 private:
  std::istream& in_;
  const size_t batch_size_;
  uint64_t line_number_ = 0;
};

void PrintResult(const Session& session, const Entry& entry, const Result<Decision>& result) {
  if (session.json()) {
    Json json;
    json.Open('{').Field("line", entry.line);
    if (result.ok()) {
      json.Name("decision");
      WriteDecision(*entry.acquisition, *result, &json);
    } else {
      json.Name("error");
      WriteStatus(result.status(), &json);
    }
    json.Close();
    session.Print(json);
  } else if (result.ok()) {
    PrintDecision(*entry.acquisition, *result);
  } else {
    std::printf("error    line %lu: %s\n", entry.line, result.status().ToString().c_str());
  }
}

}  // namespace

int RunBatch(const Session& session) {
  const std::string path = session.Argument(0);
  std::ifstream file;
  if (!path.empty() && path != "-") {
    file.open(path);
    if (!file.is_open()) return session.Fail(BadUsage("cannot read \"" + path + "\""));
  }
  const auto size = session.Number("batch", 1024);
  if (!size.ok()) return session.Fail(size.status());
  if (*size < 1 || *size > 4096) {
    return session.Fail(BadUsage("--batch=" + std::to_string(*size) + ": write 1 to 4096"));
  }
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());

  Reader reader(file.is_open() ? file : std::cin, *size);
  Totals totals;
  for (std::vector<Entry> entries = reader.Next(); !entries.empty(); entries = reader.Next()) {
    std::vector<Acquisition> batch;
    for (const Entry& entry : entries) {
      if (!entry.acquisition.ok()) continue;
      batch.push_back(*entry.acquisition);
      if (session.arguments().Has("receipt")) batch.back().want_receipt = true;
    }
    BatchDecisions decisions;
    if (!batch.empty()) {
      Result<BatchDecisions> answered = client->AcquireBatch(batch);
      if (!answered.ok()) return session.Fail(answered.status());
      decisions = *std::move(answered);
    }
    size_t next = 0;
    for (const Entry& entry : entries) {
      const Result<Decision> result = entry.acquisition.ok()
                                          ? std::move(decisions[next++])
                                          : Result<Decision>(entry.acquisition.status());
      totals.Count(result);
      PrintResult(session, entry, result);
    }
  }
  if (!session.json()) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s granted, %s denied, %s undecided, %s errors\n",
                 FormatCount(totals.granted).c_str(), FormatCount(totals.denied).c_str(),
                 FormatCount(totals.unavailable).c_str(), FormatCount(totals.errors).c_str());
  }
  if (totals.errors > 0) return kExitUsage;
  if (totals.unavailable > 0 && session.client_options().on_unavailable == OnUnavailable::kDeny) {
    return kExitUnavailable;
  }
  return totals.denied > 0 ? kExitDenied : kExitDone;
}

}  // namespace sluice::cli
