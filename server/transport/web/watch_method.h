// Watch over HTTP: a stream of server-sent events, one for each QueryResponse.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_WATCH_METHOD_H_
#define SLUICE_SERVER_TRANSPORT_WEB_WATCH_METHOD_H_

#include <memory>

#include "server/service/bucket_watch.h"
#include "server/transport/http1/route.h"
#include "server/transport/web/json_call.h"

namespace sluice::web {

// POST with a WatchRequest. An event's data is a QueryResponse in JSON. The event `error`, with a
// problem document, is the last one. A reader that is behind gets the changes later, gathered.
//
// Thread-safe, as JsonMethod. The hub outlives it.
std::unique_ptr<http1::Handler> MakeWatchMethod(const JsonMethod::Options& options,
                                                service::WatchHub& hub);

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_WATCH_METHOD_H_
