// ServerEnd and ClientEnd: one of our sessions with a user that records its events as text, on
// virtual time and without sockets. The test is the peer.
#ifndef SLUICE_TESTS_SUPPORT_HTTP2_SESSIONS_H_
#define SLUICE_TESTS_SUPPORT_HTTP2_SESSIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/http2/client_session.h"
#include "common/http2/header_names.h"
#include "common/http2/server_session.h"
#include "tests/support/http2_frames.h"

namespace sluice::testing {

inline absl::Span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

using Fields = std::vector<std::pair<std::string, std::string>>;

// A message that is sent: headers, body and, unless they are empty, trailers.
struct Message {
  Fields headers;
  std::string body;
  Fields trailers;
  bool body_ends = true;  // else more may be added to it
};

class RecordedStream final : public http2::Stream {
 public:
  explicit RecordedStream(std::vector<std::string>* events) : events_(*events) {}

  void OnHeader(const http2::HpackField& field) override {
    Record(std::string(field.name) + "=" + std::string(field.value));
  }
  void OnHeadersDone(bool end) override {
    Record(end ? "headers, end" : "headers");
    if (end) ended = true;
    if (on_headers) on_headers();
    if (end && on_end) on_end();
  }
  void OnHeadersTooLarge() override { Record("too large"); }
  void OnData(absl::Span<const uint8_t> data) override {
    received.append(reinterpret_cast<const char*>(data.data()), data.size());
    if (on_data) on_data(data.size());
  }
  void OnEnd() override {
    Record("end");
    ended = true;
    if (on_end) on_end();
  }
  void OnSendHeaders(http2::HeaderWriter& to) override {
    for (const auto& [name, value] : message.headers) to.Append(name, value);
  }
  http2::Body OnSendBody(size_t room) override {
    sent_ = message.body.substr(0, room);
    message.body.erase(0, sent_.size());
    http2::Body body{Bytes(sent_)};
    if (message.body.empty() && message.body_ends) {
      body.then = message.trailers.empty() ? http2::Body::Then::kEnd : http2::Body::Then::kTrailers;
    }
    return body;
  }
  void OnSendTrailers(http2::HeaderWriter& to) override {
    for (const auto& [name, value] : message.trailers) to.Append(name, value);
  }

  void Record(const std::string& event) {
    FlushData();
    events_.push_back(std::to_string(id()) + " " + event);
  }
  // DATA is recorded in one piece, however it arrives.
  void FlushData() {
    if (received.size() == recorded_) return;
    events_.push_back(std::to_string(id()) + " data " + received.substr(recorded_));
    recorded_ = received.size();
  }

  std::string received;
  bool ended = false;  // the peer has ended it
  Message message;
  std::function<void()> on_headers;
  std::function<void(size_t)> on_data;
  std::function<void()> on_end;

 private:
  std::vector<std::string>& events_;
  size_t recorded_ = 0;
  std::string sent_;
};

inline std::string Describe(const http2::StreamEnd& end) {
  using Kind = http2::StreamEnd::Kind;
  constexpr std::pair<Kind, const char*> kNames[] = {{Kind::kComplete, "complete"},
                                                     {Kind::kResetByPeer, "reset by peer"},
                                                     {Kind::kReset, "reset"},
                                                     {Kind::kError, "error"},
                                                     {Kind::kNotProcessed, "not processed"}};
  for (const auto& [kind, name] : kNames) {
    if (kind == end.kind)
      return std::string(name) + " " + std::to_string(static_cast<int>(end.code));
  }
  return "?";
}

// What both ends share.
template <typename SessionType>
class End {
 public:
  void Feed(std::string_view bytes) { session().Receive(Bytes(bytes), now_ns); }
  void FeedInPieces(std::string_view bytes, size_t piece) {
    for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
      Feed(bytes.substr(0, piece));
    }
  }
  // What the session sends now.
  std::string Take(size_t limit = SIZE_MAX) {
    common::Buffer output;
    session().Send(limit, &output);
    return {reinterpret_cast<const char*>(output.data()), output.size()};
  }
  std::vector<ParsedFrame> TakeFrames() { return ParseFrames(Take()); }
  http2::ErrorCode error() { return session().error_code(); }

  virtual SessionType& session() = 0;
  RecordedStream& stream(int32_t id) { return *streams_.at(id); }
  bool HasStream(int32_t id) const { return streams_.contains(id); }
  size_t open() const { return streams_.size(); }

  int64_t now_ns = int64_t{1000} * 1'000'000'000;
  std::vector<std::string> events;

 protected:
  ~End() = default;
  void Closed(http2::Stream& stream, const std::string& how) {
    auto& recorded = static_cast<RecordedStream&>(stream);
    recorded.Record("closed: " + how);
    streams_.erase(stream.id());
  }

  std::map<int32_t, std::unique_ptr<RecordedStream>> streams_;
};

// Answers each complete request with `answer`, unless it is empty.
class ServerEnd final : public End<http2::ServerSession>, private http2::ServerSession::Handler {
 public:
  explicit ServerEnd(const http2::ServerOptions& options = {})
      : options_(options), session_(options_, *this, now_ns) {}

  http2::ServerSession& session() override { return session_; }
  void Greet() {
    Feed(kGreeting + Frame(http2::FrameType::kSettings, http2::kAck, 0));
    Take();
  }

  Message answer;

 private:
  http2::Stream& OnRequest() override {
    fresh_.push_back(std::make_unique<RecordedStream>(&events));
    RecordedStream& stream = *fresh_.back();
    stream.arrived_ns = now_ns;
    stream.message = answer;
    stream.on_headers = [this] { Adopt(); };  // its id is known by now
    stream.on_end = [this, &stream] {
      if (!stream.message.headers.empty()) session_.Submit(stream, HasBody(stream.message));
    };
    return stream;
  }
  void OnStreamClosed(http2::Stream& stream) override {
    Adopt();
    Closed(stream, "");
  }
  static bool HasBody(const Message& message) {
    return !message.body.empty() || !message.trailers.empty() || !message.body_ends;
  }
  void Adopt() {
    for (auto& stream : fresh_) {
      const int32_t id = stream->id();
      streams_[id] = std::move(stream);
    }
    fresh_.clear();
  }

  const http2::ServerOptions options_;
  std::vector<std::unique_ptr<RecordedStream>> fresh_;
  http2::ServerSession session_;
};

class ClientEnd final : public End<http2::ClientSession>, private http2::ClientSession::Handler {
 public:
  explicit ClientEnd(const http2::SessionOptions& options = {})
      : session_(options, *this, now_ns) {}

  http2::ClientSession& session() override { return session_; }
  void Greet() {
    Feed(Frame(http2::FrameType::kSettings, 0, 0) +
         Frame(http2::FrameType::kSettings, http2::kAck, 0));
    Take();
  }
  // Returns the request's stream.
  int32_t Request(
      Message message = {
          {{":method", "POST"}, {":scheme", "http"}, {":path", "/p"}, {":authority", "a"}},
          "body",
          {}}) {
    auto stream = std::make_unique<RecordedStream>(&events);
    const bool has_body = !message.body.empty() || !message.body_ends;
    stream->message = std::move(message);
    session_.Submit(*stream, has_body);
    const int32_t id = stream->id();
    streams_[id] = std::move(stream);
    return id;
  }

 private:
  void OnStreamClosed(http2::Stream& stream, const http2::StreamEnd& end) override {
    Closed(stream, Describe(end));
  }
  void OnSettings() override { events.push_back("settings"); }
  void OnGoaway(int32_t last, http2::ErrorCode code, std::string_view text) override {
    events.push_back("goaway " + std::to_string(last) + " " +
                     std::to_string(static_cast<int>(code)) + " " + std::string(text));
  }
  void OnPingAck(uint64_t payload) override {
    events.push_back("ping ack " + std::to_string(payload));
  }

  http2::ClientSession session_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_HTTP2_SESSIONS_H_
