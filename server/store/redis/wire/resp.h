// RESP, the protocol of Redis: commands and replies. Replies are parsed by hiredis.
#ifndef SLUICE_SERVER_STORE_REDIS_WIRE_RESP_H_
#define SLUICE_SERVER_STORE_REDIS_WIRE_RESP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

struct redisReader;

namespace sluice::store::redis {

struct Reply {
  enum class Type : uint8_t { kNil, kInteger, kString, kArray, kError };

  bool is_error() const { return type == Type::kError; }
  // An error's first word: "NOSCRIPT".
  bool HasCode(const char* code) const;

  Type type = Type::kNil;
  int64_t integer = 0;
  std::string text;  // of a string, a status, an error
  std::vector<Reply> elements;
};

// The value of "name:value" among the lines of INFO's reply; empty: there is none.
std::string InfoField(std::string_view info, std::string_view name);

// Appends a command. REQUIRES: at least one word.
void AppendCommand(absl::Span<const std::string> words, std::string* out);

// Parses a stream of bytes into replies. Not thread-safe.
class ReplyReader {
 public:
  // Larger replies are refused: no command of ours has one. kMaxBytes bounds unparsed bytes.
  static constexpr int kMaxElements = 1 << 18;
  static constexpr size_t kMaxBytes = size_t{32} << 20;

  ReplyReader();
  ~ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  // Then call Next until it returns false.
  void Feed(absl::Span<const uint8_t> data);
  // False: there is no whole reply yet. INTERNAL: not RESP, or above the bounds; the connection
  // cannot be used any longer.
  absl::StatusOr<bool> Next(Reply* reply);

 private:
  struct Free {
    void operator()(redisReader* reader) const;
  };
  std::unique_ptr<redisReader, Free> reader_;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_WIRE_RESP_H_
