// What sluiced sets up for its own process: open files, core dumps, and what `ps` shows.
#ifndef SLUICE_SERVER_PROCESS_SETUP_H_
#define SLUICE_SERVER_PROCESS_SETUP_H_

#include "common/log.h"
#include "server/flags.h"

namespace sluice {

// Overwrites passwords in URLs among the arguments, since every local user can read them in the
// list of processes. Call it once the flags are parsed.
void HidePasswords(int argc, char** argv);

// Forbids core dumps, which would have keys, tokens and passwords; only root can then attach to the
// process, or read the files of /proc that show its memory and its descriptors. Raises the limit of
// open files as far as the system permits, and logs a warning if that is too few for
// --max_connections.
void SetProcessLimits(const Flags& flags, common::Log& log);

}  // namespace sluice

#endif  // SLUICE_SERVER_PROCESS_SETUP_H_
