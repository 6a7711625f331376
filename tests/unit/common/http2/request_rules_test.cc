// Compares RequestRules with the checks of nghttp2 on the same requests.
#include "common/http2/request_rules.h"

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::http2 {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Request {
  Headers headers = {};
  std::vector<size_t> data = {};  // sizes of DATA frames
  bool has_trailers = false;
  Headers trailers = {};
};

// The outcome of a request: the headers that reached the application, and whether it was reset.
struct Outcome {
  bool malformed = false;
  Headers taken;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  out << (outcome.malformed ? "malformed" : "taken");
  for (const auto& [name, value] : outcome.taken) out << " [" << name << ": " << value << "]";
  return out;
}

std::string Show(const Request& request) {
  std::string text;
  for (const auto& [name, value] : request.headers) text += " [" + name + ": " + value + "]";
  for (const size_t size : request.data) text += " data " + std::to_string(size);
  for (const auto& [name, value] : request.trailers)
    text += " trailer [" + name + ": " + value + "]";
  return text;
}

std::vector<nghttp2_nv> Nvs(const Headers& headers) {
  std::vector<nghttp2_nv> nvs;
  for (const auto& [name, value] : headers) {
    nvs.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                   reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(),
                   value.size(), NGHTTP2_NV_FLAG_NONE});
  }
  return nvs;
}

class Reference {
 public:
  static Outcome Judge(const Request& request) {
    Reference reference(request);
    return reference.Run();
  }

 private:
  explicit Reference(const Request& request) : request_(request) {}

  static void Move(nghttp2_session* from, nghttp2_session* to) {
    const uint8_t* data = nullptr;
    for (ssize_t n; (n = nghttp2_session_mem_send(from, &data)) > 0;) {
      nghttp2_session_mem_recv(to, data, static_cast<size_t>(n));
    }
  }

  Outcome Run() {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session* client = nullptr;
    nghttp2_session_client_new(&client, callbacks, this);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t n,
                      const uint8_t* value, size_t v, uint8_t, void* self) {
          static_cast<Reference*>(self)->outcome_.taken.emplace_back(
              std::string(reinterpret_cast<const char*>(name), n),
              std::string(reinterpret_cast<const char*>(value), v));
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_send_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self) {
          if (frame->hd.type == NGHTTP2_RST_STREAM || frame->hd.type == NGHTTP2_GOAWAY) {
            static_cast<Reference*>(self)->outcome_.malformed = true;
          }
          return 0;
        });
    nghttp2_session* server = nullptr;
    nghttp2_session_server_new(&server, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(client, NGHTTP2_FLAG_NONE, nullptr, 0);
    nghttp2_submit_settings(server, NGHTTP2_FLAG_NONE, nullptr, 0);

    const std::vector<nghttp2_nv> nvs = Nvs(request_.headers);
    const std::vector<nghttp2_nv> trailers = Nvs(request_.trailers);
    nghttp2_data_provider provider;
    provider.source.ptr = this;
    provider.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t, uint32_t* flags,
                                nghttp2_data_source* source, void*) -> ssize_t {
      auto* self = static_cast<Reference*>(source->ptr);
      const size_t size = self->request_.data[self->sent_++];
      std::fill_n(to, size, uint8_t{'x'});
      if (self->sent_ == self->request_.data.size()) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (self->request_.has_trailers) *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
      }
      return static_cast<ssize_t>(size);
    };
    const int32_t id = nghttp2_submit_request(client, nullptr, nvs.data(), nvs.size(),
                                              request_.data.empty() ? nullptr : &provider, nullptr);
    Move(client, server);
    if (request_.has_trailers) {
      nghttp2_submit_trailer(client, id, trailers.data(), trailers.size());
      Move(client, server);
    }
    Move(server, client);
    nghttp2_session_del(client);
    nghttp2_session_del(server);
    return outcome_;
  }

  const Request& request_;
  size_t sent_ = 0;
  Outcome outcome_;
};

// As the decoder gives it.
HpackField Field(std::string_view name, std::string_view value) {
  return {name, value, RequestVocabulary().interpreter().Interpret(name, value, 0), 0};
}

// The session's use of the rules, without a session.
Outcome Judged(const Request& request) {
  Outcome outcome;
  RequestRules rules;
  const auto block = [&](const Headers& headers, bool trailers, bool end) {
    rules.Begin(trailers);
    for (const auto& [name, value] : headers) {
      if (!rules.Judge(Field(name, value))) return false;
      outcome.taken.emplace_back(name, value);
    }
    return rules.Complete(end);
  };
  const bool end = request.data.empty() && !request.has_trailers;
  outcome.malformed = !block(request.headers, false, end);
  const int64_t announced = rules.content_length();
  int64_t left = announced;
  for (const size_t size : request.data) left -= static_cast<int64_t>(size);
  if (!outcome.malformed && announced != kNoContentLength) outcome.malformed = left != 0;
  if (!outcome.malformed && request.has_trailers) {
    outcome.malformed = !block(request.trailers, true, true);
  }
  return outcome;
}

bool HasCapitals(const Headers& headers) {
  for (const auto& [name, value] : headers) {
    for (const char c : name) {
      if (c >= 'A' && c <= 'Z') return true;
    }
  }
  return false;
}

void Compare(const Request& request) {
  if (HasCapitals(request.headers) || HasCapitals(request.trailers)) {
    // nghttp2 would send them as small letters.
    EXPECT_TRUE(Judged(request).malformed) << Show(request);
    return;
  }
  for (const auto& [name, value] : request.trailers) {
    if (name != "content-length") continue;
    // nghttp2 takes one that is true.
    EXPECT_TRUE(Judged(request).malformed) << Show(request);
    return;
  }
  const Outcome reference = Reference::Judge(request);
  const Outcome ours = Judged(request);
  EXPECT_EQ(ours.malformed, reference.malformed) << Show(request);
  if (!ours.malformed && !reference.malformed) {
    EXPECT_EQ(ours, reference) << Show(request);
  }
}

Headers Good() {
  return {{":method", "POST"},    {":scheme", "http"}, {":path", "/a.B/C"},
          {":authority", "host"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
}

TEST(RequestRules, AcceptsRequestsOfGrpcClients) {
  Request request{.headers = Good(), .data = {5, 7}};
  request.headers.insert(request.headers.end(),
                         {{"user-agent", "grpc-c++/1.51.1"},
                          {"grpc-timeout", "1S"},
                          {"grpc-accept-encoding", "identity, deflate, gzip"},
                          {"content-length", "12"},
                          {"trace-bin", "AAEC"}});
  EXPECT_FALSE(Judged(request).malformed);
  EXPECT_EQ(Judged(request).taken, request.headers);
  Compare(request);
}

// Each byte alone, at the front, within and at the end, in each kind of name and value.
TEST(RequestRules, JudgesEachByteOfNamesAndValuesAsNghttp2Does) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string c(1, static_cast<char>(byte));
    for (const std::string& text :
         {c, c + "a", "a" + c + "b", "a" + c, "abcdefgh" + c + "ijklmnop"}) {
      for (const char* name : {":path", ":authority", "user-agent", "host", "x-own", "te"}) {
        Request request{.headers = Good()};
        std::erase_if(request.headers, [&](const auto& header) { return header.first == name; });
        const std::string value = name == std::string(":path") ? "/" + text : text;
        request.headers.insert(name[0] == ':' ? request.headers.begin() : request.headers.end(),
                               {name, value});
        Compare(request);
      }
      Request named{.headers = Good()};
      named.headers.push_back({text, "value"});
      if (text[0] != ':') Compare(named);
    }
  }
}

TEST(RequestRules, JudgesRandomRequestsAsNghttp2Does) {
  const std::vector<std::string> names = {":method",
                                          ":scheme",
                                          ":path",
                                          ":authority",
                                          ":protocol",
                                          ":status",
                                          ":",
                                          "",
                                          "te",
                                          "host",
                                          "content-length",
                                          "content-type",
                                          "user-agent",
                                          "connection",
                                          "keep-alive",
                                          "upgrade",
                                          "proxy-connection",
                                          "transfer-encoding",
                                          "grpc-timeout",
                                          "x-own",
                                          "X-Own",
                                          "x own",
                                          "cookie",
                                          "priority"};
  const std::vector<std::string> values = {"POST",
                                           "GET",
                                           "CONNECT",
                                           "OPTIONS",
                                           "http",
                                           "https",
                                           "HTTP",
                                           "ftp",
                                           "/",
                                           "/a.B/C",
                                           "*",
                                           "a",
                                           "",
                                           "host:80",
                                           "[::1]:80",
                                           "trailers",
                                           "Trailers",
                                           "gzip",
                                           "0",
                                           "12",
                                           "012",
                                           "-1",
                                           "+1",
                                           "1x",
                                           " a",
                                           "a ",
                                           "a b",
                                           "a\tb",
                                           "a\x01",
                                           "u=1",
                                           "100000000000000000"};
  std::mt19937_64 random(20261122);
  const auto pick = [&](const std::vector<std::string>& from) {
    return from[random() % from.size()];
  };
  size_t malformed = 0;
  constexpr size_t kRequests = 20'000;
  for (size_t i = 0; i < kRequests; ++i) {
    Request request{.headers = Good()};
    for (size_t changes = random() % 4; changes > 0; --changes) {
      Headers& headers = request.headers;
      const size_t at = headers.empty() ? 0 : random() % headers.size();
      switch (random() % 4) {
        case 0:
          if (!headers.empty()) headers.erase(headers.begin() + static_cast<ptrdiff_t>(at));
          break;
        case 1:
          if (!headers.empty()) headers[at].second = pick(values);
          break;
        case 2:
          if (!headers.empty()) std::swap(headers[at], headers[random() % headers.size()]);
          break;
        default:
          headers.insert(headers.begin() + static_cast<ptrdiff_t>(at), {pick(names), pick(values)});
      }
    }
    for (size_t frames = random() % 3; frames > 0; --frames) request.data.push_back(random() % 13);
    if (!request.data.empty() && random() % 3 == 0) {
      request.has_trailers = true;
      request.trailers.emplace_back("x-last", "1");
      if (random() % 2 == 0) request.trailers.emplace_back(pick(names), pick(values));
    }
    malformed += Judged(request).malformed ? 1 : 0;
    Compare(request);
    if (HasFailure()) return;
  }
  // Both kinds are common, or this would show nothing.
  EXPECT_GT(malformed, kRequests / 10);
  EXPECT_LT(malformed, kRequests * 9 / 10);
}

// The decoder keeps the meaning of an entry's name for other values.
TEST(RequestRules, MeaningDoesNotDependOnWhereTheNameWasSeenBefore) {
  const HpackInterpreter& interpreter = RequestVocabulary().interpreter();
  const std::vector<std::string> values = {"",        "/",    "*",        "POST",
                                           "CONNECT", "http", "trailers", "\x01"};
  for (const char* name : {":method", ":scheme", ":path", ":authority", ":status", "host", "te",
                           "content-length", "connection", "x-own", "X-Own", "user-agent"}) {
    for (const std::string& value : values) {
      for (const std::string& other : values) {
        EXPECT_EQ(interpreter.Interpret(name, value, interpreter.Interpret(name, other, 0)),
                  interpreter.Interpret(name, value, 0));
      }
    }
  }
}

TEST(RequestRules, TrailersEndTheRequest) {
  RequestRules rules;
  rules.Begin(/*trailers=*/true);
  EXPECT_TRUE(rules.Judge(Field("x-last", "1")));
  EXPECT_TRUE(rules.Complete(/*end=*/true));
  EXPECT_FALSE(rules.Complete(/*end=*/false));
}

}  // namespace
}  // namespace sluice::http2
