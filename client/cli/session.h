// Session: the parsed flags of one invocation, and the clients that they configure.
#ifndef SLUICE_CLIENT_CLI_SESSION_H_
#define SLUICE_CLIENT_CLI_SESSION_H_

#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command_line.h"
#include "client/cli/json.h"
#include "sluice/admin_client.h"
#include "sluice/client.h"

namespace sluice::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitDenied = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnavailable = 3;

std::vector<Flag> GlobalFlags();

class Session {
 public:
  // INVALID_ARGUMENT: the value of a flag is invalid.
  static Result<Session> Create(Arguments arguments);

  const Arguments& arguments() const { return arguments_; }
  // A positional argument, or empty.
  std::string Argument(size_t index) const {
    return index < arguments_.positional.size() ? arguments_.positional[index] : "";
  }
  bool json() const { return json_; }
  const ClientOptions& client_options() const { return client_options_; }
  const AdminOptions& admin_options() const { return admin_options_; }

  Result<Client> MakeClient() const { return Client::Create(client_options_); }
  // Calls `call(AdminClient&)` and returns its Status or Result.
  template <typename Call>
  std::invoke_result_t<Call, AdminClient&> AskAdmin(Call call) const {
    Result<AdminClient> admin = AdminClient::Create(admin_options_);
    if (!admin.ok()) return admin.status();
    return call(*admin);
  }

  // Prints the error and returns its exit code.
  int Fail(const Status& status) const;
  // Prints what is wrong with a file or a flag, and returns kExitUsage.
  int FailCheck(const absl::Status& status) const;
  // Prints one line.
  void Print(const Json& json) const;
  // Prints an answer as JSON or as text, or its error; returns the exit code.
  template <typename T>
  int Show(const Result<T>& answer, void (*write)(const T&, Json*), void (*print)(const T&)) const {
    if (!answer.ok()) return Fail(answer.status());
    if (json_) {
      Json json;
      write(*answer, &json);
      Print(json);
    } else {
      print(*answer);
    }
    return kExitDone;
  }

  // The values of flags, or `fallback`.
  Result<uint64_t> Number(std::string_view flag, uint64_t fallback) const;
  Result<std::chrono::nanoseconds> Duration(std::string_view flag,
                                            std::chrono::nanoseconds fallback) const;
  // LIMIT [KEY] and every --bucket; at least one.
  Result<std::vector<Bucket>> Buckets(const std::string& command) const;

 private:
  Arguments arguments_;
  bool json_ = false;
  ClientOptions client_options_;
  AdminOptions admin_options_;
};

// Each command reads its arguments from the session and returns the exit code.
int RunAcquire(const Session& session);
int RunQuery(const Session& session);
int RunWatch(const Session& session);
int RunRefund(const Session& session);
int RunRenew(const Session& session);
int RunHolds(const Session& session);
int RunSettle(const Session& session);
int RunBatch(const Session& session);
int RunLimitsList(const Session& session);
int RunLimitsGet(const Session& session);
int RunLimitsPut(const Session& session);
int RunLimitsDelete(const Session& session);
int RunKeys(const Session& session);
int RunReset(const Session& session);
int RunFloorLift(const Session& session);
int RunStats(const Session& session);
int RunConfig(const Session& session);
int RunHealth(const Session& session);
int RunCheck(const Session& session);
int RunImport(const Session& session);
int RunBench(const Session& session);
int RunRun(const Session& session);

// Whether a path is a folder, or a file of Envoy's rate-limit configuration; and the check of it.
bool IsEnvoyConfiguration(const std::string& path);
int RunCheckEnvoy(const Session& session);

}  // namespace sluice::cli

#endif  // SLUICE_CLIENT_CLI_SESSION_H_
