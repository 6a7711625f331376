#include "sluice/estimate.h"

#include <utility>

#include "client/src/await.h"
#include "client/src/settlements.h"
#include "sluice/client.h"

namespace sluice {

using client_internal::Await;
using client_internal::Settlements;
using Kind = client_internal::SettlementKind;

namespace {

Status CheckEstimate(const Acquisition& acquisition, const EstimateOptions& options) {
  if (acquisition.settle_within.count() == 0) {
    return Status(
        StatusCode::kInvalidArgument,
        "acquisition.settle_within is 0; valid is the time, at most 24h, within which the "
        "estimate will be settled");
  }
  if (options.if_dropped == IfDropped::kActual && options.actual.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "EstimateOptions::actual is empty; IfDropped::kActual charges what it names");
  }
  return Status();
}

}  // namespace

Estimate& Estimate::operator=(Estimate&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  permit_ = std::move(other.permit_);
  settlements_ = std::move(other.settlements_);
  return *this;
}

Estimate::~Estimate() { Drop(); }

void Estimate::Drop() {
  if (settlements_ == nullptr) return;
  permit_.Forget(Permit::Wait::kYes);
  std::exchange(settlements_, nullptr)->Drop();
}

std::vector<Charge> Estimate::OfFirst(uint64_t actual) const {
  if (settlements_ == nullptr) return {};
  return {settlements_->OfFirst(actual)};
}

void Estimate::Send(Kind kind, std::vector<Charge> actual, Callback<SettleResult> done,
                    const CallOptions& options) {
  if (settlements_ != nullptr) {
    return settlements_->Send(kind, std::move(actual), options, std::move(done), [this, kind] {
      if (kind != Kind::kMore) permit_.Forget(Permit::Wait::kNo);
    });
  }
  if (done == nullptr) return;
  done(Status(StatusCode::kFailedPrecondition,
              granted() ? "no server granted the estimate, so nothing is charged: " +
                              decision().status.ToString()
                        : "the estimate was not granted, so there is nothing to settle"));
}

Result<SettleResult> Estimate::More(std::vector<Charge> actual, const CallOptions& options) {
  return Await<Result<SettleResult>>([&](Callback<SettleResult> done) {
    Send(Kind::kMore, std::move(actual), std::move(done), options);
  });
}
void Estimate::MoreAsync(std::vector<Charge> actual, Callback<SettleResult> done,
                         const CallOptions& options) {
  Send(Kind::kMore, std::move(actual), std::move(done), options);
}

Result<SettleResult> Estimate::Settle(std::vector<Charge> actual, const CallOptions& options) {
  return Await<Result<SettleResult>>([&](Callback<SettleResult> done) {
    Send(Kind::kLast, std::move(actual), std::move(done), options);
  });
}
void Estimate::SettleAsync(std::vector<Charge> actual, Callback<SettleResult> done,
                           const CallOptions& options) {
  Send(Kind::kLast, std::move(actual), std::move(done), options);
}

Result<SettleResult> Estimate::Refund(const CallOptions& options) {
  return Await<Result<SettleResult>>(
      [&](Callback<SettleResult> done) { Send(Kind::kRefund, {}, std::move(done), options); });
}

Result<Estimate> Client::AcquireEstimate(const Acquisition& acquisition, EstimateOptions options,
                                         const CallOptions& call) {
  return Await<Result<Estimate>>([&](Callback<Estimate> done) {
    AcquireEstimateAsync(acquisition, std::move(options), std::move(done), call);
  });
}

void Client::AcquireEstimateAsync(Acquisition acquisition, EstimateOptions options,
                                  Callback<Estimate> done, const CallOptions& call) {
  if (const Status bad = CheckEstimate(acquisition, options); !bad.ok()) return done(bad);
  PermitOptions slots = {.on_lost = std::move(options.on_lost)};
  Acquisition asked = acquisition;
  AcquirePermitAsync(
      std::move(asked), std::move(slots),
      [core = core_, acquisition = std::move(acquisition), options = std::move(options),
       done = std::move(done)](Result<Permit> permit) {
        if (!permit.ok()) return done(permit.status());
        const Decision& decision = permit->decision();
        std::shared_ptr<Settlements> settlements;
        if (decision.granted && !decision.receipt.empty()) {
          settlements = std::make_shared<Settlements>(core, acquisition, decision, options);
        }
        done(Estimate(*std::move(permit), std::move(settlements)));
      },
      call);
}

}  // namespace sluice
