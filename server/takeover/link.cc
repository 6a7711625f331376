#include "server/takeover/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "server/state/fields.h"

namespace sluice::takeover {
namespace {

using common::bounds::kMaxTakeoverDescriptors;
using common::bounds::kMaxTakeoverMessageBytes;
using std::chrono::steady_clock;

constexpr std::string_view kMagic = "SLUICETO";
// The queue of a socket holds all messages, unless the other process reads none of them.
constexpr timeval kSendLimit{.tv_sec = 5, .tv_usec = 0};

union Control {
  cmsghdr align;
  std::array<char, CMSG_SPACE(sizeof(int) * kMaxTakeoverDescriptors)> bytes;
};

absl::Status Ended() {
  return absl::UnavailableError("the other process has ended, or has closed the link");
}

bool IsEnd(int error) { return error == EPIPE || error == ECONNRESET; }

std::vector<net::Descriptor> DescriptorsOf(msghdr* message) {
  std::vector<net::Descriptor> found;
  for (cmsghdr* one = CMSG_FIRSTHDR(message); one != nullptr; one = CMSG_NXTHDR(message, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof(int));
      found.emplace_back(fd);
    }
  }
  return found;
}

}  // namespace

Link::Link(net::Descriptor socket) : socket_(std::move(socket)) {
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendLimit, sizeof(kSendLimit));
}

absl::Status Link::CheckPeer() const {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::ErrnoToStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid == 0 || peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the other process has user ", peer.uid,
                                                  "; it must have user ", geteuid(), " or 0"));
}

absl::Status Link::SendAs(uint32_t version, Kind kind, std::string_view fields,
                          const std::vector<net::Descriptor>& descriptors) {
  std::string bytes(kMagic);
  state::FieldWriter to(&bytes);
  to.Number(version);
  to.Number(static_cast<uint64_t>(kind));
  bytes.append(fields);
  if (bytes.size() > kMaxTakeoverMessageBytes || descriptors.size() > kMaxTakeoverDescriptors) {
    return absl::InvalidArgumentError("the message is too large");
  }
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    for (size_t i = 0; i < descriptors.size(); ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(head) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  while (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    return IsEnd(errno) ? Ended() : absl::ErrnoToStatus(errno, "cannot send a message");
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> Link::Receive(std::chrono::milliseconds limit) {
  const auto end = steady_clock::now() + limit;
  std::string bytes(kMaxTakeoverMessageBytes, '\0');
  iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  Control control = {};
  msghdr message = {};
  ssize_t got = -1;
  do {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now()).count();
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (left < 0 || poll(&ready, 1, static_cast<int>(left)) == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("the other process does not answer within ", limit.count(), " ms"));
    }
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // ECONNRESET comes before the messages that the other process sent last, and only once.
  } while (got < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET));
  if (got == 0) return Ended();
  if (got < 0) return absl::ErrnoToStatus(errno, "cannot receive a message");
  Message received;
  received.descriptors = DescriptorsOf(&message);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(
        "a message is damaged: too large, or with more descriptors than this process may open");
  }
  std::string_view rest(bytes.data(), static_cast<size_t>(got));
  if (rest.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("a message is damaged: it is not one of Sluice");
  }
  rest.remove_prefix(kMagic.size());
  state::FieldReader from(rest);
  const uint64_t version = from.Number();
  if (from.ok() && version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has version ", version, " of the messages of a takeover, this one has ",
                     kVersion, "; stop the running server, then start the other one"));
  }
  received.kind = from.EnumUpTo(Kind::kTakenBack);
  if (!from.ok()) return absl::InvalidArgumentError("a message is damaged");
  received.fields = from.rest();
  return received;
}

absl::Status Link::ReceiveOnly(Kind kind, std::chrono::milliseconds limit) {
  const absl::StatusOr<Message> message = Receive(limit);
  if (!message.ok()) return message.status();
  if (message->kind == kind && message->fields.empty() && message->descriptors.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a message is damaged: it is of kind ",
                                                 static_cast<int>(message->kind), ", expected is ",
                                                 static_cast<int>(kind)));
}

}  // namespace sluice::takeover
