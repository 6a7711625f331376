#include "server/transport/http1/request.h"

#include <utility>

namespace sluice::http1 {

std::string_view NameOf(Method method) {
  switch (method) {
    case Method::kGet:
      return "GET";
    case Method::kHead:
      return "HEAD";
    case Method::kPost:
      return "POST";
    case Method::kPut:
      return "PUT";
    case Method::kPatch:
      return "PATCH";
    case Method::kDelete:
      return "DELETE";
    case Method::kOptions:
      return "OPTIONS";
    case Method::kOther:
      break;
  }
  return "another method";
}

std::optional<std::string_view> Request::parameter(std::string_view name) const {
  for (const FieldPlace& one : parameters_) {
    if (View(one.name) == name) return View(one.value);
  }
  return std::nullopt;
}

std::optional<std::string_view> Request::header(std::string_view name) const {
  for (const FieldPlace& one : headers_) {
    if (View(one.name) == name) return View(one.value);
  }
  return std::nullopt;
}

void Request::Swap(Request& other) {
  std::swap(method_, other.method_);
  std::swap(is_1_1_, other.is_1_1_);
  std::swap(path_, other.path_);
  std::swap(authority_, other.authority_);
  parameters_.swap(other.parameters_);
  headers_.swap(other.headers_);
  bytes_.Swap(other.bytes_);
  body_.Swap(other.body_);
}

void Request::Clear(size_t keep) {
  method_ = Method::kOther;
  is_1_1_ = false;
  path_ = authority_ = {};
  parameters_.clear();
  headers_.clear();
  bytes_.Clear(keep);
  body_.Clear(keep);
}

}  // namespace sluice::http1
