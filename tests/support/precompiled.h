// What most tests include, compiled once for each preset (SLUICE_PCH). A test still includes what
// it uses: the dev preset builds without precompiled headers.
#ifndef SLUICE_TESTS_SUPPORT_PRECOMPILED_H_
#define SLUICE_TESTS_SUPPORT_PRECOMPILED_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#if __has_include(<rapidcheck/gtest.h>)
#include <rapidcheck/gtest.h>
#endif

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/precompiled.h"

#endif  // SLUICE_TESTS_SUPPORT_PRECOMPILED_H_
