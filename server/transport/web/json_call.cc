#include "server/transport/web/json_call.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/strings.h"
#include "server/access/audit_log.h"
#include "server/transport/services/bookings_state.h"

namespace sluice::web {
namespace {

// Bytes of JSON that are parsed between two other requests: they take up to 100 us.
constexpr size_t kSmallBytes = 2 << 10;
// Of a batch: two or three slices of work.
constexpr size_t kSmallBatchBytes = 256;
// Commas of a small call that may have many items. They stand between the items, so that it has 17
// at most, and printing the results takes up to 150 us.
constexpr int64_t kSmallCommas = 16;
// Bytes of the request for one unit of work (net::WorkQueue).
constexpr size_t kBytesPerUnit = 8;
constexpr int64_t kUnits = 100;

}  // namespace

std::string PathOf(const google::protobuf::MethodDescriptor& rpc) {
  std::string name = rpc.name();
  name[0] = absl::ascii_tolower(static_cast<unsigned char>(name[0]));
  return absl::StrCat("/v1/", name);
}

absl::Status CheckContentType(const http1::Request& request) {
  if (request.body().empty()) return absl::OkStatus();
  const absl::string_view sent =
      common::ToAbsl(request.header("content-type").value_or(std::string_view()));
  const absl::string_view type = absl::StripAsciiWhitespace(sent.substr(0, sent.find(';')));
  if (absl::EqualsIgnoreCase(type, "application/json")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Content-Type: \"", common::errors::Shown(common::ToStd(sent)),
                   "\" is not served; send application/json (curl --json)"));
}

void JsonMethod::OnRequest(http1::Exchange& exchange) {
  const http1::Request& request = exchange.request();
  if (const absl::Status type = CheckContentType(request);
      !type.ok() && !options_.any_content_type) {
    exchange.Fail(http1::Problem::Of(type, 415));
    return;
  }
  const size_t bytes = request.body().size();
  exchange.Spend(kUnits + static_cast<int64_t>(bytes / kBytesPerUnit));
  exchange.SetPendingBytes(2 * bytes + 1024);
  transport::BookingsState::Of(exchange.connection_state());
  std::shared_ptr<JsonCall> call = NewCall();
  call->method_ = this;
  call->home_ = &exchange.loop();
  const size_t small = options_.turns != nullptr ? kSmallBatchBytes : kSmallBytes;
  const bool here = !options_.always_in_background && bytes <= small &&
                    (!options_.many_items || absl::c_count(request.body(), ',') <= kSmallCommas);
  call->work_ = here ? &exchange.loop() : &options_.background;
  call->exchange_ = &exchange;
  call->json_ = request.body();
  call->caller_ = exchange.caller();
  if (options_.always_in_background) {
    call->peer_ = exchange.peer_address();
    call->actor_ = access::ActorOf(exchange.peer_identity());
  }
  call->turns_of_ = exchange.peer();
  call->connection_state_ = exchange.connection_state();
  exchange.set_state(call.get());
  exchange.Keep(call);
  auto begin = [call] {
    if (call->cancelled()) return call->LeaveTurns();
    const absl::Status parsed = call->method_->options_.json.Parse(
        call->json_, *call->method_->options_.rpc.input_type(), &call->request_);
    call->json_ = std::string();
    if (parsed.ok()) {
      call->executed_ = true;
      call->Execute();
    } else {
      call->Answer(parsed);
    }
  };
  if (here || options_.turns == nullptr) return net::OnLoop(*call->work_, std::move(begin));
  options_.background.Post([call, begin = std::move(begin)] { call->TakeTurn(begin); });
}

void JsonMethod::OnCancelled(http1::Exchange& exchange) {
  auto* const call = static_cast<JsonCall*>(exchange.state());
  call->exchange_ = nullptr;
  call->cancelled_.store(true, std::memory_order_relaxed);
  call->left_bytes_ = exchange.KeepPendingBytes();
  net::OnLoop(*call->work_, [call = call->shared_from_this()] {
    if (call->executed_) call->Cancel();
  });
}

void JsonCall::ContinueInBackground(std::function<void()> go_on) {
  if (work_ == home_) work_ = &method_->options_.background;
  work_->Post([this, go_on = std::move(go_on)] { TakeTurn(go_on); });
}

void JsonCall::TakeTurn(std::function<void()> go_on) {
  if (method_->options_.turns == nullptr || has_turn_) return go_on();
  method_->options_.turns->Begin(turns_of_, [this, go_on = std::move(go_on)] {
    has_turn_ = true;
    go_on();
  });
}

void JsonCall::LeaveTurns() {
  if (std::exchange(has_turn_, false)) method_->options_.turns->Leave();
}

void JsonCall::CountMemory(size_t bytes) {
  net::OnLoop(*home_, [call = shared_from_this(), bytes] {
    if (call->exchange_ != nullptr) call->exchange_->SetPendingBytes(bytes);
  });
}

void JsonCall::Answer(absl::StatusOr<std::string> response, int http_status) {
  LeaveTurns();
  http1::Answer answer;
  absl::StatusCode code = absl::StatusCode::kOk;
  int64_t units = 0;
  if (response.ok()) {
    if (http_status != 0) answer.status = http_status;
    answer.content_type = "application/json";
    answer.body = http1::SharedBytes::Of(
        method_->options_.json.Print(*response, *method_->options_.rpc.output_type()));
    if (!in_background()) units = JsonCodec::PrintUnits(answer.body.size());
  } else {
    code = response.status().code();
    answer = http1::Problem::Of(response.status(), http_status).ToAnswer();
  }
  answer.headers.emplace_back("cache-control", "no-store");
  net::OnLoop(*home_,
              [call = shared_from_this(), code, units, answer = std::move(answer)]() mutable {
                if (call->exchange_ == nullptr) return;
                http1::Exchange* const exchange = std::exchange(call->exchange_, nullptr);
                exchange->Spend(units);
                exchange->CountAs(code);
                exchange->Finish(std::move(answer));
              });
}

void JsonCall::EndWithPeer() {
  net::OnLoop(*home_, [call = shared_from_this()] {
    if (call->exchange_ != nullptr) call->exchange_->EndWithPeer();
  });
}

}  // namespace sluice::web
