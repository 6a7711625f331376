// Connection: one client's HTTP/1.1 connection: a net::Stream, the parser of its requests, and the
// exchange that is under way.
//
// Requests are handled one by one, in their order. While one is being answered, the connection is
// still read, up to bounds::kMaxPipelinedBytes, to learn that the peer has left.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_CONNECTION_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/net/event_loop.h"
#include "common/net/stream.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/loop.h"
#include "server/transport/http1/request_parser.h"
#include "server/transport/port/port_connection.h"

namespace sluice::http1 {

// Used on its loop only. Destroys itself when the stream is closed.
class Connection final : public transport::PortConnection {
 public:
  Connection(Loop& loop, net::Stream& stream);
  ~Connection() override;

  // net::StreamHandler
  void OnOpen() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnReadsDone() override { Work(); }
  void OnEnd() override;
  void OnWritable() override;
  void OnClosed(const absl::Status& why) override;

  // transport::PortConnection
  void Drain() override;
  void Work() override;
  size_t memory() const override;

  // ---- For its exchange.
  Loop& loop() { return loop_; }
  void Finish(Exchange& exchange, int status, SharedBytes body);
  void BeginStream(Exchange& exchange);
  bool Write(Exchange& exchange, std::string_view bytes);
  bool writable() const;
  void NotifyWritable() { behind_ = true; }
  void MarkDirty() { loop_.MarkDirty(*this); }
  void OnMemoryChanged() {
    if (!settling_) MarkDirty();
  }
  void EndStream(Exchange& exchange);

 private:
  enum class State : uint8_t {
    kReading,   // a request, or the wait for one
    kHandling,  // a handler has the exchange
    kSending,   // the response is complete, and rest_ was not given to the stream
    kClosing,   // CloseAfterWrite or Abort was called
    kClosed,    // as kClosing, and there is no stream
  };

  // net::Worker
  void OnTurn() override { Work(); }

  bool closing() const override { return state_ >= State::kClosing; }
  bool closed() const override { return state_ == State::kClosed; }
  // Whether the next request is handled, if the connection has credit.
  bool takes_requests() const;
  // Parses and handles requests. Returns the bytes that were not used.
  absl::Span<const uint8_t> Receive(absl::Span<const uint8_t> data);
  // One step. Returns false if more bytes are needed.
  bool Step(absl::Span<const uint8_t>* data);
  void BeginRequest();
  // The headers are complete: whether the request is served is decided.
  void OnHeaders();
  std::optional<Problem> Refusal() const;
  // The body came later than the headers: the caller may have lost its rights meanwhile.
  void AuthorizeAgain();
  void OnRequest();
  // Plans the answer to a wrong token. Returns false if the connection was closed instead.
  bool PlanLateRefusal();
  // Answers refusal_ when it is due.
  void AnswerRefusal();
  // How long the request has waited for its turn.
  int64_t QueuedNs();
  // Answers an error after which the connection cannot go on.
  void FailAndClose(int status, std::string_view text);

  // Writes the head of the response, with the headers that the handler added, to loop's output().
  void WriteHead(Exchange& exchange, int status, std::optional<size_t> content_length);
  // Gives as much of rest_ to the stream as it takes.
  void SendRest();
  // The response is sent: the next request may follow.
  void EndExchange();
  // The handler forgets the exchange, if it has it.
  void CancelExchange();
  void EndWork() override;
  // Closes the stream after its output.
  void Close();

  // Whether requests wait for the connection's next turn.
  bool has_backlog() const;
  // Whether no request is complete up to its body.
  bool waits_for_request() const;
  void PlanTurn();
  // Arms the timer for what the connection waits for.
  void PlanTimer();
  int64_t WaitDeadlineNs() const;
  void OnTimer();
  int64_t CheckAnswers(const net::OutputProgress& output, int64_t next_ns) override;

  Loop& loop_;
  RequestParser parser_;
  Exchange* exchange_ = nullptr;  // null: no byte of a request has arrived
  std::optional<Problem> refusal_;
  int64_t refuse_at_ns_ = 0;  // when refusal_ is due; 0: at once
  common::Buffer input_;      // not parsed yet
  SharedBytes rest_;          // of the response's body
  State state_ = State::kReading;
  bool in_handler_ = false;  // within OnRequest: Finish must not go on with the next request
  bool headers_done_ = false;
  bool close_after_ = false;  // the response that is under way
  bool peer_ended_ = false;
  bool chunked_ = false;     // the stream that is under way
  bool behind_ = false;      // its peer: OnWritable follows
  bool paused_ = false;      // reading
  bool settling_ = false;    // Work is running
  int64_t since_ns_ = 0;     // when the wait for the peer began
  int64_t answered_ns_ = 0;  // when the last exchange ended
  size_t counted_body_ = 0;  // of the request, as the loop knows it
  int64_t timer_at_ns_ = std::numeric_limits<int64_t>::max();
  net::Timer timer_{net::Timer::To<&Connection::OnTimer>, this};
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_CONNECTION_H_
