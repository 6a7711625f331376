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
#include "common/mutex.h"
#include "common/net/event_loop.h"
#include "common/net/timer_wheel.h"
#include "server/access/audit_log.h"
#include "server/access/caller.h"
#include "server/access/client.h"
#include "server/service/limit_admin.h"
#include "server/transport/rpc/method.h"
#include "server/transport/services/bearer_token.h"

namespace sluice::transport {

// Thread-safe. Outlives the event loop that serves it. A call runs on that loop and may take long
// (PutLimit builds a table, ListKeys reads a sketch): the loop should serve nothing else.
class LimitAdminService {
 public:
  // They outlive the service.
  struct Collaborators {
    service::LimitAdmin& admin;
    // Every call must send it; null: none is required. If the port recognises clients, they need
    // admin_view or admin_change instead. A refused call is logged before its message is decoded.
    const BearerToken* token = nullptr;
    common::Log& log;  // of changes
    // Changes are written to it before they are made, and before they are confirmed. Null: none.
    access::AuditLog* audit = nullptr;
  };
  explicit LimitAdminService(const Collaborators& with);
  ~LimitAdminService();
  LimitAdminService(const LimitAdminService&) = delete;
  LimitAdminService& operator=(const LimitAdminService&) = delete;

  void Register(MethodTable* methods);

  // Undoes changes of limits from when they have ended, on `loop`, which may block, and records
  // that. A change that cannot be undone yet is tried again. Call once; any thread.
  void UndoEndedChangesOn(net::EventLoop& loop);

  // The caller of a call, and its address.
  struct Origin {
    access::CallerPtr caller;  // null: the server has no clients file
    std::string peer;
    std::string actor;  // access::ActorOf its connection
  };
  // A method as another transport calls it. Checks the right of a client, decodes the request,
  // executes it, and calls done(encoded response or error) once, on `loop`, which may block.
  class Call {
   public:
    explicit Call(access::Call right) : right_(right) {}
    virtual ~Call() = default;
    // What a client must be allowed to do.
    access::Call right() const { return right_; }
    using Done = std::function<void(absl::StatusOr<std::string>)>;
    virtual void Execute(absl::Span<const uint8_t> request, const Origin& origin,
                         net::EventLoop& loop, Done done) const = 0;

   private:
    const access::Call right_;
  };
  // `name`: "ListLimits". Ends the process if the service lacks it.
  const Call& Find(std::string_view name) const;

 private:
  class AnyMethod;
  template <typename Request, typename Response, typename Handler>
  class Method;

  void UndoEndedChanges();

  // Records that a change is about to be made. An error is to be told to the caller: then it must
  // not be made. Blocks on the disk.
  absl::Status RecordStart(access::AuditRecord record) const;
  // Logs a change, or that it failed. Returns what the caller is to be told. Blocks on the disk.
  absl::Status Record(const access::AuditRecord& record) const;
  // The limit as JSON; empty: there is none.
  std::string Shown(const std::string& limit) const;
  // Checks the token. Returns false if it has refused the call.
  bool Admit(ServerCall& call) const;
  // handler(request, done) must call done(response or error) once, on any thread.
  template <typename Request, typename Response, typename Handler>
  void Add(std::string_view name, access::Call right, Handler handler);

  service::LimitAdmin& admin_;
  const BearerToken* const token_;
  common::Log& log_;
  access::AuditLog* const audit_;
  mutable common::Mutex changes_;  // one change of a limit at a time, so that `before` is exact
  std::vector<std::pair<std::string, std::unique_ptr<AnyMethod>>> methods_;  // by path

  // On the loop of UndoEndedChangesOn only.
  net::EventLoop* undo_loop_ = nullptr;
  net::Timer undo_timer_{net::Timer::To<&LimitAdminService::UndoEndedChanges>, this};
  std::vector<std::string> not_undone_;  // whose failure is recorded
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_SERVICES_LIMIT_ADMIN_SERVICE_H_
