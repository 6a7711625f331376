#include "client/cli/command_line.h"

#include <algorithm>
#include <utility>

namespace sluice::cli {
namespace {

size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t corner = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] == b[j - 1] ? 0 : 1)});
      corner = above;
    }
  }
  return row[b.size()];
}

std::string Suggestion(std::string_view word, const std::vector<std::string>& names,
                       std::string_view prefix) {
  const std::string nearest = NearestName(word, names);
  if (nearest.empty()) return "";
  return "; did you mean " + std::string(prefix) + nearest + "?";
}

void AppendFlags(const std::vector<Flag>& flags, std::string* text) {
  size_t width = 0;
  const auto shown = [](const Flag& flag) {
    if (flag.value_optional) return "--" + flag.name + "[=" + flag.value + "]";
    return "--" + flag.name + (flag.value.empty() ? "" : "=" + flag.value);
  };
  for (const Flag& flag : flags) width = std::max(width, shown(flag).size());
  for (const Flag& flag : flags) {
    const std::string left = shown(flag);
    *text += "  " + left + std::string(width - left.size() + 2, ' ') + flag.help + "\n";
  }
}

}  // namespace

bool Arguments::Has(std::string_view flag) const { return flags.find(flag) != flags.end(); }

std::optional<std::string> Arguments::Get(std::string_view flag) const {
  const auto found = flags.find(flag);
  if (found == flags.end()) return std::nullopt;
  return found->second.back();
}

std::vector<std::string> Arguments::All(std::string_view flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? std::vector<std::string>() : found->second;
}

std::string NearestName(std::string_view word, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = word.size() / 3 + 2;
  for (const std::string& name : names) {
    const bool begins = word.size() >= 2 && name.rfind(word, 0) == 0;
    const size_t distance = begins ? 0 : Distance(word, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

namespace {

// Flags that take a value depend on the command, and global flags may precede the command: so it
// parses word by word, and knows the flags of the command once that is complete.
class Parser {
 public:
  Parser(const std::vector<std::string>& words, const std::vector<CommandSpec>& commands,
         const std::vector<Flag>& global)
      : words_(words), commands_(commands), global_(global) {}

  Result<ParsedLine> Parse() {
    for (; next_ < words_.size() && words_[next_] != "--"; ++next_) {
      if (Status bad = ParseWord(words_[next_]); !bad.ok()) return bad;
    }
    if (next_ < words_.size()) ParseRest();
    if (line_.command == nullptr) {
      if (first_word_.empty() || line_.arguments.Has("help")) return line_;
      return BadUsage("\"" + first_word_ + "\" needs a second word: " + SecondWords());
    }
    if (line_.arguments.Has("help")) return line_;
    if (Status bad = CheckArguments(); !bad.ok()) return bad;
    return line_;
  }

 private:
  Status ParseWord(const std::string& word) {
    if (word == "-h") {
      line_.arguments.flags["help"].push_back("");
      return Status();
    }
    if (word.size() > 2 && word.rfind("--", 0) == 0) return ParseFlag(word);
    if (line_.command != nullptr) {
      line_.arguments.positional.push_back(word);
      return Status();
    }
    if (word.size() > 1 && word[0] == '-') return BadUsage("unknown flag " + word);
    return ParseCommand(word);
  }

  // Words after "--".
  void ParseRest() {
    const auto rest = words_.begin() + static_cast<long>(next_) + 1;
    Arguments& arguments = line_.arguments;
    auto& into = line_.command != nullptr && !line_.command->takes_command ? arguments.positional
                                                                           : arguments.command;
    into.insert(into.end(), rest, words_.end());
  }

  Status ParseFlag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const Flag* const flag = FindFlag(name);
    if (flag == nullptr) return UnknownFlag(name);
    std::vector<std::string>& values = line_.arguments.flags[name];
    if (flag->value.empty()) {
      if (equals != std::string::npos) return BadUsage("flag --" + name + " takes no value");
      values.push_back("");
    } else if (equals != std::string::npos) {
      values.push_back(word.substr(equals + 1));
    } else if (flag->value_optional && !NextIsNumber()) {
      values.push_back("");
    } else if (next_ + 1 < words_.size()) {
      values.push_back(words_[++next_]);
    } else {
      return BadUsage("flag --" + name + " needs a value: --" + name + "=" + flag->value);
    }
    return Status();
  }

  bool NextIsNumber() const {
    if (next_ + 1 == words_.size()) return false;
    const std::string& word = words_[next_ + 1];
    return !word.empty() && word[0] >= '0' && word[0] <= '9';
  }

  const Flag* FindFlag(std::string_view name) const {
    for (const Flag& flag : global_) {
      if (flag.name == name) return &flag;
    }
    if (line_.command == nullptr) return nullptr;
    for (const Flag& flag : line_.command->flags) {
      if (flag.name == name) return &flag;
    }
    return nullptr;
  }

  Status UnknownFlag(const std::string& name) const {
    std::vector<std::string> names;
    names.reserve(global_.size());
    for (const Flag& one : global_) names.push_back(one.name);
    std::string of;
    if (line_.command != nullptr) {
      for (const Flag& one : line_.command->flags) names.push_back(one.name);
      of = " of " + line_.command->name;
    }
    return BadUsage("unknown flag --" + name + of + Suggestion(name, names, "--"));
  }

  // A command, or the first word of one: "limits" of "limits list".
  Status ParseCommand(const std::string& word) {
    const std::string prefix = first_word_.empty() ? "" : first_word_ + " ";
    const std::string name = prefix + word;
    std::vector<std::string> names;
    bool begins = false;
    for (const CommandSpec& command : commands_) {
      if (command.name == name) line_.command = &command;
      begins = begins || command.name.rfind(name + " ", 0) == 0;
      if (command.name.rfind(prefix, 0) != 0) continue;
      const std::string rest = command.name.substr(prefix.size());
      names.push_back(rest.substr(0, rest.find(' ')));
    }
    if (line_.command != nullptr) return Status();
    if (!begins) {
      return BadUsage("unknown command \"" + name + "\"" + Suggestion(word, names, prefix));
    }
    first_word_ = word;
    return Status();
  }

  std::string SecondWords() const {
    std::string all;
    for (const CommandSpec& command : commands_) {
      if (command.name.rfind(first_word_ + " ", 0) != 0) continue;
      all += (all.empty() ? "" : ", ") + command.name;
    }
    return all;
  }

  Status CheckArguments() const {
    const CommandSpec& command = *line_.command;
    const std::vector<std::string>& positional = line_.arguments.positional;
    if (positional.size() < command.min_arguments) {
      return BadUsage(command.name + " needs " + command.arguments);
    }
    if (positional.size() > command.max_arguments) {
      return BadUsage(command.name + " takes " +
                      (command.arguments.empty() ? "no arguments" : command.arguments) +
                      ", not also \"" + positional[command.max_arguments] + "\"");
    }
    if (command.takes_command && line_.arguments.command.empty()) {
      return BadUsage(command.name + " needs -- and a command to run");
    }
    return Status();
  }

  const std::vector<std::string>& words_;
  const std::vector<CommandSpec>& commands_;
  const std::vector<Flag>& global_;
  size_t next_ = 0;
  std::string first_word_;
  ParsedLine line_;
};

}  // namespace

Result<ParsedLine> ParseLine(const std::vector<std::string>& words,
                             const std::vector<CommandSpec>& commands,
                             const std::vector<Flag>& global) {
  return Parser(words, commands, global).Parse();
}

std::string CommandHelp(const CommandSpec& command, const std::vector<Flag>& global) {
  std::string text = "usage: sluice " + command.name;
  if (!command.arguments.empty()) text += " " + command.arguments;
  if (!command.flags.empty()) text += " [flags]";
  if (command.takes_command) text += " -- CMD [ARG...]";
  text += "\n\n" + command.summary + "\n";
  if (!command.flags.empty()) {
    text += "\nFlags:\n";
    AppendFlags(command.flags, &text);
  }
  text += "\nFlags of every command:\n";
  AppendFlags(global, &text);
  text += "\nExamples:\n" + command.examples;
  return text;
}

std::string OverviewHelp(const std::vector<CommandSpec>& commands,
                         const std::vector<Flag>& global) {
  std::string text =
      "usage: sluice [flags] COMMAND [arguments]\n\nAcquires permits from a Sluice server, and "
      "manages the server.\n\nCommands:\n";
  size_t width = 0;
  for (const CommandSpec& command : commands) width = std::max(width, command.name.size());
  for (const CommandSpec& command : commands) {
    const std::string first = command.summary.substr(0, command.summary.find('\n'));
    text += "  " + command.name + std::string(width - command.name.size() + 2, ' ') + first + "\n";
  }
  text += "\nFlags of every command:\n";
  AppendFlags(global, &text);
  text +=
      "\nEnvironment: SLUICE_SERVER, SLUICE_ADMIN, SLUICE_TOKEN_FILE and SLUICE_ADMIN_TOKEN_FILE "
      "are\n"
      "the defaults of --server, --admin, --token-file and --admin-token-file.\n"
      "\nExit codes: 0 done or granted, 1 denied, 2 bad usage or an error, 3 no server decided\n"
      "(none answered, it is overloaded, its Redis is down, or the client has reached a bound).\n"
      "\nExamples:\n"
      "  sluice acquire api user:42\n"
      "  sluice query api user:42 --output json\n"
      "  sluice COMMAND --help\n";
  return text;
}

}  // namespace sluice::cli
