// H2Server and H2Client: a gRPC server on virtual time and without sockets, and an HTTP/2 client
// of it. The client is nghttp2's, which shares no code with the server's own.
#ifndef SLUICE_TESTS_SUPPORT_H2_PEER_H_
#define SLUICE_TESTS_SUPPORT_H2_PEER_H_

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/transport/rpc/method.h"
#include "server/transport/rpc/rpc_server.h"
#include "tests/support/port_peer.h"

namespace sluice::testing {

class H2Server final : public PortUnderTest {
 public:
  explicit H2Server(const transport::RpcServerOptions& options = {})
      : server(methods, clock, metrics, options) {}
  transport::PortAcceptor& acceptor() override { return server; }

  transport::MethodTable methods;
  transport::RpcServer server;
};

using H2Connection = PortPeer;

// What a client received of one call.
struct CallResult {
  std::multimap<std::string, std::string> headers;  // and trailers
  std::string body;
  bool closed = false;
  uint32_t error_code = 0;

  std::string Header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string() : it->second;
  }
  std::string status() const { return Header("grpc-status"); }
  // The messages of the body.
  std::vector<std::string> messages() const {
    std::vector<std::string> found;
    for (size_t at = 0; at + 5 <= body.size();) {
      const auto* p = reinterpret_cast<const uint8_t*>(body.data()) + at;
      const size_t size = size_t{p[1]} << 24 | size_t{p[2]} << 16 | size_t{p[3]} << 8 | p[4];
      found.push_back(body.substr(at + 5, size));
      at += 5 + size;
    }
    return found;
  }
};

inline std::string Framed(std::string_view message, bool compressed = false) {
  std::string out;
  out.push_back(compressed ? 1 : 0);
  for (const int shift : {24, 16, 8, 0}) out.push_back(static_cast<char>(message.size() >> shift));
  out.append(message);
  return out;
}

// nghttp2's client on an H2Connection.
class H2Client {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  explicit H2Client(H2Server& server, bool auto_window = true) : connection(server) {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name, size_t n,
                      const uint8_t* value, size_t v, uint8_t, void* self) {
          static_cast<H2Client*>(self)->calls[frame->hd.stream_id].headers.emplace(
              std::string(reinterpret_cast<const char*>(name), n),
              std::string(reinterpret_cast<const char*>(value), v));
          return 0;
        });
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
        callbacks,
        [](nghttp2_session*, uint8_t, int32_t id, const uint8_t* data, size_t n, void* self) {
          static_cast<H2Client*>(self)->calls[id].body.append(reinterpret_cast<const char*>(data),
                                                              n);
          return 0;
        });
    nghttp2_session_callbacks_set_on_stream_close_callback(
        callbacks, [](nghttp2_session*, int32_t id, uint32_t code, void* self) {
          CallResult& call = static_cast<H2Client*>(self)->calls[id];
          call.closed = true;
          call.error_code = code;
          return 0;
        });
    nghttp2_session_callbacks_set_on_frame_recv_callback(
        callbacks, [](nghttp2_session*, const nghttp2_frame* frame, void* self_ptr) {
          auto* self = static_cast<H2Client*>(self_ptr);
          if (frame->hd.type == NGHTTP2_GOAWAY) {
            self->goaways.emplace_back(
                frame->goaway.error_code,
                std::string(reinterpret_cast<const char*>(frame->goaway.opaque_data),
                            frame->goaway.opaque_data_len));
            self->goaway_last_stream = frame->goaway.last_stream_id;
          }
          if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
            ++self->pings;
          }
          return 0;
        });
    nghttp2_option* options = nullptr;
    nghttp2_option_new(&options);
    nghttp2_option_set_no_auto_window_update(options, auto_window ? 0 : 1);
    nghttp2_session_client_new2(&session, callbacks, this, options);
    nghttp2_option_del(options);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~H2Client() { nghttp2_session_del(session); }

  // The bytes that nghttp2 wants to send, without sending them.
  std::string TakeOutput() {
    std::string out;
    const uint8_t* data = nullptr;
    for (ssize_t n; (n = nghttp2_session_mem_send(session, &data)) > 0;) {
      out.append(reinterpret_cast<const char*>(data), static_cast<size_t>(n));
    }
    return out;
  }
  void Read() {
    const std::string bytes = connection.Take();
    nghttp2_session_mem_recv(session, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  // Exchanges bytes until both sides are idle. `piece`: bytes per read of the server.
  void Pump(size_t piece = SIZE_MAX) {
    for (int i = 0; i < 1000; ++i) {
      const std::string out = TakeOutput();
      connection.FeedInPieces(out, piece);
      connection.RunTurns();
      if (out.empty() && connection.stream.output.empty()) return;
      Read();
    }
  }

  // Begins a call, sends `body`, and ends the request if `end`.
  int32_t Call(std::string_view path, std::string body, const Headers& extra = {},
               bool end = true) {
    Headers headers = {{":method", "POST"},          {":scheme", "http"},
                       {":path", std::string(path)}, {":authority", "test"},
                       {"te", "trailers"},           {"content-type", "application/grpc"}};
    for (const auto& header : extra) {
      bool replaced = false;
      for (auto& have : headers) {
        if (have.first != header.first) continue;
        have.second = header.second;
        replaced = true;
      }
      if (!replaced) headers.push_back(header);
    }
    return Request(headers, std::move(body), end);
  }
  int32_t Request(const Headers& headers, std::string body, bool end) {
    std::vector<nghttp2_nv> nvs;
    for (const auto& [name, value] : headers) {
      if (value == "-") continue;  // left out
      nvs.push_back({reinterpret_cast<uint8_t*>(const_cast<char*>(name.data())),
                     reinterpret_cast<uint8_t*>(const_cast<char*>(value.data())), name.size(),
                     value.size(), NGHTTP2_NV_FLAG_NONE});
    }
    auto pending = std::make_unique<Body>();
    pending->bytes = std::move(body);
    pending->end = end;
    nghttp2_data_provider provider;
    provider.source.ptr = pending.get();
    provider.read_callback = [](nghttp2_session*, int32_t, uint8_t* to, size_t room,
                                uint32_t* flags, nghttp2_data_source* source, void*) -> ssize_t {
      auto* body = static_cast<Body*>(source->ptr);
      const size_t n = std::min(room, body->bytes.size());
      if (n == 0 && !body->end) return NGHTTP2_ERR_DEFERRED;
      std::memcpy(to, body->bytes.data(), n);
      body->bytes.erase(0, n);
      if (body->bytes.empty() && body->end) *flags |= NGHTTP2_DATA_FLAG_EOF;
      return static_cast<ssize_t>(n);
    };
    const int32_t id =
        nghttp2_submit_request(session, nullptr, nvs.data(), nvs.size(), &provider, nullptr);
    bodies_[id] = std::move(pending);
    return id;
  }
  // Sends more of a request that has not ended.
  void Continue(int32_t id, std::string_view bytes, bool end) {
    bodies_[id]->bytes.append(bytes);
    bodies_[id]->end = end;
    nghttp2_session_resume_data(session, id);
  }
  void Reset(int32_t id) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
  }

  H2Connection connection;
  nghttp2_session* session = nullptr;
  std::map<int32_t, CallResult> calls;
  std::vector<std::pair<uint32_t, std::string>> goaways;
  int32_t goaway_last_stream = -1;
  int pings = 0;

 private:
  struct Body {
    std::string bytes;
    bool end = true;
  };
  std::map<int32_t, std::unique_ptr<Body>> bodies_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_H2_PEER_H_
