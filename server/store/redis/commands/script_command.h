// ScriptCommand: one of the scripts, on buckets. Buckets of other parameters are converted on the
// way.
//
// Buckets in which something is booked are decided here, not by a script: they are read, decided
// by (store/decide.h), and replaced if they still are what was read; else all is decided anew by
// what they are now, which the refusal tells. So a replacement fails only where another succeeded.
#ifndef SLUICE_SERVER_STORE_REDIS_COMMANDS_SCRIPT_COMMAND_H_
#define SLUICE_SERVER_STORE_REDIS_COMMANDS_SCRIPT_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/store/redis/commands/command.h"
#include "server/store/redis/commands/open_cache.h"
#include "server/store/redis/fencing/fencing_token.h"
#include "server/store/redis/wire/open_bucket.h"
#include "server/store/redis/wire/rule_entry.h"

namespace sluice::store::redis {

class ScriptCommand : public Command {
 protected:
  using Command::Command;

  std::string_view RoutingKey() const override { return buckets()[0].keys[0]; }
  bool Build(std::vector<std::string>* words) final;
  Next OnAnswer(const Reply& reply) final;

  // By what its buckets are decided; of the last Build. 0: nothing was lost.
  int64_t floor_us() const { return floor_us_; }

  // It is abandoned: what it was to write was sent, and may have been written.
  bool may_be_in_force() const {
    return answer_missing() && convert_words_.empty() && stage_ != Stage::kRead;
  }

  // False: nobody waits for it any more.
  virtual bool BuildScript(const FencingToken& term, std::vector<std::string>* words) = 0;
  virtual absl::Span<const Bucket> buckets() const = 0;
  // False: not the answer to what was sent.
  virtual bool Handle(const Reply& reply) = 0;
  // A bucket is of a newer rule of this process. True: to be sent again.
  virtual bool Stale(size_t bucket, const std::shared_ptr<const RuleEntry>& newer) = 0;
  // The script told no more than that it cannot decide. True: to be sent again.
  virtual bool MismatchOfUnknown() { return false; }

  // ---- Where something is booked, or is to be ----

  // From now on it goes without the script; in Handle: because the answer was not all.
  void DecideHere() { stage_ = Stage::kRead; }
  bool decides_here() const { return stage_ != Stage::kScript; }
  // Whether something was booked in one of the buckets, as far as this shard knows.
  bool KnownAsBooked() const;

  // False: nobody waits for it any more.
  virtual bool StillWaits() { return true; }
  // Decides by buckets that are as they were at now_ns. Called again if they have changed since,
  // with all that it did to them and to its results undone, as far as it has not told them.
  virtual void DecideOpen(absl::Span<OpenBucket> open, int64_t now_ns) = 0;
  // Whether what DecideOpen did to the buckets is to be written. A denial is not.
  virtual bool Writes() const { return true; }
  // What DecideOpen decided is in force.
  virtual void AnswerOpen() = 0;
  // Others came first too often. Nothing was done.
  virtual void AnswerContended() { Abandon(); }

 private:
  enum class Stage : uint8_t { kScript = 0, kRead, kReplace };

  bool BuildWords(const FencingToken& term, std::vector<std::string>* words);
  void BuildRead(const FencingToken& term, std::vector<std::string>* words);
  Next OnRead(const Reply& reply);
  // To what they were read as. Sets replace_words_ if there is something to be replaced.
  void PrepareReplacing(int64_t now_ns);
  // Whether the moments that are to be written may be promised.
  bool MayPromise(int64_t now_ns);
  void KeepOpen();

  int64_t floor_us_ = 0;
  FencingToken read_by_;                    // the last reading's
  std::vector<std::string> convert_words_;  // not empty: a conversion is in flight instead

  Stage stage_ = Stage::kScript;
  std::vector<std::optional<OpenCache::Known>> held_;  // while it is asked whether they still are
  std::vector<OpenBucket> open_;
  std::vector<std::string> states_;  // as they were read, then as they are to become
  std::vector<std::string> replace_words_;
  int conflicts_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_COMMANDS_SCRIPT_COMMAND_H_
