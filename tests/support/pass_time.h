// Lets real time pass, in tests of real processes: a fault lasts for a while, or a test polls.
#ifndef SLUICE_TESTS_SUPPORT_PASS_TIME_H_
#define SLUICE_TESTS_SUPPORT_PASS_TIME_H_

#include <chrono>
#include <thread>

namespace sluice::testing {

inline void PassTime(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_PASS_TIME_H_
