#include "server/takeover/giver.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/state/fields.h"
#include "server/state/state_file.h"
#include "server/takeover/time_limits.h"

namespace sluice::takeover {

using common::bounds::kMaxTakeoverDescriptors;
using std::chrono::steady_clock;

int Giver::fd() const {
  return link_ != nullptr ? link_->fd() : ports_.at(kTakeoverPort).sockets->sockets().front().get();
}

int Giver::timeout_ms() const {
  if (link_ == nullptr) return -1;
  const auto left = offer_end_ - steady_clock::now();
  return static_cast<int>(std::max<int64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1, 0));
}

Giver::State Giver::Proceed() {
  if (link_ == nullptr) {
    net::Descriptor socket(accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.open()) return state_;
    link_ = std::make_unique<Link>(std::move(socket));
    absl::Status status = link_->CheckPeer();
    if (status.ok()) status = Offer();
    if (status.ok()) return state_;
    link_->Send(Kind::kRefused, common::ToStd(status.message())).IgnoreError();
    End(status);
  } else if (const absl::Status status = OnMessage(); !status.ok()) {
    End(status);
  }
  return state_;
}

void Giver::End(const absl::Status& why) {
  log_.Warning("takeover_refused",
               {{"error", why.message()}, {"consequence", "this process goes on"}});
  link_->Send(Kind::kTakenBack).IgnoreError();
  link_.reset();
  state_ = State::kListening;
}

absl::Status Giver::Offer() {
  const absl::StatusOr<Message> hello = link_->Receive(kAnswerLimit);
  if (!hello.ok()) return hello.status();
  state::FieldReader from(hello->fields);
  const std::string version(from.Text());
  const uint64_t format = from.Number();
  const bool in_redis = from.Flag();
  if (hello->kind != Kind::kHello || !from.done()) {
    return absl::InvalidArgumentError("a message is damaged: it is no greeting");
  }
  if (format != state::kStateVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the new server reads version ", format, " of the state, the running one writes version ",
        state::kStateVersion, "; stop the running server, then start the new one"));
  }
  if (in_redis != options_.in_redis) {
    const auto place = [](bool redis) { return redis ? "Redis" : "memory"; };
    return absl::FailedPreconditionError(absl::StrCat(
        "--store: the running server keeps its buckets in ", place(options_.in_redis),
        ", the new one in ", place(in_redis), "; stop the running server, then start the new one"));
  }
  for (const auto& [name, port] : ports_) {
    const std::vector<net::Descriptor>& sockets = port.sockets->sockets();
    for (size_t sent = 0; sent < sockets.size(); sent += kMaxTakeoverDescriptors) {
      std::vector<net::Descriptor> some;
      const size_t end = std::min(sockets.size(), sent + kMaxTakeoverDescriptors);
      for (size_t i = sent; i < end; ++i) {
        some.emplace_back(fcntl(sockets[i].get(), F_DUPFD_CLOEXEC, 0));
        if (!some.back().open()) return absl::ErrnoToStatus(errno, "cannot pass a socket");
      }
      std::string fields;
      state::FieldWriter to(&fields);
      to.Text(name);
      to.Text(port.listen);
      to.Number(port.sockets->owns_file() ? 1 : 0);
      if (absl::Status status = link_->Send(Kind::kSockets, fields, some); !status.ok()) {
        return status;
      }
    }
  }
  std::string fields;
  state::FieldWriter(&fields).Number(static_cast<uint64_t>(options_.drain_limit.count()));
  if (absl::Status status = link_->Send(Kind::kOffer, fields); !status.ok()) return status;
  offer_end_ = steady_clock::now() + kPrepareLimit;
  state_ = State::kOffered;
  log_.Info("takeover_offered", {{"new_version", version}, {"version", options_.version}});
  return absl::OkStatus();
}

absl::Status Giver::OnMessage() {
  const auto left = std::chrono::milliseconds(timeout_ms());
  absl::Status status =
      link_->ReceiveOnly(options_.in_redis ? Kind::kLoaded : Kind::kHandOver, left);
  if (status.ok()) state_ = options_.in_redis ? State::kShared : State::kAsked;
  return status;
}

void Giver::SendState(net::Descriptor state, net::Descriptor lock) {
  std::vector<net::Descriptor> descriptors;
  descriptors.push_back(std::move(state));
  if (lock.open()) descriptors.push_back(std::move(lock));
  sent_ = link_->Send(Kind::kState, {}, descriptors);
}

absl::StatusOr<bool> Giver::AwaitLoaded() {
  absl::Status status = sent_;
  if (status.ok()) status = link_->ReceiveOnly(Kind::kLoaded, kLoadLimit);
  if (status.ok()) status = link_->Send(Kind::kYours);
  if (status.ok()) return true;
  // The other process decides once it reads that this one has ended without taking the state back.
  absl::Status told = link_->Send(Kind::kTakenBack);
  if (!told.ok() && !absl::IsUnavailable(told)) return told;
  End(status);
  return false;
}

bool Giver::SendYours() {
  const absl::Status status = link_->Send(Kind::kYours);
  if (status.ok()) return true;
  End(status);
  return false;
}

}  // namespace sluice::takeover
