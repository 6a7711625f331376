// HeldCommand: runs a command as a child process while slots are held, and ends it if they are
// lost.
#ifndef SLUICE_CLIENT_CLI_HELD_COMMAND_H_
#define SLUICE_CLIENT_CLI_HELD_COMMAND_H_

#include <string>
#include <vector>

#include "sluice/permit.h"
#include "sluice/status.h"

namespace sluice::cli {

enum class WhenLost {
  kTerm,    // SIGTERM, and SIGKILL 10 s later
  kIgnore,  // print a warning
};

// One of a process: it handles the process's signals. Not thread-safe but for Lost.
class HeldCommand {
 public:
  // The process can wait for events. UNAVAILABLE: it has no file descriptors left.
  static Status Prepare();
  // The slots are lost. Thread-safe; to be passed as PermitOptions::on_lost.
  static void Lost(const Status& why);

  // Runs it to its end. Passes SIGTERM, SIGHUP, SIGINT and SIGQUIT on; those that are ignored when
  // it starts stay ignored, also by the command. Returns the exit code: the command's, or 128 and
  // the number of the signal that ended it; 127 or 126 if it cannot be run.
  // REQUIRES: Prepare.
  static int Run(const std::vector<std::string>& words, const Permit& permit, WhenLost when_lost);
};

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_HELD_COMMAND_H_
