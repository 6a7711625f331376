#include "server/process_setup.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "common/bounds.h"

namespace sluice {
namespace {

constexpr std::string_view kSentinelPassword = "sentinel_password=";

}  // namespace

void HidePasswords(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t scheme = argument.find("://");
    if (scheme == argument.npos) continue;
    const auto hide = [&](size_t begin, size_t end) {
      std::fill(argv[i] + begin, argv[i] + std::min(end, argument.size()), '*');
    };
    const size_t colon = argument.find(':', scheme + 3);  // the user's name stays
    const size_t host = argument.find('@', scheme);
    if (host != argument.npos && colon < host) hide(colon + 1, host);
    const size_t sentinel = argument.find(kSentinelPassword);
    if (sentinel != argument.npos) {
      hide(sentinel + kSentinelPassword.size(), argument.find('&', sentinel));
    }
  }
}

void SetProcessLimits(const Flags& flags, common::Log& log) {
  // The kernel does not ask RLIMIT_CORE where core_pattern pipes dumps to a program.
  prctl(PR_SET_DUMPABLE, 0);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const uint64_t needed = static_cast<uint64_t>(flags.max_connections) +
                          common::bounds::kMaxAdminConnections +
                          common::bounds::kMaxHttpConnections;
  if (files.rlim_max < needed) {
    log.Warning("few_open_files",
                {{"permitted", files.rlim_max},
                 {"needed", needed},
                 {"advice",
                  "raise the limit of open files (LimitNOFILE=, ulimit -n), or lower "
                  "--max_connections"}});
  }
}

}  // namespace sluice
