#include "server/transport/web/check_handler.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/net/event_loop.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "server/transport/web/check_request.h"
#include "server/transport/web/rate_limit_headers.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::web {
namespace {

// Units of work (Exchange::Spend): reading the parameters, the decision, the headers.
constexpr int64_t kUnits = 6;

// The status without the place of the charge: a check has one, and does not name it.
absl::Status ForCheck(const absl::Status& status) {
  absl::Status shown(status.code(), absl::StrReplaceAll(status.message(), {{"charges[0].", ""}}));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { shown.SetPayload(type, payload); });
  return shown;
}

}  // namespace

struct CheckHandler::Check : transport::Pooled<Check> {
  size_t memory() const { return sizeof(Check) + call.memory() + request.memory() + kept.memory(); }

  service::AcquireCall call;
  CheckRequest request;
  http1::Exchange* exchange = nullptr;  // null: it was cancelled
  CheckHandler* owner = nullptr;
  net::EventLoop* loop = nullptr;
  transport::CallPool<Check>* pool = nullptr;  // of the loop
  // Of a cancelled exchange: its request, into which `call` has views, and what it holds.
  http1::Request kept;
  std::shared_ptr<void> kept_bytes;
};

CheckHandler::CheckHandler(service::RateLimiter& limiter, const JsonCodec& json, size_t loops,
                           net::EventLoop& background)
    : limiter_(limiter), json_(json), background_(background), pools_(loops) {}

CheckHandler::~CheckHandler() = default;

void CheckHandler::Register(const Access& gates, http1::RouteTable* routes) {
  routes->Add("/v1/check", *this,
              {.methods = http1::Methods::All(),
               .max_body_bytes = 0,
               .gate = &gates.data(access::Call::kAcquire),
               .shed_when_late = true});
}

void CheckHandler::OnRequest(http1::Exchange& exchange) {
  exchange.Spend(kUnits);
  transport::CallPool<Check>& pool = pools_[exchange.loop_index()];
  Check& check = pool.Take();
  if (const absl::Status read = check.request.Read(exchange.request()); !read.ok()) {
    pool.Give(check);
    exchange.Fail(read);
    return;
  }
  check.exchange = &exchange;
  check.owner = this;
  check.loop = &exchange.loop();
  check.pool = &pool;
  exchange.set_state(&check);
  exchange.SetPendingBytes(check.memory());
  check.call.Reset(service::AcquireCall::Form::kUnary, service::AcquireCall::Utf8::kUnchecked);
  check.call.UseCaller(exchange.caller());
  check.call.DecideInSlices();
  check.call.BeginAcquisition({.can_return_receipt = check.request.body()});
  check.call.AddCharge(check.request.limit(), check.request.key(), check.request.permits());
  limiter_.Acquire(
      &check.call, store::kNoDeadline,
      [](void* of, service::AcquireCall*) {
        auto* const check = static_cast<Check*>(of);
        net::OnLoop(*check->loop, [check] { check->owner->Decided(*check); });
      },
      &check);
}

void CheckHandler::OnCancelled(http1::Exchange& exchange) {
  auto& check = *static_cast<Check*>(exchange.state());
  check.exchange = nullptr;
  exchange.TakeRequest(&check.kept);
  check.kept_bytes = exchange.KeepPendingBytes();
}

void CheckHandler::Decided(Check& check) {
  if (check.exchange == nullptr) {
    check.kept.Clear(0);
    check.kept_bytes.reset();
    check.pool->Give(check);
    return;
  }
  const service::AcquireCall& call = check.call;
  // A decision by a long log, or one that folds bookings, costs more than others.
  check.exchange->Spend(static_cast<int64_t>(call.slice_cost()));
  if (call.status().ok() && call.more()) {
    background_.Post([this, &check] { limiter_.Continue(&check.call); });
    return;
  }
  http1::Exchange* const exchange = std::exchange(check.exchange, nullptr);
  const absl::Status& status = call.status().ok() ? call.result(0).status : call.status();
  if (!status.ok()) {
    exchange->Fail(ForCheck(status));
    check.pool->Give(check);
    return;
  }
  const bool granted = call.result(0).granted;
  exchange->SetStatus(granted ? 200 : check.request.deny_status());
  exchange->CountAs(absl::StatusCode::kOk);
  AppendRateLimitHeaders(call, check.request.x_ratelimit(), &exchange->header_bytes());
  exchange->AddHeader("cache-control", "no-store");
  if (check.request.body()) {
    common::Buffer encoded;
    transport::EncodeAcquire(call, &encoded);
    const std::string json =
        json_.Print({reinterpret_cast<const char*>(encoded.data()), encoded.size()},
                    *v1::AcquireResponse::descriptor());
    exchange->Spend(JsonCodec::PrintUnits(json.size()));
    exchange->AddHeader("content-type", "application/json");
    exchange->body().Append(std::string_view(json));
  }
  exchange->Finish();
  check.pool->Give(check);
}

}  // namespace sluice::web
