#include "server/store/redis/identification.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/common/strings.h"

namespace sluice::store::redis {
namespace {

// Others replaced it at the same moment: each time one of them was first.
constexpr int kMaxTries = 16;

std::string RandomWord() {
  std::random_device random;
  return absl::StrCat(absl::Hex(uint64_t{random()} << 32 | random(), absl::kZeroPad16));
}

}  // namespace

std::optional<Marker> KnownMarker::Get() const {
  common::MutexLock lock(&mu_);
  return marker_;
}

bool KnownMarker::Adopt(const Marker& marker) {
  common::MutexLock lock(&mu_);
  if (marker_.has_value() && !marker.Same(*marker_) && marker.number <= marker_->number) {
    return false;
  }
  marker_ = marker;
  return true;
}

Identification::Identification(net::EventLoop& loop, Endpoint& endpoint, KnownMarker& known,
                               IdentificationOptions options,
                               absl::AnyInvocable<void(const absl::Status&)> failed)
    : loop_(loop),
      endpoint_(endpoint),
      known_(known),
      options_(std::move(options)),
      failed_(std::move(failed)) {}

absl::Status Identification::OnInfo(const std::string& info) {
  info_server_ = absl::StrCat("run_id:", InfoField(info, "run_id"), "\n");
  config_ = {};
  facts_ = ServerFacts::From(info, nullptr, options_.assumed_lag_us);
  const absl::Status status = Check();
  // How far behind replicas may be is not known yet.
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;
}

absl::Status Identification::OnFurtherInfo(const std::string& info) const {
  const ServerFacts facts = ServerFacts::From(info, nullptr, options_.assumed_lag_us);
  if (facts.identity == facts_.identity) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(endpoint_.url().ToString(), " leads to another server now"));
}

absl::Status Identification::Check() const {
  if (facts_.role != "master") {
    return absl::FailedPreconditionError(
        absl::StrCat(endpoint_.url().ToString(), " became a replica (role ", facts_.role, ")"));
  }
  const absl::Status status = facts_.Guarded(options_.policy.may_fail_over);
  if (status.ok() || (absl::IsFailedPrecondition(status) && options_.allow_unguarded)) {
    return absl::OkStatus();
  }
  return absl::Status(status.code(),
                      absl::StrCat(endpoint_.url().ToString(), " ", status.message()));
}

void Identification::OnReady() {
  ++connection_;
  reading_ = false;
  tries_ = 0;
  // Where CONFIG is not allowed (an error), defaults are assumed.
  const auto note = [this, of = connection_](const Reply* reply) {
    if (of != connection_ || reply == nullptr || reply->is_error()) return;
    config_.elements.insert(config_.elements.end(), reply->elements.begin(), reply->elements.end());
  };
  for (const char* name : kConfigNames) endpoint_.Call({"CONFIG", "GET", name}, note);
  ReadMarker();
}

void Identification::OnMarkerMissed() {
  if (reading_) return;
  tries_ = 0;
  ReadMarker();
}

void Identification::Look() {
  looked_ns_ = loop_.now_ns();
  endpoint_.Call({"INFO", "replication"}, [this, of = connection_](const Reply* reply) {
    if (of != connection_) return;
    if (reply == nullptr || reply->is_error()) return Failed(reply, "INFO");
    const std::string before = facts_.identity;
    facts_ = ServerFacts::From(info_server_ + reply->text, &config_, options_.assumed_lag_us);
    if (absl::Status status = Check(); !status.ok()) return Refuse(std::move(status));
    if (!term_.word_key.empty() && facts_.identity != before) {
      // Answers to what was sent since are by data that is not what it was taken for.
      Refuse(absl::UnavailableError(
          absl::StrCat(endpoint_.url().ToString(), " was demoted and promoted again")));
    }
  });
}

void Identification::ReadMarker() {
  reading_ = true;
  term_ = {};
  Look();
  endpoint_.Call({"GET", MarkerKey(options_.name_space)},
                 [this, of = connection_](const Reply* reply) {
                   if (of != connection_) return;
                   if (reply == nullptr || reply->is_error()) return Failed(reply, "the marker");
                   OnMarker(reply->text);
                 });
}

void Identification::OnMarker(const std::string& text) {
  const auto parsed = Marker::Parse(text);
  if (!parsed.ok()) return OnMarkerAndWord(text, std::nullopt, false);
  endpoint_.Call({"OBJECT", "ENCODING", WordKey(options_.name_space, parsed->word)},
                 [this, of = connection_, text, found = *parsed](const Reply* reply) {
                   if (of != connection_) return;
                   if (reply == nullptr || reply->is_error()) return Failed(reply, "the marker");
                   OnMarkerAndWord(text, found, reply->text == "raw");
                 });
}

void Identification::OnMarkerAndWord(const std::string& text, const std::optional<Marker>& found,
                                     bool word_stands) {
  const MarkerStep step =
      NextMarker(facts_, found, word_stands, known_.Get(), options_.policy, RandomWord());
  if (step.adopt && known_.Adopt(*found)) {
    reading_ = false;
    term_ = {WordKey(options_.name_space, found->word), found->floor_us};
    return endpoint_.Serve();
  }
  if (++tries_ > kMaxTries) {
    return Refuse(absl::UnavailableError(
        absl::StrCat(endpoint_.url().ToString(), ": other nodes replace the marker all the time")));
  }
  if (step.adopt) return ReadMarker();
  endpoint_.Call(
      MarkWords(step, options_.name_space, text),
      [this, of = connection_, why = step.why, word = step.write.word](const Reply* reply) {
        if (of != connection_) return;
        if (reply == nullptr || reply->is_error()) return Failed(reply, "the marker");
        const auto written = Marker::Parse(reply->text);
        if (written.ok() && written->word == word && options_.log != nullptr) {
          options_.log->Warning("redis_marker", {{"why", why},
                                                 {"store", endpoint_.url().ToString()},
                                                 {"number", written->number},
                                                 {"floor_us", written->floor_us}});
        }
        // By what the server is now: it may have changed since.
        ReadMarker();
      });
}

void Identification::Failed(const Reply* reply, const char* what) {
  if (reply == nullptr) {
    // The connection is broken, or full: then it is read again when a script misses it again.
    reading_ = false;
    return;
  }
  if (reply->HasCode("NOSCRIPT")) {
    endpoint_.LoadScripts();
    return ReadMarker();
  }
  Refuse(absl::UnavailableError(
      absl::StrCat(endpoint_.url().ToString(), ": ", what, ": ", ErrorText(*reply))));
}

void Identification::Refuse(absl::Status why) {
  ++connection_;
  reading_ = false;
  term_ = {};
  failed_(why);
  endpoint_.Restart(std::move(why));
}

}  // namespace sluice::store::redis
