// Client: acquires permits from Sluice servers.
//
//   auto client = sluice::Client::Create({.servers = {"127.0.0.1:7200"}});
//   if (!client.ok()) { ... client.status() ... }
//   auto decision = client->Acquire("api", "user:42");
//   if (!decision.ok()) { ... unknown limit, bad key ... }
//   if (decision->granted) { ... do the work ... } else { ... decision->retry_after ... }
//
// A denial is a Decision, not an error. If no server decides in time (unreachable, draining, or
// RESOURCE_EXHAUSTED: overload, or a bound of this client), ClientOptions::on_unavailable makes the
// Decision; its source is kUnavailable and its status has the cause. Other failures are errors,
// that is, a Result without a value: NOT_FOUND (unknown limit), INVALID_ARGUMENT, UNAUTHENTICATED,
// PERMISSION_DENIED, FAILED_PRECONDITION, INTERNAL.
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
#include "sluice/estimate.h"
#include "sluice/options.h"
#include "sluice/permit.h"
#include "sluice/status.h"
#include "sluice/stream.h"

namespace sluice {

// Thread-safe: a program needs only one. Movable; a client that was moved from can only be
// destroyed or assigned to. Callbacks run on a thread of the client: do not block there, and do not
// destroy the client there. After fork(), calls in the child fail with FAILED_PRECONDITION: create
// a client there.
class Client {
 public:
  // Checks the options and reads the TLS files. The first call connects. INVALID_ARGUMENT: there
  // are no servers, an address or a keepalive time is invalid, or a file cannot be read.
  static Result<Client> Create(ClientOptions options = {});

  // Uses a connection that no other client uses. Ignores options.servers, tls and token.
  explicit Client(std::shared_ptr<Connection> connection, ClientOptions options = {});

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  // Cancels all calls; every callback has run when it returns. Calls that block on other threads
  // end with CANCELLED. No call may begin beside it.
  ~Client();

  // Blocks until the decision.
  Result<Decision> Acquire(const Acquisition& acquisition, const CallOptions& options = {});
  Result<Decision> Acquire(std::string_view limit, std::string_view key, uint64_t permits = 1,
                           const CallOptions& options = {});

  // Blocks until the decision. Returns zero if granted, else the time to sleep before the next try.
  Result<std::chrono::nanoseconds> TryAcquire(std::string_view limit, std::string_view key,
                                              uint64_t permits = 1,
                                              const CallOptions& options = {});

  // These never block.
  void AcquireAsync(Acquisition acquisition, Callback<Decision> done,
                    const CallOptions& options = {});
  std::future<Result<Decision>> AcquireFuture(Acquisition acquisition,
                                              const CallOptions& options = {});

  // Decides 1 to 4096 independent acquisitions in order. Each has its own decision or error.
  Result<BatchDecisions> AcquireBatch(std::span<const Acquisition> batch,
                                      const CallOptions& options = {});
  void AcquireBatchAsync(std::vector<Acquisition> batch, Callback<BatchDecisions> done,
                         const CallOptions& options = {});

  // The state of 1 to 256 buckets, in the order of `buckets`. Takes no permits.
  Result<std::vector<BucketStatus>> Query(std::span<const Bucket> buckets,
                                          const CallOptions& options = {});
  void QueryAsync(std::vector<Bucket> buckets, Callback<std::vector<BucketStatus>> done,
                  const CallOptions& options = {});

  // Returns the permits of an acquisition, once. The second form asks the server that granted it.
  Result<RefundResult> Refund(std::string_view receipt, const CallOptions& options = {});
  Result<RefundResult> Refund(const Decision& decision, CallOptions options = {});
  void RefundAsync(std::string receipt, Callback<RefundResult> done,
                   const CallOptions& options = {});

  // Holds the slots of 1 to 4096 acquisitions for longer. One outcome for each receipt, in order.
  // Refund or Settle ends a hold.
  Result<std::vector<Renewal>> Renew(std::span<const std::string> receipts,
                                     const CallOptions& options = {});
  void RenewAsync(std::vector<std::string> receipts, Callback<std::vector<Renewal>> done,
                  const CallOptions& options = {});

  // Says what the work of an acquisition with settle_within took. The same settlement may be sent
  // again: it changes nothing twice. The second form asks the server that granted it.
  Result<SettleResult> Settle(const Settlement& settlement, const CallOptions& options = {});
  Result<SettleResult> Settle(const Decision& decision, std::vector<Charge> actual,
                              CallOptions options = {});
  void SettleAsync(Settlement settlement, Callback<SettleResult> done,
                   const CallOptions& options = {});

  // Carries out up to 4096 settlements in order, all at one server (CallOptions::server). Each has
  // its own result or error; one that failed may be sent again.
  Result<BatchSettlements> SettleBatch(std::span<const Settlement> batch,
                                       const CallOptions& options = {});
  void SettleBatchAsync(std::vector<Settlement> batch, Callback<BatchSettlements> done,
                        const CallOptions& options = {});

  // Acquires slots and holds them until the permit is destroyed; see permit.h. A denial is a permit
  // that holds nothing. With Acquisition::hold it waits, and renews the slots before it answers.
  Result<Permit> AcquirePermit(const Acquisition& acquisition, PermitOptions options = {},
                               const CallOptions& call = {});
  // Never blocks.
  void AcquirePermitAsync(Acquisition acquisition, PermitOptions options, Callback<Permit> done,
                          const CallOptions& call = {});

  // Acquires permits by an estimate, to be settled with what the work took; see estimate.h. A
  // denial is an estimate that took nothing. INVALID_ARGUMENT without Acquisition::settle_within.
  Result<Estimate> AcquireEstimate(const Acquisition& acquisition, EstimateOptions options = {},
                                   const CallOptions& call = {});
  // Never blocks.
  void AcquireEstimateAsync(Acquisition acquisition, EstimateOptions options,
                            Callback<Estimate> done, const CallOptions& call = {});

  // Calls on_change with the state of all buckets, then with each change. Ends with on_closed when
  // the handle is cancelled or destroyed, or the connection breaks; it does not reconnect.
  std::unique_ptr<WatchCall> Watch(std::span<const Bucket> buckets, const WatchOptions& options,
                                   WatchEvents events);

  // For many decisions; see stream.h.
  AcquireStream OpenStream(const StreamOptions& options = {});

 private:
  void ShutDown();

  std::shared_ptr<client_internal::ClientCore> core_;
  std::shared_ptr<client_internal::HoldKeeper> keeper_;  // of the permits
};

}  // namespace sluice

#endif  // SLUICE_CLIENT_H_
