#include "server/takeover/activation.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/bounds.h"

namespace sluice::takeover {
namespace {

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START

std::string Take(const char* name) {
  const char* const value = std::getenv(name);
  std::string taken = value != nullptr ? value : "";
  unsetenv(name);
  return taken;
}

}  // namespace

absl::StatusOr<PortSockets> ActivatedSockets(const std::vector<std::string>& names) {
  const std::string process = Take("LISTEN_PID");
  const std::string count_text = Take("LISTEN_FDS");
  const std::string names_text = Take("LISTEN_FDNAMES");
  if (process.empty() || process != absl::StrCat(getpid())) return PortSockets();
  size_t count = 0;
  if (!absl::SimpleAtoi(count_text, &count) || count > common::bounds::kMaxTakeoverSockets) {
    return absl::InvalidArgumentError(absl::StrCat("LISTEN_FDS=", count_text,
                                                   ": write a number of sockets, up to ",
                                                   common::bounds::kMaxTakeoverSockets));
  }
  const std::vector<std::string> given = absl::StrSplit(names_text, ':');
  std::map<std::string, std::vector<net::Descriptor>> ports;
  for (size_t i = 0; i < count; ++i) {
    const int fd = kFirst + static_cast<int>(i);
    const std::string name = i < given.size() ? given[i] : "";
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "LISTEN_FDNAMES: descriptor ", fd, " is named \"", name,
          "\"; name the port that it is for (FileDescriptorName=): ", absl::StrJoin(names, ", ")));
    }
    ports[name].emplace_back(fd);
  }
  PortSockets activated;
  for (auto& [name, sockets] : ports) {
    auto adopted = net::ListeningSockets::Adopt(std::move(sockets));
    if (!adopted.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("LISTEN_FDS: the socket \"", name, "\": ", adopted.status().message()));
    }
    activated[name].listen = adopted->address().ToString();
    activated[name].sockets = std::make_shared<net::ListeningSockets>(*std::move(adopted));
  }
  return activated;
}

}  // namespace sluice::takeover
