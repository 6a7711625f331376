#include "server/transport/services/limit_admin_service.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"
#include "common/net/event_loop.h"
#include "common/strings.h"
#include "common/utf8.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/empty.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/util/json_util.h"
#include "server/transport/rpc/server_call.h"
#include "server/transport/services/limit_admin_messages.h"
#include "server/transport/services/protobuf_messages.h"

namespace sluice::transport {
namespace {

constexpr access::Call kView = access::Call::kAdminView;
constexpr access::Call kChange = access::Call::kAdminChange;

// Ends a call with its response or an error. Called exactly once, on any thread.
template <typename Response>
using Done = std::function<void(absl::StatusOr<Response>)>;

// A call whose handler has not answered yet.
struct PendingCall {
  explicit PendingCall(ServerCall* call) : call(call), loop(call->loop()) {}
  ServerCall* call;  // used on the loop only; null: the call was cancelled
  net::EventLoop& loop;
};

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  // The messages have no Any, which alone could fail.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  return json;
}

// Why the bytes are no message of this type. Names a string that is not UTF-8, if one is.
absl::Status WhyNotParsed(absl::Span<const uint8_t> bytes,
                          const google::protobuf::Descriptor& type) {
  google::protobuf::Empty raw;  // keeps all fields as unknown ones
  if (Parse(bytes, &raw)) {
    const google::protobuf::UnknownFieldSet& fields = raw.GetReflection()->GetUnknownFields(raw);
    for (int i = 0; i < fields.field_count(); ++i) {
      const google::protobuf::UnknownField& field = fields.field(i);
      const auto* const known = type.FindFieldByNumber(field.number());
      if (field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED &&
          known != nullptr && known->type() == google::protobuf::FieldDescriptor::TYPE_STRING &&
          !common::IsUtf8(field.length_delimited())) {
        return common::errors::Invalid(type.name(), known->name(), ": \"",
                                       common::errors::Shown(field.length_delimited()),
                                       "\" is not valid UTF-8");
      }
    }
  }
  return common::errors::Invalid(type.name(), "the bytes are not such a message");
}

// The name of the limit that the request changes. Null: it changes none.
const std::string* ChangedLimit(const v1::PutLimitRequest& request) {
  return &request.limit().name();
}
const std::string* ChangedLimit(const v1::DeleteLimitRequest& request) { return &request.name(); }
const std::string* ChangedLimit(const google::protobuf::Message&) { return nullptr; }

}  // namespace

// As gRPC calls it, and as others do.
class LimitAdminService::AnyMethod : public UnaryMethod, public Call {
 protected:
  using Call::Call;
};

template <typename Request, typename Response, typename Handler>
class LimitAdminService::Method final : public AnyMethod {
 public:
  Method(const LimitAdminService& service, std::string_view name, access::Call right,
         Handler handler)
      : AnyMethod(right), service_(service), name_(name), handler_(std::move(handler)) {}

  void OnCall(ServerCall& call, absl::Span<const uint8_t> bytes) override {
    if (!service_.Admit(call)) return;
    auto pending = std::make_shared<PendingCall>(&call);
    call.set_state(pending.get());  // which lives until the handler has answered
    Execute(bytes, {call.caller(), call.peer_address(), access::ActorOf(call.peer_identity())},
            pending->loop, [pending](const absl::StatusOr<std::string>& response) {
              if (pending->call == nullptr) return;
              if (response.ok()) {
                pending->call->response().Append(std::string_view(*response));
                pending->call->Finish();
              } else {
                pending->call->Finish(response.status());
              }
            });
  }
  void OnCancelled(ServerCall& call) override {
    static_cast<PendingCall*>(call.state())->call = nullptr;
  }

  void Execute(absl::Span<const uint8_t> bytes, const Origin& origin, net::EventLoop& loop,
               Call::Done done) const override {
    // By the clients as they are now: the call may have waited for its turn.
    const access::CallerPtr caller = access::Clients::Current(origin.caller);
    if (caller != nullptr) {
      if (absl::Status allowed = caller->Check(this->right()); !allowed.ok()) {
        return done(std::move(allowed));
      }
    }
    Request request;
    if (!Parse(bytes, &request)) {
      done(WhyNotParsed(bytes, *Request::descriptor()));
      return;
    }
    if (this->right() == access::Call::kAdminChange) {
      return Change(request, {caller, origin.peer, origin.actor}, loop, std::move(done));
    }
    handler_(request, [&loop, done = std::move(done)](const absl::StatusOr<Response>& response) {
      OnLoop(loop, [done, response] { done(Encoded(response)); });
    });
  }

 private:
  static absl::StatusOr<std::string> Encoded(const absl::StatusOr<Response>& response) {
    if (!response.ok()) return response.status();
    return response->SerializeAsString();
  }

  // Executes a call that changes something, and records it before `done` is called.
  // REQUIRES: a caller is a client.
  void Change(const Request& request, const Origin& origin, net::EventLoop& loop,
              Call::Done done) const {
    auto record = std::make_shared<access::AuditRecord>();
    if (origin.caller != nullptr) record->client = origin.caller->client()->name;
    record->actor = origin.actor;
    record->peer = origin.peer;
    record->call = name_;
    record->request = Json(request);
    const std::string* const limit = ChangedLimit(request);
    // PutLimit and DeleteLimit answer before they return.
    auto changes =
        limit == nullptr ? nullptr : std::make_unique<common::MutexLock>(&service_.changes_);
    if (limit != nullptr) record->before = service_.Shown(*limit);
    if (absl::Status started = service_.RecordStart(*record); !started.ok()) {
      changes.reset();
      return done(std::move(started));
    }
    handler_(request, [this, record, limit, &loop,
                       done = std::move(done)](const absl::StatusOr<Response>& response) {
      record->outcome = response.status();
      if (limit != nullptr) record->after = service_.Shown(*limit);
      OnLoop(loop, [this, record, done, response] {
        const absl::Status recorded = service_.Record(*record);
        done(recorded.ok() ? Encoded(response) : recorded);
      });
    });
  }

  const LimitAdminService& service_;
  const std::string name_;
  const Handler handler_;
};

void LimitAdminService::UndoEndedChangesOn(net::EventLoop& loop) {
  loop.Post([this, &loop] {
    undo_loop_ = &loop;
    UndoEndedChanges();
  });
}

void LimitAdminService::UndoEndedChanges() {
  constexpr int64_t kLookNs = 100'000'000;
  constexpr int64_t kTryAgainNs = 1'000'000'000;
  std::vector<std::string> not_undone;
  for (const std::string& limit : admin_.Ended()) {
    const common::MutexLock changes(&changes_);
    access::AuditRecord record;
    record.peer = "expiry";
    record.call = "UndoPutLimit";
    v1::DeleteLimitRequest name;
    name.set_name(limit);
    record.request = Json(name);
    record.before = Shown(limit);
    record.outcome = admin_.Undo(limit);
    if (absl::IsNotFound(record.outcome)) continue;  // an admin has changed it meanwhile
    record.after = Shown(limit);
    if (!record.outcome.ok()) {
      not_undone.push_back(limit);
      if (absl::c_linear_search(not_undone_, limit)) continue;
      log_.Warning("limit_not_restored", {{"limit", limit}, {"error", record.outcome.message()}});
    }
    (void)Record(record);
  }
  not_undone_ = std::move(not_undone);
  undo_loop_->ArmIn(undo_timer_, not_undone_.empty() ? kLookNs : kTryAgainNs);
}

absl::Status LimitAdminService::RecordStart(access::AuditRecord record) const {
  if (audit_ == nullptr) return absl::OkStatus();
  record.started = true;
  absl::Status written = audit_->Write(record);
  if (written.ok()) return written;
  log_.Error("audit_log_failed", {{"call", record.call}, {"error", written.message()}});
  return common::errors::NotAuditable(common::ToStd(written.message()));
}

absl::Status LimitAdminService::Record(const access::AuditRecord& record) const {
  const absl::string_view outcome =
      record.outcome.ok() ? absl::string_view("OK") : record.outcome.message();
  log_.Info("admin_change", {{"call", record.call},
                             {"client", record.client.empty() ? "none" : record.client},
                             {"actor", record.actor.empty() ? "none" : record.actor},
                             {"peer", record.peer},
                             {"request", common::errors::Shown(record.request, 1024)},
                             {"outcome", outcome}});
  if (audit_ == nullptr) return absl::OkStatus();
  absl::Status written = audit_->Write(record);
  if (written.ok()) return written;
  log_.Error("audit_log_failed", {{"call", record.call}, {"error", written.message()}});
  return common::errors::NotAudited(common::ToStd(written.message()));
}

std::string LimitAdminService::Shown(const std::string& limit) const {
  const auto found = admin_.Get(limit);
  if (!found.ok()) return "";
  v1::Limit message;
  wire::Write(found->limit->spec(), admin_.now_ns(), &message);
  return Json(message);
}

bool LimitAdminService::Admit(ServerCall& call) const {
  // The transport has checked a client.
  if (token_ == nullptr || call.caller() != nullptr) return true;
  const absl::Status status = token_->Check(call.metadata("authorization").value_or(""));
  if (status.ok()) return true;
  call.Refuse(status, /*wrong_token=*/call.metadata("authorization").has_value());
  return false;
}

template <typename Request, typename Response, typename Handler>
void LimitAdminService::Add(std::string_view name, access::Call right, Handler handler) {
  methods_.emplace_back(
      absl::StrCat("/sluice.v1.LimitAdmin/", common::ToAbsl(name)),
      std::make_unique<Method<Request, Response, Handler>>(*this, name, right, std::move(handler)));
}

LimitAdminService::LimitAdminService(const Collaborators& with)
    : admin_(with.admin), token_(with.token), log_(with.log), audit_(with.audit) {
  Add<v1::ListLimitsRequest, v1::ListLimitsResponse>(
      "ListLimits", kView, [this](const auto&, const Done<v1::ListLimitsResponse>& done) {
        v1::ListLimitsResponse response;
        const auto table = admin_.List();
        for (const limits::Limit* limit : table->limits()) {
          wire::Write(limit->spec(), admin_.now_ns(), response.add_limits());
        }
        done(std::move(response));
      });
  Add<v1::GetLimitRequest, v1::Limit>(
      "GetLimit", kView, [this](const v1::GetLimitRequest& request, const Done<v1::Limit>& done) {
        const auto found = admin_.Get(request.name());
        if (!found.ok()) return done(found.status());
        v1::Limit response;
        wire::Write(found->limit->spec(), admin_.now_ns(), &response);
        done(std::move(response));
      });
  Add<v1::PutLimitRequest, v1::PutLimitResponse>(
      "PutLimit", kChange,
      [this](const v1::PutLimitRequest& request, const Done<v1::PutLimitResponse>& done) {
        absl::StatusOr<limits::LimitSpec> spec = wire::Read(request.limit());
        if (!spec.ok()) return done(spec.status());
        const auto put = admin_.Put(*std::move(spec), wire::ReadOptions(request));
        if (!put.ok()) return done(put.status());
        v1::PutLimitResponse response;
        wire::Write(put->limit->spec(), admin_.now_ns(), response.mutable_limit());
        response.set_replaced(put->replaced);
        done(std::move(response));
      });
  Add<v1::DeleteLimitRequest, v1::DeleteLimitResponse>(
      "DeleteLimit", kChange,
      [this](const v1::DeleteLimitRequest& request, const Done<v1::DeleteLimitResponse>& done) {
        if (absl::Status status = admin_.Delete(request.name()); !status.ok()) return done(status);
        done(v1::DeleteLimitResponse());
      });
  Add<v1::ResetKeyRequest, v1::ResetKeyResponse>(
      "ResetKey", kChange,
      [this](const v1::ResetKeyRequest& request, const Done<v1::ResetKeyResponse>& done) {
        admin_.ResetKey(request.limit(), request.key(), [done](absl::StatusOr<bool> existed) {
          if (!existed.ok()) return done(existed.status());
          v1::ResetKeyResponse response;
          response.set_existed(*existed);
          done(std::move(response));
        });
      });
  Add<v1::LiftFloorRequest, v1::LiftFloorResponse>(
      "LiftFloor", kChange,
      [this](const v1::LiftFloorRequest& request, const Done<v1::LiftFloorResponse>& done) {
        admin_.LiftFloor(request.limit(), [done](absl::StatusOr<int64_t> floor_wall_ns) {
          if (!floor_wall_ns.ok()) return done(floor_wall_ns.status());
          v1::LiftFloorResponse response;
          if (*floor_wall_ns > 0) SetTime(*floor_wall_ns, response.mutable_floor());
          done(std::move(response));
        });
      });
  Add<v1::ListHoldsRequest, v1::ListHoldsResponse>(
      "ListHolds", kView,
      [this](const v1::ListHoldsRequest& request, const Done<v1::ListHoldsResponse>& done) {
        admin_.ListHolds(request.limit(), request.key(), request.max_holds(),
                         [done](absl::StatusOr<service::ListedHolds> holds) {
                           if (!holds.ok()) return done(holds.status());
                           v1::ListHoldsResponse response;
                           wire::Write(*holds, &response);
                           done(std::move(response));
                         });
      });
  Add<v1::EndHoldRequest, v1::EndHoldResponse>(
      "EndHold", kChange,
      [this](const v1::EndHoldRequest& request, const Done<v1::EndHoldResponse>& done) {
        admin_.EndHold(request.limit(), request.key(), request.id(),
                       [done](absl::StatusOr<bool> ended) {
                         if (!ended.ok()) return done(ended.status());
                         v1::EndHoldResponse response;
                         response.set_ended(*ended);
                         done(std::move(response));
                       });
      });
  Add<v1::ListKeysRequest, v1::ListKeysResponse>(
      "ListKeys", kView,
      [this](const v1::ListKeysRequest& request, const Done<v1::ListKeysResponse>& done) {
        admin_.ListKeys(request.limit(), wire::Read(request.order()), request.max_keys(),
                        [done](absl::StatusOr<service::ListedKeys> keys) {
                          if (!keys.ok()) return done(keys.status());
                          v1::ListKeysResponse response;
                          wire::Write(*keys, &response);
                          done(std::move(response));
                        });
      });
  Add<v1::GetConfigStatusRequest, v1::ConfigStatus>(
      "GetConfigStatus", kView, [this](const auto&, const Done<v1::ConfigStatus>& done) {
        v1::ConfigStatus response;
        wire::Write(admin_.GetConfigStatus(), &response);
        done(std::move(response));
      });
  Add<v1::GetStatsRequest, v1::Stats>("GetStats", kView,
                                      [this](const auto&, const Done<v1::Stats>& done) {
                                        v1::Stats response;
                                        wire::Write(admin_.GetStats(), &response);
                                        done(std::move(response));
                                      });
}

LimitAdminService::~LimitAdminService() = default;

const LimitAdminService::Call& LimitAdminService::Find(std::string_view name) const {
  const auto found = std::find_if(methods_.begin(), methods_.end(), [&](const auto& method) {
    return absl::EndsWith(method.first, absl::StrCat("/", common::ToAbsl(name)));
  });
  if (found != methods_.end()) return *found->second;
  std::cerr << "LimitAdminService does not serve " << name << std::endl;
  std::abort();
}

void LimitAdminService::Register(MethodTable* methods) {
  for (const auto& [path, method] : methods_) {
    methods->AddUnary(path, *method, {.metadata = {"authorization"}, .call = method->right()});
  }
}

}  // namespace sluice::transport
