#include "server/store/redis/wire/resp.h"

#include <hiredis/hiredis.h>
#include <hiredis/read.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/strings.h"

namespace sluice::store::redis {
namespace {

// hiredis makes a tree of replies by these. A nested one is an element of its parent, which has
// room for all its elements from the start and therefore never moves them.
Reply* Place(const redisReadTask* task) {
  if (task->parent == nullptr) return new Reply;
  return &static_cast<Reply*>(task->parent->obj)->elements[static_cast<size_t>(task->idx)];
}

void* CreateString(const redisReadTask* task, char* text, size_t size) {
  Reply* reply = Place(task);
  reply->type = task->type == REDIS_REPLY_ERROR ? Reply::Type::kError : Reply::Type::kString;
  reply->text.assign(text, size);
  return reply;
}

void* CreateArray(const redisReadTask* task, int elements) {
  if (elements > ReplyReader::kMaxElements) return nullptr;
  Reply* reply = Place(task);
  reply->type = Reply::Type::kArray;
  reply->elements.resize(static_cast<size_t>(elements));
  return reply;
}

void* CreateInteger(const redisReadTask* task, long long value) {
  Reply* reply = Place(task);
  reply->type = Reply::Type::kInteger;
  reply->integer = value;
  return reply;
}

void* CreateNil(const redisReadTask* task) { return Place(task); }

// Of whole trees alone.
void FreeReply(void* reply) { delete static_cast<Reply*>(reply); }

redisReplyObjectFunctions functions = {CreateString, CreateArray, CreateInteger, CreateNil,
                                       FreeReply};

}  // namespace

bool Reply::HasCode(const char* code) const {
  const size_t size = std::strlen(code);
  return is_error() && text.compare(0, size, code) == 0 &&
         (text.size() == size || text[size] == ' ');
}

std::string InfoField(std::string_view info, std::string_view name) {
  for (absl::string_view line : absl::StrSplit(common::ToAbsl(info), '\n')) {
    line = absl::StripSuffix(line, "\r");
    if (absl::ConsumePrefix(&line, common::ToAbsl(name)) && absl::ConsumePrefix(&line, ":")) {
      return std::string(line);
    }
  }
  return "";
}

void AppendCommand(absl::Span<const std::string> words, std::string* out) {
  // An array of bulk strings. hiredis' formatter makes a copy of its own of every command, with
  // sprintf, which is a tenth of what a decision costs.
  absl::StrAppend(out, "*", words.size(), "\r\n");
  for (const std::string& word : words)
    absl::StrAppend(out, "$", word.size(), "\r\n", word, "\r\n");
}

ReplyReader::ReplyReader() : reader_(redisReaderCreateWithFunctions(&functions)) {}
ReplyReader::~ReplyReader() = default;

void ReplyReader::Free::operator()(redisReader* reader) const { redisReaderFree(reader); }

void ReplyReader::Feed(absl::Span<const uint8_t> data) {
  redisReaderFeed(reader_.get(), reinterpret_cast<const char*>(data.data()), data.size());
}

absl::StatusOr<bool> ReplyReader::Next(Reply* reply) {
  void* whole = nullptr;
  if (redisReaderGetReply(reader_.get(), &whole) != REDIS_OK) {
    return absl::InternalError(absl::StrCat("not Redis' protocol: ", reader_->errstr));
  }
  if (whole == nullptr) {
    if (reader_->len - reader_->pos > kMaxBytes) {
      return absl::InternalError("Redis sent a reply of more than 32 MB");
    }
    return false;
  }
  std::unique_ptr<Reply> owned(static_cast<Reply*>(whole));
  *reply = std::move(*owned);
  return true;
}

}  // namespace sluice::store::redis
