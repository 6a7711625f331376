#include "server/transport/services/port_listener.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/bounds.h"
#include "common/net/tls_stream.h"

namespace sluice::transport {
namespace {

constexpr std::chrono::seconds kCertificateInterval{10};

absl::StatusOr<std::shared_ptr<net::TlsContext>> LoadTls(const TlsFiles& files,
                                                         const std::string& protocol) {
  if (!files.enabled()) return nullptr;
  return net::TlsContext::Create(net::TlsContext::Role::kServer,
                                 {.certificate_chain_file = files.cert,
                                  .private_key_file = files.key,
                                  .trusted_ca_file = files.client_ca,
                                  .protocol = protocol});
}

// TLS handshakes of a loop. All of them hold at most an eighth of what peers may make the process
// hold; a few per loop are always possible.
size_t MaxHandshakes(const common::MemoryBudget* memory, size_t loops) {
  constexpr size_t kFew = 16;
  if (memory == nullptr) return common::bounds::kMaxHandshakesPerLoop;
  const size_t share = static_cast<size_t>(memory->limit()) / 8 / loops;
  return std::clamp(share / net::TlsStream::kHandshakeMemory, kFew,
                    common::bounds::kMaxHandshakesPerLoop);
}

}  // namespace

absl::Status PortListener::Listen(net::LoopGroup& loops, net::Acceptor& acceptor,
                                  std::function<void(const absl::Status&)> certificates_changed,
                                  std::shared_ptr<net::ListeningSockets>* sockets) {
  auto tls = LoadTls(options_.tls, options_.protocol);
  if (!tls.ok()) return tls.status();
  net::ListenerOptions listener;
  listener.tls = *tls;
  listener.budget = &connections_;
  listener.log = options_.log;
  listener.memory = options_.memory;
  listener.max_handshakes = MaxHandshakes(options_.memory, loops.size());
  std::shared_ptr<net::ListeningSockets> opened;
  if (sockets == nullptr) sockets = &opened;
  if (*sockets == nullptr) {
    auto bound = net::ListeningSockets::Open(options_.listen, static_cast<int>(loops.size()), {});
    if (!bound.ok()) return bound.status();
    *sockets = std::make_shared<net::ListeningSockets>(*std::move(bound));
  }
  if (absl::Status status = loops.Listen(*sockets, acceptor, listener); !status.ok()) return status;
  address_ = (*sockets)->address().ToString();
  if (*tls != nullptr) {
    certificates_ = std::make_unique<net::CertificateWatcher>(
        std::vector{*tls}, kCertificateInterval,
        [changed = std::move(certificates_changed)](
            const net::TlsContext&, const absl::Status& status) { changed(status); });
  }
  loops.Start();
  return absl::OkStatus();
}

void PortListener::ReloadCertificates() {
  if (certificates_ != nullptr) certificates_->Wake();
}

}  // namespace sluice::transport
