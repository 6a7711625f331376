// AcquireStream: sends acquisitions in batches over one stream. Several acquisitions share the cost
// of one message, so it is the fastest way to make many decisions.
//
// Batching. An idle stream sends an acquisition at once, in a message of its own. While
// StreamOptions::max_in_flight messages have no answer, further acquisitions queue up. When an
// answer arrives, up to max_batch of them are sent as the next message. So batching adds no latency
// to an idle stream, and a busy stream makes larger messages.
//
// Broken connections. An acquisition that was sent and not answered gets a Decision with source
// kUnavailable, whose status says with may_have_executed() whether permits may have been taken. It
// is sent again only if it is certain that the server has not executed it, because the server
// drains. Queued acquisitions wait until their deadline for the next connection, which is opened at
// once, to the next server if there are several.
#ifndef SLUICE_STREAM_H_
#define SLUICE_STREAM_H_

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string_view>

#include "sluice/connection.h"
#include "sluice/decision.h"
#include "sluice/options.h"

namespace sluice {

namespace client_internal {
class StreamCore;
class ClientCore;
}  // namespace client_internal

struct StreamCounts {
  uint64_t acquisitions = 0;  // answered by a server
  uint64_t messages = 0;      // sent
  uint64_t connections = 0;   // streams opened
};

// Thread-safe. Movable. Callbacks run in the order of submission, on a thread of the client: do not
// block there, and do not destroy the stream there.
class AcquireStream {
 public:
  AcquireStream(AcquireStream&&) noexcept;
  AcquireStream& operator=(AcquireStream&&) noexcept;
  // Acquisitions without an answer end with CANCELLED before it returns.
  ~AcquireStream();

  // Never blocks. `done` runs exactly once; if the queue is full, within this call.
  void Submit(Acquisition acquisition, Callback<Decision> done);
  void Submit(std::string_view limit, std::string_view key, uint64_t permits,
              Callback<Decision> done);
  std::future<Result<Decision>> Submit(Acquisition acquisition);

  // Blocks until all earlier submissions are answered. Returns false after the timeout.
  bool Drain(std::chrono::nanoseconds timeout);

  // Blocks until the queue has room for one more acquisition. Returns false after the timeout.
  bool WaitForRoom(std::chrono::nanoseconds timeout);

  StreamCounts counts() const;

 private:
  friend class Client;
  explicit AcquireStream(std::shared_ptr<client_internal::StreamCore> core);

  std::shared_ptr<client_internal::StreamCore> core_;
};

}  // namespace sluice

#endif  // SLUICE_STREAM_H_
