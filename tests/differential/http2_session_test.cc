// Our HTTP/2 sessions against nghttp2's: random conversations, most of them with mutations, are
// given to both. Whether the connection ends, which streams are reset and what the application gets
// must be alike. `Reason` lists the differences that are meant.
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/http2_sessions.h"

namespace sluice::http2 {
namespace {

using ::sluice::testing::ClientEnd;
using ::sluice::testing::Entry;
using ::sluice::testing::Fields;
using ::sluice::testing::Frame;
using ::sluice::testing::Literal;
using ::sluice::testing::ParsedFrame;
using ::sluice::testing::ParseFrames;
using ::sluice::testing::ServerEnd;
using ::sluice::testing::Uint32;

// What became of a conversation.
struct Outcome {
  std::string text;                         // of our error
  bool ended = false;                       // with an error of the connection
  std::set<int32_t> reset;                  // streams, with an error of the stream
  std::map<int32_t, std::string> messages;  // that arrived in whole
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  out << (outcome.ended ? "ended " : "goes on ") << outcome.text << ", reset:";
  for (const int32_t id : outcome.reset) out << ' ' << id;
  for (const auto& [id, message] : outcome.messages) out << ", " << id << " [" << message << "]";
  return out;
}

// Adds what the frames of one side tell of it.
void AddOutput(const std::string& bytes, Outcome* outcome) {
  for (const ParsedFrame& frame : ParseFrames(bytes)) {
    const auto* payload = reinterpret_cast<const uint8_t*>(frame.payload.data());
    if (frame.header.type == FrameType::kGoaway) {
      outcome->ended |= ReadUint32(payload + 4) != 0;
      outcome->text += frame.payload.substr(8);
    } else if (frame.header.type == FrameType::kRstStream && ReadUint32(payload) != 0) {
      outcome->reset.insert(frame.header.stream_id);
    }
  }
}

// A whole message in the text of ServerEnd's and ClientEnd's events.
void AddMessages(const std::vector<std::string>& events, Outcome* outcome) {
  std::map<int32_t, std::string> parts;
  for (const std::string& event : events) {
    const size_t space = event.find(' ');
    const int32_t id = std::atoi(event.substr(0, space).c_str());
    const std::string what = event.substr(space + 1);
    if (id == 0) continue;
    if (what == "end" || what == "headers, end") {
      outcome->messages[id] = parts[id];
    } else if (what != "headers" && what.substr(0, 6) != "closed") {
      parts[id] += what + ";";
    }
  }
}

// One session of nghttp2's, either role.
class Oracle {
 public:
  explicit Oracle(bool server) : server_(server) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t n,
                      const uint8_t* value, size_t v, uint8_t, void* self) {
          if (static_cast<Oracle*>(self)->informational_) return 0;
          const std::string field = std::string(reinterpret_cast<const char*>(name), n) + "=" +
                                    std::string(reinterpret_cast<const char*>(value), v);
          // A 1xx response is skipped.
          if (!static_cast<Oracle*>(self)->server_ && field.substr(0, 9) == ":status=1") {
            static_cast<Oracle*>(self)->informational_ = true;
            return 0;
          }
          static_cast<Oracle*>(self)->Part(frame->hd.stream_id, field);
          return 0;
        });
    nghttp2_session_callbacks_set_on_begin_headers_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame*, void* self) {
          static_cast<Oracle*>(self)->informational_ = false;
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks,
        [](nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t n, void* self) {
          static_cast<Oracle*>(self)->data_[id].append(reinterpret_cast<const char*>(data), n);
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
          const bool message = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
          if (message && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
            static_cast<Oracle*>(self)->Complete(frame->hd.stream_id);
          }
          return 0;
        });
    if (server) {
      nghttp2_session_server_new(&session_, callbacks, this);
    } else {
      nghttp2_session_client_new(&session_, callbacks, this);
    }
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 256 << 10},
        {server ? NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS : NGHTTP2_SETTINGS_ENABLE_PUSH,
         server ? 1024u : 0u}};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, 2);
    nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, 1 << 20);
  }
  ~Oracle() { nghttp2_session_del(session_); }

  void Feed(std::string_view bytes) {
    if (failed_) return;
    failed_ = nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()),
                                       bytes.size()) < 0;
  }
  void Take() {
    const uint8_t* data = nullptr;
    for (ssize_t n; (n = nghttp2_session_mem_send(session_, &data)) > 0;) {
      output_.append(reinterpret_cast<const char*>(data), static_cast<size_t>(n));
    }
  }
  void Request() {
    const auto field = [](const char* name, const char* value) {
      return nghttp2_nv{reinterpret_cast<uint8_t*>(const_cast<char*>(name)),
                        reinterpret_cast<uint8_t*>(const_cast<char*>(value)), strlen(name),
                        strlen(value), NGHTTP2_NV_FLAG_NONE};
    };
    const nghttp2_nv fields[] = {field(":method", "POST"), field(":scheme", "http"),
                                 field(":path", "/p"), field(":authority", "a")};
    nghttp2_submit_request(session_, nullptr, fields, 4, nullptr, nullptr);
  }
  Outcome Result() {
    Outcome outcome;
    AddOutput(output_, &outcome);
    outcome.ended |= failed_;
    outcome.messages = messages_;
    return outcome;
  }

 private:
  void Part(int32_t id, const std::string& text) {
    FlushData(id);
    parts_[id] += text + ";";
  }
  void FlushData(int32_t id) {
    if (!data_[id].empty()) parts_[id] += "data " + std::exchange(data_[id], {}) + ";";
  }
  void Complete(int32_t id) {
    FlushData(id);
    messages_[id] = parts_[id];
    if (!server_) return;
    const nghttp2_nv status = {reinterpret_cast<uint8_t*>(const_cast<char*>(":status")),
                               reinterpret_cast<uint8_t*>(const_cast<char*>("200")), 7, 3,
                               NGHTTP2_NV_FLAG_NONE};
    nghttp2_submit_response(session_, id, &status, 1, nullptr);
  }

  const bool server_;
  nghttp2_session* session_ = nullptr;
  bool failed_ = false;
  bool informational_ = false;
  std::string output_;
  std::map<int32_t, std::string> data_;
  std::map<int32_t, std::string> parts_;
  std::map<int32_t, std::string> messages_;
};

// The bytes of a peer, in the pieces between which both sides send.
using Conversation = std::vector<std::string>;

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  Conversation OfClient() {
    Conversation conversation = {std::string(kPreface) + Frame(FrameType::kSettings, 0, 0) +
                                 Frame(FrameType::kSettings, kAck, 0)};
    uint32_t id = 1;
    for (size_t count = 1 + Pick(4); count > 0; --count, id += 2) {
      std::string bytes = Message(id, "\x83\x86" + Literal(":path", "/p") +
                                          Literal(":authority", "a") + Literal("te", "trailers"));
      if (Pick(6) == 0) bytes += Frame(FrameType::kRstStream, 0, id, Uint32(8));
      if (Pick(8) == 0) bytes += Frame(FrameType::kPriority, 0, id, Uint32(0) + "\x10");
      conversation.push_back(bytes + Other(id));
    }
    Mutate(&conversation, 1);
    return conversation;
  }
  // Of a client that has opened the streams 1, 3 and 5.
  Conversation OfServer() {
    Conversation conversation = {Frame(FrameType::kSettings, 0, 0) +
                                 Frame(FrameType::kSettings, kAck, 0)};
    for (const uint32_t id : {1u, 3u, 5u}) {
      std::string bytes;
      if (Pick(4) == 0) {
        bytes += Frame(FrameType::kHeaders, kEndHeaders, id, Literal(":status", "103"));
      }
      bytes += Message(id, "\x88" + Literal("content-type", "application/grpc"));
      if (Pick(8) == 0) bytes += Frame(FrameType::kRstStream, 0, id, Uint32(Pick(14)));
      conversation.push_back(bytes + Other(id));
    }
    Mutate(&conversation, 0);
    return conversation;
  }

 private:
  uint32_t Pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  std::string Headers(uint32_t id, const std::string& block, bool end) {
    const uint8_t flags = end ? kEndStream : kNoFlags;
    switch (Pick(4)) {
      case 0: {
        const size_t cut = Pick(static_cast<uint32_t>(block.size()));
        return Frame(FrameType::kHeaders, flags, id, block.substr(0, cut)) +
               Frame(FrameType::kContinuation, kEndHeaders, id, block.substr(cut));
      }
      case 1:
        return Frame(FrameType::kHeaders, flags | kEndHeaders | kPadded | kPriority, id,
                     "\x03" + Uint32(0) + "\x10" + block + std::string(3, '\0'));
      default:
        return Frame(FrameType::kHeaders, flags | kEndHeaders, id, block);
    }
  }
  std::string Message(uint32_t id, const std::string& block) {
    std::string headers = block;
    // Enters the table, and is referred to.
    if (Pick(3) == 0) headers += std::string("\x40\x01") + "x\x02yz\xBE";
    const size_t frames = Pick(4);
    const std::string content = "0123456789";
    if (Pick(3) == 0) {
      headers += Literal("content-length", std::to_string(frames * content.size()));
    }
    const bool trailers = Pick(3) == 0;
    std::string bytes = Headers(id, headers, frames == 0 && !trailers);
    for (size_t i = 0; i < frames; ++i) {
      const uint8_t flags = i + 1 == frames && !trailers ? kEndStream : kNoFlags;
      bytes += Pick(4) == 0 ? Frame(FrameType::kData, flags | kPadded, id,
                                    "\x02" + content + std::string(2, '\0'))
                            : Frame(FrameType::kData, flags, id, content);
    }
    if (trailers) bytes += Headers(id, Literal("grpc-status", "0"), true);
    return bytes;
  }
  std::string Other(uint32_t id) {
    switch (Pick(12)) {
      case 0:
        return Frame(FrameType::kPing, Pick(2), 0, "12345678");
      case 1:
        return Frame(FrameType::kSettings, 0, 0,
                     Entry(static_cast<Setting>(Pick(8)), Pick(70'000)));
      case 2:
        return Frame(FrameType::kWindowUpdate, 0, Pick(2) * id, Uint32(Pick(5)));
      case 3:
        return Frame(FrameType::kWindowUpdate, 0, Pick(2) * id, Uint32(0x7FFFFFFF - Pick(3)));
      case 4:
        return Frame(static_cast<uint8_t>(10 + Pick(200)), 0, id, "unknown");
      default:
        return "";
    }
  }
  // Changes none or a few bytes, or frames. The first `keep` pieces stay as they are.
  void Mutate(Conversation* conversation, size_t keep) {
    for (size_t changes = Pick(4); changes > 0; --changes) {
      std::string& piece =
          (*conversation)[keep + Pick(static_cast<uint32_t>(conversation->size() - keep))];
      if (piece.empty()) continue;
      const auto size = static_cast<uint32_t>(piece.size());
      switch (Pick(5)) {
        case 0:
          piece[Pick(size)] = static_cast<char>(Pick(256));
          break;
        case 1:
          piece[Pick(size)] ^= static_cast<char>(1 << Pick(8));
          break;
        case 2:
          piece += piece;  // each frame again
          break;
        case 3:
          piece.erase(Pick(size), 1 + Pick(9));
          break;
        default:
          piece = piece.substr(Pick(size)) + piece;
      }
    }
    DropUnfinishedFrame(conversation);
  }
  // nghttp2 looks at some frames and blocks before they are complete.
  static void DropUnfinishedFrame(Conversation* conversation) {
    std::string all;
    for (const std::string& piece : *conversation) all += piece;
    size_t at = all.substr(0, kPreface.size()) == kPreface ? kPreface.size() : 0;
    size_t left = at;
    for (const ParsedFrame& frame : ParseFrames(all)) {
      at += kFrameHeaderBytes + frame.header.length;
      const bool block =
          frame.header.type == FrameType::kHeaders || frame.header.type == FrameType::kContinuation;
      if (!block || frame.header.has(kEndHeaders)) left = at;
    }
    for (std::string& piece : *conversation) {
      piece.resize(std::min(piece.size(), left));
      left -= piece.size();
    }
  }

  std::mt19937 random_;
};

Outcome OfOurs(auto& end, const Conversation& conversation) {
  Outcome outcome;
  std::string output;
  for (const std::string& piece : conversation) {
    end.Feed(piece);
    output += end.Take();
  }
  AddOutput(output, &outcome);
  AddMessages(end.events, &outcome);
  return outcome;
}

Outcome OfOracle(Oracle& oracle, const Conversation& conversation) {
  for (const std::string& piece : conversation) {
    oracle.Feed(piece);
    oracle.Take();
  }
  return oracle.Result();
}

std::string Show(const Conversation& conversation) {
  std::string text;
  for (const std::string& piece : conversation) {
    for (const ParsedFrame& frame : ParseFrames(piece)) {
      constexpr char kHex[] = "0123456789abcdef";
      text += "type " + std::to_string(static_cast<int>(frame.header.type)) + " flags " +
              std::to_string(frame.header.flags) + " stream " +
              std::to_string(frame.header.stream_id) + ": ";
      for (const char c : frame.payload) {
        text += kHex[static_cast<uint8_t>(c) >> 4];
        text += kHex[c & 15];
      }
      text += "\n";
    }
    text += "--\n";
  }
  return text;
}

std::set<int32_t> ResetByPeer(const Conversation& conversation) {
  std::set<int32_t> ids;
  for (const std::string& piece : conversation) {
    for (const ParsedFrame& frame : ParseFrames(piece)) {
      if (frame.header.type == FrameType::kRstStream) ids.insert(frame.header.stream_id);
    }
  }
  return ids;
}

// The streams with a WINDOW_UPDATE of 0.
std::set<int32_t> GivenNoWindow(const Conversation& conversation) {
  std::set<int32_t> ids;
  for (const std::string& piece : conversation) {
    for (const ParsedFrame& frame : ParseFrames(piece)) {
      if (frame.header.type != FrameType::kWindowUpdate || frame.payload.size() != 4) continue;
      const auto* const payload = reinterpret_cast<const uint8_t*>(frame.payload.data());
      if ((ReadUint32(payload) & 0x7FFFFFFF) == 0) ids.insert(frame.header.stream_id);
    }
  }
  return ids;
}

bool HasFrame(const Conversation& conversation, FrameType type) {
  for (const std::string& piece : conversation) {
    for (const ParsedFrame& frame : ParseFrames(piece)) {
      if (frame.header.type == type) return true;
    }
  }
  return false;
}

// Both end the connection (which of several errors is named is left open), or both go on, with the
// same streams reset and the same whole messages.
bool Alike(const Outcome& ours, const Outcome& oracle) {
  if (ours.ended || oracle.ended) return ours.ended && oracle.ended;
  return ours.reset == oracle.reset && ours.messages == oracle.messages;
}

bool HasCommonElement(const std::set<int32_t>& a, const std::set<int32_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](int32_t id) { return b.contains(id); });
}

// The errors for which nghttp2 ends the connection when a frame follows the end of its stream.
const std::set<std::string> kOnClosedStream = {"HEADERS: stream closed", "DATA: stream not opened",
                                               "DATA: stream in half-closed(remote)"};

// Why an outcome differs as it is meant to: the paragraph of RFC 9113. Null: it is not.
const char* Reason(const Conversation& conversation, Outcome ours, Outcome oracle) {
  // An error of the stream; nghttp2 ends the connection.
  if (!ours.ended && oracle.text == "WINDOW_UPDATE: window_size_increment == 0" &&
      HasCommonElement(ours.reset, GivenNoWindow(conversation))) {
    return "6.9";
  }
  // Our reset of a stream leaves after a piece of input. Until then we ignore frames on the stream,
  // while nghttp2 judges them; and no RST_STREAM answers one of the peer's.
  const std::set<int32_t> by_peer = ResetByPeer(conversation);
  if (!ours.ended && kOnClosedStream.contains(oracle.text) &&
      !(ours.reset.empty() && by_peer.empty())) {
    return "5.4.2";
  }
  for (const int32_t id : by_peer) {
    if (!ours.reset.contains(id)) oracle.reset.erase(id);
  }
  if (Alike(ours, oracle)) return "5.4.2";
  // nghttp2 does not remember which ids were skipped.
  if (ours.text.find("was skipped") != std::string::npos) return "5.1.1";
  // nghttp2 ignores PRIORITY and padding on closed streams.
  if (ours.text.find("depends on itself") != std::string::npos) return "5.3.1 of RFC 7540";
  if (ours.text.find("padding of DATA") != std::string::npos) return "6.1";
  // nghttp2 reads nothing after a GOAWAY once no stream is open.
  if (!oracle.ended && HasFrame(conversation, FrameType::kGoaway)) return "6.8";
  // nghttp2 drops this header.
  const std::string no_content = "content-length=0;";
  for (auto& [id, message] : ours.messages) {
    const size_t at = message.find(no_content);
    if (message.find(":status=204") != std::string::npos && at != std::string::npos) {
      message.erase(at, no_content.size());
    }
  }
  if (Alike(ours, oracle)) return "8.6 of RFC 9110";
  // We do not implement this extension.
  if (oracle.text.find("CONNECT_PROTOCOL") != std::string::npos) return "6.5.2";
  return nullptr;
}

void Compare(uint32_t cases, const std::function<Conversation(Generator&)>& make,
             const std::function<Outcome(const Conversation&)>& ours,
             const std::function<Outcome(const Conversation&)>& oracle) {
  int different = 0;
  int ended = 0;
  std::map<std::string, int> meant;
  for (uint32_t seed = 0; seed < cases; ++seed) {
    Generator generator(seed);
    const Conversation conversation = make(generator);
    const Outcome our_outcome = ours(conversation);
    const Outcome reference = oracle(conversation);
    ended += reference.ended ? 1 : 0;
    if (Alike(our_outcome, reference)) continue;
    if (const char* reason = Reason(conversation, our_outcome, reference); reason != nullptr) {
      ++meant[reason];
      continue;
    }
    if (++different <= 20) {
      ADD_FAILURE() << "seed " << seed << "\nours:   " << our_outcome << "\noracle: " << reference
                    << "\n"
                    << Show(conversation);
    }
  }
  EXPECT_EQ(different, 0) << "of " << cases;
  for (const auto& [reason, count] : meant) {
    EXPECT_LT(count, static_cast<int>(cases / 50)) << reason;
    std::cout << "differs by " << reason << ": " << count << " of " << cases << "\n";
  }
  // Both kinds are common, or this would show nothing.
  EXPECT_GT(ended, static_cast<int>(cases / 10));
  EXPECT_LT(ended, static_cast<int>(cases * 9 / 10));
}

TEST(Http2SessionDifferentialTest, ServerRefusesWhatNghttp2Refuses) {
  Compare(
      40'000, [](Generator& generator) { return generator.OfClient(); },
      [](const Conversation& conversation) {
        ServerEnd server;
        server.answer = {{{":status", "200"}}, "", {}};
        return OfOurs(server, conversation);
      },
      [](const Conversation& conversation) {
        Oracle oracle(/*server=*/true);
        return OfOracle(oracle, conversation);
      });
}

TEST(Http2SessionDifferentialTest, ClientRefusesWhatNghttp2Refuses) {
  Compare(
      40'000, [](Generator& generator) { return generator.OfServer(); },
      [](const Conversation& conversation) {
        ClientEnd client;
        const Fields request = {
            {":method", "POST"}, {":scheme", "http"}, {":path", "/p"}, {":authority", "a"}};
        for (int i = 0; i < 3; ++i) client.Request({request, "", {}});
        client.Take();
        return OfOurs(client, conversation);
      },
      [](const Conversation& conversation) {
        Oracle oracle(/*server=*/false);
        for (int i = 0; i < 3; ++i) oracle.Request();
        oracle.Take();
        return OfOracle(oracle, conversation);
      });
}

}  // namespace
}  // namespace sluice::http2
