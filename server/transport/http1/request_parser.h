// RequestParser: parses HTTP/1.1 requests (RFC 9112) from a connection's bytes.
//
// Boost.Beast's basic_parser does the syntax. What it lets through, and a request may not have, is
// refused here: see the checks in request_parser.cc.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_REQUEST_PARSER_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_REQUEST_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "server/transport/http1/request.h"

namespace sluice::http1 {

// Why a request was refused. The connection cannot go on after it: where the next request begins is
// not known.
struct ParseError {
  int status = 400;
  std::string text;
};

// Reusable. Not thread-safe.
class RequestParser {
 public:
  enum class State : uint8_t {
    kHeaders,
    kHeadersDone,  // the headers are complete: LimitBody, then go on
    kBody,
    kDone,
    kFailed,
  };

  RequestParser();
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Begins a request, to be written to `request`, which is empty and outlives the parsing.
  void Begin(Request* request);

  // Takes bytes, up to the end of the headers or of the request, and returns how many. 0, without a
  // new state: more has to arrive, and the bytes must be given again, with those.
  size_t Parse(absl::Span<const uint8_t> bytes);

  // Units of work (net::WorkQueue) since the last call, of what costs more than its bytes say:
  // lists of tokens, and chunks.
  int64_t TakeUnits();

  State state() const;
  // REQUIRES: kFailed.
  const ParseError& error() const;

  // ---- REQUIRES: the headers are complete.
  // Bytes of the body that are kept; more is an error (413). With `discard`, they are dropped.
  void LimitBody(size_t max_bytes, bool discard);
  // Announced bytes of the body; nullopt: it is chunked.
  std::optional<uint64_t> content_length() const;
  // Whether the connection stays open after this request, as far as the client is concerned.
  bool keep_alive() const;
  // The client waits for 100 Continue before it sends the body.
  bool expects_continue() const;

 private:
  class Beast;

  std::unique_ptr<Beast> beast_;
};

// A host and a port, as in Host: "localhost:7202", "[::1]". nullopt: not of that form.
struct Authority {
  std::string_view host;  // without brackets
  std::string_view port;  // empty: none
};
std::optional<Authority> ParseAuthority(std::string_view text);

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_REQUEST_PARSER_H_
