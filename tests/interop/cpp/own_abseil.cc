// A program with an Abseil of its own, of another version than the client's. Arguments: ADDRESS of
// a server with the limit "once", of one permit.
#include <sluice/client.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#if ABSL_LTS_RELEASE_VERSION != 20240116
#error "this is not the program's own Abseil"
#endif

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  auto client =
      sluice::Client::Create({.servers = {argv[1]}, .deadline = std::chrono::seconds(20)});
  if (!client.ok()) return 1;
  auto stream = client->OpenStream();
  const auto granted = client->Acquire("once", "own-abseil");
  const auto denied = stream.Submit(sluice::Acquisition("once", "own-abseil")).get();
  if (!granted.ok() || !granted->granted || !denied.ok() || denied->granted) {
    std::printf("%s", absl::StrCat("unexpected: ", granted.status().ToString(), ", ",
                                   denied.status().ToString(), "\n")
                          .c_str());
    return 1;
  }
  try {
    static_cast<void>(absl::MakeConstSpan(granted->charges).at(1));
  } catch (const std::out_of_range&) {
    std::printf("%s",
                absl::StrCat("as expected: ", granted->charges[0].remaining, " left\n").c_str());
    return 0;
  }
  return 1;
}
