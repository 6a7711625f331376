// Counters of one event loop: written by its thread alone, without locks; read from anywhere.
#ifndef SLUICE_COMMON_NET_COUNTERS_H_
#define SLUICE_COMMON_NET_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace sluice::net {

// One writer, many readers. Relaxed throughout: a reader sees some recent value, and values of
// several counters need not belong to the same moment.
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

// On cache lines of their own: they change with every iteration.
struct alignas(64) LoopCounters {
  Counter iterations;          // returns from epoll
  Counter busy_ns;             // time not spent waiting
  Counter tasks;               // run for Post
  Counter timers;              // fired
  Counter streams;             // open now, both directions of setup
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
  Counter handshake_failures;  // of TLS, incl. those that took too long
};

}  // namespace sluice::net

#endif  // SLUICE_COMMON_NET_COUNTERS_H_
