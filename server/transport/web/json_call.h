// JsonMethod: an RPC as POST /v1/METHOD, with JSON in both directions (docs/http.md). JsonCall: one
// call of it.
//
// A small call of few items is parsed, decided and printed on its connection's loop. A large one,
// or one of the control plane, is so on the background loop: no decision waits for it.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_JSON_CALL_H_
#define SLUICE_SERVER_TRANSPORT_WEB_JSON_CALL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/event_loop.h"
#include "google/protobuf/descriptor.h"
#include "server/access/caller.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/route.h"
#include "server/transport/port/connection_state.h"
#include "server/transport/web/background_turns.h"
#include "server/transport/web/json_codec.h"

namespace sluice::web {

class JsonMethod;

// Its exchange and the work that it has begun keep it.
class JsonCall : public std::enable_shared_from_this<JsonCall> {
 public:
  virtual ~JsonCall() = default;

  // Decides the request. Calls Answer once, on work(). On the thread of work().
  virtual void Execute() = 0;
  // The peer has left: ends a wait that would last. After Execute, and perhaps after Answer. Not
  // called if the peer left before Execute, which is not called then. On the thread of work().
  virtual void Cancel() {}

  // The request's bytes. They stay where they are.
  const std::string& request() const { return request_; }
  // Whether the peer has left.
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // The loop that the call is executed on: its exchange's, or that of the background.
  net::EventLoop& work() const { return *work_; }
  // Whether that is the background.
  bool in_background() const { return work_ != home_; }
  // What the handlers keep for the connection (Exchange::connection_state).
  std::shared_ptr<transport::ConnectionState>& connection_state() { return connection_state_; }
  // The caller; null: the server has no clients file.
  const access::CallerPtr& caller() const { return caller_; }
  // Of calls that are always in the background; else empty.
  const std::string& peer() const { return peer_; }
  // access::ActorOf its peer; else empty, too.
  const std::string& actor() const { return actor_; }

  // Goes on in the background, where work() is from now on. On the thread of work().
  void ContinueInBackground(std::function<void()> go_on);

  // What is left of the call is dropped. On the thread of work().
  void Drop() { LeaveTurns(); }

  // The call holds `bytes` of memory from now on. On the thread of work().
  void CountMemory(size_t bytes);

  // Sends the response, or the error. `http_status` 0: 200, or that of the error's code. On the
  // thread of work().
  void Answer(absl::StatusOr<std::string> response, int http_status = 0);
  // Cancels the call as soon as the peer ends its side of the connection.
  void EndWithPeer();

 private:
  friend class JsonMethod;

  // In the background: runs `go_on`, of a batch when it has its turn.
  void TakeTurn(std::function<void()> go_on);
  void LeaveTurns();

  const JsonMethod* method_ = nullptr;
  net::EventLoop* work_ = nullptr;
  net::EventLoop* home_ = nullptr;       // of the exchange
  http1::Exchange* exchange_ = nullptr;  // used on home_ only; null: it has ended
  std::string json_;
  std::string request_;
  std::shared_ptr<transport::ConnectionState> connection_state_;
  access::CallerPtr caller_;
  std::string peer_;
  std::string actor_;
  uint64_t turns_of_ = 0;             // the peer (BackgroundTurns)
  std::shared_ptr<void> left_bytes_;  // of a call whose exchange was cancelled; set on home_
  // Relaxed: it spares the decision, and publishes nothing.
  std::atomic<bool> cancelled_{false};
  bool executed_ = false;  // used on work() only
  bool has_turn_ = false;  // of Options::turns; used in the background only
};

// Thread-safe: all event loops call it. Outlives the loops and the calls in progress.
class JsonMethod : public http1::Handler {
 public:
  struct Options {
    const JsonCodec& json;
    // Where long work is done.
    net::EventLoop& background;
    const google::protobuf::MethodDescriptor& rpc;
    // Whether small calls too are executed in the background.
    bool always_in_background = false;
    // Whether the body may have any Content-Type: curl -d names none of JSON.
    bool any_content_type = false;
    // Of batches: only so many are begun in the background at a time, and their peers have turns.
    // Null: the call holds little.
    BackgroundTurns* turns = nullptr;
    // Whether a call may have hundreds of items, each with a result.
    bool many_items = false;
  };
  explicit JsonMethod(const Options& options) : options_(options) {}

  void OnRequest(http1::Exchange& exchange) final;
  void OnCancelled(http1::Exchange& exchange) final;

 protected:
  virtual std::shared_ptr<JsonCall> NewCall() = 0;

 private:
  friend class JsonCall;

  const Options options_;
};

// "/v1/acquireBatch" for AcquireBatch.
std::string PathOf(const google::protobuf::MethodDescriptor& rpc);

// INVALID_ARGUMENT: the request's Content-Type is not JSON, though it has a body. The HTTP status
// is 415.
absl::Status CheckContentType(const http1::Request& request);

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_JSON_CALL_H_
