#include "client/src/request_id.h"

#include <sys/random.h>

#include <cstddef>
#include <random>

namespace sluice::client_internal {

std::string NewRequestId() {
  std::string id(16, '\0');
  if (getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size())) return id;
  std::random_device device;
  for (char& byte : id) byte = static_cast<char>(device());
  return id;
}

}  // namespace sluice::client_internal
