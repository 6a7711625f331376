// The output of a Connection: heads, bodies, streams, and the end of an exchange.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/bounds.h"
#include "common/buffer.h"
#include "common/metrics.h"
#include "common/net/stream.h"
#include "server/transport/http1/connection.h"

namespace sluice::http1 {
namespace {

namespace bounds = common::bounds;

// A larger body is not copied behind its head.
constexpr size_t kSmallBodyBytes = 16 << 10;
// Bytes of a large body that the stream gets at once.
constexpr size_t kPieceBytes = 64 << 10;
// Unsent bytes above which no request is handled, and the stream stops reading: OnWritable follows.
constexpr size_t kMaxUnsentBytes = net::StreamOptions().high_water_bytes;
static_assert(bounds::kMaxStreamUnsentBytes == kMaxUnsentBytes);

void AppendNumber(uint64_t number, int base, common::Buffer* out) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number, base).ptr;
  out->Append(std::string_view(digits, static_cast<size_t>(end - digits)));
}

bool HasNoBody(int status) { return status == 204 || status == 304; }

}  // namespace

void Connection::WriteHead(Exchange& exchange, int status, std::optional<size_t> content_length) {
  common::Buffer& output = loop_.output();
  output.Clear();
  output.Append(std::string_view("HTTP/1.1 "));
  AppendNumber(static_cast<uint64_t>(status), 10, &output);
  output.Append(std::string_view(" "));
  output.Append(ReasonOf(status));
  output.Append(std::string_view("\r\n"));
  output.Append(loop_.date_line());
  output.Append(exchange.head_.view());
  if (content_length.has_value() && !HasNoBody(status)) {
    output.Append(std::string_view("content-length: "));
    AppendNumber(*content_length, 10, &output);
    output.Append(std::string_view("\r\n"));
  }
  if (loop_.draining()) close_after_ = true;
  if (close_after_) {
    output.Append(std::string_view("connection: close\r\n"));
  } else if (!exchange.is_1_1_) {
    output.Append(std::string_view("connection: keep-alive\r\n"));
  }
}

void Connection::Finish(Exchange& exchange, int status, SharedBytes body) {
  if (exchange.phase_ == Exchange::Phase::kFinished || closing()) return;
  exchange.phase_ = Exchange::Phase::kFinished;
  exchange.status_ = status;
  const std::string_view small(reinterpret_cast<const char*>(exchange.body_.data()),
                               exchange.body_.size());
  const size_t size = small.size() + body.size();
  loop_.CountersOf(exchange.route_).messages_sent.Add(1);
  loop_.CountersOf(exchange.route_).bytes_sent.Add(size);
  WriteHead(exchange, status, size);
  common::Buffer& output = loop_.output();
  output.Append(std::string_view("\r\n"));
  if (exchange.head_only_ || HasNoBody(status)) {
    body = SharedBytes();
  } else {
    output.Append(small);
    if (body.size() <= kSmallBodyBytes) {
      output.Append(body.view());
      body = SharedBytes();
    }
  }
  stream().Write(output.view());
  output.Clear(kPieceBytes);
  rest_ = std::move(body);
  if (rest_.size() > 0) {
    state_ = State::kSending;
    SendRest();
    if (!settling_) loop_.MarkDirty(*this);
  } else if (!in_handler_) {
    EndExchange();
  }
}

void Connection::SendRest() {
  while (rest_.size() > 0 && has_credit() && stream().pending_output() < kMaxUnsentBytes) {
    const std::string_view piece = rest_.view().substr(0, kPieceBytes);
    stream().Write({reinterpret_cast<const uint8_t*>(piece.data()), piece.size()});
    rest_.Consume(piece.size());
    Spend(static_cast<int64_t>(piece.size() / 512));
  }
  if (rest_.size() > 0) {
    // Else OnWritable goes on.
    if (!has_credit()) loop_.loop().work().Add(*this);
    PlanStallCheck();
    return;
  }
  rest_ = SharedBytes();
  state_ = State::kHandling;
  if (!in_handler_) EndExchange();
}

void Connection::EndExchange() {
  loop_.AddBufferedBytes(-std::exchange(counted_body_, 0));  // of a request that was refused
  loop_.counters().streams_closed.Add(1);
  loop_.CountersOf(exchange_->route_)
      .Finish(static_cast<int>(exchange_->code_.value_or(CodeOf(exchange_->status_))),
              static_cast<uint64_t>(std::max<int64_t>(0, loop_.Now() - exchange_->arrived_ns_)));
  loop_.exchanges().Recycle(*std::exchange(exchange_, nullptr));
  behind_ = false;
  if (close_after_ || loop_.draining()) return Close();
  state_ = State::kReading;
  since_ns_ = loop_.loop().now_ns();
  answered_ns_ = loop_.Now();
  stream().SetIdle(true);
  if (!settling_) loop_.MarkDirty(*this);
}

void Connection::CancelExchange() {
  if (exchange_ == nullptr) return;
  Exchange& exchange = *std::exchange(exchange_, nullptr);
  loop_.AddBufferedBytes(-std::exchange(counted_body_, 0));
  const Exchange::Phase phase = std::exchange(exchange.phase_, Exchange::Phase::kFinished);
  loop_.counters().streams_closed.Add(1);
  if (phase == Exchange::Phase::kHandling || phase == Exchange::Phase::kStreaming) {
    loop_.CountersOf(exchange.route_)
        .Finish(static_cast<int>(absl::StatusCode::kCancelled),
                static_cast<uint64_t>(std::max<int64_t>(0, loop_.Now() - exchange.arrived_ns_)));
    exchange.route_->handler->OnCancelled(exchange);
  }
  rest_ = SharedBytes();
  loop_.exchanges().Recycle(exchange);
}

// ---- Streams

void Connection::BeginStream(Exchange& exchange) {
  if (exchange.phase_ != Exchange::Phase::kHandling || closing()) return;
  exchange.phase_ = Exchange::Phase::kStreaming;
  chunked_ = exchange.is_1_1_;
  // Without chunks, the end of the connection is the end of the stream.
  if (!chunked_) close_after_ = true;
  if (chunked_) exchange.AddHeader("transfer-encoding", "chunked");
  WriteHead(exchange, exchange.status_, std::nullopt);
  loop_.output().Append(std::string_view("\r\n"));
  stream().Write(loop_.output().view());
  loop_.output().Clear();
  exchange.head_.Clear(0);
  if (!settling_) loop_.MarkDirty(*this);
}

bool Connection::writable() const {
  return !closing() && stream().pending_output() < kMaxUnsentBytes;
}

bool Connection::Write(Exchange& exchange, std::string_view bytes) {
  if (exchange.phase_ != Exchange::Phase::kStreaming || closing()) return false;
  if (!writable()) {
    behind_ = true;
    return false;
  }
  if (bytes.empty() || exchange.head_only_) return true;
  common::Buffer& output = loop_.output();
  output.Clear();
  if (chunked_) {
    AppendNumber(bytes.size(), 16, &output);
    output.Append(std::string_view("\r\n"));
  }
  output.Append(bytes);
  if (chunked_) output.Append(std::string_view("\r\n"));
  stream().Write(output.view());
  output.Clear(kPieceBytes);
  common::MethodCounters& counters = loop_.CountersOf(exchange.route_);
  counters.messages_sent.Add(1);
  counters.bytes_sent.Add(bytes.size());
  if (!settling_) loop_.MarkDirty(*this);
  return true;
}

void Connection::EndStream(Exchange& exchange) {
  if (exchange.phase_ != Exchange::Phase::kStreaming || closing()) return;
  exchange.phase_ = Exchange::Phase::kFinished;
  if (chunked_ && !exchange.head_only_) {
    stream().Write(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>("0\r\n\r\n"), 5));
  }
  if (!in_handler_) EndExchange();
}

}  // namespace sluice::http1
