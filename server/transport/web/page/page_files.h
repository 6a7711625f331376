// PageFiles: serves the files of the page at `/`, which the build embeds: HTML, scripts and styles.
//
// No file loads anything from another host, and the Content-Security-Policy forbids it. The files
// have no secrets; the page asks for the token that its calls may need.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_PAGE_PAGE_FILES_H_
#define SLUICE_SERVER_TRANSPORT_WEB_PAGE_PAGE_FILES_H_

#include <deque>
#include <string_view>

#include "server/transport/http1/route.h"

namespace sluice::web {

// Written by embed_files.cmake.
struct EmbeddedFile {
  std::string_view path;  // "/page/app.js"
  std::string_view content_type;
  std::string_view etag;  // with quotes
  std::string_view bytes;
  std::string_view gzip;
};

// Thread-safe. Outlives the loops.
class PageFiles {
 public:
  PageFiles();
  PageFiles(const PageFiles&) = delete;
  PageFiles& operator=(const PageFiles&) = delete;

  void Register(http1::RouteTable* routes);

 private:
  class File final : public http1::Handler {
   public:
    explicit File(const EmbeddedFile& file) : file_(file) {}
    void OnRequest(http1::Exchange& exchange) override;
    const EmbeddedFile& file() const { return file_; }

   private:
    const EmbeddedFile& file_;
  };

  std::deque<File> files_;  // a deque: routes point to them
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_PAGE_PAGE_FILES_H_
