// LimitAdminService: serves sluice.v1.LimitAdmin. It checks the token and converts
// messages; service::LimitAdmin does the work.
#ifndef SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_SERVICE_H_
#define SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "server/service/limit_admin.h"
#include "server/transport/rpc/method.h"
#include "server/transport/services/bearer_token.h"

namespace sluice::transport {

// Thread-safe. Outlives the event loop that serves it. A call runs on that loop and may take long
// (PutLimit builds a table, ListKeys reads a sketch): the loop should serve nothing else.
class LimitAdminService {
 public:
  // Every call must send `token`; null: none is required. A refused call is logged before its
  // message is decoded. Collaborators outlive the service.
  LimitAdminService(service::LimitAdmin& admin, const BearerToken* token, common::Log& log);
  ~LimitAdminService();
  LimitAdminService(const LimitAdminService&) = delete;
  LimitAdminService& operator=(const LimitAdminService&) = delete;

  void Register(MethodTable* methods);

  // A method as another transport calls it, which has checked the caller's right. Decodes the
  // request, executes it, and calls done(encoded response or error) once, on any thread.
  class Call {
   public:
    virtual ~Call() = default;
    using Done = std::function<void(absl::StatusOr<std::string>)>;
    virtual void Execute(absl::Span<const uint8_t> request, Done done) const = 0;
  };
  // `name`: "ListLimits". REQUIRES: the service has it.
  const Call& Find(std::string_view name) const;

 private:
  class AnyMethod;
  template <typename Request, typename Response, typename Handler>
  class Method;

  // Checks the token. Returns false if it has refused the call.
  bool Admit(ServerCall& call) const;
  // handler(request, done) must call done(response or error) once, on any thread.
  template <typename Request, typename Response, typename Handler>
  void Add(std::string_view name, Handler handler);

  service::LimitAdmin& admin_;
  const BearerToken* const token_;
  common::Log& log_;
  std::vector<std::pair<std::string, std::unique_ptr<AnyMethod>>> methods_;  // by path
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_SERVICE_H_
