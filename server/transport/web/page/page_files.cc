#include "server/transport/web/page/page_files.h"

#include <string>

#include "absl/types/span.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/gzip.h"

namespace sluice::web {

// In embedded_files.cc, which the build writes.
absl::Span<const EmbeddedFile> EmbeddedFiles();

namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

PageFiles::PageFiles() {
  for (const EmbeddedFile& file : EmbeddedFiles()) files_.emplace_back(file);
}

void PageFiles::Register(http1::RouteTable* routes) {
  for (File& file : files_) routes->Add(file.file().path, file, {.metric = "/"});
}

void PageFiles::File::OnRequest(http1::Exchange& exchange) {
  http1::Answer answer;
  // A browser asks each time whether the file changed, so that a page fits the server it talks to.
  answer.headers = {{"cache-control", "no-cache"},
                    {"etag", std::string(file_.etag)},
                    {"vary", "accept-encoding"},
                    {"content-security-policy", kPolicy},
                    {"x-content-type-options", "nosniff"},
                    {"referrer-policy", "no-referrer"},
                    {"cross-origin-opener-policy", "same-origin"}};
  const auto known = exchange.request().header("if-none-match");
  if (known.has_value() && known->find(file_.etag) != std::string_view::npos) {
    answer.status = 304;
    exchange.Finish(std::move(answer));
    return;
  }
  answer.content_type = std::string(file_.content_type);
  if (http1::AcceptsGzip(exchange.request())) {
    answer.headers.emplace_back("content-encoding", "gzip");
    answer.body = http1::SharedBytes::Constant(file_.gzip);
  } else {
    answer.body = http1::SharedBytes::Constant(file_.bytes);
  }
  exchange.Finish(std::move(answer));
}

}  // namespace sluice::web
