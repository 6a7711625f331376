#include "server/transport/http1/request_parser.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"

namespace sluice::http1 {
namespace {

namespace beast_http = boost::beast::http;
using BeastError = boost::beast::error_code;
using BeastText = boost::beast::string_view;

std::string_view ToStd(BeastText text) { return {text.data(), text.size()}; }

Method ToMethod(beast_http::verb verb) {
  switch (verb) {
    case beast_http::verb::get:
      return Method::kGet;
    case beast_http::verb::head:
      return Method::kHead;
    case beast_http::verb::post:
      return Method::kPost;
    case beast_http::verb::put:
      return Method::kPut;
    case beast_http::verb::patch:
      return Method::kPatch;
    case beast_http::verb::delete_:
      return Method::kDelete;
    case beast_http::verb::options:
      return Method::kOptions;
    default:
      return Method::kOther;
  }
}

// The value of a hexadecimal digit; -1: it is none.
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Whether a line of the headers ends without a carriage return. Beast, which refuses it too, would
// first wait for the end of headers that have none.
bool HasBareLineFeed(absl::Span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  size_t line = 0;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n', line)) {
    if (end == line || text[end - 1] != '\r') return true;
    if (end == line + 1) return false;  // the empty line that ends the headers
    line = end + 1;
  }
  return false;
}

// Of the last chunk: "0" and two line ends. Beast asserts that there are as many, if it was asked
// before to parse a part of it.
constexpr size_t kLeastChunkBytes = 5;

// Work is counted in eighths of a unit: a byte of a list of tokens, which Beast reads twice, is
// one.
constexpr int64_t kPartsOfUnit = 8;
constexpr int64_t kChunkParts = 4;

bool ConsumeScheme(std::string_view* target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(common::ToAbsl(*target), scheme)) continue;
    target->remove_prefix(scheme.size());
    return true;
  }
  return false;
}

}  // namespace

std::optional<Authority> ParseAuthority(std::string_view text) {
  Authority authority;
  size_t end = 0;  // of the host
  if (!text.empty() && text[0] == '[') {
    const size_t close = text.find(']');
    if (close == text.npos) return std::nullopt;
    authority.host = text.substr(1, close - 1);
    if (authority.host.find_first_not_of("0123456789abcdefABCDEF:.") != text.npos) {
      return std::nullopt;
    }
    end = close + 1;
  } else {
    end = std::min(text.find(':'), text.size());
    authority.host = text.substr(0, end);
    for (const char c : authority.host) {
      if (!absl::ascii_isalnum(c) && c != '.' && c != '-' && c != '_') return std::nullopt;
    }
  }
  if (end < text.size()) {
    authority.port = text.substr(end + 1);
    if (text[end] != ':' || authority.port.size() > 5) return std::nullopt;
    if (authority.port.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  }
  return authority;
}

// Beast's parser, with the checks that it lacks. It calls the functions below as it parses; the
// first error that they set ends the request.
class RequestParser::Beast {
 public:
  void Begin(Request* request) {
    request_ = request;
    parser_.emplace(*this);
    parser().header_limit(common::bounds::kMaxHttpHeaderBytes);
    // LimitBody bounds it. (Beast takes boost::none for 0.)
    parser().body_limit(std::numeric_limits<uint64_t>::max());
    state_ = State::kHeaders;
    header_bytes_ = 0;
    hosts_ = lengths_ = encodings_ = 0;
    discard_ = expects_continue_ = false;
    max_body_bytes_ = 0;
    target_ = {};
  }

  size_t Parse(absl::Span<const uint8_t> bytes) {
    if (state_ == State::kHeadersDone) {
      state_ = parser().is_done() ? State::kDone : State::kBody;
      if (state_ == State::kBody) parser().eager(true);
    }
    if (state_ == State::kDone || state_ == State::kFailed || bytes.empty()) return 0;
    if (state_ == State::kBody && encodings_ > 0 && bytes.size() < kLeastChunkBytes) return 0;
    if (state_ == State::kHeaders && HasBareLineFeed(bytes)) {
      Fail(400, "a line of the request ends with a line feed alone");
      return 0;
    }
    BeastError error;
    const size_t used = parser().put(boost::asio::buffer(bytes.data(), bytes.size()), error);
    if (error == beast_http::error::need_more) {
      // Of a chunk's line, or of trailers.
      if (bytes.size() - used > common::bounds::kMaxHttpHeaderBytes) TooLarge();
    } else if (error.failed()) {
      if (state_ != State::kFailed) Fail(error);
      return used;
    } else if (state_ == State::kHeaders && parser().is_header_done()) {
      state_ = State::kHeadersDone;
    } else if (state_ == State::kBody && parser().is_done()) {
      state_ = State::kDone;
    }
    return used;
  }

  void LimitBody(size_t max_bytes, bool discard) {
    max_body_bytes_ = max_bytes;
    discard_ = discard;
    body_bytes_ = 0;
  }

  int64_t TakeUnits() {
    const int64_t units = work_parts_ / kPartsOfUnit;
    work_parts_ %= kPartsOfUnit;
    return units;
  }

  State state() const { return state_; }
  const ParseError& error() const { return error_; }
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  std::optional<uint64_t> content_length() const {
    if (encodings_ > 0) return std::nullopt;
    const auto length = parser().content_length();
    return length.has_value() ? *length : 0;
  }

 private:
  // Passes Beast's calls on.
  class Parser final : public beast_http::basic_parser<true> {
   public:
    explicit Parser(Beast& to) : to_(to) {}

   private:
    void on_request_impl(beast_http::verb verb, BeastText, BeastText target, int version,
                         BeastError& error) override {
      to_.OnRequestLine(ToMethod(verb), ToStd(target), version);
      to_.Pass(error);
    }
    void on_response_impl(int, BeastText, int, BeastError&) override {}
    void on_field_impl(beast_http::field field, BeastText name, BeastText value,
                       BeastError& error) override {
      to_.OnField(field, ToStd(name), ToStd(value));
      to_.Pass(error);
    }
    void on_header_impl(BeastError& error) override {
      to_.OnHeadersDone();
      to_.Pass(error);
    }
    void on_body_init_impl(const boost::optional<std::uint64_t>&, BeastError&) override {}
    std::size_t on_body_impl(BeastText body, BeastError& error) override {
      to_.OnBody(ToStd(body));
      to_.Pass(error);
      return body.size();
    }
    void on_chunk_header_impl(std::uint64_t, BeastText, BeastError&) override {
      to_.work_parts_ += kChunkParts;
    }
    std::size_t on_chunk_body_impl(std::uint64_t, BeastText body, BeastError& error) override {
      to_.OnBody(ToStd(body));
      to_.Pass(error);
      return body.size();
    }
    void on_finish_impl(BeastError&) override {}

    Beast& to_;
  };

  void Pass(BeastError& error) const {
    if (state_ == State::kFailed) error = beast_http::error::bad_field;
  }
  void Fail(int status, std::string text) {
    if (state_ == State::kFailed) return;
    state_ = State::kFailed;
    error_ = {status, std::move(text)};
  }
  void TooLarge() {
    Fail(431, absl::StrCat("the headers have more than ", common::bounds::kMaxHttpHeaderBytes,
                           " bytes"));
  }
  void Fail(const BeastError& error) {
    if (error == beast_http::error::header_limit) {
      TooLarge();
    } else if (error == beast_http::error::bad_version) {
      Fail(505, "the request line must end with HTTP/1.1 or HTTP/1.0");
    } else {
      Fail(400, absl::StrCat("the request is not HTTP/1.1: ", error.message()));
    }
  }

  Request::ByteRange Append(std::string_view text) {
    const Request::ByteRange place = {static_cast<uint32_t>(request_->bytes_.size()),
                                      static_cast<uint32_t>(text.size())};
    request_->bytes_.Append(text);
    return place;
  }

  void OnRequestLine(Method method, std::string_view target, int version) {
    request_->method_ = method;
    request_->is_1_1_ = version == 11;
    header_bytes_ = target.size();
    if (target.size() > common::bounds::kMaxHttpHeaderBytes) return TooLarge();
    for (const char c : target) {
      if (c > ' ' && c < 0x7F && c != '#') continue;
      return Fail(
          400, "the target may have only visible ASCII characters, and no #; write others as %XX");
    }
    target_ = Append(target);
  }

  void OnField(beast_http::field field, std::string_view name, std::string_view value) {
    if (field == beast_http::field::connection || field == beast_http::field::proxy_connection) {
      work_parts_ += static_cast<int64_t>(value.size());
    }
    if (state_ != State::kHeaders) return;  // trailers could change the meaning of the request
    header_bytes_ += name.size() + value.size() + 4;
    if (header_bytes_ > common::bounds::kMaxHttpHeaderBytes) return TooLarge();
    if (request_->headers_.size() == common::bounds::kMaxHttpHeaders) {
      return Fail(431, absl::StrCat("the request has more than ", common::bounds::kMaxHttpHeaders,
                                    " headers"));
    }
    switch (field) {
      case beast_http::field::host:
        ++hosts_;
        break;
      case beast_http::field::content_length:
        // Two of the same value, or "5, 5", are right for Beast, but not for each proxy.
        if (++lengths_ > 1 || value.find_first_not_of("0123456789") != value.npos) {
          return Fail(400, "Content-Length must be one number, given once");
        }
        break;
      case beast_http::field::transfer_encoding:
        // Beast ignores an encoding that it does not know: the body would be the next request.
        ++encodings_;
        if (!absl::EqualsIgnoreCase(common::ToAbsl(value), "chunked")) {
          return Fail(501, "Transfer-Encoding: only chunked is served");
        }
        break;
      case beast_http::field::expect:
        if (!absl::EqualsIgnoreCase(common::ToAbsl(value), "100-continue")) {
          return Fail(417, "Expect: only 100-continue is served");
        }
        expects_continue_ = true;
        break;
      default:
        break;
    }
    const Request::ByteRange value_place = Append(value);
    const Request::ByteRange name_place = Append(name);
    uint8_t* const lower = request_->bytes_.data() + name_place.offset;
    for (size_t i = 0; i < name.size(); ++i) {
      lower[i] = static_cast<uint8_t>(absl::ascii_tolower(lower[i]));
    }
    request_->headers_.push_back({name_place, value_place});
    if (field == beast_http::field::host) request_->authority_ = value_place;
  }

  void OnHeadersDone() {
    keep_alive_ = parser().keep_alive();
    if (encodings_ > 0 && !request_->is_1_1_) {
      return Fail(400, "Transfer-Encoding: HTTP/1.0 has none");
    }
    if (hosts_ > 1 || (hosts_ == 0 && request_->is_1_1_)) {
      return Fail(400, hosts_ > 1 ? "Host must be given once" : "Host is missing");
    }
    if (!request_->is_1_1_) expects_continue_ = false;
    TakeTarget();
    if (state_ == State::kFailed) return;
    const std::string_view authority = request_->authority();
    if (!authority.empty() && !ParseAuthority(authority).has_value()) {
      Fail(400, "Host must be a name or an IP address, and a port");
    }
  }

  // Splits the target into authority, path and parameters, and decodes them.
  void TakeTarget() {
    // Decoding appends to the bytes that the target is in: it adds no more than the target's size.
    request_->bytes_.Reserve(target_.size);
    std::string_view target = request_->View(target_);
    if (ConsumeScheme(&target)) {
      const size_t end = std::min(target.find_first_of("/?"), target.size());
      if (end == 0) return Fail(400, "the target's URL has no host");
      request_->authority_ = {OffsetOf(target), static_cast<uint32_t>(end)};
      target.remove_prefix(end);
    } else if (target == "*" && request_->method_ == Method::kOptions) {
      request_->path_ = target_;
      return;
    } else if (target[0] != '/') {
      return Fail(400, "the target must be a path or a URL: /v1/check?limit=api");
    }
    const size_t question = std::min(target.find('?'), target.size());
    request_->path_ = Decode(target.substr(0, question));
    if (request_->path_.size == 0) request_->path_ = Append("/");
    target.remove_prefix(std::min(question + 1, target.size()));
    while (!target.empty() && state_ != State::kFailed) {
      const size_t end = std::min(target.find('&'), target.size());
      TakeParameter(target.substr(0, end));
      target.remove_prefix(std::min(end + 1, target.size()));
    }
  }

  void TakeParameter(std::string_view text) {
    if (text.empty()) return;
    if (request_->parameters_.size() == common::bounds::kMaxHttpHeaders) {
      return Fail(414, absl::StrCat("the query has more than ", common::bounds::kMaxHttpHeaders,
                                    " parameters"));
    }
    const size_t equals = std::min(text.find('='), text.size());
    const Request::ByteRange name = Decode(text.substr(0, equals));
    const Request::ByteRange value = Decode(text.substr(std::min(equals + 1, text.size())));
    request_->parameters_.push_back({name, value});
  }

  // Appends the text with each %XX as the byte XX; text without any stays where it is.
  Request::ByteRange Decode(std::string_view text) {
    if (text.find('%') == text.npos) return {OffsetOf(text), static_cast<uint32_t>(text.size())};
    common::Buffer& bytes = request_->bytes_;
    const auto offset = static_cast<uint32_t>(bytes.size());
    while (!text.empty()) {
      size_t used = 1;
      char c = text[0];
      if (c == '%') {
        const int high = text.size() > 2 ? HexDigit(text[1]) : -1;
        const int low = text.size() > 2 ? HexDigit(text[2]) : -1;
        if (high < 0 || low < 0) {
          Fail(400, "the target has a % without two hexadecimal digits; write %25 for %");
          break;
        }
        c = static_cast<char>(high << 4 | low);
        used = 3;
      }
      bytes.Append(&c, 1);
      text.remove_prefix(used);
    }
    return {offset, static_cast<uint32_t>(bytes.size()) - offset};
  }

  // `text` is a part of the request's bytes.
  uint32_t OffsetOf(std::string_view text) const {
    return static_cast<uint32_t>(reinterpret_cast<const uint8_t*>(text.data()) -
                                 request_->bytes_.data());
  }

  void OnBody(std::string_view bytes) {
    body_bytes_ += bytes.size();
    if (body_bytes_ > max_body_bytes_) {
      return Fail(413, absl::StrCat("the body has more than ", max_body_bytes_, " bytes"));
    }
    if (!discard_) request_->body_.Append(bytes);
  }

  // REQUIRES: Begin was called.
  Parser& parser() {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): Begin makes it.
    return *parser_;
  }
  const Parser& parser() const {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): Begin makes it.
    return *parser_;
  }

  std::optional<Parser> parser_;
  Request* request_ = nullptr;
  State state_ = State::kDone;
  ParseError error_;
  Request::ByteRange target_;
  size_t header_bytes_ = 0;
  size_t body_bytes_ = 0;
  size_t max_body_bytes_ = 0;
  int64_t work_parts_ = 0;  // that were not taken
  int hosts_ = 0;
  int lengths_ = 0;
  int encodings_ = 0;
  bool discard_ = false;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
};

RequestParser::RequestParser() : beast_(std::make_unique<Beast>()) {}
RequestParser::~RequestParser() = default;

void RequestParser::Begin(Request* request) { beast_->Begin(request); }
size_t RequestParser::Parse(absl::Span<const uint8_t> bytes) { return beast_->Parse(bytes); }
int64_t RequestParser::TakeUnits() { return beast_->TakeUnits(); }
RequestParser::State RequestParser::state() const { return beast_->state(); }
const ParseError& RequestParser::error() const { return beast_->error(); }
void RequestParser::LimitBody(size_t max_bytes, bool discard) {
  beast_->LimitBody(max_bytes, discard);
}
std::optional<uint64_t> RequestParser::content_length() const { return beast_->content_length(); }
bool RequestParser::keep_alive() const { return beast_->keep_alive(); }
bool RequestParser::expects_continue() const { return beast_->expects_continue(); }

}  // namespace sluice::http1
