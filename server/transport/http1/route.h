// Route: a path and the handler of its requests. RouteTable: the routes that a listener serves.
//
// A handler is shared by all event loops, and several loops call it at the same time, each on its
// own thread. What it keeps for an exchange goes into Exchange::state.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_ROUTE_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_ROUTE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/request.h"

namespace sluice::http1 {

class Exchange;

class Handler {
 public:
  virtual ~Handler() = default;
  // The request is complete. Answer now, or later on the same loop.
  virtual void OnRequest(Exchange& exchange) = 0;
  // The exchange ended before the handler finished it: the connection is gone. Do not use the
  // exchange after this returns.
  virtual void OnCancelled(Exchange& exchange) {}
  // Streams: Write returned false, and would send now.
  virtual void OnWritable(Exchange& exchange) {}
  // The connection is being drained: an exchange that would last long should end.
  virtual void OnDrain(Exchange& exchange) {}
};

// Decides whether a request is served, before its body is read. Thread-safe.
class Gate {
 public:
  virtual ~Gate() = default;
  // nullopt: it is. request().body() is empty.
  virtual std::optional<Problem> Check(const Exchange& exchange) const = 0;
  // The same later, since rights may have changed: when the body is complete, or while a stream
  // lasts. Counts no call.
  virtual std::optional<Problem> CheckAgain(const Exchange& exchange) const {
    return Check(exchange);
  }
};

// A set of methods.
class Methods {
 public:
  // HEAD is allowed where GET is; its response has no body.
  constexpr Methods(std::initializer_list<Method> methods) {
    for (const Method method : methods) Add(method);
    if (Has(Method::kGet)) Add(Method::kHead);
  }
  static constexpr Methods All() {
    return {Method::kGet,   Method::kHead,   Method::kPost,   Method::kPut,
            Method::kPatch, Method::kDelete, Method::kOptions};
  }
  constexpr bool Has(Method method) const { return (bits_ >> static_cast<int>(method) & 1) != 0; }
  // "GET, HEAD".
  std::string ToString() const;

 private:
  constexpr void Add(Method method) {
    bits_ = static_cast<uint8_t>(bits_ | 1 << static_cast<int>(method));
  }
  uint8_t bits_ = 0;
};

struct RouteOptions {
  Methods methods = {Method::kGet};
  // Bytes of a request's body. Above: 413.
  size_t max_body_bytes = 0;
  // Null: no check. Outlives the table.
  const Gate* gate = nullptr;
  // Served although the process holds too much memory. For health checks.
  bool exempt_from_shedding = false;
  // Refused with 503 if a request waited too long for its turn (ConnectionOptions::max_queue_ns).
  // For calls of programs: an operator's wait until they are served.
  bool shed_when_late = false;
  // Under which name the route's requests are counted (common::Metrics); empty: its path. Routes
  // may share a name.
  std::string metric = {};
};

struct Route {
  std::string path;
  bool is_prefix = false;
  Handler* handler = nullptr;
  RouteOptions options;
  std::string allow;  // the header Allow
  size_t index = 0;   // in the table
};

// Filled before the server starts, then read by all loops. Handlers outlive it.
class RouteTable {
 public:
  RouteTable() = default;
  RouteTable(const RouteTable&) = delete;
  RouteTable& operator=(const RouteTable&) = delete;

  // REQUIRES: `path` is not in the table.
  void Add(std::string_view path, Handler& handler, const RouteOptions& options);
  // Serves all paths that begin with `prefix` and have no route of their own; the longest prefix
  // wins.
  void AddPrefix(std::string_view prefix, Handler& handler, const RouteOptions& options);

  // Null: there is none.
  const Route* Find(std::string_view path) const;

  // For people: where the paths of this table are listed, or which they are.
  std::string PathsText() const;

  size_t size() const { return routes_.size(); }
  const Route& route(size_t index) const { return routes_[index]; }

 private:
  const Route& Insert(std::string_view path, bool is_prefix, Handler& handler,
                      const RouteOptions& options);

  std::deque<Route> routes_;  // a deque: they must not move
  absl::flat_hash_map<std::string, const Route*> by_path_;
  std::deque<const Route*> prefixes_;  // the longest first
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_ROUTE_H_
