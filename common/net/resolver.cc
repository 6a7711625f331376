#include "common/net/resolver.h"

#include <netdb.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::net {

Resolver::Resolver(Lookup lookup) : lookup_(std::move(lookup)), thread_([this] { Run(); }) {}

Resolver::~Resolver() {
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.Signal();
  thread_.join();
}

void Resolver::Resolve(const Address& address, EventLoop& loop, Done done) {
  {
    common::MutexLock lock(&mu_);
    if (requests_.size() < kMaxWaiting) {
      requests_.push_back({address, &loop, std::move(done)});
      changed_.Signal();
      return;
    }
  }
  loop.Post([address, done = std::move(done)]() mutable {
    done(absl::ResourceExhaustedError(
        absl::StrCat("cannot resolve ", address.host, ": ", kMaxWaiting, " names are waiting")));
  });
}

void Resolver::Run() {
  for (;;) {
    Request request;
    {
      common::MutexLock lock(&mu_);
      while (requests_.empty() && !stop_) changed_.Wait(&mu_);
      if (stop_) return;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    request.loop->Post(
        [done = std::move(request.done), addresses = lookup_(request.address)]() mutable {
          done(std::move(addresses));
        });
  }
}

Resolver::Addresses Resolver::GetAddrInfo(const Address& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve \"", address.host,
                     "\": ", error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress& one = addresses.emplace_back();
    std::memcpy(&one.storage, info->ai_addr, info->ai_addrlen);
    one.length = info->ai_addrlen;
  }
  freeaddrinfo(found);
  if (addresses.empty()) {
    return absl::UnavailableError(absl::StrCat("\"", address.host, "\" has no address"));
  }
  return addresses;
}

}  // namespace sluice::net
