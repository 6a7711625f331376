// keys, reset, holds, floor lift.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/text.h"

namespace sluice::cli {

int RunKeys(const Session& session) {
  const std::string by = session.arguments().Get("by").value_or("use");
  if (by != "use" && by != "denials") {
    return session.Fail(BadUsage("--by=" + by + " is unknown; write use or denials"));
  }
  const auto most = session.Number("max", 20);
  if (!most.ok()) return session.Fail(most.status());
  if (*most < 1 || *most > 1000) {
    return session.Fail(BadUsage("--max=" + std::to_string(*most) + ": write 1 to 1000"));
  }
  const auto list = session.AskAdmin([&](AdminClient& admin) {
    return admin.ListKeys(session.Argument(0), by == "use" ? KeyOrder::kUse : KeyOrder::kDenials,
                          static_cast<uint32_t>(*most));
  });
  if (!list.ok()) return session.Fail(list.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("by", by).Field("sketch", list->sketch).Field("total", list->total);
    json.Field("counters", list->counters).Field("since_s", UnixSeconds(list->since));
    json.Name("keys").Open('[');
    for (const KeyUse& key : list->keys) {
      json.Open('{').Field("limit", key.limit).Field("key", key.key);
      json.Field("estimate", key.estimate).Field("error", key.error);
      json.Field("capacity", key.capacity);
      if (!key.bucket_error.empty()) {
        json.Field("bucket_error", key.bucket_error).Close();
        continue;
      }
      json.Field("remaining", key.remaining);
      json.Field("reset_after_ns", key.reset_after).Field("waiting", key.waiting);
      json.Field("next_grant_after_ns", key.next_grant_after).Close();
    }
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows = {
      {"LIMIT", "KEY", by == "use" ? ">PERMITS" : ">DENIALS", ">ERROR", ">LEFT", ">OF"}};
  const bool any_wait = std::any_of(list->keys.begin(), list->keys.end(),
                                    [](const KeyUse& key) { return key.waiting > 0; });
  if (any_wait) rows[0].insert(rows[0].end(), {">WAITING", ">NEXT GRANT"});
  std::string not_known;
  for (const KeyUse& key : list->keys) {
    rows.push_back({key.limit, ShowKey(key.key), FormatCount(key.estimate),
                    key.error == 0 ? "exact" : "-" + FormatCount(key.error),
                    key.bucket_error.empty() ? std::to_string(key.remaining) : "?",
                    std::to_string(key.capacity)});
    if (!key.bucket_error.empty()) not_known = key.bucket_error;
    if (!any_wait) continue;
    rows.back().push_back(FormatCount(key.waiting));
    rows.back().push_back(key.waiting > 0 ? FormatDuration(key.next_grant_after) : "-");
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  if (!not_known.empty()) std::printf("? : %s\n", not_known.c_str());
  std::printf("since %s: the last minutes\n", FormatTime(list->since).c_str());
  return kExitDone;
}

int RunReset(const Session& session) {
  const auto existed = session.AskAdmin(
      [&](AdminClient& admin) { return admin.ResetKey(session.Argument(0), session.Argument(1)); });
  if (!existed.ok()) return session.Fail(existed.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("existed", *existed).Close();
    session.Print(json);
  } else {
    std::printf("%s\n", *existed ? "reset: the bucket is full" : "the bucket was not in use");
  }
  return kExitDone;
}

int RunHolds(const Session& session) {
  const std::string limit = session.Argument(0);
  const std::string key = session.Argument(1);
  if (session.arguments().Has("end")) {
    const auto id = session.Number("end", 0);
    if (!id.ok()) return session.Fail(id.status());
    const auto ended =
        session.AskAdmin([&](AdminClient& admin) { return admin.EndHold(limit, key, *id); });
    if (!ended.ok()) return session.Fail(ended.status());
    if (session.json()) {
      Json json;
      json.Open('{').Field("ended", *ended).Close();
      session.Print(json);
    } else {
      std::printf("%s\n", *ended ? "ended: its slots are free" : "there is no such hold");
    }
    return *ended ? kExitDone : kExitDenied;
  }
  const auto most = session.Number("max", 0);
  if (!most.ok()) return session.Fail(most.status());
  if (*most > UINT32_MAX) {
    return session.Fail(BadUsage("--max=" + std::to_string(*most) + ": write 1 to 10000"));
  }
  const auto list = session.AskAdmin([&](AdminClient& admin) {
    return admin.ListHolds(limit, key, static_cast<uint32_t>(*most));
  });
  if (!list.ok()) return session.Fail(list.status());
  if (session.json()) {
    Json json;
    json.Open('{').Field("total", list->total).Field("held", list->held);
    json.Field("capacity", list->capacity).Name("holds").Open('[');
    for (const SlotHold& hold : list->holds) {
      json.Open('{').Field("id", hold.id).Field("permits", hold.permits);
      json.Field("ends_in_ns", hold.ends_in).Close();
    }
    json.Close().Close();
    session.Print(json);
    return kExitDone;
  }
  std::vector<std::vector<std::string>> rows = {{">ID", ">PERMITS", ">ENDS IN"}};
  for (const SlotHold& hold : list->holds) {
    rows.push_back(
        {std::to_string(hold.id), std::to_string(hold.permits), FormatDuration(hold.ends_in)});
  }
  std::fputs(FormatTable(std::move(rows)).c_str(), stdout);
  std::printf("%lu of %lu permits are held, by %lu acquisitions\n", list->held, list->capacity,
              list->total);
  return kExitDone;
}

int RunFloorLift(const Session& session) {
  const auto floor =
      session.AskAdmin([&](AdminClient& admin) { return admin.LiftFloor(session.Argument(0)); });
  if (!floor.ok()) return session.Fail(floor.status());
  const auto& lifted = *floor;
  if (session.json()) {
    Json json;
    json.Open('{').Field("lifted", lifted.has_value());
    if (lifted.has_value()) json.Field("floor_s", UnixSeconds(*lifted));
    json.Close();
    session.Print(json);
  } else if (lifted.has_value()) {
    std::printf("lifted: the limit was closed until %s\n", FormatTime(*lifted).c_str());
  } else {
    std::printf("the limit had no floor of its own\n");
  }
  return kExitDone;
}

}  // namespace sluice::cli
