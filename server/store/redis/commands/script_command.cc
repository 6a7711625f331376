#include "server/store/redis/commands/script_command.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/scripts/scripts.h"
#include "server/store/redis/shard/shard.h"
#include "server/store/redis/wire/stored_bucket.h"

namespace sluice::store::redis {
namespace {

// How often others may come first. With ten nodes that never rest on one bucket, one call in a
// million comes to that.
constexpr int kMaxConflicts = 128;
// From then on it pauses before it reads again, so that those who contend spread.
constexpr int kConflictsAtOnce = 3;
constexpr int64_t kMostPauseNs = 4'000'000;

// What load_buckets and reset.lua say of buckets that they do not decide.
constexpr int64_t kOtherParameters = -1;
constexpr int64_t kBooked = -2;

int64_t SignOf(const Reply& reply) {
  const Reply* first = &reply;
  if (reply.type == Reply::Type::kArray && !reply.elements.empty()) first = &reply.elements[0];
  return first->type == Reply::Type::kInteger && first->integer < 0 ? first->integer : 0;
}

}  // namespace

bool ScriptCommand::KnownAsBooked() const {
  for (const Bucket& bucket : buckets()) {
    if (shard_.open_buckets().Has(bucket.keys[0])) return true;
  }
  return false;
}

bool ScriptCommand::Build(std::vector<std::string>* words) {
  const FencingToken& term = shard_.router().TermOf(endpoint(), RoutingKey());
  // What was decided by another floor is not to be written.
  if (stage_ == Stage::kReplace && !(term == read_by_)) stage_ = Stage::kRead;
  if (stage_ != Stage::kReplace) floor_us_ = term.floor_us;
  if (!BuildWords(term, words)) return false;
  // No key of this name is ever raw.
  if (term.as_argument) words->push_back(term.word_key.empty() ? "?" : term.word_key);
  return true;
}

bool ScriptCommand::BuildWords(const FencingToken& term, std::vector<std::string>* words) {
  if (!convert_words_.empty()) {
    *words = convert_words_;
    // Behind the bucket's keys.
    (*words)[6] = term.WordFor(buckets()[0]);
    return true;
  }
  switch (stage_) {
    case Stage::kScript:
      return BuildScript(term, words);
    case Stage::kRead:
      if (!StillWaits()) return false;
      BuildRead(term, words);
      return true;
    case Stage::kReplace:
      *words = replace_words_;
      return true;
  }
  return false;
}

Command::Next ScriptCommand::OnAnswer(const Reply& reply) {
  if (!convert_words_.empty()) {
    convert_words_.clear();
    shard_.counters().conversions.Add();
    return SendAgain() ? Next::kInFlight : Next::kEnd;
  }
  if (stage_ == Stage::kReplace && reply.type == Reply::Type::kInteger) {
    KeepOpen();
    AnswerOpen();
    return Next::kEnd;
  }
  if (stage_ != Stage::kScript) return OnRead(reply);
  const int64_t sign = SignOf(reply);
  if (sign == kBooked) {
    if (!MayTry()) return Next::kEnd;
    DecideHere();
    return SendAgain() ? Next::kInFlight : Next::kEnd;
  }
  if (sign != kOtherParameters) {
    if (!Handle(reply)) {
      shard_.LogError("redis_answer", "an answer of another shape than the script's");
      Abandon();
      return Next::kEnd;
    }
    return decides_here() && SendAgain() ? Next::kInFlight : Next::kEnd;
  }
  if (!MayTry()) return Next::kEnd;
  if (reply.elements.size() < 7) {
    if (MismatchOfUnknown()) return SendAgain() ? Next::kInFlight : Next::kEnd;
    Abandon();
    return Next::kEnd;
  }
  Mismatch mismatch = shard_.Judge(buckets(), floor_us_, reply);
  switch (mismatch.what) {
    case Mismatch::What::kStale:
      return Stale(mismatch.bucket, mismatch.newer) && SendAgain() ? Next::kInFlight : Next::kEnd;
    case Mismatch::What::kConvert:
      convert_words_ = std::move(mismatch.convert_words);
      return SendAgain() ? Next::kInFlight : Next::kEnd;
    case Mismatch::What::kForeign:
      break;
  }
  Abandon();
  return Next::kEnd;
}

void ScriptCommand::BuildRead(const FencingToken& term, std::vector<std::string>* words) {
  *words = {"EVALSHA", TextOf(Script::kExchange).sha, absl::StrCat(3 * buckets().size() + 1)};
  for (const Bucket& bucket : buckets()) {
    words->insert(words->end(), bucket.keys.begin(), bucket.keys.end());
  }
  read_by_ = term;
  words->push_back(term.WordFor(buckets()[0]));
  words->push_back(shard_.TimeArgument());
  words->push_back("0");
  held_.resize(buckets().size());
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!held_[i].has_value()) held_[i] = shard_.open_buckets().Take(buckets()[i].keys[0]);
    words->push_back(held_[i].has_value() ? held_[i]->state : "");
    words->emplace_back();
  }
}

Command::Next ScriptCommand::OnRead(const Reply& reply) {
  const size_t count = buckets().size();
  if (reply.type != Reply::Type::kArray || reply.elements.size() != 2 + 3 * count ||
      reply.elements[0].type != Reply::Type::kInteger ||
      reply.elements[1].type != Reply::Type::kInteger) {
    shard_.LogError("redis_answer", "an answer of another shape than the script's");
    Abandon();
    return Next::kEnd;
  }
  if (stage_ == Stage::kReplace) {
    shard_.counters().conflicts.Add();
    if (++conflicts_ >= kMaxConflicts) {
      AnswerContended();
      return Next::kEnd;
    }
    if (conflicts_ > kConflictsAtOnce) {
      stage_ = Stage::kRead;
      const int64_t most_ns = std::min(kMostPauseNs, int64_t{50'000} << std::min(conflicts_, 10));
      const size_t random = absl::HashOf(this, conflicts_, shard_.NewReceipt());
      SendLater(static_cast<int64_t>(random % static_cast<size_t>(most_ns)));
      return Next::kInFlight;
    }
    if (!StillWaits()) return Next::kEnd;
  }
  const int64_t read_ns = reply.elements[0].integer * 1000 + reply.elements[1].integer;
  open_.clear();
  states_.clear();
  replace_words_ = {"EVALSHA", TextOf(Script::kExchange).sha, absl::StrCat(3 * count + 1)};
  for (const Bucket& bucket : buckets()) {
    replace_words_.insert(replace_words_.end(), bucket.keys.begin(), bucket.keys.end());
  }
  replace_words_.push_back(read_by_.WordFor(buckets()[0]));
  replace_words_.push_back(shard_.TimeArgument());
  replace_words_.push_back("1");
  for (size_t i = 0; i < count; ++i) {
    const Bucket& bucket = buckets()[i];
    const std::string& state = reply.elements[2 + 3 * i].text;
    const std::string& receipts = reply.elements[3 + 3 * i].text;
    const Reply& runs = reply.elements[4 + 3 * i];
    const bool booked = IsBooked(state);
    if (held_[i].has_value() && held_[i]->state == state) {
      open_.push_back(std::move(held_[i]->bucket));
    } else {
      std::vector<std::string> texts;
      texts.reserve(runs.elements.size());
      for (const Reply& run : runs.elements) texts.push_back(run.text);
      absl::StatusOr<OpenBucket> read =
          OpenBucket::Read(bucket.rule->rule->parameters, state, receipts, texts, read_ns);
      if (!read.ok()) {
        shard_.Foreign(bucket, read.status());
        Abandon();
        return Next::kEnd;
      }
      open_.push_back(*std::move(read));
    }
    if (open_[i].exists() &&
        EncodeParameters(open_[i].parameters()) != bucket.rule->encoded_parameters) {
      if (const auto newer = shard_.NewerThan(*bucket.rule, open_[i].writer()); newer != nullptr) {
        stage_ = Stage::kRead;
        return MayTry() && Stale(i, newer) && SendAgain() ? Next::kInFlight : Next::kEnd;
      }
      shard_.TakesOver(bucket, open_[i].writer(), open_[i].parameters());
      open_[i].Convert(bucket.rule->rule->parameters, read_ns);
      shard_.counters().conversions.Add();
    }
    open_[i].ApplyFloor(floor_us_);
    held_[i].reset();
    states_.push_back(state);
    replace_words_.push_back(state);
    replace_words_.push_back(booked ? "" : receipts);
  }
  const int64_t now_ns = BeginAt(absl::MakeSpan(open_), read_ns);
  DecideOpen(absl::MakeSpan(open_), now_ns);
  PrepareReplacing(now_ns);
  if (stage_ == Stage::kReplace && !MayPromise(now_ns)) {
    stage_ = Stage::kRead;
    if (!MayTry()) return Next::kEnd;
    SendLater(shard_.retry_ns());
    return Next::kInFlight;
  }
  if (stage_ == Stage::kReplace) return SendAgain() ? Next::kInFlight : Next::kEnd;
  KeepOpen();
  AnswerOpen();
  return Next::kEnd;
}

void ScriptCommand::PrepareReplacing(int64_t now_ns) {
  stage_ = Stage::kRead;
  if (!Writes()) return;
  for (size_t i = 0; i < open_.size(); ++i) {
    if (!open_[i].changed()) {
      replace_words_.insert(replace_words_.end(), {"", "", "", "0"});
      continue;
    }
    stage_ = Stage::kReplace;
    std::vector<std::string> words =
        open_[i].Format(buckets()[i].rule->writer, shard_.NewVersion(), now_ns);
    shard_.AdjustTtl(&words[0]);
    states_[i] = words[1];
    std::move(words.begin(), words.end(), std::back_inserter(replace_words_));
  }
}

bool ScriptCommand::MayPromise(int64_t now_ns) {
  // A test's time has nothing to do with the server's.
  if (shard_.has_test_time()) return true;
  int64_t last_ns = now_ns;
  for (const OpenBucket& bucket : open_) {
    if (bucket.changed() && bucket.bookings() != 0) {
      last_ns = std::max(last_ns, bucket.LastGrantTimeNs());
    }
  }
  return last_ns == now_ns ||
         shard_.router().MayPromise(endpoint(), last_ns / 1000 + 1, now_ns / 1000);
}

void ScriptCommand::KeepOpen() {
  for (size_t i = 0; i < open_.size(); ++i) {
    // Decided by, but neither as it was read nor as it was written: it was not to be written.
    if (stage_ != Stage::kReplace && open_[i].changed()) continue;
    if (!IsBooked(states_[i])) continue;
    if (open_[i].changed()) open_[i].Written(buckets()[i].rule->writer);
    shard_.open_buckets().Put(buckets()[i].keys[0], {states_[i], std::move(open_[i])});
  }
  open_.clear();
}

}  // namespace sluice::store::redis
