// The command line: a command, its flags and its arguments, checked against what the command
// takes. A mistake is answered with the nearest thing that exists.
#ifndef SLUICE_CLIENT_CLI_COMMAND_LINE_H_
#define SLUICE_CLIENT_CLI_COMMAND_LINE_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/status.h"

namespace sluice::cli {

struct Flag {
  std::string name;   // without --
  std::string value;  // what stands for its value in the help; empty: it takes none
  std::string help;
  bool value_optional = false;  // --flag alone is good too; its value is ""
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
  // The last one given; nothing if there is none.
  std::optional<std::string> Get(std::string_view flag) const;
  std::vector<std::string> All(std::string_view flag) const;

  std::vector<std::string> positional;
  std::vector<std::string> command;  // what followed --
  std::map<std::string, std::vector<std::string>, std::less<>> flags;
};

// Splits argv (without the program's name). `global` flags may stand anywhere before --.
// The first words that name a command are taken as it.
struct ParsedLine {
  const CommandSpec* command = nullptr;  // null: none was given
  Arguments arguments;
};
Result<ParsedLine> ParseLine(const std::vector<std::string>& words,
                             const std::vector<CommandSpec>& commands,
                             const std::vector<Flag>& global);

// The nearest of `names`, if it is near enough to have been meant; else empty.
std::string NearestName(std::string_view word, const std::vector<std::string>& names);

std::string CommandHelp(const CommandSpec& command, const std::vector<Flag>& global);
std::string OverviewHelp(const std::vector<CommandSpec>& commands, const std::vector<Flag>& global);

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_COMMAND_LINE_H_
