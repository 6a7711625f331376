#include "server/transport/port/lasting_bytes.h"

#include <cstdint>

#include "server/transport/port/port_connection.h"
#include "server/transport/port/port_loop.h"

namespace sluice::transport {

void LastingBytes::Add(size_t bytes) {
  bytes_ += bytes;
  if (bounded_) loop_.AddLastingBytes(bytes);
}

std::shared_ptr<void> LastingBytes::Hold(size_t bytes) {
  Add(bytes);
  // Posted also on the loop's own thread: the connection may be about to be destroyed.
  return {static_cast<void*>(this),
          [self = shared_from_this(), &loop = loop_.loop(), bytes](void*) {
            loop.Post([self, bytes] { self->Release(bytes); });
          }};
}

void LastingBytes::LeaveConnection() {
  connection_ = nullptr;
  loop_.AddMemory(static_cast<int64_t>(bytes_));
}

void LastingBytes::Release(size_t bytes) {
  Add(-bytes);
  if (connection_ != nullptr) {
    loop_.MarkDirty(*connection_);
  } else {
    loop_.AddMemory(-static_cast<int64_t>(bytes));
  }
}

}  // namespace sluice::transport
