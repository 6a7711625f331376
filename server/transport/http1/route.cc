#include "server/transport/http1/route.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/strings.h"

namespace sluice::http1 {
std::string Methods::ToString() const {
  std::string text;
  for (const Method method : {Method::kGet, Method::kHead, Method::kPost, Method::kPut,
                              Method::kPatch, Method::kDelete, Method::kOptions}) {
    if (!Has(method)) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", common::ToAbsl(NameOf(method)));
  }
  return text;
}

const Route& RouteTable::Insert(std::string_view path, bool is_prefix, Handler& handler,
                                const RouteOptions& options) {
  Route& route = routes_.emplace_back();
  route.path = path;
  route.is_prefix = is_prefix;
  route.handler = &handler;
  route.options = options;
  if (route.options.metric.empty()) route.options.metric = route.path;
  route.allow = options.methods.ToString();
  route.index = routes_.size() - 1;
  return route;
}

void RouteTable::Add(std::string_view path, Handler& handler, const RouteOptions& options) {
  const Route& route = Insert(path, /*is_prefix=*/false, handler, options);
  by_path_.emplace(route.path, &route);
}

void RouteTable::AddPrefix(std::string_view prefix, Handler& handler, const RouteOptions& options) {
  prefixes_.push_back(&Insert(prefix, /*is_prefix=*/true, handler, options));
  std::sort(prefixes_.begin(), prefixes_.end(),
            [](const Route* a, const Route* b) { return a->path.size() > b->path.size(); });
}

const Route* RouteTable::Find(std::string_view path) const {
  const auto it = by_path_.find(common::ToAbsl(path));
  if (it != by_path_.end()) return it->second;
  for (const Route* const route : prefixes_) {
    if (path.substr(0, route->path.size()) == route->path) return route;
  }
  return nullptr;
}

std::string RouteTable::PathsText() const {
  if (Find("/openapi.json") != nullptr) return "/openapi.json lists the paths of the API";
  std::string text = "this port serves";
  for (const Route& route : routes_) {
    absl::StrAppend(&text, route.index == 0 ? " " : ", ", route.path);
  }
  return text;
}

}  // namespace sluice::http1
