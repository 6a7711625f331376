#include "client/cli/command_line.h"

#include <algorithm>
#include <utility>

namespace sluice::cli {
namespace {

Status Bad(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

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

Result<ParsedLine> ParseLine(const std::vector<std::string>& words,
                             const std::vector<CommandSpec>& commands,
                             const std::vector<Flag>& global) {
  // Words and flags apart first; which flags take a value depends on the command, which may come
  // after global flags: so look for the command among the plain words as they come.
  ParsedLine line;
  std::string pending;  // the first word of a command of two, as "limits"
  const auto find_flag = [&](std::string_view name) -> const Flag* {
    for (const Flag& flag : global) {
      if (flag.name == name) return &flag;
    }
    if (line.command != nullptr) {
      for (const Flag& flag : line.command->flags) {
        if (flag.name == name) return &flag;
      }
    }
    return nullptr;
  };
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      line.arguments.command.assign(words.begin() + static_cast<long>(i) + 1, words.end());
      if (line.command != nullptr && !line.command->takes_command) {
        // Only an end of flags: what follows are arguments.
        auto& rest = line.arguments.command;
        line.arguments.positional.insert(line.arguments.positional.end(), rest.begin(), rest.end());
        rest.clear();
      }
      break;
    }
    if (word == "-h") {
      line.arguments.flags["help"].push_back("");
      continue;
    }
    if (word.size() > 2 && word.rfind("--", 0) == 0) {
      const size_t equals = word.find('=');
      const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
      const Flag* flag = find_flag(name);
      if (flag == nullptr) {
        std::vector<std::string> names;
        names.reserve(global.size());
        for (const Flag& one : global) names.push_back(one.name);
        if (line.command != nullptr) {
          for (const Flag& one : line.command->flags) names.push_back(one.name);
        }
        return Bad("unknown flag --" + name +
                   (line.command != nullptr ? " of " + line.command->name : "") +
                   Suggestion(name, names, "--"));
      }
      if (flag->value.empty()) {
        if (equals != std::string::npos) return Bad("flag --" + name + " takes no value");
        line.arguments.flags[name].push_back("");
      } else if (equals != std::string::npos) {
        line.arguments.flags[name].push_back(word.substr(equals + 1));
      } else if (flag->value_optional && (i + 1 == words.size() || words[i + 1].empty() ||
                                          words[i + 1][0] < '0' || words[i + 1][0] > '9')) {
        line.arguments.flags[name].push_back("");
      } else if (i + 1 < words.size()) {
        line.arguments.flags[name].push_back(words[++i]);
      } else {
        return Bad("flag --" + name + " needs a value: --" + name + "=" + flag->value);
      }
      continue;
    }
    if (word.size() > 1 && word[0] == '-' && line.command == nullptr) {
      return Bad("unknown flag " + word);
    }
    if (line.command != nullptr) {
      line.arguments.positional.push_back(word);
      continue;
    }
    const std::string name = pending.empty() ? word : pending + " " + word;
    std::vector<std::string> names;
    bool begins = false;
    for (const CommandSpec& command : commands) {
      if (command.name == name) line.command = &command;
      begins = begins || command.name.rfind(name + " ", 0) == 0;
      const size_t space = command.name.find(' ');
      if (pending.empty()) {
        names.push_back(command.name.substr(0, space));
      } else if (command.name.rfind(pending + " ", 0) == 0) {
        names.push_back(command.name.substr(space + 1));
      }
    }
    if (line.command != nullptr) continue;
    if (!begins) {
      return Bad("unknown command \"" + name + "\"" +
                 Suggestion(word, names, pending.empty() ? "" : pending + " "));
    }
    pending = word;
  }
  if (line.command == nullptr) {
    if (pending.empty() || line.arguments.Has("help")) return line;
    std::string all;
    for (const CommandSpec& command : commands) {
      if (command.name.rfind(pending + " ", 0) != 0) continue;
      all += (all.empty() ? "" : ", ") + command.name;
    }
    return Bad("\"" + pending + "\" needs a second word: " + all);
  }
  if (line.arguments.Has("help")) return line;
  const size_t count = line.arguments.positional.size();
  if (count < line.command->min_arguments) {
    return Bad(line.command->name + " needs " + line.command->arguments);
  }
  if (count > line.command->max_arguments) {
    return Bad(line.command->name + " takes " +
               (line.command->arguments.empty() ? "no arguments" : line.command->arguments) +
               ", not also \"" + line.arguments.positional[line.command->max_arguments] + "\"");
  }
  if (line.command->takes_command && line.arguments.command.empty()) {
    return Bad(line.command->name + " needs -- and a command to run");
  }
  return line;
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
      "usage: sluice [flags] COMMAND [arguments]\n\nAsks a Sluice server for permits, and looks "
      "after it.\n\nCommands:\n";
  size_t width = 0;
  for (const CommandSpec& command : commands) width = std::max(width, command.name.size());
  for (const CommandSpec& command : commands) {
    const std::string first = command.summary.substr(0, command.summary.find('\n'));
    text += "  " + command.name + std::string(width - command.name.size() + 2, ' ') + first + "\n";
  }
  text += "\nFlags of every command:\n";
  AppendFlags(global, &text);
  text +=
      "\nEnvironment: SLUICE_SERVER, SLUICE_ADMIN and SLUICE_TOKEN_FILE stand for --server, "
      "--admin\nand --token-file where these are not given.\n"
      "\nExit codes: 0 done or granted, 1 denied, 2 bad usage or refused, 3 no server answered.\n"
      "\nExamples:\n"
      "  sluice acquire api user:42\n"
      "  sluice query api user:42 --output json\n"
      "  sluice COMMAND --help\n";
  return text;
}

}  // namespace sluice::cli
