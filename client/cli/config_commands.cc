// config, check: the limits file in force, the state of the store, and the check of a file.
#include <cstdio>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/text.h"
#include "server/config/load.h"

namespace sluice::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

void WriteStore(const StoreStatus& store, Json* json) {
  json->Name("store").Open('{').Field("kind", store.kind);
  json->Field("state", store.unavailable ? "unavailable" : "serving");
  json->Field("since_s", UnixSeconds(store.since));
  json->Field("times_unavailable", store.times_unavailable);
  json->Field("last_error", store.last_error).Name("decided_while_unavailable").Open('[');
  for (const UnavailableDecisions& one : store.decided_while_unavailable) {
    json->Open('{').Field("limit", one.limit).Field("allowed", one.allowed);
    json->Field("denied", one.denied).Close();
  }
  json->Close().Name("differing").Open('[');
  for (const DifferingLimit& one : store.differing) {
    json->Open('{').Field("limit", one.limit).Field("ours", one.ours);
    json->Field("theirs", one.theirs).Field("times", one.times);
    json->Field("last_at_s", UnixSeconds(one.last_at)).Close();
  }
  json->Close().Name("nodes").Open('[');
  for (const StoreNode& one : store.nodes) {
    json->Open('{').Field("id", one.id).Field("self", one.self).Field("lapsed", one.lapsed);
    json->Field("divisor", one.divisor).Close();
  }
  json->Close().Close();
}

void WriteConfig(const ConfigStatus& status, Json* json) {
  json->Open('{').Field("version", status.version).Field("path", status.path);
  json->Field("active_since_s", UnixSeconds(status.active_since));
  json->Field("limits", status.limits).Field("admin_changes", status.admin_changes);
  json->Field("reloads", status.reloads).Field("failed_reloads", status.failed_reloads);
  json->Field("last_error", status.last_error);
  json->Field("last_error_at_s", UnixSeconds(status.last_error_at));
  WriteStore(status.store, json);
  json->Close();
}

void AddStoreRows(const StoreStatus& store, Rows* rows) {
  if (store.since.time_since_epoch().count() == 0) {
    rows->push_back({"store", store.kind});
  } else {
    rows->push_back(
        {"store", store.kind + (store.unavailable ? ", unavailable since " : ", serving since ") +
                      FormatTime(store.since) + ", unavailable " +
                      FormatCount(store.times_unavailable) +
                      (store.times_unavailable == 1 ? " time" : " times")});
  }
  if (!store.last_error.empty()) rows->push_back({"store error", store.last_error});
  for (const UnavailableDecisions& one : store.decided_while_unavailable) {
    rows->push_back({"meanwhile", one.limit + ": " + FormatCount(one.allowed) + " allowed, " +
                                      FormatCount(one.denied) + " denied"});
  }
  for (const DifferingLimit& one : store.differing) {
    rows->push_back({"differs", one.limit + ": " + one.ours + " here, " + one.theirs +
                                    " at another node; " + FormatCount(one.times) +
                                    " times, last " + FormatTime(one.last_at)});
  }
  if (!store.nodes.empty()) {
    std::string nodes;
    size_t present = 0;
    for (const StoreNode& one : store.nodes) {
      if (!one.lapsed) ++present;
      nodes += (nodes.empty() ? ": " : ", ") + one.id + (one.self ? " (this one)" : "") +
               (one.lapsed         ? " (gone)"
                : one.divisor == 0 ? " (no share yet)"
                                   : "");
    }
    rows->push_back({"nodes", FormatCount(present) + nodes});
  }
}

void PrintConfig(const ConfigStatus& status) {
  Rows rows;
  rows.push_back({"file", status.path.empty() ? "(none)" : status.path});
  if (!status.version.empty()) rows.push_back({"version", status.version.substr(0, 16)});
  rows.push_back({"active since", FormatTime(status.active_since)});
  rows.push_back({"limits", FormatCount(status.limits)});
  rows.push_back({"put or deleted", FormatCount(status.admin_changes)});
  rows.push_back({"reloads", FormatCount(status.reloads) + ", " +
                                 FormatCount(status.failed_reloads) + " failed"});
  if (!status.last_error.empty()) {
    rows.push_back({"last failure", FormatTime(status.last_error_at)});
    rows.push_back({"because", status.last_error});
  }
  AddStoreRows(status.store, &rows);
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
}

}  // namespace

int RunConfig(const Session& session) {
  return session.Show(session.AskAdmin([](AdminClient& admin) { return admin.GetConfigStatus(); }),
                      WriteConfig, PrintConfig);
}

int RunCheck(const Session& session) {
  if (IsEnvoyConfiguration(session.Argument(0))) return RunCheckEnvoy(session);
  const auto file = config::LoadFile(session.Argument(0));
  if (!file.ok()) return session.FailCheck(file.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("ok", true).Field("limits", file->specs.size());
    json.Field("version", file->version).Close();
    session.Print(json);
  } else {
    std::printf("%s: good, %zu limit%s\n", session.Argument(0).c_str(), file->specs.size(),
                file->specs.size() == 1 ? "" : "s");
  }
  return kExitDone;
}

}  // namespace sluice::cli
