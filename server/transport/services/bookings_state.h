// BookingsState: the bookings that a connection is known to have made, in its account.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_BOOKINGS_STATE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_BOOKINGS_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "server/service/connection_bookings.h"
#include "server/transport/port/connection_state.h"

namespace sluice::transport {

class BookingsState final : public ConnectionState {
 public:
  // Makes the state of a connection that has none.
  static service::ConnectionBookings& Of(std::shared_ptr<ConnectionState>& state) {
    if (state == nullptr) state = std::make_shared<BookingsState>();
    return *static_cast<BookingsState&>(*state).bookings_;
  }

  size_t memory() const override { return sizeof(*this) + bookings_->memory(); }
  bool ForgetSome(int64_t now_ns) override { return bookings_->ForgetSome(now_ns); }

 private:
  const std::shared_ptr<service::ConnectionBookings> bookings_ =
      std::make_shared<service::ConnectionBookings>();
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_BOOKINGS_STATE_H_
