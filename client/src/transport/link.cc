#include "client/src/transport/link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/src/transport/connect_advice.h"

namespace sluice::client_internal {
namespace {

using std::chrono::steady_clock;

// Calls that would add to more output than this wait.
constexpr size_t kMaxOutput = size_t{4} << 20;
// How long a server may leave a PING without an answer, while calls end without one too.
constexpr std::chrono::seconds kPingTimeout{5};

int64_t Nanoseconds(TimePoint time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace

Link::Link(Events& events, const RequestHeaders& headers, const TransportOptions& options,
           std::unique_ptr<Channel> to)
    : channel(std::move(to)),
      wake_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      events_(events),
      headers_(headers),
      keepalive_(options.keepalive),
      last_received_(steady_clock::now()) {
  session_ = std::make_unique<http2::ClientSession>(
      http2::SessionOptions(), *this, Nanoseconds(last_received_), options.first_stream_id);
}

Link::~Link() { close(wake_fd); }

Status Link::Greet(TimePoint deadline, const DialCancel& cancel) {
  const auto broken = [](const std::string& cause) {
    return Status(StatusCode::kUnavailable, cause);
  };
  while (true) {
    CollectOutput();
    TakeOutput();
    while (!in_flight.empty()) {
      const Channel::IoResult wrote = channel->Write({in_flight.data(), in_flight.size()});
      if (wrote.io == Channel::Io::kClosed) break;  // reading tells why
      if (wrote.io == Channel::Io::kDone) {
        in_flight.Consume(wrote.bytes);
      } else if (!AwaitSocket(channel->fd(), /*write=*/true, deadline, cancel)) {
        return broken("no answer in time");
      }
    }
    if (greeted_) return Status();
    const Channel::IoResult read = channel->Read(input);
    if (read.io == Channel::Io::kClosed) return broken(channel->error());
    if (read.io == Channel::Io::kBlocked) {
      if (AwaitSocket(channel->fd(), /*write=*/false, deadline, cancel)) continue;
      return broken("the server sent no HTTP/2 SETTINGS in time");
    }
    Receive({input.data(), read.bytes}, steady_clock::now());
    if (session_->ended()) {
      return broken(std::string(kServerHungUp) +
                    ", or does not speak HTTP/2: " + std::string(session_->error_text()));
    }
  }
}

bool Link::has_room() const {
  return usable() && session_->can_open() && output_.size() + in_flight.size() < kMaxOutput;
}

bool Link::usable() const {
  if (session_ == nullptr || session_->ended() || session_->going_away() || write_failed) {
    return false;
  }
  // Else its stream ids are used up.
  return session_->can_open() || session_->open_streams() >= session_->peer_max_streams();
}

void Link::Open(CallStream& call) {
  call.link = this;
  call.state = CallStream::State::kOpen;
  calls(call.blocking).PushBack(call);
  session_->Submit(call, /*has_body=*/true);
}

void Link::Leave(CallStream& call) { calls(call.blocking).Remove(call); }

void Link::CollectOutput() {
  if (session_ == nullptr) return;
  while (session_->Send(SIZE_MAX, &output_)) {
  }
}

void Link::WakeLeader() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_fd, &one, sizeof(one));
}

bool Link::TakeOutput() {
  if (output_.empty()) return false;
  // Counted before it is written: another thread may look meanwhile.
  collected_ += output_.size();
  written_ += output_.size();
  output_.Swap(in_flight);
  return true;
}

void Link::Receive(std::span<const uint8_t> bytes, TimePoint now) {
  last_received_ = now;
  session_->Receive({bytes.data(), bytes.size()}, Nanoseconds(now));
}

bool Link::NoteTimeout(TimePoint now) {
  if (session_ == nullptr) return true;
  // Not more often: PINGs in a row are a flood.
  if (now - ping_sent_ < std::min<std::chrono::nanoseconds>(kPingTimeout, keepalive_.timeout)) {
    return true;
  }
  if (unanswered()) return false;
  Ping(now);
  return true;
}

TimePoint Link::keepalive_at() const {
  if (session_ == nullptr || keepalive_.time.count() == 0) return TimePoint::max();
  if (unanswered()) return ping_sent_ + keepalive_.timeout;
  return std::max(last_received_, ping_sent_) + keepalive_.time;
}

bool Link::KeepAlive(TimePoint now) {
  if (now < keepalive_at()) return true;
  if (unanswered()) return false;
  Ping(now);
  return true;
}

void Link::Ping(TimePoint now) {
  ping_open_ = true;
  ping_sent_ = now;
  session_->Ping(0);
}

void Link::Break(std::string cause) {
  cause_ = std::move(cause);
  session_ = nullptr;
  channel->ShutDown();
}

void Link::OnStreamClosed(http2::Stream& stream, const http2::StreamEnd& end) {
  auto& call = static_cast<CallStream&>(stream);
  Leave(call);
  events_.OnCallClosed(call, end);
}

void Link::OnSettings() {
  if (std::exchange(greeted_, true)) events_.OnRoomChanged(*this);
}

void Link::OnGoaway(int32_t, http2::ErrorCode, std::string_view) { events_.OnRoomChanged(*this); }

}  // namespace sluice::client_internal
