// ratelimit: starts sluiced as the environment of envoyproxy/ratelimit says.
//
//   ratelimit [FLAG...]
//
// Flags of sluiced may follow, and precede what the environment says.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/ratelimit/environment.h"

extern char** environ;

namespace sluice::ratelimit {
namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

Environment ReadEnvironment() {
  Environment environment;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text = *one;
    const size_t equals = text.find('=');
    if (equals == text.npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

// Adds an option with a file that holds the password and that only this process and the one that
// replaces it see. Returns false if there can be no such file.
bool AddPassword(const char* option, const std::string& password, std::string* url) {
  if (password.empty()) return true;
  const int file = memfd_create(option, 0);
  const std::string line = password + "\n";
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return false;
  }
  absl::StrAppend(url, absl::StrContains(*url, '?') ? "&" : "?", option, "=/proc/self/fd/", file);
  return true;
}

// Returns if there is no sluiced.
void Execute(std::vector<std::string>& arguments) {
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& one : arguments) words.push_back(one.data());
  words.push_back(nullptr);
  // The one beside this program, else the one of PATH.
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (size > 0) {
    std::string path(self, static_cast<size_t>(size));
    path.resize(path.rfind('/') + 1);
    path += "sluiced";
    execv(path.c_str(), words.data());
  }
  execvp("sluiced", words.data());
}

int Run(int argc, char** argv) {
  const common::SystemClock clock;
  common::Log log(clock, common::LogLevel::kInfo, STDERR_FILENO);
  Translation translation = Translate(ReadEnvironment());
  for (const std::string& error : translation.errors) {
    std::fprintf(stderr, "ratelimit: %s\n", error.c_str());
  }
  if (!translation.errors.empty()) return kBadInput;
  for (const IgnoredVariable& one : translation.ignored) {
    log.Warning("variable_without_effect", {{"name", one.name}, {"reason", one.why}});
  }
  if (!AddPassword("password_file", translation.password, &translation.store) ||
      !AddPassword("sentinel_password_file", translation.sentinel_password, &translation.store)) {
    std::fprintf(stderr, "ratelimit: no memory for a password: %s\n", std::strerror(errno));
    return kFailed;
  }
  std::vector<std::string> arguments = {"sluiced"};
  for (std::string& flag : translation.flags) arguments.push_back(std::move(flag));
  if (!translation.store.empty()) arguments.push_back(absl::StrCat("--store=", translation.store));
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  Execute(arguments);
  std::fprintf(stderr, "ratelimit: cannot start sluiced: %s\n", std::strerror(errno));
  return kFailed;
}

}  // namespace
}  // namespace sluice::ratelimit

int main(int argc, char** argv) { return sluice::ratelimit::Run(argc, argv); }
