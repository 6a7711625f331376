#include "common/net/socket_stream.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice::net {
namespace {

// What is watched for input: the peer's end, too.
constexpr uint32_t kInput = EPOLLIN | EPOLLRDHUP;

absl::Status Broken(int error) {
  return absl::UnavailableError(absl::StrCat("the connection broke: ", std::strerror(error)));
}

}  // namespace

SocketStream::SocketStream(EventLoop& loop, const StreamOptions& options)
    : loop_(loop), options_(options), output_(loop.buffers()) {
  loop.AddResident(*this);
  loop.counters().streams.Add();
}

SocketStream::~SocketStream() {
  // Closing alone is not enough: a forked child that has not called exec has a copy of the
  // descriptor, so that epoll would still report events of the destroyed stream.
  Unwatch();
  if (fd_ >= 0) close(fd_);
  loop_.counters().streams.Subtract();
  loop_.counters().closed.Add();
}

SocketStream* SocketStream::FromConnected(EventLoop& loop, int fd, const SocketAddress& peer,
                                          const StreamOptions& options,
                                          std::unique_ptr<Admission> admission) {
  auto* const stream = new SocketStream(loop, options);
  if (admission != nullptr) admission->SetStream(*stream);
  stream->admission_ = std::move(admission);
  stream->fd_ = fd;
  stream->peer_ = peer;
  return stream;
}

SocketStream* SocketStream::Unconnected(EventLoop& loop, const StreamOptions& options) {
  return new SocketStream(loop, options);
}

void SocketStream::Open() {
  if (closing()) return;
  interest_ = reading_wanted_when_open() ? kInput : 0u;
  const absl::Status watched = loop_.Watch(fd_, interest_, this);
  if (!watched.ok()) return EndWith(watched);
  watched_ = true;
  state_ = State::kOpen;
  if (!output_.empty()) loop_.AtIterationEnd(*this);
  handler_->OnOpen();
}

void SocketStream::Attach(int fd, const SocketAddress& peer) {
  if (closing()) {
    close(fd);
    return;
  }
  fd_ = fd;
  peer_ = peer;
  attempt_.reset();
  Open();
}

bool SocketStream::reading_wanted_when_open() const {
  return !paused_ && !peer_ended_ && !(above_high_water_ && options_.pause_when_high);
}

bool SocketStream::reading_wanted() const {
  switch (state_) {
    case State::kOpen:
      return reading_wanted_when_open();
    case State::kFlushing:
    case State::kDraining:
      return !peer_ended_;
    case State::kUnconnected:
    case State::kAborted:
      return false;
  }
  return false;
}

void SocketStream::OnIo(uint32_t events) {
  if (closing()) return;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    Unwatch();
    hung_up_ = (events & (EPOLLHUP | EPOLLERR)) != 0;
    return loop_.EndInTurn(*this);
  }
  if ((events & EPOLLIN) != 0 && reading_wanted()) state_ == State::kOpen ? Read() : Drain();
  if ((events & EPOLLOUT) != 0 && !closing()) loop_.AtIterationEnd(*this);
}

void SocketStream::OnTurnToEnd() {
  if (closing()) {
    if (handler_ != nullptr) handler_->OnClosed(why_);
    delete this;
    return;
  }
  if (reading_wanted()) {
    hung_up_ = false;
    state_ == State::kOpen ? Read() : Drain();
  } else {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) EndWith(Broken(error));
    // Else, if there is output, sending it ends the stream; otherwise the handler resumes later,
    // and reads the rest and the end.
  }
  if (!closing()) loop_.AtIterationEnd(*this);  // watches it again
}

void SocketStream::Read() {
  const absl::Span<uint8_t> buffer = loop_.read_buffer();
  const ssize_t n = recv(fd_, buffer.data(), buffer.size(), 0);
  loop_.counters().reads.Add();
  if (n < 0) {
    if (errno != EAGAIN && errno != EINTR) EndWith(Broken(errno));
    return;
  }
  if (n == 0) {
    peer_ended_ = true;
    loop_.AtIterationEnd(*this);  // drops the interest in input
    handler_->OnEnd();
    return;
  }
  loop_.CountRead(static_cast<size_t>(n));
  handler_->OnData({buffer.data(), static_cast<size_t>(n)});
  if (state_ == State::kOpen) handler_->OnReadsDone();
  if (closing()) return;
  if (static_cast<size_t>(n) < buffer.size()) {
    backlog_bytes_ = 0;
    return;
  }
  backlog_bytes_ -= std::min<int64_t>(backlog_bytes_, n);
  if (backlog_bytes_ == 0) {
    int queued = 0;
    ioctl(fd_, FIONREAD, &queued);
    backlog_bytes_ = queued;
    backlog_since_ns_ = loop_.now_ns();
  }
}

void SocketStream::Drain() {
  const absl::Span<uint8_t> buffer = loop_.read_buffer();
  const ssize_t n = recv(fd_, buffer.data(), buffer.size(), 0);
  loop_.counters().reads.Add();
  if (n > 0) {
    loop_.CountRead(static_cast<size_t>(n));
    return;
  }
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    // After our half-close the peer has all our bytes; a reset is its way to close.
    return EndWith(state_ == State::kDraining && errno == ECONNRESET ? absl::OkStatus()
                                                                     : Broken(errno));
  }
  peer_ended_ = true;
  if (state_ == State::kDraining) {
    EndWith(absl::OkStatus());
  } else {
    loop_.AtIterationEnd(*this);
  }
}

void SocketStream::Write(absl::Span<const uint8_t> data) {
  if ((state_ != State::kOpen && state_ != State::kUnconnected) || data.empty()) return;
  if (output_.size() + data.size() > options_.max_output_bytes) {
    return Abort(absl::ResourceExhaustedError(
        absl::StrCat("more than ", options_.max_output_bytes, " bytes wait for the peer to read")));
  }
  if (state_ == State::kOpen) {
    // Send a full block instead of growing it: growing copies it into memory that is not cached. If
    // it has grown already, the peer is not reading.
    if (!output_.empty() && output_.size() <= BufferPool::kBlockBytes &&
        output_.size() + data.size() > BufferPool::kBlockBytes) {
      Flush();
      if (state_ != State::kOpen) return;
    }
    if (data.size() >= kDirectBytes && output_.empty()) {
      data.remove_prefix(Send(data));
      if (data.empty() || state_ != State::kOpen) return;
    }
  }
  output_.Append(data);
  if (output_.size() >= options_.high_water_bytes) above_high_water_ = true;
  loop_.AtIterationEnd(*this);
}

size_t SocketStream::Send(absl::Span<const uint8_t> data) {
  const ssize_t n = send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
  loop_.counters().writes.Add();
  if (n < 0) {
    if (errno != EAGAIN && errno != EINTR) EndWith(Broken(errno));
    return 0;
  }
  loop_.counters().bytes_out.Add(n);
  sent_bytes_ += static_cast<uint64_t>(n);
  return static_cast<size_t>(n);
}

void SocketStream::Flush() {
  if (output_.empty()) return;
  const size_t sent = Send(output_.front());
  output_.Consume(sent);
}

void SocketStream::OnIterationEnd() {
  if (closing()) return loop_.EndInTurn(*this);
  if (state_ == State::kUnconnected) return;
  const bool had_output = !output_.empty();
  Flush();
  if (closing()) return;  // scheduled again
  if (had_output) UpdateIdle();
  if (state_ == State::kFlushing && output_.empty()) HalfClose();
  if (closing()) return;
  const bool relieved = above_high_water_ && output_.size() <= options_.low_water_bytes;
  if (relieved) above_high_water_ = false;
  UpdateInterest();
  if (relieved && state_ == State::kOpen) handler_->OnWritable();
}

void SocketStream::UpdateInterest() {
  const uint32_t wanted = (reading_wanted() ? kInput : 0u) | (output_.empty() ? 0u : EPOLLOUT);
  if (!watched_) {
    if (hung_up_ && wanted == 0) return;
    const absl::Status watched = loop_.Watch(fd_, wanted, this);
    if (!watched.ok()) return EndWith(watched);
    watched_ = true;
  } else if (wanted != interest_) {
    loop_.Rewatch(fd_, wanted, this);
  }
  interest_ = wanted;
}

void SocketStream::Unwatch() {
  if (std::exchange(watched_, false)) loop_.Unwatch(fd_, this);
}

void SocketStream::PauseReading() {
  if (paused_ || closing()) return;
  paused_ = true;
  loop_.AtIterationEnd(*this);
}

void SocketStream::ResumeReading() {
  if (!paused_ || closing()) return;
  paused_ = false;
  loop_.AtIterationEnd(*this);
}

void SocketStream::CloseAfterWrite(int64_t linger_ns) {
  if (state_ == State::kUnconnected) {
    return EndWith(absl::CancelledError("closed before it was connected"));
  }
  if (state_ != State::kOpen) return;
  state_ = State::kFlushing;
  linger_ns_ = linger_ns;
  acknowledged_bytes_ = output_progress().acknowledged;
  loop_.ArmIn(linger_, linger_ns_);
  loop_.AtIterationEnd(*this);
}

void SocketStream::HalfClose() {
  if (peer_ended_) return EndWith(absl::OkStatus());
  if (shutdown(fd_, SHUT_WR) != 0) return EndWith(Broken(errno));
  state_ = State::kDraining;
  acknowledged_bytes_ = output_progress().acknowledged;
  loop_.ArmIn(linger_, linger_ns_);
}

void SocketStream::OnLinger() {
  const OutputProgress output = output_progress();
  if (output.outstanding == 0) {
    return EndWith(absl::DeadlineExceededError("the peer does not close its side"));
  }
  if (output.acknowledged > std::exchange(acknowledged_bytes_, output.acknowledged)) {
    return loop_.ArmIn(linger_, linger_ns_);
  }
  // With a reset: else the kernel would hold what it has accepted for minutes.
  Abort(absl::DeadlineExceededError("the peer does not read the last bytes"));
}

void SocketStream::Abort(absl::Status why) {
  if (closing()) return;
  if (fd_ >= 0 && peer_.family() != AF_UNIX) {
    const linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
  EndWith(std::move(why));
}

void SocketStream::EndWith(absl::Status why) {
  if (closing()) return;
  state_ = State::kAborted;
  why_ = std::move(why);
  linger_.Cancel();
  output_.Clear();
  attempt_.reset();
  Unwatch();
  // What the stream keeps others from goes at once: many may wait for their turn.
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  admission_ = nullptr;
  loop_.EndInTurn(*this);
}

void SocketStream::OnLoopStop() { EndWith(absl::CancelledError("the loop stops")); }

OutputProgress SocketStream::output_progress() const {
  // A Unix socket reports the memory that its unread bytes take, which is more than the bytes. The
  // difference does not grow while nothing is written, so that a peer that reads is seen to.
  int queued = 0;
  if (fd_ >= 0) ioctl(fd_, SIOCOUTQ, &queued);
  const auto held = static_cast<uint64_t>(queued);
  return {.acknowledged = sent_bytes_ - std::min(held, sent_bytes_),
          .outstanding = output_.size() + held};
}

int64_t SocketStream::round_trip_ns() const {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (fd_ < 0 || getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  constexpr uint32_t kNotYet = ~uint32_t{0};
  const bool known = size >= offsetof(tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt) &&
                     info.tcpi_min_rtt != kNotYet;  // Linux before 4.6
  return known ? int64_t{info.tcpi_min_rtt} * 1000 : 0;
}

void SocketStream::SetIdle(bool idle) {
  idle_ = idle;
  UpdateIdle();
}

void SocketStream::UpdateIdle() {
  if (admission_ == nullptr) return;
  const bool idle = idle_ && output_.empty();
  idle ? admission_->SetIdle(loop_.now_ns()) : admission_->SetBusy();
}

PeerIdentity SocketStream::peer_identity() const {
  PeerIdentity identity;
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (fd_ >= 0 && peer_.family() == AF_UNIX &&
      getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) {
    identity.uid = peer.uid;
  }
  return identity;
}

uint64_t SocketStream::peer() const {
  if (!peer_number_.has_value()) peer_number_ = PeerOf(fd_, peer_);
  return *peer_number_;
}

std::string SocketStream::peer_address() const {
  return peer_.length == 0 ? std::string(kNotConnected) : peer_.ToString();
}

int64_t SocketStream::ready_since_ns() const {
  const int64_t since_ns = loop_.ready_since_ns();
  return backlog_bytes_ > 0 ? std::min(backlog_since_ns_, since_ns) : since_ns;
}

}  // namespace sluice::net
