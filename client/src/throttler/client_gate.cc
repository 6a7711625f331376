// Throttlers against a server. One stream books the grant times, which keeps their order. A grant
// time counts from the arrival of its answer, so no function starts before its grant time at the
// server.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/src/throttler/core.h"
#include "client/src/throttler/gate.h"
#include "sluice/client.h"
#include "sluice/throttler.h"

namespace sluice {
namespace throttler_internal {
namespace {

using std::chrono::nanoseconds;

class ClientGate final : public Gate {
 public:
  ClientGate(Client& client, std::optional<AcquireStream>& stream, std::shared_ptr<Clock> clock,
             std::string limit, std::string key)
      : client_(client),
        stream_(stream),
        clock_(std::move(clock)),
        limit_(std::move(limit)),
        key_(std::move(key)) {}

  nanoseconds Try(uint64_t permits, Status* error) override {
    const Result<Decision> decision = client_.Acquire(limit_, key_, permits);
    if (!decision.ok()) {
      *error = decision.status();
      return nanoseconds(-1);
    }
    if (decision->granted) return nanoseconds(0);
    if (decision->source == Source::kUnavailable) {
      *error = decision->status;
      return nanoseconds(-1);
    }
    return std::max(decision->retry_after, nanoseconds(1));
  }

  void Book(uint64_t permits, nanoseconds max_wait, std::function<void(Booking)> done) override {
    Acquisition acquisition(limit_, key_, permits);
    acquisition.max_wait = max_wait;
    // A grant without a wait may be refunded too.
    acquisition.want_receipt = true;
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): set until the source is closed.
    stream_->Submit(std::move(acquisition),
                    [clock = clock_, permits, done = std::move(done)](Result<Decision> decision) {
                      done(ToBooking(std::move(decision), permits, *clock));
                    });
  }

  bool Refund(const Booking& booking) override {
    if (booking.receipt.empty()) return false;
    CallOptions options;
    options.server = booking.server;
    // If it fails, the permits stay taken, which never exceeds the limit.
    client_.RefundAsync(booking.receipt, [](const Result<RefundResult>&) {}, options);
    return false;
  }

  // A grant time that a server gave is final.
  bool MoveUp(Booking*) override { return false; }

 private:
  static Booking ToBooking(Result<Decision> decision, uint64_t permits, const Clock& clock) {
    Booking booking;
    booking.permits = permits;
    if (!decision.ok()) {
      booking.status = decision.status();
    } else if (decision->granted) {
      booking.grant_time = clock.Now() + decision->wait;
      booking.receipt = std::move(decision->receipt);
      booking.server = decision->server;
    } else if (decision->source == Source::kUnavailable) {
      booking.status = decision->status;
    } else {
      const bool bound = std::any_of(
          decision->charges.begin(), decision->charges.end(), [](const ChargeStatus& charge) {
            return charge.reason == Reason::kWaitingBound || charge.reason == Reason::kOverflow;
          });
      booking.status =
          Status(bound ? StatusCode::kResourceExhausted : StatusCode::kDeadlineExceeded,
                 std::string(bound ? "too many reservations wait for the limit already"
                                   : "the limit has no grant time within max_wait") +
                     "; try again in " + std::to_string(decision->retry_after.count()) + " ns");
    }
    return booking;
  }

  Client& client_;
  std::optional<AcquireStream>& stream_;  // of the source; set until that is closed
  const std::shared_ptr<Clock> clock_;
  const std::string limit_;
  const std::string key_;
};

class ClientSource final : public GateSource {
 public:
  ClientSource(Client& client, std::shared_ptr<Clock> clock, size_t max_waiting)
      : client_(client),
        clock_(std::move(clock)),
        // Submissions that were cancelled stay in it until they are answered.
        stream_(
            client.OpenStream({.max_queue = std::max(max_waiting, StreamOptions().max_queue)})) {}

  const std::shared_ptr<Clock>& clock() const override { return clock_; }
  bool in_process() const override { return false; }

  Result<std::unique_ptr<Gate>> Open(std::string limit, std::string key) override {
    return std::unique_ptr<Gate>(
        std::make_unique<ClientGate>(client_, stream_, clock_, std::move(limit), std::move(key)));
  }

  // Acquisitions without an answer get CANCELLED.
  void Close() override { stream_.reset(); }

 private:
  Client& client_;
  const std::shared_ptr<Clock> clock_;
  std::optional<AcquireStream> stream_;
};

}  // namespace
}  // namespace throttler_internal

Result<Throttler> Throttler::Create(Client& client, ThrottlerOptions options) {
  std::shared_ptr<Clock> clock = std::move(options.clock);
  if (clock == nullptr) clock = std::make_shared<SystemClock>();
  auto source = std::make_unique<throttler_internal::ClientSource>(client, std::move(clock),
                                                                   options.max_waiting);
  return throttler_internal::Core::MakeThrottler(std::move(source), std::move(options));
}

}  // namespace sluice
