// What most sources include, compiled once for each preset (SLUICE_PCH). A source still includes
// what it uses: the dev preset builds without precompiled headers.
#ifndef SLUICE_COMMON_PRECOMPILED_H_
#define SLUICE_COMMON_PRECOMPILED_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#endif  // SLUICE_COMMON_PRECOMPILED_H_
