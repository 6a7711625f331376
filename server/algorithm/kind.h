// The kinds of algorithms and their names: the only list of them.
#ifndef SLUICE_SERVER_ALGORITHM_KIND_H_
#define SLUICE_SERVER_ALGORITHM_KIND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::algorithm {

// A new kind also goes into KindName and kKinds (kind.cc, where the compiler finds a missing one);
// every switch over kinds is exhaustive, so the compiler names the other places.
enum class Kind : uint8_t { kTokenBucket = 0, kSlidingLog, kSlidingWindow, kFixedWindow };

inline constexpr Kind kKinds[] = {Kind::kTokenBucket, Kind::kSlidingLog, Kind::kSlidingWindow,
                                  Kind::kFixedWindow};

// "token_bucket".
std::string_view KindName(Kind kind);

// Absent if no kind has that name.
std::optional<Kind> ParseKind(std::string_view name);

// "token_bucket, sliding_log, sliding_window or fixed_window": for messages.
std::string KindNames();

}  // namespace sluice::algorithm

#endif  // SLUICE_SERVER_ALGORITHM_KIND_H_
