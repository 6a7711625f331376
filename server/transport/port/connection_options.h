// ConnectionOptions: the time limits and accounts of a port's connections.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_CONNECTION_OPTIONS_H_
#define SLUICE_SERVER_TRANSPORT_PORT_CONNECTION_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "common/bounds.h"
#include "common/log.h"
#include "common/memory_account.h"
#include "server/access/caller.h"
#include "server/access/refusal_log.h"
#include "server/access/token_guesses.h"

namespace sluice::transport {

struct ConnectionOptions {
  explicit ConnectionOptions(const char* name) : metrics_name(name) {}

  // Names the port's connections and sheds in the metrics, and the port in the log.
  const char* metrics_name;
  // What all connections hold is counted here; null: nowhere. Over its limit, requests are refused.
  // Outlives the port.
  common::MemoryBudget* memory = nullptr;
  // The clients that are served; null: all callers. Outlives the port.
  const access::Clients* clients = nullptr;
  // When callers with a wrong token are refused; null: at once. Outlives the port.
  access::TokenGuesses* guesses = nullptr;
  // Gets the calls of the control plane that are refused; null: nothing does. Outlives the port.
  access::RefusalLog* refusals = nullptr;
  // Bytes of a connection that the transport does not see: its stream, and TLS.
  size_t connection_bytes = size_t{2} << 10;
  // Bytes of the calls of a loop that last (watches). Above, those of connections are refused that
  // would hold more than bounds::kMinConnectionWatchBytes.
  size_t max_loop_lasting_bytes = common::bounds::kMaxPortWatchBytes;
  // A call that waited longer than this between its arrival and its turn is refused with
  // RESOURCE_EXHAUSTED, as far as the ShedBudget allows. 0: never.
  int64_t max_queue_ns = int64_t{100} * 1'000'000;
  // A connection or a call whose peer takes no byte of its responses for this long is ended.
  int64_t stall_timeout_ns = common::bounds::kDefaultStallTimeoutNs;
  // Gets a line for each connection that is closed for what it holds; null: none. Outlives the
  // port.
  common::Log* log = nullptr;
  // How long a connection that ended is still read, so that the peer gets our last bytes.
  int64_t linger_ns = int64_t{2} * 1'000'000'000;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_CONNECTION_OPTIONS_H_
