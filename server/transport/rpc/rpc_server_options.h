// RpcServerOptions: time limits and bounds of an RpcServer.
#ifndef SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_OPTIONS_H_
#define SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "server/transport/http2/http2_session.h"

namespace sluice::transport {

struct RpcServerOptions {
  // Names the server's connections and sheds in the metrics.
  const char* metrics_name = "h2";
  Http2Options http2;
  // A call that waited longer than this between its arrival and its turn is refused with
  // RESOURCE_EXHAUSTED, as far as the ShedBudget allows. 0: never.
  int64_t max_queue_ns = int64_t{100} * 1'000'000;
  // From a request's headers to its end, for methods that take one message.
  int64_t request_timeout_ns = int64_t{30} * 1'000'000'000;
  // Bytes of unfinished requests, and of unsent responses, of one connection. Above, its calls are
  // refused with RESOURCE_EXHAUSTED.
  size_t max_connection_buffered_bytes = size_t{32} << 20;
  size_t max_connection_unsent_bytes = size_t{8} << 20;
  // Bytes of unfinished requests of all connections of a loop.
  size_t max_loop_buffered_bytes = size_t{256} << 20;
  // A connection's output above which no more frames are made until the peer has read. At most
  // the stream's own high-water mark.
  size_t output_bytes = size_t{256} << 10;
  // How long a connection that ended is still read, so that the peer gets our last bytes.
  int64_t linger_ns = int64_t{2} * 1'000'000'000;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_RPC_RPC_SERVER_OPTIONS_H_
