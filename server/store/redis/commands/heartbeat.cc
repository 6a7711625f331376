#include "server/store/redis/commands/heartbeat.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/store/redis/scripts/scripts.h"

namespace sluice::store::redis {

std::string NodesKey(std::string_view name_space) {
  return absl::StrCat(common::ToAbsl(name_space), ":nodes");
}

std::vector<std::string> HeartbeatWords(const Heartbeat& heartbeat, const FencingToken& token,
                                        std::string_view test_time) {
  std::vector<std::string> words = {
      "EVALSHA",
      TextOf(Script::kHeartbeat).sha,
      "2",
      heartbeat.key,
      token.as_argument ? heartbeat.key : token.word_key,
      std::string(test_time),
      heartbeat.id,
      absl::StrCat(heartbeat.divisor),
      heartbeat.clear ? "1" : "0",
      absl::StrCat(heartbeat.ttl_ns / 1000),
      heartbeat.not_after_us == 0 ? "" : absl::StrCat(heartbeat.not_after_us),
      absl::StrCat(token.lag_us),
      absl::StrCat(token.floor_us)};
  token.AppendWord(&words);
  return words;
}

std::optional<HeartbeatReply> ParseHeartbeat(const Reply& reply) {
  if (reply.type != Reply::Type::kArray || reply.elements.size() < 5 ||
      reply.elements.size() % 4 != 1 || reply.elements[1].integer < 0) {
    return std::nullopt;
  }
  HeartbeatReply out;
  out.now_us = reply.elements[0].integer;
  out.is_new = reply.elements[1].integer == 1;
  out.hash_age_us = reply.elements[2].integer;
  out.lag_us = std::max<int64_t>(reply.elements[3].integer, 0);
  out.held_us = std::max<int64_t>(reply.elements[4].integer, 0);
  for (size_t i = 5; i < reply.elements.size(); i += 4) {
    HeartbeatReply::Node& node = out.others.emplace_back();
    node.id = reply.elements[i].text;
    node.age_us = reply.elements[i + 1].integer;
    node.divisor =
        static_cast<uint32_t>(std::clamp<int64_t>(reply.elements[i + 2].integer, 0, UINT32_MAX));
    node.clear = reply.elements[i + 3].integer == 1;
  }
  return out;
}

}  // namespace sluice::store::redis
