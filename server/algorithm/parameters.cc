#include "server/algorithm/parameters.h"

namespace sluice::algorithm {

bool operator==(const Parameters& a, const Parameters& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kTokenBucket:
      return a.token_bucket == b.token_bucket;
    case Kind::kSlidingLog:
      return a.sliding_log == b.sliding_log;
    case Kind::kSlidingWindow:
      return a.sliding_window == b.sliding_window;
    case Kind::kFixedWindow:
      return a.fixed_window == b.fixed_window;
  }
  return false;
}

const Rate& RateOf(const Parameters& parameters) {
  switch (parameters.kind) {
    case Kind::kTokenBucket:
      return parameters.token_bucket.rate;
    case Kind::kSlidingLog:
      return parameters.sliding_log.rate;
    case Kind::kSlidingWindow:
      return parameters.sliding_window.rate;
    case Kind::kFixedWindow:
      return parameters.fixed_window.rate;
  }
  return parameters.token_bucket.rate;
}

}  // namespace sluice::algorithm
