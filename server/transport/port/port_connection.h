// PortConnection: one client's connection as its loop sees it: its work, its memory, and whether
// its peer takes what was written.
#ifndef SLUICE_SERVER_TRANSPORT_PORT_PORT_CONNECTION_H_
#define SLUICE_SERVER_TRANSPORT_PORT_PORT_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "common/intrusive_list.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/access/caller.h"
#include "server/transport/port/connection_state.h"
#include "server/transport/port/lasting_bytes.h"

namespace sluice::transport {

using common::ListLink;

class PortLoop;

// The lists of its loop that a connection can be in.
struct OpenConnections;
struct DirtyConnections;  // that have work to do when the iteration ends
struct HeavyConnections;  // that hold much memory

// Used on its loop only.
class PortConnection : public net::StreamHandler,
                       public ListLink<PortConnection, OpenConnections>,
                       public ListLink<PortConnection, DirtyConnections>,
                       public ListLink<PortConnection, HeavyConnections>,
                       public net::Worker {
 public:
  ~PortConnection() override;

  net::Stream& stream() const { return stream_; }
  // The caller that sends this header `authorization`; empty: none was sent. Null: the port serves
  // all callers.
  const access::CallerPtr& CallerOf(std::string_view authorization) {
    if (!callers_.Has(authorization)) Recognise(authorization);
    return callers_.last();
  }
  bool recognises_callers() const { return callers_.enabled(); }

  // What the service keeps for the connection; null at first. Shared, since calls may outlive it.
  std::shared_ptr<ConnectionState>& service_state() { return service_state_; }

  // Whether `bytes` more of calls that last are within the bounds.
  bool HasRoomToLast(size_t bytes) const;
  // Adds to the bytes of calls that last. Negative numbers wrap around.
  void AddLasting(size_t bytes) { lasting().Add(bytes); }
  // Adds `bytes` until the result is destroyed, on any thread. Null, and nothing is added: there is
  // no room.
  std::shared_ptr<void> HoldLasting(size_t bytes) {
    return HasRoomToLast(bytes) ? lasting().Hold(bytes) : nullptr;
  }

  // Adds `bytes` of a call that was cancelled while a store has it, until the result is destroyed,
  // on any thread.
  std::shared_ptr<void> HoldCancelled(size_t bytes);

  // ---- For PortLoop.
  // Asks the peer to use another connection. Never destroys this.
  virtual void Drain() = 0;
  // Handles input until the turn's credit is spent, and sends the answers. Waits for another turn
  // if anything is left.
  virtual void Work() = 0;
  // Bytes of memory that the peer makes the server hold.
  virtual size_t memory() const = 0;
  // The same, as it was last reported to the loop.
  size_t settled_bytes() const { return settled_bytes_; }
  // Closes it since the process holds too much memory.
  void CloseOverMemory();
  // As PortLoop::RefusesCallOf, by what it held after the last input, and by what a call with a
  // request of so many bytes may hold while it is half done.
  bool RefusesCall(size_t request_bytes) const;

 protected:
  PortConnection(PortLoop& loop, net::Stream& stream);

  // Of the calls that were cancelled.
  size_t cancelled_bytes() const { return cancelled_ != nullptr ? cancelled_->bytes() : 0; }
  // Of memory(): calls that last or were cancelled, and what the service keeps.
  size_t kept_memory() const;
  // Forgets some of what the service keeps. Waits for another turn if there is more.
  void ForgetSome();
  // Reports its memory to the loop.
  void Settle(size_t bytes);
  // Begins to watch whether the peer takes what was written, or waits to be. No effect if that is
  // watched.
  void PlanStallCheck();

 private:
  // Whether the stream is closed, or is about to be.
  virtual bool closing() const = 0;
  // Whether there is no stream any more.
  virtual bool closed() const = 0;
  // The stream is about to be closed: no more input is handled, and no more is sent.
  virtual void EndWork() = 0;
  // Ends requests whose answers the peer did not take in time, though it takes others. Returns when
  // to look again, at most `next_ns`; Timer kNever: nothing waits for the peer.
  virtual int64_t CheckAnswers(const net::OutputProgress& output, int64_t next_ns) = 0;
  void OnStallCheck();
  void Recognise(std::string_view authorization);
  LastingBytes& lasting();

  PortLoop& loop_;
  net::Stream& stream_;
  access::CallerCache callers_;
  std::shared_ptr<ConnectionState> service_state_;
  std::shared_ptr<LastingBytes> lasting_;    // null: nothing has lasted yet
  std::shared_ptr<LastingBytes> cancelled_;  // null: a store had no call that was cancelled
  size_t settled_bytes_ = 0;                 // as the loop knows its memory
  uint64_t acknowledged_bytes_ = 0;          // of the output, at the last check
  int64_t acknowledged_ns_ = 0;              // when that had grown, or nothing was outstanding
  net::Timer stall_check_{net::Timer::To<&PortConnection::OnStallCheck>, this};
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_PORT_PORT_CONNECTION_H_
