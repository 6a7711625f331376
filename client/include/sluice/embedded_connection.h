// ConnectEmbedded: lets a Client decide in this process, by the limits of an Embedded, without a
// server.
//
//   auto embedded = sluice::Embedded::Create(
//       {{.name = "jobs", .algorithm = "concurrency", .permits = 5}});
//   sluice::Client client(sluice::ConnectEmbedded(*embedded));
//   auto permit = client.AcquirePermit(sluice::Acquisition("jobs", "tenant:7"));
//
// Supports all that a Client does over a server, except streams and watches: permits, estimates,
// several charges, reservations, held calls (Acquisition::hold), refunds, request ids. Throttlers
// and clients of one Embedded share its buckets.
#ifndef SLUICE_EMBEDDED_CONNECTION_H_
#define SLUICE_EMBEDDED_CONNECTION_H_

#include <memory>

#include "sluice/connection.h"
#include "sluice/embedded.h"

namespace sluice {

// The connection of one Client; any number of them share an Embedded, and keep it alive. Calls
// answer within the call, except those that wait (Acquisition::hold). Its clock is
// EmbeddedOptions::clock, whose thread runs the other callbacks: with a VirtualClock another thread
// has to advance it.
std::shared_ptr<Connection> ConnectEmbedded(std::shared_ptr<Embedded> embedded);

}  // namespace sluice

#endif  // SLUICE_EMBEDDED_CONNECTION_H_
