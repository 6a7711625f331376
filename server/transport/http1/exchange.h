// Exchange: one request and its response, as a handler sees them.
//
// Used on its connection's event loop only. A handler may use an exchange until it finishes it or
// OnCancelled returns, whichever comes first. A connection has one exchange at a time: later
// requests of the connection wait. Exchanges and their buffers are pooled per loop: an exchange in
// steady state allocates nothing.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_EXCHANGE_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/buffer.h"
#include "common/intrusive_list.h"
#include "common/net/event_loop.h"
#include "server/access/caller.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/request.h"
#include "server/transport/port/connection_state.h"
#include "server/transport/port/free_list.h"

namespace sluice::http1 {

class Connection;
struct FreeExchanges;  // a list of its loop
struct Route;

class Exchange : public common::ListLink<Exchange, FreeExchanges> {
 public:
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // ---- The request.
  const Request& request() const { return request_; }
  // Moves the request into `into`; views of it stay valid, and request() is empty. For a handler
  // that hands views to work which may outlive the exchange. Adds it to the pending bytes.
  void TakeRequest(Request* into) {
    pending_bytes_ += request_.memory();
    request_.Swap(*into);
  }
  const Route& route() const { return *route_; }
  // The earliest time at which the request can have arrived; on Clock::NowNs.
  int64_t arrived_ns() const { return arrived_ns_; }
  // "127.0.0.1:50312", "unix:".
  std::string peer_address() const;
  // As net::Stream::peer.
  uint64_t peer() const;
  // As net::Stream::peer_identity.
  net::PeerIdentity peer_identity() const;
  // The caller, recognised by the header Authorization or by the connection. Null: the server has
  // no clients file.
  const access::CallerPtr& caller() const;
  // Whether the connection uses TLS.
  bool encrypted() const;
  net::EventLoop& loop() const;
  // Which of the server's loops this is: 0, 1, ...
  size_t loop_index() const;
  // What the handlers keep for the connection; null at first. Shared, since work may outlive it.
  std::shared_ptr<transport::ConnectionState>& connection_state() const;

  // ---- A response that is made in parts, without allocation: SetStatus, then AddHeader, then
  // body(), then Finish. Date, Content-Length and Connection are added.
  void SetStatus(int status) { status_ = status; }
  // `name` in lower case. The value must not have control characters.
  void AddHeader(std::string_view name, std::string_view value);
  void AddHeader(std::string_view name, int64_t value);
  // For a header whose value is made in place: "name: value\r\n".
  common::Buffer& header_bytes() { return head_; }
  common::Buffer& body() { return body_; }
  void Finish();

  // ---- Or at once.
  void Finish(Answer answer);
  void Fail(const Problem& problem) { Finish(problem.ToAnswer()); }
  void Fail(const absl::Status& status) { Fail(Problem::Of(status)); }

  // ---- Or as a stream, in pieces (chunked): BeginStream, any number of Writes, EndStream. Use
  // SetStatus and AddHeader before.
  void BeginStream(std::string_view content_type);
  // Sends `bytes`. Returns false, and sends nothing, if the peer is behind: more than
  // bounds::kMaxStreamUnsentBytes of this stream are unsent. OnWritable follows when it caught up;
  // a peer that takes nothing for the stall timeout is disconnected.
  bool Write(std::string_view bytes);
  // Whether Write would send. If not: OnWritable follows once it would, after NotifyWritable too.
  bool writable() const;
  void NotifyWritable();
  void EndStream();

  // ---- Accounts.
  // Counts work (net::WorkQueue), in units of about 100 ns.
  void Spend(int64_t units);
  // The handler holds `bytes` of memory for the exchange; replaces the number that was set before.
  // Not within OnCancelled.
  void SetPendingBytes(size_t bytes);
  // Within OnCancelled: counts these bytes further, until the result is destroyed, on any thread.
  // For work in the background that has not ended.
  std::shared_ptr<void> KeepPendingBytes() const;
  // As SetPendingBytes, for what may outlive the exchange: until the result is destroyed, on any
  // thread. Null: there is no room (ConnectionOptions::max_loop_lasting_bytes).
  std::shared_ptr<void> HoldLastingBytes(size_t bytes);

  // If the peer ends its side of the connection, the exchange is cancelled. For answers that may
  // take long; streams do so always. Otherwise a peer may send its last request, end its side, and
  // wait for the answer.
  void EndWithPeer();
  // The gRPC code under which the exchange is counted, if the status does not tell it.
  void CountAs(absl::StatusCode code) { code_ = code; }

  // What the handler keeps for the exchange. Null at the start.
  void* state() const { return state_; }
  void set_state(void* state) { state_ = state; }
  // Keeps an object until the exchange has ended.
  void Keep(std::shared_ptr<void> object) { kept_ = std::move(object); }

 private:
  friend class Connection;
  friend class transport::FreeList<Exchange, FreeExchanges>;

  enum class Phase : uint8_t {
    kReceiving,  // the request is not complete
    kHandling,   // the handler has the exchange
    kStreaming,  // as kHandling; the head of a stream was sent
    kFinished,   // the response is complete, or cannot be sent
  };

  Exchange() = default;
  ~Exchange() = default;

  void Recycle();
  size_t memory() const {
    return sizeof(*this) + request_.memory() + head_.capacity() + body_.capacity();
  }

  Connection* connection_ = nullptr;
  const Route* route_ = nullptr;
  Phase phase_ = Phase::kReceiving;
  bool ends_with_peer_ = false;
  // Of the request, which the handler may have taken.
  bool head_only_ = false;
  bool is_1_1_ = false;
  int status_ = 200;
  std::optional<absl::StatusCode> code_;
  int64_t arrived_ns_ = 0;
  size_t pending_bytes_ = 0;
  void* state_ = nullptr;
  std::shared_ptr<void> kept_;
  Request request_;
  common::Buffer head_;  // the headers that the handler added
  common::Buffer body_;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_EXCHANGE_H_
