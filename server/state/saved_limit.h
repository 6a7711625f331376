// The bytes of a limit that an admin made, in a state file.
//
// Add a new field of LimitSpec to both functions, and raise kStateVersion (state_file.h).
#ifndef SLUICE_SERVER_STATE_SAVED_LIMIT_H_
#define SLUICE_SERVER_STATE_SAVED_LIMIT_H_

#include "server/limits/limit_spec.h"
#include "server/state/fields.h"

namespace sluice::state {

// All but defined_at, which the registry knows.
void WriteLimit(const limits::LimitSpec& spec, FieldWriter* to);
// Not checked: LimitRegistry::RestoreAdmin does that.
limits::LimitSpec ReadLimit(FieldReader* from);

}  // namespace sluice::state

#endif  // SLUICE_SERVER_STATE_SAVED_LIMIT_H_
