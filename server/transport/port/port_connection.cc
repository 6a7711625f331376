#include "server/transport/port/port_connection.h"

#include <utility>

#include "common/bounds.h"
#include "common/net/timer_wheel.h"
#include "server/transport/port/port_loop.h"

namespace sluice::transport {
namespace {

// Connections with less memory than this are not worth a look when memory is short.
constexpr size_t kHeavyBytes = 64 << 10;
// About the most that a call holds between its slices for each byte of its request: an acquisition
// of two or three bytes is an error of some 250.
constexpr size_t kMostHeldPerByte = 100;
// Stalls are looked for this often within the time-out.
constexpr int64_t kStallChecks = 32;
// Units of work (net::WorkQueue) to recognise a caller: its certificate is read, or its token
// hashed.
constexpr int64_t kRecogniseUnits = 50;
// To forget some of what a service keeps.
constexpr int64_t kForgetUnits = 50;

}  // namespace

PortConnection::PortConnection(PortLoop& loop, net::Stream& stream)
    : loop_(loop), stream_(stream), callers_(loop.clients()) {
  loop_.CountOpened();
}

PortConnection::~PortConnection() {
  if (lasting_ != nullptr) lasting_->LeaveConnection();
  if (cancelled_ != nullptr) cancelled_->LeaveConnection();
  loop_.AddSettled(-static_cast<int64_t>(settled_bytes_));
  loop_.CountClosed();
}

void PortConnection::Recognise(std::string_view authorization) {
  Spend(kRecogniseUnits);
  callers_.Recognise(stream_, authorization);
}

LastingBytes& PortConnection::lasting() {
  if (lasting_ == nullptr) {
    lasting_ = std::make_shared<LastingBytes>(loop_, *this, /*bounded=*/true);
  }
  return *lasting_;
}

std::shared_ptr<void> PortConnection::HoldCancelled(size_t bytes) {
  if (cancelled_ == nullptr) {
    cancelled_ = std::make_shared<LastingBytes>(loop_, *this, /*bounded=*/false);
  }
  return cancelled_->Hold(bytes);
}

bool PortConnection::HasRoomToLast(size_t bytes) const {
  const size_t mine = (lasting_ != nullptr ? lasting_->bytes() : 0) + bytes;
  if (mine <= common::bounds::kMinConnectionWatchBytes) return true;
  return mine <= common::bounds::kMaxConnectionWatchBytes && loop_.HasRoomToLast(bytes);
}

size_t PortConnection::kept_memory() const {
  return (lasting_ != nullptr ? lasting_->bytes() : 0) + cancelled_bytes() +
         (service_state_ != nullptr ? service_state_->memory() : 0);
}

void PortConnection::ForgetSome() {
  if (service_state_ == nullptr || !service_state_->ForgetSome(loop_.loop().now_ns())) return;
  Spend(kForgetUnits);
  loop_.loop().work().Add(*this);
}

void PortConnection::Settle(size_t bytes) {
  loop_.AddSettled(static_cast<int64_t>(bytes - settled_bytes_));
  settled_bytes_ = bytes;
  loop_.MarkHeavy(*this, bytes >= kHeavyBytes);
}

bool PortConnection::RefusesCall(size_t request_bytes) const {
  return loop_.RefusesCallOf(settled_bytes_ + kMostHeldPerByte * request_bytes);
}

void PortConnection::CloseOverMemory() {
  if (closed()) return;
  loop_.CountClosedOverMemory(stream_, settled_bytes_);
  // A peer that takes its last bytes slowly would hold them for long.
  if (!closing()) EndWork();
  stream_.Abort(absl::ResourceExhaustedError("the server holds too much memory"));
}

void PortConnection::PlanStallCheck() {
  if (stall_check_.armed()) return;
  acknowledged_ns_ = loop_.loop().now_ns();
  loop_.loop().Arm(stall_check_, acknowledged_ns_ + loop_.stall_timeout_ns() / kStallChecks);
}

void PortConnection::OnStallCheck() {
  if (closing()) return;
  const int64_t now_ns = loop_.loop().now_ns();
  const int64_t timeout_ns = loop_.stall_timeout_ns();
  const net::OutputProgress output = stream_.output_progress();
  const uint64_t before = std::exchange(acknowledged_bytes_, output.acknowledged);
  if (output.outstanding == 0 || output.acknowledged > before) acknowledged_ns_ = now_ns;
  if (now_ns - acknowledged_ns_ >= timeout_ns) {
    loop_.CountStalled(stream_);
    EndWork();
    stream_.Abort(absl::DeadlineExceededError("the peer takes none of its answers"));
    return;
  }
  const int64_t next_ns = CheckAnswers(output, now_ns + timeout_ns / kStallChecks);
  if (next_ns != net::TimerWheel::kNever) loop_.loop().Arm(stall_check_, next_ns);
}

}  // namespace sluice::transport
