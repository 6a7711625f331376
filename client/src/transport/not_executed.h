// MeansNotExecuted: which of a server's status codes prove that it did not execute the call.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_NOT_EXECUTED_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_NOT_EXECUTED_H_

#include "sluice/status.h"

namespace sluice::client_internal {

// Whether a server that answers with this code refused the call before it decided anything.
inline bool MeansNotExecuted(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
    case StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_NOT_EXECUTED_H_
