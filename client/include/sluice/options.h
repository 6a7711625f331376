// Options of clients, calls and streams.
#ifndef SLUICE_OPTIONS_H_
#define SLUICE_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// The decision when no server decided in time.
enum class OnUnavailable {
  kDeny,   // deny: the limit is never exceeded
  kAllow,  // grant: the work continues, without limits
};

// Files are read once, when the client is created.
struct TlsOptions {
  // Use TLS. Setting any of the files below implies it.
  bool enabled = false;
  std::string ca_file = {};    // PEM; empty: the system's roots
  std::string cert_file = {};  // PEM, with key_file: the client's own certificate (mTLS)
  std::string key_file = {};
  // The expected name in the server's certificate; empty: the host of the address.
  std::string server_name = {};

  bool in_use() const {
    return enabled || !ca_file.empty() || !cert_file.empty() || !key_file.empty();
  }
};

// An acquisition that a server may have executed is retried only with a request id (exactly_once):
// see docs/client.md.
struct RetryOptions {
  // Attempts of one call, including the first; at least 1 (1: never retry). All share the call's
  // deadline. With a request id it is retried until its deadline, if it has one.
  int max_attempts = 3;
  // The pause before the second attempt if there is no other server. It doubles for each further
  // attempt, up to max_backoff, and is randomized by up to 50 % either way.
  std::chrono::nanoseconds initial_backoff = std::chrono::milliseconds(20);
  std::chrono::nanoseconds max_backoff = std::chrono::seconds(1);
};

// PINGs that find a server which no longer answers, as gRPC's keepalive does. They are sent only
// while calls are open, so a watch ends although it has no deadline.
struct KeepaliveOptions {
  // Send a PING when nothing has arrived for so long: 10 s to 24 h; 0: never. Servers close
  // connections that send many: those of gRPC allow one in 5 minutes, unless answers flow.
  std::chrono::nanoseconds time = std::chrono::seconds(330);
  // The connection is considered dead when nothing arrives for so long after a PING; its calls end
  // with UNAVAILABLE. 1 s to 1 h.
  std::chrono::nanoseconds timeout = std::chrono::seconds(20);
};

struct ClientOptions {
  // HOST:PORT, [IPV6]:PORT or unix:PATH. Calls go round robin; a server that cannot be reached is
  // skipped for 0.1 to 5 s. A name is looked up for each connection, and all its addresses tried.
  std::vector<std::string> servers = {"127.0.0.1:7200"};
  TlsOptions tls = {};
  // Sent as `authorization: Bearer ...`; empty: none.
  std::string token = {};
  // The time for a call including its retries, unless CallOptions has another. nanoseconds::max():
  // no deadline.
  std::chrono::nanoseconds deadline = std::chrono::seconds(1);
  OnUnavailable on_unavailable = OnUnavailable::kDeny;
  // Of Acquire and AcquireBatch; see CallOptions.
  bool exactly_once = false;
  // retry_after of a Decision with source kUnavailable.
  std::chrono::nanoseconds unavailable_retry_after = std::chrono::milliseconds(100);
  RetryOptions retry = {};
  KeepaliveOptions keepalive = {};
};

// Options of one call; absent ones are the client's.
struct CallOptions {
  std::optional<std::chrono::nanoseconds> deadline = {};
  std::optional<OnUnavailable> on_unavailable = {};
  // Acquire and AcquireBatch: give each acquisition without a request_id a random one, and retry
  // also what may have been executed, until the deadline. The permits are taken once. Several
  // servers must share a Redis: one with a store of its own knows nothing of the others' grants.
  std::optional<bool> exactly_once = {};
  // Index into ClientOptions::servers; absent: round robin. Refund needs the server that granted,
  // unless the servers share a store.
  std::optional<uint32_t> server = {};
};

struct StreamOptions {
  // The most acquisitions in one message; 1 to 4096.
  size_t max_batch = 1024;
  // The most messages without an answer; at least 1. At this bound, acquisitions queue up and are
  // sent together as the next message.
  size_t max_in_flight = 2;
  // The most acquisitions in the queue; the next one fails at once with RESOURCE_EXHAUSTED.
  size_t max_queue = 65536;
  // The time from Submit to the answer; absent: ClientOptions::deadline. If an acquisition that was
  // sent has no answer by then, all that was in flight fails, the connection is asked with a PING
  // whether it is dead, and the next stream is opened.
  std::optional<std::chrono::nanoseconds> deadline = {};
  std::optional<OnUnavailable> on_unavailable = {};
};

struct WatchOptions {
  // The least time between two updates: 10 ms to 1 h.
  std::chrono::nanoseconds min_interval = std::chrono::seconds(1);
};

}  // namespace sluice

#endif  // SLUICE_OPTIONS_H_
