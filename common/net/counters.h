// LoopCounters: the counters of one event loop. Its thread writes them, any thread reads them; no
// locks.
#ifndef SLUICE_COMMON_NET_COUNTERS_H_
#define SLUICE_COMMON_NET_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace sluice::net {

// One writer, many readers. Relaxed: a reader sees a recent value, and values of several counters
// need not belong to the same time.
class Counter {
 public:
  void Add(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void Subtract(uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) - n, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// On their own cache lines: they change with each iteration.
struct alignas(64) LoopCounters {
  Counter iterations;          // returns from epoll
  Counter busy_ns;             // time not spent waiting
  Counter tasks;               // run for Post
  Counter timers;              // fired
  Counter streams;             // open now, accepted and outgoing
  Counter accepted;            // by a listener
  Counter refused;             // over a bound, and closed at once
  Counter accept_errors;       // accept(2) failed, e.g. out of file descriptors
  Counter connected;           // outgoing
  Counter connect_failures;    // outgoing: refused, timed out, name not found
  Counter closed;              // streams, for any reason
  Counter bytes_in;            // from the kernel, before decryption
  Counter bytes_out;           // to the kernel, after encryption
  Counter reads;               // calls of recv(2)
  Counter writes;              // calls of send(2)
  Counter handshakes;          // of TLS, finished
  Counter handshake_failures;  // of TLS, with time-outs
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_COUNTERS_H_
