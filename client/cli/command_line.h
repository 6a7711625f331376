// Parses the command line: a command, its flags and its arguments. Errors suggest the nearest name.
#ifndef SLUICE_CLIENT_CLI_COMMAND_LINE_H_
#define SLUICE_CLIENT_CLI_COMMAND_LINE_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/status.h"

namespace sluice::cli {

inline Status BadUsage(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

struct Flag {
  std::string name;   // without --
  std::string value;  // the placeholder of its value in the help; empty: it takes no value
  std::string help;
  bool value_optional = false;  // --flag alone is allowed; its value is then ""
};

struct CommandSpec {
  std::string name;            // "acquire", or "limits list"
  std::string arguments = {};  // "LIMIT [KEY]"
  std::string summary = {};
  std::vector<Flag> flags = {};
  std::string examples = {};
  size_t min_arguments = 0;
  size_t max_arguments = 0;
  bool takes_command = false;  // -- CMD [ARG...]
};

class Arguments {
 public:
  bool Has(std::string_view flag) const;
  // The last value given, if any.
  std::optional<std::string> Get(std::string_view flag) const;
  std::vector<std::string> All(std::string_view flag) const;

  std::vector<std::string> positional;
  std::vector<std::string> command;  // the words after --
  std::map<std::string, std::vector<std::string>, std::less<>> flags;
};

// The result of parsing argv.
struct ParsedLine {
  const CommandSpec* command = nullptr;  // null: no command was given
  Arguments arguments;
};
// Parses argv without the program's name. Flags of `global` may be anywhere before --. The first
// words without dashes are the command. INVALID_ARGUMENT: bad usage.
Result<ParsedLine> ParseLine(const std::vector<std::string>& words,
                             const std::vector<CommandSpec>& commands,
                             const std::vector<Flag>& global);

// The nearest of `names` if it is similar enough, else empty.
std::string NearestName(std::string_view word, const std::vector<std::string>& names);

std::string CommandHelp(const CommandSpec& command, const std::vector<Flag>& global);
std::string OverviewHelp(const std::vector<CommandSpec>& commands, const std::vector<Flag>& global);

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_COMMAND_LINE_H_
