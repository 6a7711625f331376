// How a client behaves. Each option says what it means, its default and its unit.
#ifndef SLUICE_OPTIONS_H_
#define SLUICE_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// What an acquisition answers when no server decided it in time.
enum class OnUnavailable {
  kDeny,   // not granted: never more than the limit
  kAllow,  // granted: the caller's work goes on without limits
};

// Files are read once, when the client is made.
struct TlsOptions {
  // TLS is used if this is set, or any of the files below.
  bool enabled = false;
  std::string ca_file = {};    // PEM; empty: the system's roots
  std::string cert_file = {};  // PEM, with key_file: the client's own certificate (mTLS)
  std::string key_file = {};
  // The name to expect in the server's certificate; empty: the host of the address.
  std::string server_name = {};

  bool in_use() const {
    return enabled || !ca_file.empty() || !cert_file.empty() || !key_file.empty();
  }
};

// What is tried again is never what may have been executed: see docs/client.md.
struct RetryOptions {
  // Attempts of one call in all, at least 1 (1: never retry). All share the call's deadline.
  int max_attempts = 3;
  // Pause before the second attempt, if there is no other server to go to; doubled for each
  // further one, up to max_backoff, and spread by up to a half either way.
  std::chrono::nanoseconds initial_backoff = std::chrono::milliseconds(20);
  std::chrono::nanoseconds max_backoff = std::chrono::seconds(1);
};

struct ClientOptions {
  // HOST:PORT or unix:PATH each. Calls go round them; one that cannot be reached is left out for
  // a while.
  std::vector<std::string> servers = {"127.0.0.1:7200"};
  TlsOptions tls = {};
  // Sent as `authorization: Bearer ...`; empty: none.
  std::string token = {};
  // How long a call may take, retries included, unless CallOptions says otherwise.
  std::chrono::nanoseconds deadline = std::chrono::seconds(1);
  OnUnavailable on_unavailable = OnUnavailable::kDeny;
  // retry_after of a Decision with source kUnavailable.
  std::chrono::nanoseconds unavailable_retry_after = std::chrono::milliseconds(100);
  RetryOptions retry = {};
};

// One call's own wishes.
struct CallOptions {
  std::optional<std::chrono::nanoseconds> deadline = {};
  std::optional<OnUnavailable> on_unavailable = {};
  // Index into ClientOptions::servers. Without it: round robin. Refund needs the server that
  // granted, unless the servers share a store.
  std::optional<uint32_t> server = {};
};

struct StreamOptions {
  // Acquisitions of one message; 1 to 4096.
  size_t max_batch = 1024;
  // Messages sent and not yet answered; at least 1. While as many are out, acquisitions gather
  // and go together as the next message.
  size_t max_in_flight = 2;
  // Acquisitions that wait to be sent; one more is answered at once, RESOURCE_EXHAUSTED.
  size_t max_queue = 65536;
  // From Submit to the answer; absent: ClientOptions::deadline. When an acquisition that was sent
  // has no answer by then, the connection is taken to be dead and opened anew.
  std::optional<std::chrono::nanoseconds> deadline = {};
  std::optional<OnUnavailable> on_unavailable = {};
};

struct WatchOptions {
  // Least time between two answers: 10 ms to 1 h.
  std::chrono::nanoseconds min_interval = std::chrono::seconds(1);
};

}  // namespace sluice

#endif  // SLUICE_OPTIONS_H_
