// AcquireStream: acquisitions gathered into messages and pipelined over one stream. The fast path
// for programs that decide much: several acquisitions share the cost of one message.
//
// How it gathers: with nothing under way an acquisition goes at once, alone. While
// StreamOptions::max_in_flight messages are out, those that come meanwhile wait; when an answer
// arrives all that waited, up to max_batch, go as the next message. So an idle stream adds no
// latency, and a busy one grows its messages by itself.
//
// When the connection breaks, every acquisition that was sent and not answered is reported with
// source kUnavailable and a status whose may_have_executed() is true: it is never sent again.
// Those that were not sent wait for the next connection, which is opened at once (to the next
// server, if there are several), until their deadline.
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

// Thread-safe. Movable. Answers come in the order of submission, on a thread of the client's: do
// not block there, and do not destroy the stream there.
class AcquireStream {
 public:
  AcquireStream(AcquireStream&&) noexcept;
  AcquireStream& operator=(AcquireStream&&) noexcept;
  // Cancels what is under way: answered CANCELLED before this returns.
  ~AcquireStream();

  // Never blocks. `done` runs exactly once; when the queue is full, within this call.
  void Submit(Acquisition acquisition, Callback<Decision> done);
  void Submit(std::string_view limit, std::string_view key, uint64_t permits,
              Callback<Decision> done);
  std::future<Result<Decision>> Submit(Acquisition acquisition);

  // Blocks until everything submitted before was answered, or the time has passed (false).
  bool Drain(std::chrono::nanoseconds timeout);

  // Blocks until the queue has room for one more, or the time has passed (false).
  bool WaitForRoom(std::chrono::nanoseconds timeout);

  StreamCounts counts() const;

 private:
  friend class Client;
  explicit AcquireStream(std::shared_ptr<client_internal::StreamCore> core);

  std::shared_ptr<client_internal::StreamCore> core_;
};

}  // namespace sluice

#endif  // SLUICE_STREAM_H_
