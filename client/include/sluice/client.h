// Client: asks Sluice for permits.
//
//   auto client = sluice::Client::Create({.servers = {"127.0.0.1:7200"}});
//   if (!client.ok()) { ... client.status() ... }
//   auto decision = client->Acquire("api", "user:42");
//   if (!decision.ok()) { ... unknown limit, bad key ... }
//   if (decision->granted) { ... do the work ... } else { ... decision->retry_after ... }
//
// An error (Result without a value) is the program's mistake or the server's fault: unknown
// limit, bad argument, internal error. A denial is a Decision. That no server decided in time
// (away, hanging, draining, shedding) is a Decision too, made by on_unavailable, with source
// kUnavailable and the status that says why.
#ifndef SLUICE_CLIENT_H_
#define SLUICE_CLIENT_H_

#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/connection.h"
#include "sluice/decision.h"
#include "sluice/options.h"
#include "sluice/status.h"
#include "sluice/stream.h"

namespace sluice {

// Thread-safe: one for the whole program. Movable. Callbacks run on a thread of the client's: do
// not block there, and do not destroy the client there.
class Client {
 public:
  // Checks the options and reads the TLS files; connects when the first call comes.
  // INVALID_ARGUMENT: no servers, an address that is none, a file that cannot be read.
  static Result<Client> Create(ClientOptions options = {});

  // On a connection of your own, which serves this client alone. options.servers, tls and token
  // are not looked at.
  explicit Client(std::shared_ptr<Connection> connection, ClientOptions options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  // Cancels what is under way; every callback has run when it returns.
  ~Client();

  // Blocking. Takes the permits now, or is denied.
  Result<Decision> Acquire(const Acquisition& acquisition, const CallOptions& options = {});
  Result<Decision> Acquire(std::string_view limit, std::string_view key, uint64_t permits = 1,
                           const CallOptions& options = {});

  // Blocking. Zero: granted. Else how long to sleep before the next try.
  Result<std::chrono::nanoseconds> TryAcquire(std::string_view limit, std::string_view key,
                                              uint64_t permits = 1,
                                              const CallOptions& options = {});

  // Never block.
  void AcquireAsync(Acquisition acquisition, Callback<Decision> done,
                    const CallOptions& options = {});
  std::future<Result<Decision>> AcquireFuture(Acquisition acquisition,
                                              const CallOptions& options = {});

  // Independent acquisitions, at most 4096, decided in their order; each with an error of its own.
  Result<BatchDecisions> AcquireBatch(std::span<const Acquisition> batch,
                                      const CallOptions& options = {});
  void AcquireBatchAsync(std::vector<Acquisition> batch, Callback<BatchDecisions> done,
                         const CallOptions& options = {});

  // Takes nothing. 1 to 256 buckets; answered in their order.
  Result<std::vector<BucketStatus>> Query(std::span<const Bucket> buckets,
                                          const CallOptions& options = {});
  void QueryAsync(std::vector<Bucket> buckets, Callback<std::vector<BucketStatus>> done,
                  const CallOptions& options = {});

  // Gives back what an acquisition took, once. The second form asks the server that granted it.
  Result<RefundResult> Refund(std::string_view receipt, const CallOptions& options = {});
  Result<RefundResult> Refund(const Decision& decision, CallOptions options = {});
  void RefundAsync(std::string receipt, Callback<RefundResult> done,
                   const CallOptions& options = {});

  // First a full answer, then what changed. Ends with on_closed: when the handle is cancelled or
  // destroyed, or the connection breaks. Not reopened by itself.
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events);

  // The fast path; see stream.h.
  AcquireStream OpenStream(const StreamOptions& options = {});

 private:
  std::shared_ptr<client_internal::ClientCore> core_;
};

}  // namespace sluice

#endif  // SLUICE_CLIENT_H_
