// Request: one HTTP request: its method, target, headers and body, and where it came from.
#ifndef SLUICE_SERVER_TRANSPORT_HTTP1_REQUEST_H_
#define SLUICE_SERVER_TRANSPORT_HTTP1_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/buffer.h"

namespace sluice::http1 {

enum class Method : uint8_t { kGet, kHead, kPost, kPut, kPatch, kDelete, kOptions, kOther };

// "GET"; kOther: "another method".
std::string_view NameOf(Method method);

// A name and its value: a header (the name is in lower case) or a parameter of the query (both are
// decoded).
struct Field {
  std::string_view name;
  std::string_view value;
};

// Reusable. Views of it are valid until it is cleared or destroyed; Swap keeps them valid. Not
// thread-safe.
class Request {
 public:
  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  Method method() const { return method_; }
  // Without the query; %XX is decoded. Begins with '/', or is "*".
  std::string_view path() const { return View(path_); }

  // The parameters of the query, in their order: name=value, joined by '&'. %XX is decoded; '+'
  // stands for itself.
  size_t parameters() const { return parameters_.size(); }
  Field parameter(size_t i) const {
    return {View(parameters_[i].name), View(parameters_[i].value)};
  }
  // The first value of that name.
  std::optional<std::string_view> parameter(std::string_view name) const;

  // The headers, in their order. Trailers of a chunked body are dropped.
  size_t headers() const { return headers_.size(); }
  Field header(size_t i) const { return {View(headers_[i].name), View(headers_[i].value)}; }
  // The first value of that name. `name` in lower case.
  std::optional<std::string_view> header(std::string_view name) const;

  // Host and port that the request was sent to, as the client wrote them: of the target if that is
  // a whole URL, else of the header Host. Empty: none (HTTP/1.0).
  std::string_view authority() const { return View(authority_); }

  std::string_view body() const {
    return {reinterpret_cast<const char*>(body_.data()), body_.size()};
  }

  // Whether the client speaks HTTP/1.1: it understands chunked bodies and 100 Continue.
  bool is_1_1() const { return is_1_1_; }

  void Swap(Request& other);
  // Forgets the request; keeps at most `keep` bytes of memory in each buffer.
  void Clear(size_t keep);
  // Bytes of memory.
  size_t memory() const {
    return bytes_.capacity() + body_.capacity() +
           (headers_.capacity() + parameters_.capacity()) * sizeof(FieldPlace);
  }

 private:
  friend class RequestParser;

  // A part of bytes_, which may move while the request is received.
  struct ByteRange {
    uint32_t offset = 0;
    uint32_t size = 0;
  };
  struct FieldPlace {
    ByteRange name;
    ByteRange value;
  };

  std::string_view View(ByteRange place) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + place.offset, place.size};
  }

  Method method_ = Method::kOther;
  bool is_1_1_ = false;
  ByteRange path_;
  ByteRange authority_;
  std::vector<FieldPlace> parameters_;
  std::vector<FieldPlace> headers_;
  common::Buffer bytes_;  // the target and the headers, decoded
  common::Buffer body_;
};

}  // namespace sluice::http1

#endif  // SLUICE_SERVER_TRANSPORT_HTTP1_REQUEST_H_
