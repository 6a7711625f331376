#include "server/takeover/taker.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/net/address.h"
#include "server/state/fields.h"
#include "server/state/state_file.h"
#include "server/takeover/time_limits.h"

namespace sluice::takeover {

using common::bounds::kMaxTakeoverSockets;

absl::StatusOr<std::unique_ptr<Taker>> Taker::Connect(const std::string& path,
                                                      const std::string& version, bool in_redis) {
  const auto address = net::SocketAddress::FromNumeric({.host = "", .unix_path = path});
  if (!address.ok()) return address.status();
  net::Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.open()) return absl::ErrnoToStatus(errno, "socket");
  // A full queue would keep connect() waiting without end.
  const timeval limit{.tv_sec = kAnswerLimit.count() / 1000, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(socket.get(), address->get(), address->length) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED) return nullptr;
    if (errno == EPROTOTYPE) {
      return absl::InvalidArgumentError(
          "it is a socket of another kind; write a path that only --takeover uses");
    }
    return absl::ErrnoToStatus(errno, "cannot connect to the running server");
  }
  std::unique_ptr<Taker> taker(new Taker(Link(std::move(socket))));
  absl::Status status = taker->link_.CheckPeer();
  if (status.ok()) {
    std::string fields;
    state::FieldWriter to(&fields);
    to.Text(version);
    to.Number(state::kStateVersion);
    to.Number(in_redis ? 1 : 0);
    status = taker->link_.Send(Kind::kHello, fields);
  }
  if (status.ok()) status = taker->ReceivePorts();
  if (!status.ok()) return status;
  return taker;
}

absl::Status Taker::ReceivePorts() {
  struct Parts {
    std::string listen;
    bool takes_file = false;
    std::vector<net::Descriptor> sockets;
  };
  std::map<std::string, Parts> ports;
  size_t sockets = 0;
  while (true) {
    absl::StatusOr<Message> message = link_.Receive(kAnswerLimit);
    if (!message.ok()) return message.status();
    state::FieldReader from(message->fields);
    switch (message->kind) {
      case Kind::kRefused:
        return absl::FailedPreconditionError(
            absl::StrCat("the running server refuses: ", message->fields));
      case Kind::kSockets: {
        Parts& parts = ports[std::string(from.Text())];
        parts.listen = from.Text();
        parts.takes_file = from.Flag();
        sockets += message->descriptors.size();
        parts.sockets.insert(parts.sockets.end(),
                             std::make_move_iterator(message->descriptors.begin()),
                             std::make_move_iterator(message->descriptors.end()));
        if (from.done() && !message->descriptors.empty() && sockets <= kMaxTakeoverSockets) break;
        return absl::InvalidArgumentError("a message with sockets is damaged");
      }
      case Kind::kOffer: {
        constexpr uint64_t kMostMs = 24 * 3600 * 1000;
        drain_limit_ = std::chrono::milliseconds(from.NumberUpTo(kMostMs));
        if (!from.done()) return absl::InvalidArgumentError("an offer is damaged");
        for (auto& [name, parts] : ports) {
          auto adopted = net::ListeningSockets::Adopt(
              std::move(parts.sockets), name == kTakeoverPort ? SOCK_SEQPACKET : SOCK_STREAM);
          if (!adopted.ok()) {
            return absl::InvalidArgumentError(
                absl::StrCat("a socket of ", name, ": ", adopted.status().message()));
          }
          ports_[name] = {parts.listen,
                          std::make_shared<net::ListeningSockets>(*std::move(adopted)),
                          parts.takes_file};
        }
        return absl::OkStatus();
      }
      default:
        return absl::InvalidArgumentError("a message is damaged: it is no offer");
    }
  }
}

bool Taker::IsTakenBack() { return link_.ReceiveOnly(Kind::kTakenBack, kAnswerLimit).ok(); }

absl::StatusOr<Taker::State> Taker::TakeState() {
  if (absl::Status status = link_.Send(Kind::kHandOver); !status.ok()) return status;
  absl::StatusOr<Message> message = link_.Receive(drain_limit_ + kLoadLimit);
  if (!message.ok()) return message.status();
  const size_t count = message->descriptors.size();
  if (message->kind == Kind::kTakenBack) {
    return absl::AbortedError("the running server could not give its state, and goes on");
  }
  if (message->kind != Kind::kState || count < 1 || count > 2 || !message->fields.empty()) {
    return absl::InvalidArgumentError("a message is damaged: it is no state");
  }
  State state;
  state.file = std::move(message->descriptors[0]);
  if (count == 2) state.lock = std::move(message->descriptors[1]);
  const int seals = fcntl(state.file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_WRITE) == 0) {
    return absl::InvalidArgumentError("the state is damaged: it can still be changed");
  }
  return state;
}

absl::Status Taker::ConfirmLoaded() {
  absl::Status status = link_.Send(Kind::kLoaded);
  if (status.ok() || absl::IsUnavailable(status)) {
    // If the other process has ended, what it sent before is still to be read.
    const absl::StatusOr<Message> message = link_.Receive(kYoursLimit);
    if (absl::IsUnavailable(message.status())) {
      // It ended without TakenBack: it decides nothing more.
    } else if (!message.ok()) {
      return message.status();
    } else if (message->kind != Kind::kYours) {
      return absl::AbortedError("the running server goes on");
    }
    status = absl::OkStatus();
  }
  if (!status.ok()) return status;
  for (const auto& [name, port] : ports_) {
    if (port.takes_file) port.sockets->TakeFile();
  }
  return absl::OkStatus();
}

}  // namespace sluice::takeover
