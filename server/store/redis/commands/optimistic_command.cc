#include "server/store/redis/commands/optimistic_command.h"

#include <algorithm>
#include <iterator>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/commands/bucket_operation.h"
#include "server/store/redis/wire/parameters_text.h"
#include "server/store/redis/wire/remembered_grant.h"
#include "server/store/redis/wire/script_arguments.h"

namespace sluice::store::redis {
namespace {

// How often other nodes may be first. With ten nodes that contend for one bucket without a pause,
// one call in a million comes to that.
constexpr int kMaxConflicts = 128;
// From then on it pauses before it reads again, so that contenders spread.
constexpr int kConflictsAtOnce = 3;
constexpr int64_t kMostPauseNs = 4'000'000;
// Its grant times may have to wait for the raise that is in flight, and then for their own.
constexpr int kPromisesAtOnce = 3;

// Bookings that are read or folded with the reply that brings them, and in a turn.
constexpr size_t kOpenedAtOnce = 256;
constexpr size_t kOpenedInTurn = 2048;

// A script refuses buckets with a negative one.
int64_t FirstNumber(const Reply& reply) {
  const Reply* first = &reply;
  if (reply.type == Reply::Type::kArray && !reply.elements.empty()) first = &reply.elements[0];
  return first->type == Reply::Type::kInteger ? first->integer : 0;
}

}  // namespace

std::string_view OptimisticCommand::RoutingKey() const { return operation_.buckets()[0].keys[0]; }

bool OptimisticCommand::Ready() {
  if (stage_ == Stage::kOpen && next_open_ < open_.size() && !open_failed_) {
    waits_for_open_ = true;
    return false;
  }
  if (stage_ == Stage::kScript) return true;
  if (turn_ == TurnState::kNone) {
    const bool now = context_.open_buckets().Enter(*this, operation_.buckets());
    turn_ = now ? TurnState::kHas : TurnState::kWaits;
  }
  return turn_ != TurnState::kWaits;
}

void OptimisticCommand::OnTurn() {
  turn_ = TurnState::kHas;
  sender_.Resume();
}

void OptimisticCommand::LeaveTurn() {
  KeepOpen();
  for (size_t i = 0; i < cached_.size(); ++i) {
    std::optional<OpenBucket>& known = cached_[i];
    if (!known.has_value() || known->stored().state.empty()) continue;
    context_.open_buckets().Put(operation_.buckets()[i].keys[0], *std::move(known));
  }
  cached_.clear();
  if (turn_ == TurnState::kWaits || turn_ == TurnState::kHas) {
    context_.open_buckets().Leave(*this, operation_.buckets(), context_.loop());
  }
  turn_ = TurnState::kLeft;
}

bool OptimisticCommand::Build(std::vector<std::string>* words) {
  if (stage_ == Stage::kOpen) {
    const Next next = DecideOpen();
    if (next.what == Next::What::kAbandon) OnUnavailable();
    if (next.what == Next::What::kAbandon || next.what == Next::What::kDone) return false;
  }
  const FencingToken& token = context_.router().TokenFor(sender_.endpoint(), RoutingKey());
  // A decision by another floor must not be written, nor one that has waited for too long.
  if (stage_ == Stage::kReplace && !(token == token_ && operation_.DecisionStands())) {
    stage_ = Stage::kRead;
  }
  if (stage_ == Stage::kReplace) {
    *words = replace_words_;
    // It may have waited, so its latest time may be in the past.
    (*words)[BucketOperation::kFirstKey + operation_.buckets().size() * 3 +
             operation_.once_keys().size() + 1] = context_.settings().TimeArgument(token);
  } else {
    token_ = token;
    if (stage_ == Stage::kScript ? !operation_.BuildScript(token, words) : !BuildRead(words)) {
      return false;
    }
  }
  token.AppendWord(words);
  return true;
}

Next OptimisticCommand::OnReply(const Reply& reply) {
  if (stage_ == Stage::kReplace && reply.type == Reply::Type::kInteger) {
    OnReplaced();
    return {};
  }
  if (stage_ != Stage::kScript) return OnRead(reply);
  if (FirstNumber(reply) < 0) {
    DecideHere();
    return {Next::What::kRetry};
  }
  switch (operation_.OnScriptReply(reply, token_)) {
    case BucketOperation::Handled::kDone:
      return {};
    case BucketOperation::Handled::kUndecided:
      DecideHere();
      return {Next::What::kSend};
    case BucketOperation::Handled::kMalformed:
      break;
  }
  return Malformed();
}

Next OptimisticCommand::Malformed() {
  context_.LogError("redis_answer", "a reply that is not in the script's form");
  return {Next::What::kAbandon};
}

std::vector<std::string> OptimisticCommand::ExchangeWords(bool replace) const {
  std::vector<std::string> words = operation_.KeyWords(Script::kExchange, token_);
  words.push_back(context_.settings().TimeArgument(token_));
  words.emplace_back(replace ? "1" : "0");
  if (const size_t ids = operation_.once_keys().size(); ids > 0) {
    absl::StrAppend(&words.back(), " ", ids);
  }
  return words;
}

bool OptimisticCommand::BuildRead(std::vector<std::string>* words) {
  if (!operation_.CallersWait()) return false;
  *words = ExchangeWords(/*replace=*/false);
  cached_.resize(operation_.buckets().size());
  KeepOpen();
  for (size_t i = 0; i < cached_.size(); ++i) {
    std::optional<OpenBucket>& known = cached_[i];
    if (!known.has_value()) known = context_.open_buckets().Take(operation_.buckets()[i].keys[0]);
    const bool booked = known.has_value() && !known->stored().state.empty();
    words->push_back(booked ? known->stored().state : "");
    words->push_back(booked ? absl::StrCat(known->stored().generation) : "");
  }
  words->insert(words->end(), operation_.once_keys().size(), "");
  return true;
}

Next OptimisticCommand::OnRead(const Reply& reply) {
  std::vector<BucketOperation::OnceKey>& once_keys = operation_.once_keys();
  const size_t once_at = 2 + 3 * operation_.buckets().size();
  if (reply.type != Reply::Type::kArray ||
      reply.elements.size() != (once_keys.empty() ? once_at : once_at + 1) ||
      (!once_keys.empty() && reply.elements[once_at].elements.size() != once_keys.size()) ||
      reply.elements[0].type != Reply::Type::kInteger ||
      reply.elements[1].type != Reply::Type::kInteger) {
    return Malformed();
  }
  if (std::exchange(stage_, Stage::kRead) == Stage::kReplace) {
    context_.counters().conflicts.Add();
    KeepOpen();
    if (++conflicts_ >= kMaxConflicts) {
      operation_.OnContended();
      return {};
    }
    if (conflicts_ > kConflictsAtOnce) {
      const int64_t most_ns = std::min(kMostPauseNs, int64_t{50'000} << std::min(conflicts_, 10));
      const size_t random = absl::HashOf(this, conflicts_, context_.ids().NewReceipt());
      return {Next::What::kSend, 1 + static_cast<int64_t>(random % static_cast<size_t>(most_ns))};
    }
    if (!operation_.CallersWait()) return {};
  }
  for (size_t i = 0; i < once_keys.size(); ++i) {
    once_keys[i].known = reply.elements[once_at].elements[i].text;
  }
  read_ns_ = reply.elements[0].integer * 1000 + reply.elements[1].integer;
  if (const std::optional<Next> next = Open(reply); next.has_value()) return *next;
  if (OpenSome(kOpenedAtOnce)) return DecideOpen();
  stage_ = Stage::kOpen;
  context_.loop().work().Add(opening_);
  return {Next::What::kSend};
}

bool OptimisticCommand::OpenSome(size_t most) {
  while (next_open_ < open_.size()) {
    const absl::StatusOr<bool> opened = OpenOne(next_open_, &most);
    if (!opened.ok()) {
      context_.counters().errors.Add();
      context_.LogError("redis_foreign_key", absl::StrCat(operation_.buckets()[next_open_].keys[0],
                                                          ": ", opened.status().message()));
      open_failed_ = true;
      return true;
    }
    if (!*opened) return false;
    ++next_open_;
  }
  return true;
}

absl::StatusOr<bool> OptimisticCommand::OpenOne(size_t i, size_t* most) {
  OpenBucket& bucket = open_[i];
  absl::StatusOr<bool> loaded = bucket.Load(most);
  if (!loaded.ok() || !*loaded) return loaded;
  const Rule& rule = *operation_.buckets()[i].rule->rule;
  const int64_t floor_us = token_.FloorOf(rule);
  // What was lost was lost under the parameters of then.
  bucket.ApplyFloor(floor_us);
  if (!bucket.FoldSome(std::max(read_ns_, bucket.NotBeforeNs()), most)) return false;
  if (bucket.exists() &&
      EncodeParameters(bucket.parameters()) != operation_.buckets()[i].rule->encoded_parameters) {
    bucket.Convert(rule.parameters, read_ns_);
    bucket.ApplyFloor(floor_us);
  }
  return true;
}

void OptimisticCommand::OnOpenTurn() {
  if (!OpenSome(kOpenedInTurn)) return context_.loop().work().Add(opening_);
  // Else it waits for its server, and is sent when that has started.
  if (std::exchange(waits_for_open_, false)) sender_.Resume();
}

Next OptimisticCommand::DecideOpen() {
  stage_ = Stage::kRead;
  if (open_failed_) return {Next::What::kAbandon};
  const int64_t now_ns = BeginAt(absl::MakeSpan(open_), read_ns_);
  using OnceKey = BucketOperation::OnceKey;
  std::vector<OnceKey>& once_keys = operation_.once_keys();
  for (OnceKey& id : once_keys) id.to_set.clear();
  operation_.Decide(absl::MakeSpan(open_), now_ns);
  const bool replaces = operation_.Writes() &&
                        (std::any_of(open_.begin(), open_.end(),
                                     [](const OpenBucket& bucket) { return bucket.changed(); }) ||
                         std::any_of(once_keys.begin(), once_keys.end(),
                                     [](const OnceKey& id) { return !id.to_set.empty(); }));
  if (!replaces) {
    LeaveTurn();
    operation_.OnDecided();
    return {};
  }
  if (!MayPromise(now_ns)) {
    // It is read again behind the raise, whose reply comes first.
    const bool at_once = ++promise_tries_ <= kPromisesAtOnce;
    return {Next::What::kRetry, at_once ? 0 : context_.settings().retry_ns};
  }
  PrepareReplace(now_ns);
  return {Next::What::kSend};
}

std::optional<Next> OptimisticCommand::Open(const Reply& reply) {
  open_.clear();
  next_open_ = 0;
  open_failed_ = false;
  known_.clear();
  conversions_.clear();
  for (size_t i = 0; i < operation_.buckets().size(); ++i) {
    const Bucket& bucket = operation_.buckets()[i];
    const algorithm::Parameters& parameters = bucket.rule->rule->parameters;
    const std::string& state = reply.elements[2 + 3 * i].text;
    const std::string& receipts = reply.elements[3 + 3 * i].text;
    std::optional<OpenBucket> known = std::exchange(cached_[i], std::nullopt);
    if (known.has_value() && !known->changed() && !known->floored() && !state.empty() &&
        known->stored().state == state) {
      open_.push_back(*std::move(known));
    } else {
      std::vector<std::string> runs;
      for (const Reply& run : reply.elements[4 + 3 * i].elements) runs.push_back(run.text);
      absl::StatusOr<OpenBucket> read =
          OpenBucket::Begin(parameters, state, receipts, runs, read_ns_, std::move(known));
      // It knows nothing of the bucket now.
      if (absl::IsNotFound(read.status())) return Next{Next::What::kRetry};
      if (!read.ok()) {
        context_.counters().errors.Add();
        context_.LogError("redis_foreign_key",
                          absl::StrCat(bucket.keys[0], ": ", read.status().message()));
        return Next{Next::What::kAbandon};
      }
      open_.push_back(*std::move(read));
    }
    const OpenBucket& open = open_.back();
    if (open.exists() && EncodeParameters(open.parameters()) != bucket.rule->encoded_parameters) {
      if (const auto newer = context_.NewerThan(*bucket.rule, open.writer()); newer != nullptr) {
        if (!operation_.OnNewerRule(i, newer)) return Next{};
        return Next{Next::What::kRetry};
      }
      conversions_.push_back({i, open.writer(), open.parameters()});
    }
    known_.push_back(state);
    known_.push_back(IsBooked(state) ? absl::StrCat(open.stored().generation) : receipts);
  }
  return std::nullopt;
}

void OptimisticCommand::PrepareReplace(int64_t now_ns) {
  stage_ = Stage::kReplace;
  replace_words_ = ExchangeWords(/*replace=*/true);
  std::move(known_.begin(), known_.end(), std::back_inserter(replace_words_));
  for (const auto& id : operation_.once_keys()) replace_words_.push_back(id.known);
  for (size_t i = 0; i < open_.size(); ++i) {
    if (!open_[i].changed()) {
      const std::vector<std::string> words = OpenBucket::FormatUnchanged();
      replace_words_.insert(replace_words_.end(), words.begin(), words.end());
      continue;
    }
    std::vector<std::string> words =
        open_[i].Format(operation_.buckets()[i].rule->writer, context_.ids().NewVersion(), now_ns);
    // A test's time has nothing to do with the server's.
    if (context_.settings().test_time != nullptr) words[0] = "3600000";
    std::move(words.begin(), words.end(), std::back_inserter(replace_words_));
  }
  for (const auto& id : operation_.once_keys()) replace_words_.push_back(id.to_set);
}

bool OptimisticCommand::MayPromise(int64_t now_ns) {
  if (context_.settings().test_time != nullptr) return true;
  std::vector<LimitPromise> promises;
  for (size_t i = 0; i < open_.size(); ++i) {
    const OpenBucket& bucket = open_[i];
    const Rule& rule = *operation_.buckets()[i].rule->rule;
    if (!bucket.changed() || bucket.entries() == 0) continue;
    int64_t last_ns = 0;
    if (bucket.slots() == nullptr) {
      last_ns = bucket.LastGrantTimeNs();
    } else {
      // After a loss the limit is closed for hold_for, as it is then: it may be lowered before.
      const int64_t end_ns = bucket.slots()->holds().back().end_ns;
      const int64_t hold_for_ns = rule.parameters.concurrency.hold_for_ns;
      if (end_ns > now_ns) {
        promises.push_back({rule.limit_name, end_ns / 1000 + 1, (hold_for_ns + 999) / 1000});
      }
      // A hold lasts for longer if it began at a later grant time.
      last_ns = end_ns - hold_for_ns;
    }
    if (last_ns > now_ns) promises.push_back({rule.limit_name, last_ns / 1000 + 1});
  }
  return promises.empty() ||
         context_.router().MayPromise(sender_.endpoint(), promises, now_ns / 1000);
}

void OptimisticCommand::OnReplaced() {
  for (const Conversion& one : conversions_) {
    context_.counters().conversions.Add();
    context_.OnConverted(operation_.buckets()[one.bucket], one.writer, one.from);
  }
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].changed()) open_[i].Written(operation_.buckets()[i].rule->writer);
  }
  LeaveTurn();
  operation_.OnDecided();
}

void OptimisticCommand::KeepOpen() {
  // They are not whole.
  if (next_open_ < open_.size()) open_.clear();
  for (size_t i = 0; i < open_.size(); ++i) cached_[i] = std::move(open_[i]);
  open_.clear();
}

void OptimisticCommand::OnUnavailable() {
  LeaveTurn();
  operation_.OnUnavailable(may_be_executed());
}

void OptimisticCommand::OnEnd() {
  LeaveTurn();
  delete &operation_;
}

}  // namespace sluice::store::redis
