// Decisions and buckets as text and as JSON.
#ifndef SLUICE_CLIENT_CLI_SHOW_H_
#define SLUICE_CLIENT_CLI_SHOW_H_

#include <string>
#include <vector>

#include "client/cli/json.h"
#include "sluice/decision.h"

namespace sluice::cli {

void WriteDecision(const Acquisition& acquisition, const Decision& decision, Json* json);
void WriteStatus(const Status& status, Json* json);

// One line: "granted   api user:42   199 of 200 left, full in 10ms".
std::string DecisionLine(const Acquisition& acquisition, const Decision& decision);

// Prints the line, and the receipt if there is one.
void PrintDecision(const Acquisition& acquisition, const Decision& decision);

// {"buckets": [...]}
Json BucketsJson(const std::vector<BucketStatus>& buckets);
std::string BucketTable(const std::vector<BucketStatus>& buckets);

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_SHOW_H_
