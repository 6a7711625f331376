// Describes the HTTP API as an OpenAPI 3.1 document, from the descriptors of its RPCs.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_OPENAPI_H_
#define SLUICE_SERVER_TRANSPORT_WEB_OPENAPI_H_

#include <string>
#include <string_view>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace sluice::web {

// Each RPC of `services` without a stream of requests is a POST at PathOf(rpc); /v1/check is added.
std::string MakeOpenApi(const std::vector<const google::protobuf::ServiceDescriptor*>& services,
                        std::string_view version);

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_OPENAPI_H_
