// ShedBudget: bounds the part of a loop's work that goes into refusing calls.
//
// Refusing a small call costs nearly as much as serving it, since both must parse it. A server that
// refused all its excess would do little else. So each message that is served earns a little, and
// each refusal costs much: about a sixtieth of the work goes into refusals. The excess beyond them
// is served late, and waits at its senders. Of large batches, most that come late are refused.
//
// Counts in bytes of message. Starts full. Not thread-safe.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_SHED_BUDGET_H_
#define SLUICE_SERVER_TRANSPORT_PORT_SHED_BUDGET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice::transport {

// What a call is told that waited too long for its turn.
inline constexpr char kShed[] =
    "the server sheds load: this call waited too long for its turn; nothing was done";

class ShedBudget {
 public:
  // A message is served.
  void Earn(size_t message_bytes) {
    left_ = std::min(kMax, left_ + kCallBytes + static_cast<int64_t>(message_bytes));
  }
  // Returns whether a call may be refused, and takes the price.
  bool Spend() {
    if (left_ < kPrice) return false;
    left_ -= kPrice;
    return true;
  }

 private:
  // A call, served or refused, costs about as much as this many bytes of message.
  static constexpr int64_t kCallBytes = 160;
  static constexpr int64_t kPrice = 64 * kCallBytes;
  static constexpr int64_t kMax = 1024 * kPrice;

  int64_t left_ = kMax;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_SHED_BUDGET_H_
