// Method: a gRPC method as a path and its handler. Handlers take and give messages as bytes.
//
// A handler is shared by all event loops, and several loops call it at the same time, each on its
// own thread. What it keeps for a call goes into ServerCall::state.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_METHOD_H_
#define SLUICE_SERVER_TRANSPORT_RPC_METHOD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "server/access/client.h"

namespace sluice::transport {

class ServerCall;

// One request, one response.
class UnaryMethod {
 public:
  virtual ~UnaryMethod() = default;
  // `request` is valid until the call is finished or OnCancelled returns. Write the response to
  // call.response() and call.Finish(), now or later on the same loop.
  virtual void OnCall(ServerCall& call, absl::Span<const uint8_t> request) = 0;
  // Goes on after ServerCall::ContinueLater.
  virtual void OnTurn(ServerCall& call) {}
  // The call ended before the handler finished it: cancelled by the caller, past its deadline,
  // broken by what the client sent, or its connection is gone. Do not use the call after this
  // returns.
  virtual void OnCancelled(ServerCall& call) {}
};

// A stream of requests and a stream of responses. Client-streaming and server-streaming methods
// are streams in which the handler sends, or takes, one message.
class StreamingMethod {
 public:
  virtual ~StreamingMethod() = default;
  virtual void OnStart(ServerCall& call) {}
  // One request, valid until this returns. Not called while the call is paused or congested.
  virtual void OnMessage(ServerCall& call, absl::Span<const uint8_t> request) = 0;
  // Goes on after ServerCall::ContinueLater.
  virtual void OnTurn(ServerCall& call) {}
  // The client will send no more requests.
  virtual void OnRequestsDone(ServerCall& call) = 0;
  // The call is no longer congested: most of its responses were sent.
  virtual void OnWritable(ServerCall& call) {}
  // The connection is being drained: a call that would last long should end.
  virtual void OnDrain(ServerCall& call) {}
  // As in UnaryMethod.
  virtual void OnCancelled(ServerCall& call) {}
};

struct MethodOptions {
  // Never shed. For health checks, which report whether the server is alive.
  bool exempt_from_shedding = false;
  // Bytes of one request message, before and after decompression. Above: RESOURCE_EXHAUSTED.
  size_t max_request_bytes = common::bounds::kMaxRequestBytes;
  // The headers that the handler reads with ServerCall::metadata, in lower case: the first of each
  // name, and of its value at most bounds::kMaxAuthorizationBytes and one byte. No others are
  // kept: a few bytes of HPACK can stand for kilobytes of headers.
  std::vector<std::string_view> metadata = {};
  // What a client must be allowed to do to call the method. nullopt: all may call it.
  std::optional<access::Call> call = {};
};

struct Method {
  std::string path;  // "/package.Service/Method"
  // One of the two; neither: the method is unknown.
  UnaryMethod* unary = nullptr;
  StreamingMethod* streaming = nullptr;
  MethodOptions options;
  size_t index = 0;  // in the table; its size for unknown methods

  bool known() const { return unary != nullptr || streaming != nullptr; }
};

// Filled before the server starts, then read by all loops. Handlers outlive it.
class MethodTable {
 public:
  MethodTable() = default;
  MethodTable(const MethodTable&) = delete;
  MethodTable& operator=(const MethodTable&) = delete;

  // REQUIRES: `path` is not in the table.
  void AddUnary(std::string_view path, UnaryMethod& handler, const MethodOptions& options = {}) {
    Add(path, &handler, nullptr, options);
  }
  void AddStreaming(std::string_view path, StreamingMethod& handler,
                    const MethodOptions& options = {}) {
    Add(path, nullptr, &handler, options);
  }

  // Null: unknown.
  const Method* Find(std::string_view path) const {
    const auto it = by_path_.find(absl::string_view(path.data(), path.size()));
    return it == by_path_.end() ? nullptr : it->second;
  }
  // Whether the table has a method of this service, "package.Service".
  bool HasService(std::string_view service) const {
    return services_.contains(absl::string_view(service.data(), service.size()));
  }

  size_t size() const { return methods_.size(); }
  const Method& method(size_t index) const { return methods_[index]; }

 private:
  void Add(std::string_view path, UnaryMethod* unary, StreamingMethod* streaming,
           const MethodOptions& options) {
    const Method& method = methods_.emplace_back(
        Method{std::string(path), unary, streaming, options, methods_.size()});
    by_path_.emplace(method.path, &method);
    const size_t slash = path.rfind('/');
    if (slash != std::string_view::npos && slash > 0) {
      services_.emplace(path.substr(1, slash - 1));
    }
  }

  std::deque<Method> methods_;  // a deque: they must not move
  absl::flat_hash_map<std::string, const Method*> by_path_;
  absl::flat_hash_set<std::string> services_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_METHOD_H_
