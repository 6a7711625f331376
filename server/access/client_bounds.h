// ClientBounds: how much one client may use, as the clients file says.
#ifndef SLUICE_SERVER_ACCESS_CLIENT_BOUNDS_H_
#define SLUICE_SERVER_ACCESS_CLIENT_BOUNDS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace sluice::access {

enum class ClientBound : uint8_t {
  kCallsPerSecond,
  kHeldCalls,
  kStreams,
  kNewKeysPerMinute,
  kTableShare,
};
inline constexpr size_t kClientBounds = 5;
inline constexpr uint64_t kNoBound = std::numeric_limits<uint64_t>::max();

// "max_held_calls": its field in the clients file.
std::string_view BoundName(ClientBound bound);

class ClientBounds {
 public:
  // kNoBound: there is none.
  uint64_t Of(ClientBound bound) const { return most_[static_cast<size_t>(bound)]; }
  void Set(ClientBound bound, uint64_t most) { most_[static_cast<size_t>(bound)] = most; }
  bool Has(ClientBound bound) const { return Of(bound) != kNoBound; }
  bool any() const {
    return std::any_of(most_.begin(), most_.end(), [](uint64_t most) { return most != kNoBound; });
  }

 private:
  std::array<uint64_t, kClientBounds> most_ = {kNoBound, kNoBound, kNoBound, kNoBound, kNoBound};
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_CLIENT_BOUNDS_H_
