// Estimate: a guard that takes permits before the work and settles them with what it took.
//
//   sluice::Acquisition call("tokens", "user:42", 4000);
//   call.settle_within = std::chrono::minutes(2);
//   auto estimate = client.AcquireEstimate(call);
//   if (!estimate.ok()) { ... unknown limit, bad key ... }
//   if (!estimate->granted()) { ... denied: estimate->decision().retry_after ... }
//   while (auto chunk = response.Next()) estimate->MoreAsync(tokens += chunk->tokens);
//   auto settled = estimate->Settle(tokens);
//
// If it is destroyed before Settle, for example by an exception, it settles as
// EstimateOptions::if_dropped says. A settlement names all that the work took, not what was added,
// so that the same one may be sent again: what the server did not answer is repeated, and charged
// once.
#ifndef SLUICE_ESTIMATE_H_
#define SLUICE_ESTIMATE_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sluice/connection.h"
#include "sluice/decision.h"
#include "sluice/options.h"
#include "sluice/permit.h"
#include "sluice/status.h"

namespace sluice {

namespace client_internal {
class Settlements;
enum class SettlementKind : uint8_t;
}  // namespace client_internal

// How an Estimate that is destroyed before Settle is settled. Before the grant time of a
// reservation it is always refunded.
enum class IfDropped {
  // What was taken stays charged: the work may have used all of it. Protects the limit.
  kCharge,
  // All comes back, as by Refund: work that fails costs nothing. After More: only what it reported
  // is charged.
  kRefund,
  // EstimateOptions::actual is charged, or what More reported if that is more.
  kActual,
};

struct EstimateOptions {
  IfDropped if_dropped = IfDropped::kCharge;
  std::vector<Charge> actual = {};  // with kActual
  // Called once with the answer to the settlement that the destructor began, on a thread of the
  // client or within the destructor: do not block there.
  std::function<void(const Result<SettleResult>&)> on_settled = {};
  // If the acquisition has slots: PermitOptions::on_lost.
  std::function<void(const Status&)> on_lost = {};
};

// Made by Client::AcquireEstimate. May outlive the client, but settles no more then.
// Thread-compatible. Settlements are sent one after the other; while one is under way, later calls
// are joined to one settlement, with the last of their numbers.
//
// Errors of More, Settle and Refund:
//   INVALID_ARGUMENT     `actual` falls, or names what the acquisition did not; or the server has
//                        started again without its state
//   FAILED_PRECONDITION  it was not granted by a server, or it is before the grant time of a
//                        reservation; of More and Refund also: it is settled
//   UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED
//                        not known whether it was carried out: call it again with the same numbers,
//                        or leave it to the destructor
class Estimate {
 public:
  // Nothing was taken.
  Estimate() = default;
  Estimate(Estimate&&) noexcept = default;
  // Drops what it had, as the destructor does.
  Estimate& operator=(Estimate&& other) noexcept;
  // Settles in the background if Settle and Refund did not, or if it is not known whether they did:
  // then it sends the same again. Repeated until it is answered, at most until 10 minutes after
  // settle_within, also by other servers of the client. A program that ends at once calls Settle.
  ~Estimate();

  const Decision& decision() const { return permit_.decision(); }
  bool granted() const { return decision().granted; }

  // The slots of the same acquisition. They are renewed until Settle, Refund or the destructor ends
  // them; held() says whether they are lost. After a settlement that was sent they are not renewed,
  // also if the server refuses it.
  const Permit& permit() const { return permit_; }

  // Reports the total used so far (`actual`) while the work continues: permits beyond the estimate
  // are charged, nothing is given back, and settle_within starts again. A number is for the first
  // charge. Charges that no call names stay as taken. Blocks until the answer.
  Result<SettleResult> More(std::vector<Charge> actual, const CallOptions& options = {});
  template <std::integral Number>
  Result<SettleResult> More(Number actual, const CallOptions& options = {}) {
    return More(OfFirst(static_cast<uint64_t>(actual)), options);
  }
  // Never block. `done` may be null.
  void MoreAsync(std::vector<Charge> actual, Callback<SettleResult> done = {},
                 const CallOptions& options = {});
  template <std::integral Number>
  void MoreAsync(Number actual, Callback<SettleResult> done = {}, const CallOptions& options = {}) {
    MoreAsync(OfFirst(static_cast<uint64_t>(actual)), std::move(done), options);
  }

  // Reports the total used by the finished work, named as for More: unused permits come back, the
  // excess is charged, and slots end. Blocks until the answer.
  Result<SettleResult> Settle(std::vector<Charge> actual, const CallOptions& options = {});
  template <std::integral Number>
  Result<SettleResult> Settle(Number actual, const CallOptions& options = {}) {
    return Settle(OfFirst(static_cast<uint64_t>(actual)), options);
  }
  // Never block. `done` may be null.
  void SettleAsync(std::vector<Charge> actual, Callback<SettleResult> done = {},
                   const CallOptions& options = {});
  template <std::integral Number>
  void SettleAsync(Number actual, Callback<SettleResult> done = {},
                   const CallOptions& options = {}) {
    SettleAsync(OfFirst(static_cast<uint64_t>(actual)), std::move(done), options);
  }

  // The work never ran: all permits come back. Blocks until the answer. kAlreadySettled: it was
  // refunded before; kLate: nothing was left to give back. Not after More.
  Result<SettleResult> Refund(const CallOptions& options = {});

 private:
  friend class Client;
  Estimate(Permit permit, std::shared_ptr<client_internal::Settlements> settlements)
      : permit_(std::move(permit)), settlements_(std::move(settlements)) {}

  void Drop();
  std::vector<Charge> OfFirst(uint64_t actual) const;
  void Send(client_internal::SettlementKind kind, std::vector<Charge> actual,
            Callback<SettleResult> done, const CallOptions& options);

  Permit permit_;
  // Null: no server granted it.
  std::shared_ptr<client_internal::Settlements> settlements_;
};

}  // namespace sluice

#endif  // SLUICE_ESTIMATE_H_
