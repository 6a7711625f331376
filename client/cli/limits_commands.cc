// limits list, get, put, delete.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/text.h"
#include "common/errors.h"
#include "common/utf8.h"

namespace sluice::cli {
namespace {

constexpr char kConcurrency[] = "concurrency";

void WriteRate(const LimitRate& rate, Json* json) {
  json->Open('{').Field("permits", rate.permits).Field("period_ns", rate.period).Close();
}

void WriteLimit(const LimitInfo& limit, Json* json) {
  json->Open('{').Field("name", limit.name).Field("algorithm", limit.algorithm);
  if (limit.algorithm != kConcurrency) {
    json->Name("rate");
    WriteRate(limit.rate, json);
  }
  if (limit.permits.has_value()) json->Field("permits", *limit.permits);
  if (limit.hold_for.has_value()) json->Field("hold_for_ns", *limit.hold_for);
  if (limit.burst.has_value()) json->Field("burst", *limit.burst);
  if (limit.debt.has_value()) json->Field("debt", *limit.debt);
  if (limit.max_owed.has_value()) json->Field("max_owed", *limit.max_owed);
  if (limit.sub_windows.has_value()) json->Field("sub_windows", *limit.sub_windows);
  if (limit.utc_offset.has_value()) json->Field("utc_offset_ns", *limit.utc_offset);
  if (limit.hash_tag.has_value()) json->Field("hash_tag", *limit.hash_tag);
  if (limit.max_wait.has_value()) json->Field("max_wait_ns", *limit.max_wait);
  if (limit.min_keys.has_value()) json->Field("min_keys", *limit.min_keys);
  json->Field("direct", limit.direct);
  json->Field("mode", limit.mode).Field("on_store_failure", limit.on_store_failure);
  json->Field("sharing", limit.sharing);
  json->Name("charges").Open('[');
  for (const std::string& parent : limit.charges) json->Value(parent);
  json->Close().Name("keys").Open('[');
  for (const LimitKeyOverride& key : limit.keys) {
    json->Open('{').Field("key", key.key);
    if (key.rate.has_value()) {
      json->Name("rate");
      WriteRate(*key.rate, json);
    }
    if (key.burst.has_value()) json->Field("burst", *key.burst);
    if (key.debt.has_value()) json->Field("debt", *key.debt);
    if (key.permits.has_value()) json->Field("permits", *key.permits);
    json->Close();
  }
  json->Close().Field("origin", limit.origin).Field("defined_at", limit.defined_at);
  json->Field("reason", limit.reason);
  if (limit.expires_in.has_value()) json->Field("expires_in_ns", *limit.expires_in);
  json->Close();
}

std::string OriginText(const LimitInfo& limit) {
  if (limit.origin == "file" || limit.origin == "envoy")
    return limit.defined_at.empty() ? "file" : limit.defined_at;
  if (limit.origin == "admin_over_file") {
    return "put, over " + (limit.defined_at.empty() ? "the file" : limit.defined_at);
  }
  return limit.origin == "admin" ? "put" : limit.origin;
}

std::string Optional(const std::optional<uint64_t>& number) {
  return number.has_value() ? std::to_string(*number) : "-";
}

void PrintLimit(const LimitInfo& limit) {
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"name", limit.name});
  rows.push_back({"algorithm", limit.algorithm});
  if (limit.algorithm != kConcurrency) rows.push_back({"rate", FormatRate(limit.rate)});
  if (limit.permits.has_value()) rows.push_back({"permits", std::to_string(*limit.permits)});
  if (limit.hold_for.has_value()) rows.push_back({"hold_for", FormatDuration(*limit.hold_for)});
  if (limit.burst.has_value()) rows.push_back({"burst", std::to_string(*limit.burst)});
  if (limit.debt.has_value()) rows.push_back({"debt", std::to_string(*limit.debt)});
  if (limit.max_owed.has_value()) rows.push_back({"max_owed", std::to_string(*limit.max_owed)});
  if (limit.sub_windows.has_value()) {
    rows.push_back({"sub_windows", std::to_string(*limit.sub_windows)});
  }
  if (limit.utc_offset.has_value()) {
    rows.push_back({"utc_offset", FormatDuration(*limit.utc_offset)});
  }
  if (limit.hash_tag.has_value()) rows.push_back({"hash_tag", *limit.hash_tag});
  if (limit.max_wait.has_value()) rows.push_back({"max_wait", FormatDuration(*limit.max_wait)});
  if (limit.min_keys.has_value()) rows.push_back({"min_keys", std::to_string(*limit.min_keys)});
  if (!limit.direct) rows.push_back({"direct", "false"});
  rows.push_back({"mode", limit.mode});
  if (limit.on_store_failure != "deny") {
    rows.push_back({"on_store_failure", limit.on_store_failure});
  }
  if (limit.sharing != "exact") rows.push_back({"sharing", limit.sharing});
  for (const std::string& parent : limit.charges) rows.push_back({"charges", parent});
  for (const LimitKeyOverride& key : limit.keys) {
    std::string text = ShowKey(key.key) + ":";
    if (key.rate.has_value()) text += " rate " + FormatRate(*key.rate);
    if (key.burst.has_value()) text += " burst " + std::to_string(*key.burst);
    if (key.debt.has_value()) text += " debt " + std::to_string(*key.debt);
    if (key.permits.has_value()) text += " permits " + std::to_string(*key.permits);
    rows.push_back({"key", text});
  }
  rows.push_back({"from", OriginText(limit)});
  if (limit.expires_in.has_value()) {
    rows.push_back({"expires_in", FormatDuration(*limit.expires_in)});
  }
  if (!limit.reason.empty()) rows.push_back({"reason", ShowKey(limit.reason)});
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
}

// RATE[,BURST[,DEBT]]. Empty parameters are the limit's.
Status ReadKeyParameters(const std::string& text, LimitKeyOverride* key) {
  std::vector<std::string> parameters;
  size_t begin = 0;
  for (size_t comma = 0; comma != std::string::npos; begin = comma + 1) {
    comma = text.find(',', begin);
    parameters.push_back(text.substr(begin, comma - begin));
  }
  if (parameters.size() > 3) return BadUsage("write RATE[,BURST[,DEBT]], as 1000/s,2000,50");
  parameters.resize(3);
  if (parameters[0].empty() && parameters[1].empty() && parameters[2].empty()) {
    return BadUsage("no parameter; write RATE[,BURST[,DEBT]], as 1000/s or ,,50");
  }
  if (!parameters[0].empty()) {
    const auto rate = ParseRate(parameters[0]);
    if (!rate.ok()) return rate.status();
    key->rate = *rate;
  }
  const std::pair<const std::string*, std::optional<uint64_t>*> numbers[] = {
      {&parameters[1], &key->burst}, {&parameters[2], &key->debt}};
  for (const auto& [text, into] : numbers) {
    if (text->empty()) continue;
    const auto number = ParseNumber(*text);
    if (!number.ok()) return number.status();
    *into = *number;
  }
  return Status();
}

// Of a limit with algorithm concurrency.
Status ReadKeyPermits(const std::string& text, LimitKeyOverride* key) {
  const auto number = ParseNumber(text);
  if (!number.ok()) return BadUsage("write PERMITS, as 200");
  key->permits = *number;
  return Status();
}

bool OfSlots(const Session& session) {
  return session.arguments().Get("algorithm") == std::optional<std::string>(kConcurrency);
}

// ---- The flags of `limits put`. ----

Status ReadRate(const Session& session, LimitInfo* limit) {
  const std::optional<std::string> text = session.arguments().Get("rate");
  if (OfSlots(session) && (text.has_value() || !session.arguments().Has("permits"))) {
    return BadUsage("limits put --algorithm concurrency needs --permits=N, and has no --rate");
  }
  if (OfSlots(session)) return Status();
  if (!text.has_value()) return BadUsage("limits put needs --rate=PERMITS/PERIOD");
  const auto rate = ParseRate(*text);
  if (!rate.ok()) return BadUsage("--rate: " + rate.status().message());
  limit->rate = *rate;
  return Status();
}

Status ReadTexts(const Session& session, LimitInfo* limit) {
  const Arguments& flags = session.arguments();
  limit->name = session.Argument(0);
  limit->algorithm = flags.Get("algorithm").value_or("");
  limit->mode = flags.Get("mode").value_or("");
  limit->on_store_failure = flags.Get("on-store-failure").value_or("");
  limit->sharing = flags.Get("sharing").value_or("");
  limit->charges = flags.All("charges");
  limit->hash_tag = flags.Get("hash-tag");
  const std::string direct = flags.Get("direct").value_or("true");
  if (direct != "true" && direct != "false") {
    return BadUsage("--direct: \"" + direct + "\": say true or false");
  }
  limit->direct = direct == "true";
  return Status();
}

Status ReadNumbers(const Session& session, LimitInfo* limit) {
  static constexpr struct {
    const char* flag;
    std::optional<uint64_t> LimitInfo::* member;
  } kNumbers[] = {{"burst", &LimitInfo::burst},
                  {"debt", &LimitInfo::debt},
                  {"max-owed", &LimitInfo::max_owed},
                  {"min-keys", &LimitInfo::min_keys},
                  {"permits", &LimitInfo::permits}};
  for (const auto& [flag, member] : kNumbers) {
    if (!session.arguments().Has(flag)) continue;
    const auto number = session.Number(flag, 0);
    if (!number.ok()) return number.status();
    limit->*member = *number;
  }
  if (!session.arguments().Has("sub-windows")) return Status();
  const auto sub_windows = session.Number("sub-windows", 0);
  if (!sub_windows.ok()) return sub_windows.status();
  if (*sub_windows > UINT32_MAX) {
    return BadUsage("--sub-windows=" + std::to_string(*sub_windows) + ": write 1 to 100");
  }
  limit->sub_windows = static_cast<uint32_t>(*sub_windows);
  return Status();
}

Status ReadTimes(const Session& session, LimitInfo* limit) {
  static constexpr struct {
    const char* flag;
    std::optional<std::chrono::nanoseconds> LimitInfo::* member;
  } kTimes[] = {{"max-wait", &LimitInfo::max_wait}, {"hold-for", &LimitInfo::hold_for}};
  for (const auto& [flag, member] : kTimes) {
    if (!session.arguments().Has(flag)) continue;
    const auto time = session.Duration(flag, {});
    if (!time.ok()) return time.status();
    limit->*member = *time;
  }
  if (const auto given = session.arguments().Get("utc-offset"); given.has_value()) {
    const std::string& text = *given;
    const bool negative = !text.empty() && text[0] == '-';
    const auto offset = ParseDuration(negative ? text.substr(1) : text);
    if (!offset.ok()) return BadUsage("--utc-offset: " + offset.status().message());
    limit->utc_offset = negative ? -*offset : *offset;
  }
  return Status();
}

Status ReadKeys(const Session& session, LimitInfo* limit) {
  for (const std::string& text : session.arguments().All("key")) {
    const size_t equals = text.rfind('=');
    if (equals == std::string::npos) {
      return BadUsage("--key: \"" + text + "\": write KEY=RATE[,BURST[,DEBT]]");
    }
    LimitKeyOverride key;
    key.key = text.substr(0, equals);
    const std::string parameters = text.substr(equals + 1);
    const Status bad =
        OfSlots(session) ? ReadKeyPermits(parameters, &key) : ReadKeyParameters(parameters, &key);
    if (!bad.ok()) return BadUsage("--key: \"" + text + "\": " + bad.message());
    limit->keys.push_back(std::move(key));
  }
  return Status();
}

Status ReadPutOptions(const Session& session, PutOptions* options) {
  options->reason = session.arguments().Get("reason").value_or("");
  if (!common::IsUtf8(options->reason)) {
    return BadUsage("--reason: \"" + common::errors::Shown(options->reason) +
                    "\" is not valid UTF-8");
  }
  if (!session.arguments().Has("expires-after")) return Status();
  const auto expires_after = session.Duration("expires-after", {});
  if (!expires_after.ok()) return expires_after.status();
  options->expires_after = *expires_after;
  return Status();
}

}  // namespace

int RunLimitsList(const Session& session) {
  const auto limits = session.AskAdmin([&](AdminClient& admin) { return admin.ListLimits(); });
  if (!limits.ok()) return session.Fail(limits.status());
  if (session.json()) {
    Json json;
    json.Open('{').Name("limits").Open('[');
    for (const LimitInfo& limit : *limits) WriteLimit(limit, &json);
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "ALGORITHM", ">RATE", ">BURST", ">DEBT", "MODE", "CHARGES", ">KEYS", "FROM"}};
  const bool any_end = std::any_of(limits->begin(), limits->end(), [](const LimitInfo& limit) {
    return limit.expires_in.has_value();
  });
  const bool any_reason = std::any_of(limits->begin(), limits->end(),
                                      [](const LimitInfo& limit) { return !limit.reason.empty(); });
  if (any_end) rows[0].push_back("EXPIRES IN");
  if (any_reason) rows[0].push_back("REASON");
  for (const LimitInfo& limit : *limits) {
    std::string parents;
    for (const std::string& parent : limit.charges) {
      parents += (parents.empty() ? "" : ",") + parent;
    }
    const std::string rate = limit.permits.has_value() ? std::to_string(*limit.permits) + " at once"
                                                       : FormatRate(limit.rate);
    rows.push_back(
        {limit.name, limit.algorithm, rate, Optional(limit.burst), Optional(limit.debt), limit.mode,
         parents, limit.keys.empty() ? "" : std::to_string(limit.keys.size()), OriginText(limit)});
    if (any_end) {
      rows.back().push_back(limit.expires_in.has_value() ? FormatDuration(*limit.expires_in) : "");
    }
    if (any_reason) rows.back().push_back(limit.reason.empty() ? "" : ShowKey(limit.reason));
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  return kExitDone;
}

int RunLimitsGet(const Session& session) {
  return session.Show(
      session.AskAdmin([&](AdminClient& admin) { return admin.GetLimit(session.Argument(0)); }),
      WriteLimit, PrintLimit);
}

int RunLimitsPut(const Session& session) {
  LimitInfo limit;
  PutOptions options;
  for (const auto read : {ReadRate, ReadTexts, ReadNumbers, ReadTimes, ReadKeys}) {
    if (const Status bad = read(session, &limit); !bad.ok()) return session.Fail(bad);
  }
  if (const Status bad = ReadPutOptions(session, &options); !bad.ok()) return session.Fail(bad);
  const auto put =
      session.AskAdmin([&](AdminClient& admin) { return admin.PutLimit(limit, options); });
  if (!put.ok()) return session.Fail(put.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("replaced", put->replaced).Name("limit");
    WriteLimit(put->limit, &json);
    json.Close();
    session.Print(json);
  } else {
    std::printf("%s\n", put->replaced ? "replaced" : "added");
    PrintLimit(put->limit);
  }
  return kExitDone;
}

int RunLimitsDelete(const Session& session) {
  const Status status =
      session.AskAdmin([&](AdminClient& admin) { return admin.DeleteLimit(session.Argument(0)); });
  if (!status.ok()) return session.Fail(status);
  if (session.json()) {
    Json json;
    json.Open('{').Field("deleted", session.Argument(0)).Close();
    session.Print(json);
  } else {
    std::printf("deleted %s\n", session.Argument(0).c_str());
  }
  return kExitDone;
}

}  // namespace sluice::cli
