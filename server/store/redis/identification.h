// Identification: makes sure, for one connection to one server, that the data there is what the
// nodes know (marker.h), before anything is decided by it and while it is.
//
// When a connection is ready it reads the server's identity and the marker, replaces the marker if
// they differ, and only then lets the endpoint serve. From then on
//  - each script looks for the marker's word; one that misses it decides nothing (MARKER), and it
//    is all read again;
//  - before a command is sent later than kTrustNs after the last look, INFO goes first on the same
//    connection. Its answer comes before the command's; if the server is in another term by then
//    (demoted and promoted in between), or has lost its replicas, the connection is broken and
//    what was sent after it counts as spent.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_IDENTIFICATION_H_
#define SLUICE_SERVER_STORE_REDIS_IDENTIFICATION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/common/log.h"
#include "server/common/mutex.h"
#include "server/net/event_loop.h"
#include "server/store/redis/endpoint.h"
#include "server/store/redis/marker.h"
#include "server/store/redis/server_facts.h"
#include "server/store/redis/term.h"

namespace sluice::store::redis {

// The last marker that any loop of this process goes by. Thread-safe.
class KnownMarker {
 public:
  std::optional<Marker> Get() const;
  // False: another loop has seen a later one, by which all is to be looked at again.
  bool Adopt(const Marker& marker);

 private:
  mutable common::Mutex mu_;
  std::optional<Marker> marker_ ABSL_GUARDED_BY(mu_);
};

struct IdentificationOptions {
  std::string name_space;
  MarkerPolicy policy;
  // Where the server does not tell its min-replicas-max-lag.
  int64_t assumed_lag_us = 10'000'000;
  // Serve on a server that has replicas and would go on without them.
  bool allow_unguarded = false;
  common::Log* log = nullptr;
};

class Identification {
 public:
  // How long after a look commands are sent without another.
  static constexpr int64_t kTrustNs = 100'000'000;

  // All outlive it, and it the endpoint's last callback. `failed` is told why the endpoint cannot
  // serve.
  Identification(net::EventLoop& loop, Endpoint& endpoint, KnownMarker& known,
                 IdentificationOptions options,
                 absl::AnyInvocable<void(const absl::Status&)> failed);

  // As Endpoint::Owner. What INFO says alone may be enough to refuse the server.
  absl::Status OnInfo(const std::string& info);
  absl::Status OnFurtherInfo(const std::string& info) const;
  void OnReady();

  // A script missed the marker's word.
  void OnMarkerMissed();
  // A command is about to be sent.
  void BeforeSend() {
    if (loop_.now_ns() - looked_ns_ > kTrustNs) Look();
  }
  const Term& term() const { return term_; }

 private:
  void Look();
  void ReadMarker();
  void OnMarker(const std::string& text);
  void OnMarkerAndWord(const std::string& text, const std::optional<Marker>& found,
                       bool word_stands);
  // The endpoint cannot be used as it is.
  void Refuse(absl::Status why);
  absl::Status Check() const;
  void Failed(const Reply* reply, const char* what);

  net::EventLoop& loop_;
  Endpoint& endpoint_;
  KnownMarker& known_;
  const IdentificationOptions options_;
  absl::AnyInvocable<void(const absl::Status&)> failed_;

  std::string info_server_;  // run_id, as INFO has it
  Reply config_;
  ServerFacts facts_;
  Term term_;
  uint64_t connection_ = 0;  // answers to what was asked on an earlier one do not count
  int64_t looked_ns_ = 0;    // when INFO was asked for last
  bool reading_ = false;     // the marker is being read, or replaced
  int tries_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_IDENTIFICATION_H_
