// What most tests include, compiled once for each preset (SLUICE_PCH). A test still includes what
// it uses: the dev preset builds without precompiled headers.
#ifndef SLUICE_TESTS_SUPPORT_PRECOMPILED_H_
#define SLUICE_TESTS_SUPPORT_PRECOMPILED_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck/gtest.h>
#endif

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#endif  // SLUICE_TESTS_SUPPORT_PRECOMPILED_H_
