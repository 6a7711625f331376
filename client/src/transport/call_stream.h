// CallStream: one gRPC call on a stream of HTTP/2: its request, the messages of its answer, and how
// it ended.
#ifndef SLUICE_CLIENT_SRC_TRANSPORT_CALL_STREAM_H_
#define SLUICE_CLIENT_SRC_TRANSPORT_CALL_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/http2/header_names.h"
#include "common/http2/session.h"
#include "common/intrusive_list.h"
#include "sluice/connection.h"
#include "sluice/status.h"

namespace sluice::client_internal {

class Link;

enum class Method : uint8_t {
  kAcquire,
  kAcquireBatch,
  kAcquireStream,
  kQuery,
  kWatch,
  kRefund,
  kSettle,
  kSettleBatch,
  kRenew
};

// The headers that all calls of a client share.
struct RequestHeaders {
  RequestHeaders(bool tls, const std::string& authority, const std::string& token);

  const http2::HpackConstant scheme;
  const http2::HpackConstant authority;
  const http2::HpackConstant authorization;  // unused if has_token is false
  const bool has_token;
};

// The status of an unknown outcome: MaybeExecuted if the server may have seen the call.
Status BrokenCall(bool sent, StatusCode code, std::string message);

struct CallsOfLink;  // lists of calls: those of a link, or those that wait for one
struct CallsToEnd;   // lists of calls whose callbacks or callers are due

// Its owner serializes all calls, except where a derived class says otherwise.
class CallStream : public http2::Stream,
                   public common::ListLink<CallStream, CallsOfLink>,
                   public common::ListLink<CallStream, CallsToEnd> {
 public:
  enum class State : uint8_t {
    kNew,
    kWaiting,  // for a connection, or until the server accepts one more stream
    kOpen,     // on a link
    kDone,     // OnFinished was called
  };

  CallStream(Method method, bool blocking) : blocking(blocking), method_(method) {}
  virtual ~CallStream() = default;

  // The request's messages, framed as gRPC does. Bytes may be added while it is open.
  std::string request;
  TimePoint deadline = TimePoint::max();  // max: none
  const bool blocking;                    // a thread waits for it; else a callback

  // ---- For the owner of the links

  State state = State::kNew;
  Link* link = nullptr;  // while kOpen
  int resends = 0;       // links that ended without looking at the request

  // The status if its outcome is decided here: deadline, cancellation, a bad answer.
  void Fail(Status status) { failure_ = std::move(status); }
  bool failed() const { return !failure_.ok(); }

  // Whether the server may have seen the request.
  bool MayHaveBeenSent() const;
  // How it ended, when the session has closed the stream.
  Status Outcome(const http2::StreamEnd& end);
  // Makes it as new, to be sent on another link. Requests that are open-ended cannot be.
  void Rewind();
  virtual bool can_rewind() const { return true; }
  // The call is over; called once.
  virtual void OnFinished(Status status) = 0;

 protected:
  // One message of the answer. Returns the error of a message that is not valid.
  virtual Status OnMessage(std::string_view message) = 0;
  // Called for all bytes of the answer; lets the server send as many more.
  virtual void OnConsumed(size_t bytes);
  // Whether the request ends after the present bytes.
  virtual bool request_ends() const { return true; }
  // Whether an answer without a message is complete.
  virtual bool may_be_empty() const { return false; }

  // More of the request is in `request`.
  void ResumeRequest();

 private:
  void OnHeader(const http2::HpackField& field) override;
  void OnHeadersDone(bool end) override;
  void OnHeadersTooLarge() override;
  void OnData(absl::Span<const uint8_t> data) override;
  void OnEnd() override {}
  void OnSendHeaders(http2::HeaderWriter& to) override;
  http2::Body OnSendBody(size_t room) override;
  void OnBodySent() override;

  // Ends the call with an error of ours.
  void Break(Status status);
  // Reads the five bytes before a message. Returns whether they are valid.
  bool BeginMessage(const uint8_t* head);
  void EndMessage(std::string_view message);
  // Of a call that the server cancelled: it ends calls at their deadlines, or it drains, or it is a
  // proxy that lost its server.
  StatusCode CodeOfCancelByServer() const;
  // As the headers and trailers say.
  Status StatusOfServer() const;
  // Of a complete answer.
  Status StatusOfAnswer() const;

  static constexpr int kNoStatus = -1;
  static constexpr size_t kMessageHead = 5;

  const Method method_;
  bool starved_ = false;  // the session waits for more of the request
  bool not_executed_ = false;
  bool is_grpc_ = false;
  uint8_t head_bytes_ = 0;  // of head_ that have arrived
  uint8_t head_[kMessageHead];
  int http_status_ = 0;
  int grpc_status_ = kNoStatus;
  uint32_t messages_ = 0;
  size_t message_left_ = 0;  // bytes of the message in partial_ that have not arrived
  size_t request_sent_ = 0;  // bytes of `request` that the session has taken
  size_t request_given_ = 0;
  uint64_t start_ = 0;  // position of its headers in the link's output
  std::string partial_;
  std::string grpc_message_;
  Status failure_;
};

}  // namespace sluice::client_internal

#endif  // SLUICE_CLIENT_SRC_TRANSPORT_CALL_STREAM_H_
