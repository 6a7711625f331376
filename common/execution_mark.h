// The mark of a call that a server refused before it took or changed anything: trailing metadata
// beside the status. A client may retry an acquisition, at any server, only with this mark: a
// status such as UNAVAILABLE does not say whether permits were taken. On a stream the mark covers
// the messages without an answer.
#ifndef SLUICE_COMMON_EXECUTION_MARK_H_
#define SLUICE_COMMON_EXECUTION_MARK_H_

namespace sluice::common {

inline constexpr char kExecutedMetadata[] = "sluice-executed";
inline constexpr char kNotExecuted[] = "no";

// The user agent of clients that know the mark begins with this.
inline constexpr char kMarkKnowingAgent[] = "sluice-cpp";

}  // namespace sluice::common

#endif  // SLUICE_COMMON_EXECUTION_MARK_H_
