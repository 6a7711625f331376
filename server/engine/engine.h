// Engine: charges -> decision. Adds up charges on the same bucket, hands the acquisition to the
// store, and spreads the results back over the charges as they were asked for.
#ifndef SLUICE_SERVER_ENGINE_ENGINE_H_
#define SLUICE_SERVER_ENGINE_ENGINE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/store/store.h"

namespace sluice::engine {

// A reusable work area for one AcquireOperation on the store: a caller keeps one (per thread, per
// stream) and pays no allocation once its vectors have grown. Not thread-safe.
//
//   work.Clear();
//   for each acquisition: work.Begin(max_wait_ns, want_receipt);
//                         work.Add(rule, key, permits) for each charge, parents last;
//                         absl::Status s = work.End();
//   engine.Acquire(&work, deadline_ns);   // -> work.OnDone() -> results
class AcquireWork;

}  // namespace sluice::engine

#endif  // SLUICE_SERVER_ENGINE_ENGINE_H_
