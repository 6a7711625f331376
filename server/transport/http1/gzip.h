// Compresses the bodies of responses (RFC 1952).
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_GZIP_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_GZIP_H_

#include <string>
#include <string_view>

#include "server/transport/http1/answer.h"
#include "server/transport/http1/request.h"

namespace sluice::http1 {

// Whether the client takes gzip (Accept-Encoding).
bool AcceptsGzip(const Request& request);

// `level`: 1 (fastest) to 9.
std::string Gzip(std::string_view bytes, int level);

// Compresses the answer's body if that is worthwhile, and the client takes it.
void CompressFor(const Request& request, Answer* answer);

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_GZIP_H_
