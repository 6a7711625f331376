// The mark of a call that a server refused before it took or changed anything: trailing metadata
// beside the status. Only with it may a client send an acquisition again, here or elsewhere: a
// status alone (UNAVAILABLE, say) does not tell whether permits were taken. On a stream it speaks
// of the messages that have no answer.
#ifndef SLUICE_COMMON_EXECUTED_H_
#define SLUICE_COMMON_EXECUTED_H_

namespace sluice::common {

inline constexpr char kExecutedMetadata[] = "sluice-executed";
inline constexpr char kNotExecuted[] = "no";

// How the user agent of a client begins that knows the mark.
inline constexpr char kMarkKnowingAgent[] = "sluice-cpp";

}  // namespace sluice::common

#endif  // SLUICE_COMMON_EXECUTED_H_
