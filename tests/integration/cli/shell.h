// Shell: runs the command in a shell.
#ifndef SLUICE_TESTS_INTEGRATION_CLI_SHELL_H_
#define SLUICE_TESTS_INTEGRATION_CLI_SHELL_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace sluice::testing {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Runs a line of shell, in which $SLUICE is the command.
inline Outcome Shell(const std::string& line) {
  char folder[] = "/tmp/sluice-command-XXXXXX";
  if (mkdtemp(folder) == nullptr) return {};
  const std::string out = std::string(folder) + "/out";
  const std::string err = std::string(folder) + "/err";
  setenv("SLUICE", SLUICE_BINARY, 1);
  const int status = std::system(("(" + line + ") >" + out + " 2>" + err).c_str());
  Outcome outcome;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.out = ReadAll(out);
  outcome.err = ReadAll(err);
  unlink(out.c_str());
  unlink(err.c_str());
  rmdir(folder);
  return outcome;
}

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_INTEGRATION_CLI_SHELL_H_
