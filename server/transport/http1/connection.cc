#include "server/transport/http1/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/errors.h"
#include "common/net/timer_wheel.h"

namespace sluice::http1 {
namespace {

namespace bounds = common::bounds;

// Units of work (net::WorkQueue): a request and its response, beside what the handler counts; and
// bytes of input for one unit.
constexpr int64_t kRequestUnits = 12;
constexpr size_t kBytesPerUnit = 64;

// Bytes that a parser is given at once: they take at most 0.3 ms, and are enough for it to see that
// trailers or a chunk's extensions are too large.
constexpr size_t kParseBytes = 32 << 10;
static_assert(kParseBytes > bounds::kMaxHttpHeaderBytes);

// A body that is refused is read up to this size, so that the connection can go on.
constexpr size_t kMaxDiscardedBytes = 64 << 10;

// How long a connection without a request under way stays open in a drain: the loop reads it once
// more, since the peer cannot know whether a request that gets no answer was executed.
constexpr int64_t kDrainReadNs = 1'000'000;

}  // namespace

Connection::Connection(Loop& loop, net::Stream& stream)
    : PortConnection(loop, stream), loop_(loop), since_ns_(loop.loop().now_ns()) {
  Settle(memory());
}

Connection::~Connection() { CancelExchange(); }

// ---- net::StreamHandler

void Connection::OnOpen() { loop_.draining() ? Drain() : PlanTimer(); }

void Connection::OnData(absl::Span<const uint8_t> data) {
  if (closing()) return;
  loop_.loop().work().Refill(*this);
  if (input_.empty()) data = Receive(data);
  if (!closing()) input_.Append(data);
}

void Connection::OnEnd() {
  if (closing()) return;
  peer_ended_ = true;
  Work();
}

void Connection::OnWritable() {
  if (closing()) return;
  if (behind_) {
    behind_ = false;
    exchange_->route_->handler->OnWritable(*exchange_);
  }
  Work();
}

void Connection::OnClosed(const absl::Status&) {
  state_ = State::kClosed;
  loop_.Remove(*this);
}

// ---- Input

void Connection::Work() {
  if (closing()) return;
  // The last answers are still sent, unless they may take long: a peer that died ends its side too.
  if (peer_ended_ && state_ == State::kHandling &&
      (exchange_->ends_with_peer_ || exchange_->phase_ == Exchange::Phase::kStreaming)) {
    return Close();
  }
  loop_.loop().work().Refill(*this);
  ForgetSome();
  if (state_ == State::kSending) SendRest();
  if (!closing() && !input_.empty()) {
    const absl::Span<const uint8_t> all = input_.view();
    const size_t left = Receive(all).size();
    if (!closing()) input_.Consume(all.size() - left);
  }
  if (closing()) return;
  // What is left of its input, if anything, is not a whole request.
  if (peer_ended_ && takes_requests() && !has_backlog()) return Close();
  if (input_.empty()) input_.Clear(0);
  PlanTurn();
  PlanTimer();
  if (stream().pending_output() + rest_.size() > 0) PlanStallCheck();
  Settle(memory());
}

bool Connection::takes_requests() const {
  return state_ == State::kReading && stream().pending_output() < bounds::kMaxStreamUnsentBytes;
}

absl::Span<const uint8_t> Connection::Receive(absl::Span<const uint8_t> data) {
  settling_ = true;
  while (!data.empty() && takes_requests() && has_credit() && Step(&data)) {
  }
  settling_ = false;
  return data;
}

bool Connection::Step(absl::Span<const uint8_t>* data) {
  if (exchange_ == nullptr) {
    // RFC 9112, 2.2: an empty line before a request is ignored.
    if ((*data)[0] == '\r') {
      if (data->size() < 2) return false;
      if ((*data)[1] == '\n') {
        data->remove_prefix(2);
        Spend(1);
        return true;
      }
    }
    BeginRequest();
  }
  size_t used = 0;
  const auto parse = [&] {
    const size_t taken = parser_.Parse(data->first(std::min(data->size(), kParseBytes)));
    data->remove_prefix(taken);
    used += taken;
  };
  parse();
  const bool new_headers = parser_.state() == RequestParser::State::kHeadersDone;
  if (new_headers) {
    OnHeaders();
    if (state_ != State::kReading) return false;  // it was refused, and the exchange has ended
    parse();
  }
  Spend(static_cast<int64_t>(used / kBytesPerUnit) + parser_.TakeUnits());
  switch (parser_.state()) {
    case RequestParser::State::kFailed:
      FailAndClose(parser_.error().status, parser_.error().text);
      return false;
    case RequestParser::State::kDone:
      if (!new_headers) AuthorizeAgain();
      OnRequest();
      return true;
    case RequestParser::State::kHeaders:
    case RequestParser::State::kHeadersDone:
    case RequestParser::State::kBody:
      break;
  }
  const size_t body = exchange_->request_.body().size();
  loop_.AddBufferedBytes(body - counted_body_);
  counted_body_ = body;
  if (counted_body_ > bounds::kMinConnectionRequestBytes &&
      (loop_.buffered_bytes() > bounds::kMaxPortRequestBytes || loop_.over_memory())) {
    FailAndClose(503, "the server holds too many bytes of unfinished requests; nothing was done");
    return false;
  }
  return used > 0;
}

void Connection::BeginRequest() {
  loop_.counters().streams_accepted.Add(1);
  exchange_ = &loop_.exchanges().New();
  exchange_->connection_ = this;
  exchange_->arrived_ns_ = stream().ready_since_ns();
  parser_.Begin(&exchange_->request_);
  headers_done_ = close_after_ = false;
  since_ns_ = loop_.loop().now_ns();
}

void Connection::OnHeaders() {
  headers_done_ = true;
  since_ns_ = loop_.loop().now_ns();
  close_after_ = !parser_.keep_alive();
  exchange_->head_only_ = exchange_->request_.method() == Method::kHead;
  exchange_->is_1_1_ = exchange_->request_.is_1_1();
  exchange_->route_ = loop_.routes().Find(exchange_->request_.path());
  refusal_ = Refusal();
  if (refusal_.has_value() && refusal_->wrong_token && !PlanLateRefusal()) return;
  const std::optional<uint64_t> length = parser_.content_length();
  if (!refusal_.has_value()) {
    const size_t most = exchange_->route_->options.max_body_bytes;
    if (length.value_or(0) <= most) {
      parser_.LimitBody(most, /*discard=*/false);
      if (parser_.expects_continue() && length != 0) {
        stream().Write(absl::MakeConstSpan(
            reinterpret_cast<const uint8_t*>("HTTP/1.1 100 Continue\r\n\r\n"), 25));
      }
      return;
    }
    refusal_ =
        Problem::Http(413, most == 0 ? std::string("this path takes no body")
                                     : absl::StrCat("the body has ", length.value_or(0),
                                                    " bytes; at most ", most, " are served"));
  }
  parser_.LimitBody(kMaxDiscardedBytes, /*discard=*/true);
  // The body is not worth waiting for, or not sent before our answer.
  if (length.value_or(UINT64_MAX) > kMaxDiscardedBytes || parser_.expects_continue()) {
    if (length != 0) {
      close_after_ = true;
      state_ = State::kHandling;
      AnswerRefusal();
    }
  }
}

bool Connection::PlanLateRefusal() {
  if (loop_.options().guesses == nullptr) return true;
  const int64_t now_ns = loop_.loop().now_ns();
  const auto at_ns = loop_.options().guesses->RefuseAt(stream().peer_address(), now_ns);
  if (at_ns.has_value()) {
    refuse_at_ns_ = *at_ns > now_ns ? *at_ns : 0;
    return true;
  }
  Close();
  return false;
}

void Connection::AnswerRefusal() {
  if (refuse_at_ns_ > loop_.loop().now_ns()) {
    stream().SetIdle(false);
    PlanTimer();
    return;
  }
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): who calls this has one.
  const Problem refusal = *std::move(refusal_);
  refusal_.reset();
  refuse_at_ns_ = 0;
  exchange_->Fail(refusal);
}

std::optional<Problem> Connection::Refusal() const {
  const Request& request = exchange_->request();
  const Route* const route = exchange_->route_;
  if (request.method() == Method::kOther) {
    return Problem::Http(501, "the method is not known to this server");
  }
  if (route == nullptr) {
    return Problem::Http(404, absl::StrCat("no such path; ", loop_.routes().PathsText()));
  }
  if (!route->options.methods.Has(request.method())) {
    Problem problem =
        Problem::Http(405, absl::StrCat("this path is served for ", route->allow, " only"));
    problem.headers.emplace_back("allow", route->allow);
    return problem;
  }
  for (const Gate* const gate : {loop_.options().gate, route->options.gate}) {
    if (gate == nullptr) continue;
    auto refusal = gate->Check(*exchange_);
    if (refusal.has_value()) return refusal;
  }
  if (loop_.over_memory() && !route->options.exempt_from_shedding &&
      RefusesCall(parser_.content_length().value_or(0))) {
    loop_.counters().calls_refused_over_memory.Add(1);
    return Problem::Of(common::errors::NotExecuted(absl::ResourceExhaustedError(
        "the server holds as much for its callers as --memory_limit allows; nothing was done")));
  }
  return std::nullopt;
}

void Connection::AuthorizeAgain() {
  const Route* const route = exchange_->route_;
  if (refusal_.has_value() || route->options.gate == nullptr) return;
  refusal_ = route->options.gate->CheckAgain(*exchange_);
}

void Connection::OnRequest() {
  loop_.AddBufferedBytes(-std::exchange(counted_body_, 0));
  state_ = State::kHandling;
  stream().SetIdle(false);
  Spend(kRequestUnits);
  // The handler does not get what is refused.
  if (!refusal_.has_value()) exchange_->phase_ = Exchange::Phase::kHandling;
  exchange_->arrived_ns_ = stream().ready_since_ns();
  common::MethodCounters& counters = loop_.CountersOf(exchange_->route_);
  counters.messages_received.Add(1);
  counters.bytes_received.Add(exchange_->request_.body().size());
  in_handler_ = true;
  if (refusal_.has_value()) {
    AnswerRefusal();
  } else if (exchange_->route_->options.shed_when_late && loop_.Sheds(QueuedNs())) {
    exchange_->Fail(common::errors::NotExecuted(absl::ResourceExhaustedError(transport::kShed)));
  } else {
    loop_.EarnSheds(exchange_->request_.body().size());
    exchange_->route_->handler->OnRequest(*exchange_);
  }
  in_handler_ = false;
  if (closing()) return;
  if (exchange_->phase_ == Exchange::Phase::kStreaming && exchange_->head_only_) {
    CancelExchange();
    Close();
  } else if (exchange_->phase_ == Exchange::Phase::kFinished && state_ == State::kHandling) {
    EndExchange();
  }
}

int64_t Connection::QueuedNs() {
  // A request behind others of its connection waits for their answers.
  return loop_.Now() - std::max(exchange_->arrived_ns_, answered_ns_);
}

void Connection::FailAndClose(int status, std::string_view text) {
  if (closing()) return;
  close_after_ = true;
  refusal_.reset();
  refuse_at_ns_ = 0;
  state_ = State::kHandling;
  stream().SetIdle(false);
  exchange_->head_.Clear();
  exchange_->head_only_ = exchange_->request_.method() == Method::kHead;
  exchange_->Fail(Problem::Http(status, std::string(text)));
}

// ---- The end

void Connection::Close() {
  if (closing()) return;
  EndWork();
  stream().SetIdle(true);
  stream().CloseAfterWrite(loop_.linger_ns());
  Settle(memory());
}

void Connection::EndWork() {
  state_ = State::kClosing;
  CancelExchange();
  LeaveQueue();
  timer_.Cancel();
}

void Connection::Drain() {
  if (closing()) return;
  if (waits_for_request()) {
    since_ns_ = loop_.loop().now_ns();
    return PlanTimer();
  }
  close_after_ = true;
  if (state_ == State::kHandling && !refusal_.has_value()) {
    exchange_->route_->handler->OnDrain(*exchange_);
  }
}

// ---- Turns and time

bool Connection::has_backlog() const {
  return !input_.empty() && state_ == State::kReading && !has_credit();
}

bool Connection::waits_for_request() const {
  return state_ == State::kReading && (exchange_ == nullptr || !headers_done_);
}

void Connection::PlanTurn() {
  const bool backlog = has_backlog();
  if (backlog) loop_.loop().work().Add(*this);
  const bool pause =
      backlog || (state_ != State::kReading && input_.size() >= bounds::kMaxPipelinedBytes);
  if (pause == paused_) return;
  paused_ = pause;
  pause ? stream().PauseReading() : stream().ResumeReading();
}

int64_t Connection::WaitDeadlineNs() const {
  const ServerOptions& options = loop_.options();
  if (state_ == State::kHandling && refuse_at_ns_ > 0) return refuse_at_ns_;
  if (state_ != State::kReading) return std::numeric_limits<int64_t>::max();
  if (loop_.draining() && waits_for_request()) return since_ns_ + kDrainReadNs;
  if (exchange_ == nullptr) return since_ns_ + options.idle_timeout_ns;
  return since_ns_ + (headers_done_ ? options.body_timeout_ns : options.header_timeout_ns);
}

void Connection::PlanTimer() {
  const int64_t at_ns = WaitDeadlineNs();
  // A timer that fires early looks again, which is cheaper than to move it with each request.
  if (at_ns >= timer_at_ns_) return;
  timer_at_ns_ = at_ns;
  loop_.loop().Arm(timer_, at_ns);
}

void Connection::OnTimer() {
  timer_at_ns_ = std::numeric_limits<int64_t>::max();
  if (closing()) return;
  if (loop_.draining() && has_backlog()) since_ns_ = loop_.loop().now_ns();
  if (loop_.loop().now_ns() < WaitDeadlineNs()) {
    PlanTimer();
  } else if (state_ == State::kHandling) {
    AnswerRefusal();
  } else if (exchange_ == nullptr) {
    Close();
  } else if (loop_.draining() && !headers_done_) {
    FailAndClose(503, "the server is shutting down; nothing was done");
  } else {
    FailAndClose(408, headers_done_ ? "the body did not end in time"
                                    : "the request's headers did not end in time");
  }
}

int64_t Connection::CheckAnswers(const net::OutputProgress& output, int64_t next_ns) {
  Settle(memory());  // the peer may have taken some of the output
  return output.outstanding > 0 || rest_.size() > 0 ? next_ns : net::TimerWheel::kNever;
}

// ---- Accounting

size_t Connection::memory() const {
  size_t bytes = loop_.options().connection_bytes + sizeof(*this) + kept_memory() +
                 input_.capacity() + rest_.memory() +
                 (state_ == State::kClosed ? 0 : stream().buffer_memory());
  if (exchange_ != nullptr) bytes += exchange_->memory() + exchange_->pending_bytes_;
  return bytes;
}

}  // namespace sluice::http1
