#include "sluice/permit.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "client/src/await.h"
#include "client/src/hold_keeper.h"
#include "sluice/client.h"

namespace sluice {

using client_internal::Await;
using client_internal::HeldSlots;
using std::chrono::nanoseconds;

namespace {

// The least time for which a slot of the grant is held; 0: it has no slots.
nanoseconds HeldFor(const Decision& decision) {
  nanoseconds least{0};
  for (const ChargeStatus& charge : decision.charges) {
    if (charge.held_for.count() == 0) continue;
    least = least.count() == 0 ? charge.held_for : std::min(least, charge.held_for);
  }
  return decision.granted && !decision.receipt.empty() ? least : nanoseconds(0);
}

}  // namespace

Permit::Permit(Permit&& other) noexcept
    : decision_(std::exchange(other.decision_, {})),
      released_(other.released_.load()),
      ended_(other.ended_),
      keeper_(std::move(other.keeper_)),
      slots_(std::move(other.slots_)) {}

Permit& Permit::operator=(Permit&& other) noexcept {
  if (this == &other) return *this;
  Permit ended(std::move(*this));
  decision_ = std::exchange(other.decision_, {});
  released_ = other.released_.load();
  ended_ = other.ended_;
  keeper_ = std::move(other.keeper_);
  slots_ = std::move(other.slots_);
  return *this;
}

Permit::~Permit() {
  if (slots_ == nullptr || ended_) return;
  // Also if they are lost: the server may hold them for longer than this program knows.
  keeper_->Drop(slots_);
  keeper_->End(*slots_, {}, nullptr);
}

bool Permit::held() const {
  if (!decision_.granted || released_) return false;
  return slots_ == nullptr || slots_->HeldAt(keeper_->Now());
}

nanoseconds Permit::left() const {
  if (!decision_.granted || released_) return nanoseconds(0);
  if (slots_ == nullptr) return nanoseconds::max();
  return std::max(nanoseconds(slots_->until() - keeper_->Now()), nanoseconds(0));
}

Status Permit::lost() const { return slots_ == nullptr ? Status() : keeper_->WhyLost(slots_); }

Status Permit::Release(const CallOptions& options) {
  released_ = true;
  if (slots_ == nullptr || ended_) return Status();
  keeper_->Drop(slots_);
  Status status = Await<Status>(
      [&](std::function<void(Status)> done) { keeper_->End(*slots_, options, std::move(done)); });
  ended_ = status.ok();
  return status;
}

void Permit::Forget(Wait wait) {
  released_ = true;
  ended_ = true;
  if (slots_ != nullptr) keeper_->Drop(slots_, wait == Wait::kYes);
}

Result<Permit> Client::AcquirePermit(const Acquisition& acquisition, PermitOptions options,
                                     const CallOptions& call) {
  return Await<Result<Permit>>([&](Callback<Permit> done) {
    AcquirePermitAsync(acquisition, std::move(options), std::move(done), call);
  });
}

void Client::AcquirePermitAsync(Acquisition acquisition, PermitOptions options,
                                Callback<Permit> done, const CallOptions& call) {
  const TimePoint sent = keeper_->Now();
  const bool waits = acquisition.hold;
  AcquireAsync(
      std::move(acquisition),
      [keeper = keeper_, sent, waits, on_lost = std::move(options.on_lost),
       done = std::move(done)](Result<Decision> decision) {
        if (!decision.ok()) return done(decision.status());
        const nanoseconds held_for = HeldFor(*decision);
        if (held_for.count() == 0) return done(Permit(*std::move(decision), nullptr, nullptr));
        // The slots are held from the grant time on, which a call that waits does not know.
        if (waits) return keeper->KeepRenewed(*std::move(decision), on_lost, done);
        const TimePoint from = sent + decision->wait;
        auto slots = keeper->Keep(*decision, from, held_for, on_lost);
        done(Permit(*std::move(decision), keeper, std::move(slots)));
      },
      call);
}

}  // namespace sluice
