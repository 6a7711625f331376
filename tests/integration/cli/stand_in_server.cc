#include "tests/integration/cli/stand_in_server.h"

#include <deque>
#include <map>
#include <set>
#include <thread>

#include "common/mutex.h"
#include "sluice/v1/admin.grpc.pb.h"
#include "sluice/v1/rate_limiter.grpc.pb.h"

namespace sluice::testing {

using common::MutexLock;

class StandInServer::State {
 public:
  // Settings and counters of the test.
  mutable common::Mutex mu;
  common::CondVar changed;
  bool hanging ABSL_GUARDED_BY(mu) = false;
  bool killed ABSL_GUARDED_BY(mu) = false;
  bool break_message ABSL_GUARDED_BY(mu) = false;
  std::string token ABSL_GUARDED_BY(mu);
  struct Failure {
    grpc::Status status;
    bool marked = false;
  };
  std::deque<Failure> failures ABSL_GUARDED_BY(mu);
  std::map<std::pair<std::string, std::string>, int64_t> left ABSL_GUARDED_BY(mu);
  std::set<std::string> refunded ABSL_GUARDED_BY(mu);
  std::map<std::string, v1::Limit> limits ABSL_GUARDED_BY(mu);
  int executed ABSL_GUARDED_BY(mu) = 0;
  int stream_messages ABSL_GUARDED_BY(mu) = 0;

  int64_t& Left(const std::string& limit, const std::string& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return left.try_emplace({limit, key}, 10).first->second;
  }

  grpc::Status CheckToken(const grpc::ServerContext& context) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto& metadata = context.client_metadata();
    const auto given = metadata.find("authorization");
    if (token.empty() || (given != metadata.end() && given->second == "Bearer " + token)) {
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::UNAUTHENTICATED, "a token is needed"};
  }

  // Waits while hanging. Returns false if the server stops or the caller disconnects.
  bool WaitToAnswer(grpc::ServerContext* context) {
    MutexLock lock(&mu);
    while (hanging && !killed && !context->IsCancelled()) {
      changed.WaitFor(&mu, std::chrono::milliseconds(10));
    }
    return !killed && !context->IsCancelled();
  }

  grpc::Status Decide(const v1::AcquireRequest& request, v1::AcquireResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (request.charges().empty()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "charges: there is none; name at least one"};
    }
    bool granted = true;
    for (const v1::Charge& charge : request.charges()) {
      if (charge.limit() == "missing") {
        return {grpc::StatusCode::NOT_FOUND, "limit \"missing\" is not configured"};
      }
      const auto permits = static_cast<int64_t>(charge.has_permits() ? charge.permits() : 1);
      granted = granted && Left(charge.limit(), charge.key()) >= permits;
    }
    ++executed;
    response->set_granted(granted);
    response->set_source(v1::SOURCE_STORE);
    if (!granted) response->mutable_retry_after()->set_nanos(250'000'000);
    bool slots = false;
    for (const v1::Charge& charge : request.charges()) {
      int64_t& now = Left(charge.limit(), charge.key());
      const auto permits = static_cast<int64_t>(charge.has_permits() ? charge.permits() : 1);
      v1::ChargeStatus* status = response->add_charges();
      if (granted) now -= permits;
      if (!granted && now < permits) status->set_reason(v1::REASON_NOT_ENOUGH);
      status->set_remaining(now);
      status->set_capacity(10);
      status->mutable_reset_after()->set_seconds(90);
      slots |= charge.limit() == "short";
      if (granted && slots) status->mutable_held_for()->set_nanos(1);
    }
    if (granted && (slots || request.want_receipt())) {
      response->set_receipt(std::string("\x01\xff\x00", 3) + std::to_string(executed));
    }
    return grpc::Status::OK;
  }
};

class StandInServer::Limiter final : public v1::RateLimiter::Service {
 public:
  explicit Limiter(State& state) : state_(state) {}

  grpc::Status Acquire(grpc::ServerContext* context, const v1::AcquireRequest* request,
                       v1::AcquireResponse* response) override {
    {
      MutexLock lock(&state_.mu);
      if (grpc::Status status = state_.CheckToken(*context); !status.ok()) return status;
      if (!state_.failures.empty()) {
        const State::Failure failure = state_.failures.front();
        state_.failures.pop_front();
        if (failure.marked) context->AddTrailingMetadata("sluice-executed", "no");
        return failure.status;
      }
    }
    {
      MutexLock lock(&state_.mu);
      if (const grpc::Status status = state_.Decide(*request, response); !status.ok()) {
        return status;
      }
    }
    if (!state_.WaitToAnswer(context)) return grpc::Status::CANCELLED;
    return grpc::Status::OK;
  }

  grpc::Status AcquireBatch(grpc::ServerContext* context, const v1::AcquireBatchRequest* request,
                            v1::AcquireBatchResponse* response) override {
    if (request->acquisitions_size() > 4096) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "acquisitions: more than 4096"};
    }
    Answer(*request, response);
    if (!state_.WaitToAnswer(context)) return grpc::Status::CANCELLED;
    return grpc::Status::OK;
  }

  grpc::Status AcquireStream(grpc::ServerContext* context,
                             grpc::ServerReaderWriter<v1::AcquireBatchResponse,
                                                      v1::AcquireBatchRequest>* stream) override {
    v1::AcquireBatchRequest request;
    while (stream->Read(&request)) {
      v1::AcquireBatchResponse response;
      Answer(request, &response);
      {
        MutexLock lock(&state_.mu);
        ++state_.stream_messages;
        if (state_.break_message) {
          state_.break_message = false;
          return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
        }
      }
      if (!state_.WaitToAnswer(context)) return grpc::Status::CANCELLED;
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status Query(grpc::ServerContext*, const v1::QueryRequest* request,
                     v1::QueryResponse* response) override {
    for (const auto& bucket : request->buckets()) {
      if (bucket.limit() == "missing") {
        return {grpc::StatusCode::NOT_FOUND, "limit \"missing\" is not configured"};
      }
      Look(bucket, response->add_buckets());
    }
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::QueryResponse>* writer) override {
    int64_t last = -1;
    while (!context->IsCancelled()) {
      v1::QueryResponse response;
      for (const auto& bucket : request->buckets()) Look(bucket, response.add_buckets());
      if (response.buckets(0).remaining() != last) {
        last = response.buckets(0).remaining();
        if (!writer->Write(response)) break;
      }
      MutexLock lock(&state_.mu);
      if (state_.killed) break;
      state_.changed.WaitFor(&state_.mu, std::chrono::milliseconds(5));
    }
    return grpc::Status::OK;
  }

  grpc::Status Refund(grpc::ServerContext*, const v1::RefundRequest* request,
                      v1::RefundResponse* response) override {
    MutexLock lock(&state_.mu);
    if (request->receipt().rfind(std::string("\x01\xff\x00", 3), 0) != 0) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "receipt: it is not one of this server's"};
    }
    const bool first = state_.refunded.insert(request->receipt()).second;
    response->set_outcome(first ? v1::REFUND_OUTCOME_REFUNDED
                                : v1::REFUND_OUTCOME_ALREADY_REFUNDED);
    if (first) {
      v1::RefundedCharge* charge = response->add_charges();
      charge->set_limit("api");
      charge->set_key("a");
      charge->set_permits(1);
    }
    return grpc::Status::OK;
  }

 private:
  void Answer(const v1::AcquireBatchRequest& request, v1::AcquireBatchResponse* response) {
    MutexLock lock(&state_.mu);
    for (const v1::AcquireRequest& one : request.acquisitions()) {
      v1::AcquireResult* result = response->add_results();
      v1::AcquireResponse decision;
      const grpc::Status status = state_.Decide(one, &decision);
      if (status.ok()) {
        *result->mutable_response() = std::move(decision);
      } else {
        result->mutable_error()->set_code(status.error_code());
        result->mutable_error()->set_message(status.error_message());
      }
    }
  }

  void Look(const v1::QueryRequest::Bucket& bucket, v1::BucketStatus* status) {
    MutexLock lock(&state_.mu);
    const auto found = state_.left.find({bucket.limit(), bucket.key()});
    status->set_limit(bucket.limit());
    status->set_key(bucket.key());
    status->set_remaining(found == state_.left.end() ? 10 : found->second);
    status->set_capacity(10);
    status->set_exists(found != state_.left.end());
    status->set_source(v1::SOURCE_STORE);
  }

  State& state_;
};

class StandInServer::Admin final : public v1::LimitAdmin::Service {
 public:
  explicit Admin(State& state) : state_(state) {}

  grpc::Status ListLimits(grpc::ServerContext* context, const v1::ListLimitsRequest*,
                          v1::ListLimitsResponse* response) override {
    MutexLock lock(&state_.mu);
    if (grpc::Status status = state_.CheckToken(*context); !status.ok()) return status;
    for (const auto& [name, limit] : state_.limits) *response->add_limits() = limit;
    return grpc::Status::OK;
  }

  grpc::Status GetLimit(grpc::ServerContext*, const v1::GetLimitRequest* request,
                        v1::Limit* response) override {
    MutexLock lock(&state_.mu);
    const auto found = state_.limits.find(request->name());
    if (found == state_.limits.end()) return NoLimit(request->name());
    *response = found->second;
    return grpc::Status::OK;
  }

  grpc::Status PutLimit(grpc::ServerContext*, const v1::PutLimitRequest* request,
                        v1::PutLimitResponse* response) override {
    MutexLock lock(&state_.mu);
    if (request->limit().rate().permits() == 0) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "rate: 0 permits grant nothing"};
    }
    response->set_replaced(state_.limits.count(request->limit().name()) > 0);
    v1::Limit& limit = state_.limits[request->limit().name()];
    limit = request->limit();
    limit.set_origin(v1::ORIGIN_ADMIN);
    *response->mutable_limit() = limit;
    return grpc::Status::OK;
  }

  grpc::Status DeleteLimit(grpc::ServerContext*, const v1::DeleteLimitRequest* request,
                           v1::DeleteLimitResponse*) override {
    MutexLock lock(&state_.mu);
    return state_.limits.erase(request->name()) > 0 ? grpc::Status::OK : NoLimit(request->name());
  }

  grpc::Status ResetKey(grpc::ServerContext*, const v1::ResetKeyRequest* request,
                        v1::ResetKeyResponse* response) override {
    MutexLock lock(&state_.mu);
    response->set_existed(state_.left.erase({request->limit(), request->key()}) > 0);
    return grpc::Status::OK;
  }

  grpc::Status LiftFloor(grpc::ServerContext*, const v1::LiftFloorRequest* request,
                         v1::LiftFloorResponse* response) override {
    if (request->limit() == "booked") response->mutable_floor()->set_seconds(1'900'000'000);
    return grpc::Status::OK;
  }

  grpc::Status ListKeys(grpc::ServerContext*, const v1::ListKeysRequest* request,
                        v1::ListKeysResponse* response) override {
    v1::KeyUse* key = response->add_keys();
    key->set_limit("api");
    key->set_key(request->order() == v1::ListKeysRequest::ORDER_DENIALS ? "denied" : "used");
    key->set_estimate(12345);
    key->set_error(5);
    key->set_capacity(10);
    response->set_sketch("space_saving");
    response->set_counters(1000);
    return grpc::Status::OK;
  }

  grpc::Status GetConfigStatus(grpc::ServerContext*, const v1::GetConfigStatusRequest*,
                               v1::ConfigStatus* response) override {
    response->set_version("0123456789abcdef0123456789abcdef");
    response->set_path("/etc/sluice/limits.yaml");
    response->mutable_active_since()->set_seconds(1'700'000'000);
    response->set_limits(3);
    response->set_last_error("/etc/sluice/limits.yaml:3:5: limits[0].rate: \"5\"");
    v1::StoreStatus* store = response->mutable_store();
    store->set_kind("redis");
    store->set_state(v1::StoreStatus::STATE_UNAVAILABLE);
    store->mutable_since()->set_seconds(1'700'000'100);
    store->set_times_unavailable(2);
    store->set_last_error("no answer within the budget");
    v1::StoreStatus::UnavailableDecisions* decided = store->add_decided_while_unavailable();
    decided->set_limit("api");
    decided->set_allowed(7);
    decided->set_denied(5);
    v1::StoreStatus::DifferingLimit* differing = store->add_differing();
    differing->set_limit("api");
    differing->set_ours("token_bucket 5 per 1s, burst 5");
    differing->set_theirs("token_bucket 6 per 1s, burst 6");
    differing->set_times(3);
    differing->mutable_last_at()->set_seconds(1'700'000'200);
    return grpc::Status::OK;
  }

  grpc::Status GetStats(grpc::ServerContext*, const v1::GetStatsRequest*,
                        v1::Stats* response) override {
    response->set_version("0.1.0");
    response->set_decisions(3);
    response->set_granted(2);
    response->set_denied(1);
    v1::LimitStats* limit = response->add_limits();
    limit->set_limit("api");
    limit->set_granted(2);
    v1::MethodStats* method = response->add_methods();
    method->set_method("/sluice.v1.RateLimiter/Acquire");
    (*method->mutable_codes())[0] = 3;
    method->mutable_latency()->add_upper_ns(1000);
    method->mutable_latency()->add_counts(3);
    method->mutable_latency()->set_count(3);
    response->mutable_store()->set_kind("memory");
    return grpc::Status::OK;
  }

 private:
  static grpc::Status NoLimit(const std::string& name) {
    return {grpc::StatusCode::NOT_FOUND, "limit \"" + name + "\" is not configured"};
  }

  State& state_;
};

StandInServer::StandInServer()
    : state_(std::make_shared<State>()),
      limiter_(std::make_unique<Limiter>(*state_)),
      admin_(std::make_unique<Admin>(*state_)) {
  Start(0, 0);
}

StandInServer::~StandInServer() { Kill(); }

void StandInServer::Start(int data_port, int admin_port) {
  const auto listen = [](int wanted, grpc::Service* service, int* port) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(wanted),
                             grpc::InsecureServerCredentials(), port);
    builder.RegisterService(service);
    return builder.BuildAndStart();
  };
  data_server_ = listen(data_port, limiter_.get(), &data_port_);
  admin_server_ = listen(admin_port, admin_.get(), &admin_port_);
}

std::string StandInServer::address() const { return "127.0.0.1:" + std::to_string(data_port_); }
std::string StandInServer::admin_address() const {
  return "127.0.0.1:" + std::to_string(admin_port_);
}

void StandInServer::Kill() {
  {
    MutexLock lock(&state_->mu);
    state_->killed = true;
    state_->changed.SignalAll();
  }
  for (auto* server : {&data_server_, &admin_server_}) {
    if (*server == nullptr) continue;
    (*server)->Shutdown(std::chrono::system_clock::now());
    (*server)->Wait();
    server->reset();
  }
}

void StandInServer::Restart() {
  {
    MutexLock lock(&state_->mu);
    state_->killed = false;
  }
  Start(data_port_, admin_port_);
}

void StandInServer::SetHanging(bool hanging) {
  MutexLock lock(&state_->mu);
  state_->hanging = hanging;
  state_->changed.SignalAll();
}

void StandInServer::FailNext(const grpc::Status& status, bool marked, int count) {
  MutexLock lock(&state_->mu);
  for (int i = 0; i < count; ++i) state_->failures.push_back({status, marked});
}

void StandInServer::RequireToken(const std::string& token) {
  MutexLock lock(&state_->mu);
  state_->token = token;
}

void StandInServer::BreakNextStreamMessage() {
  MutexLock lock(&state_->mu);
  state_->break_message = true;
}

int StandInServer::executed() const {
  MutexLock lock(&state_->mu);
  return state_->executed;
}

int StandInServer::stream_messages() const {
  MutexLock lock(&state_->mu);
  return state_->stream_messages;
}

}  // namespace sluice::testing
