#include "server/store/redis/topology/sentinel_router.h"

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/net/connector.h"
#include "common/net/stream.h"

namespace sluice::store::redis {
namespace {

constexpr int64_t kEveryNs = 1'000'000'000;
constexpr int64_t kHurryNs = 100'000'000;
// For connecting, and for an answer.
constexpr int64_t kTimeoutNs = 1'000'000'000;

}  // namespace

class SentinelRouter::Peer final : private net::StreamHandler {
 public:
  struct Answer {
    uint64_t epoch = 0;
    net::Address primary;
  };

  Peer(SentinelRouter& router, net::Address address)
      : router_(router), address_(std::move(address)) {}

  void Ask() {
    if (stream_ == nullptr) return Connect();
    if (open_ && asked_.empty()) return Send();
    if (router_.loop_.now_ns() - begun_ns_ > kTimeoutNs) {
      stream_->Abort(absl::DeadlineExceededError(absl::StrCat(Name(), " does not answer")));
    }
  }

  // Its last answer, on a connection that is still open.
  const std::optional<Answer>& answer() const { return answer_; }
  // Not OK: why there is no answer. CANCELLED: it was not asked yet, or has not answered yet.
  const absl::Status& status() const { return status_; }

 private:
  enum class Question : uint8_t { kAuth, kAddress, kDetails };

  std::string Name() const { return absl::StrCat("Sentinel ", address_.ToString()); }

  void Connect() {
    begun_ns_ = router_.loop_.now_ns();
    open_ = false;
    asked_.clear();
    reader_ = std::make_unique<ReplyReader>();
    net::ConnectOptions options;
    options.timeout_ns = kTimeoutNs;
    options.tls = router_.options_.url.sentinel_tls ? router_.options_.tls : nullptr;
    options.server_name = router_.options_.url.server_name;
    stream_ = net::Connect(router_.loop_, address_, router_.resolver_, options, *this);
  }

  void Send() {
    begun_ns_ = router_.loop_.now_ns();
    std::string output;
    const RedisUrl& url = router_.options_.url;
    if (!authenticated_ && !url.sentinel_password.empty()) {
      std::vector<std::string> words = {"AUTH"};
      if (!url.sentinel_user.empty()) words.push_back(url.sentinel_user);
      words.push_back(url.sentinel_password);
      AppendCommand(words, &output);
      asked_.push_back(Question::kAuth);
    }
    AppendCommand(std::vector<std::string>{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.primary_name},
                  &output);
    asked_.push_back(Question::kAddress);
    AppendCommand(std::vector<std::string>{"SENTINEL", "MASTER", url.primary_name}, &output);
    asked_.push_back(Question::kDetails);
    stream_->Write({reinterpret_cast<const uint8_t*>(output.data()), output.size()});
  }

  void OnOpen() override {
    open_ = true;
    authenticated_ = false;
    Send();
  }

  void OnData(absl::Span<const uint8_t> data) override {
    reader_->Feed(data);
    Reply reply;
    for (;;) {
      const absl::StatusOr<bool> next = reader_->Next(&reply);
      if (!next.ok()) return stream_->Abort(next.status());
      if (!*next) return;
      if (asked_.empty()) {
        return stream_->Abort(absl::InternalError(absl::StrCat(Name(), " answers unasked")));
      }
      const Question question = asked_.front();
      asked_.pop_front();
      if (absl::Status status = OnReply(question, reply); !status.ok()) {
        return stream_->Abort(std::move(status));
      }
    }
  }

  // Not OK: it is of no use.
  absl::Status OnReply(Question question, const Reply& reply) {
    if (reply.HasCode("NOAUTH")) {
      return absl::UnauthenticatedError(absl::StrCat(
          Name(), " asks for a password; add ?sentinel_password=P or sentinel_password_file=F"));
    }
    if (question == Question::kAuth) {
      if (reply.is_error()) {
        return absl::UnauthenticatedError(
            absl::StrCat(Name(), " refuses sentinel_user or sentinel_password: ", reply.text));
      }
      authenticated_ = true;
      return absl::OkStatus();
    }
    if (question == Question::kAddress) {
      if (reply.HasCode("NOPERM")) {
        return absl::PermissionDeniedError(
            absl::StrCat(Name(), ": ", reply.text,
                         "; its ACL user needs +sentinel|get-master-addr-by-name and "
                         "+sentinel|master"));
      }
      if (reply.is_error()) {
        return absl::FailedPreconditionError(absl::StrCat(Name(), " is no Sentinel: ", reply.text));
      }
      uint32_t port = 0;
      if (reply.elements.size() != 2 || !absl::SimpleAtoi(reply.elements[1].text, &port) ||
          port == 0 || port > 65535) {
        next_ = std::nullopt;
        return absl::OkStatus();
      }
      next_ = Answer{};
      next_->primary.host = reply.elements[0].text;
      next_->primary.port = static_cast<uint16_t>(port);
      return absl::OkStatus();
    }
    // Where SENTINEL MASTER is not allowed, all Sentinels count the same.
    if (next_.has_value()) {
      for (size_t i = 0; i + 1 < reply.elements.size(); i += 2) {
        if (reply.elements[i].text == "config-epoch" &&
            !absl::SimpleAtoi(reply.elements[i + 1].text, &next_->epoch)) {
          next_->epoch = 0;
        }
      }
    }
    answer_ = std::move(next_);
    status_ = answer_.has_value()
                  ? absl::OkStatus()
                  : absl::FailedPreconditionError(absl::StrCat(Name(), " knows no primary named \"",
                                                               router_.options_.url.primary_name,
                                                               "\"; see SENTINEL MASTERS there"));
    router_.OnAnswer();
    return absl::OkStatus();
  }

  void OnEnd() override { stream_->Abort(absl::UnavailableError(Name() + " hung up")); }

  void OnClosed(const absl::Status& why) override {
    stream_ = nullptr;
    open_ = false;
    answer_ = std::nullopt;
    status_ = why.ok() ? absl::UnavailableError(Name() + " hung up") : why;
    if (!router_.loop_.stopping()) router_.OnAnswer();
  }

  SentinelRouter& router_;
  const net::Address address_;
  net::Stream* stream_ = nullptr;
  std::unique_ptr<ReplyReader> reader_;
  std::deque<Question> asked_;
  bool open_ = false;
  bool authenticated_ = false;
  int64_t begun_ns_ = 0;  // connecting or asking
  std::optional<Answer> next_;
  std::optional<Answer> answer_;
  absl::Status status_ = absl::CancelledError("not asked yet");
};

SentinelRouter::SentinelRouter(const Router::Context& context)
    : SingleRouter(context),
      loop_(context.fence.loop),
      resolver_(context.fence.resolver),
      options_(context.endpoint.connection) {
  for (const net::Address& seed : options_.url.seeds) {
    peers_.push_back(std::make_unique<Peer>(*this, seed));
  }
}

SentinelRouter::~SentinelRouter() = default;

void SentinelRouter::SetHurry(bool hurry) {
  if (hurry_ == hurry) return;
  hurry_ = hurry;
  if (hurry) loop_.ArmIn(timer_, 0);
}

void SentinelRouter::AskAll() {
  if (loop_.stopping()) return;
  for (const auto& peer : peers_) peer->Ask();
  loop_.ArmIn(timer_, hurry_ ? kHurryNs : kEveryNs);
}

void SentinelRouter::OnAnswer() {
  const Peer::Answer* best = nullptr;
  bool all = true;
  absl::Status status;
  for (const auto& peer : peers_) {
    if (const auto& answer = peer->answer(); answer.has_value()) {
      if (best == nullptr || answer->epoch > best->epoch) best = &*answer;
    } else if (absl::IsCancelled(peer->status())) {
      all = false;
    } else if (status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      // An error that the operator can fix before one that may pass.
      status = peer->status();
    }
  }
  if (best == nullptr) {
    if (all && !std::exchange(failed_, true)) OnNoPrimary(std::move(status));
    return;
  }
  failed_ = false;
  if (started_ && endpoint().address() == best->primary) return;
  const net::Address primary = best->primary;
  endpoint().MoveTo(primary, absl::UnavailableError(absl::StrCat("Sentinels name another primary, ",
                                                                 primary.ToString())));
  if (!std::exchange(started_, true)) endpoint().Start();
}

void SentinelRouter::OnNoPrimary(absl::Status why) {
  if (absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why)) {
    const std::string seeds = absl::StrJoin(
        options_.url.seeds, ", ",
        [](std::string* out, const net::Address& seed) { out->append(seed.ToString()); });
    why = absl::UnavailableError(absl::StrCat(
        "no Sentinel can be reached (", seeds, "): ", why.message(),
        "; they are asked again: start one there, let this host reach it, or write into --store "
        "where they are"));
  }
  SingleRouter::OnFailed(why);
}

Course SentinelRouter::OnError(Endpoint& from, std::string_view key, const Reply& error) {
  // It has lost its replicas, or became one: there may be another primary by now.
  if (error.HasCode("NOREPLICAS") || error.HasCode("READONLY")) SetHurry(true);
  return SingleRouter::OnError(from, key, error);
}

void SentinelRouter::OnAvailable() {
  SetHurry(false);
  SingleRouter::OnAvailable();
}

void SentinelRouter::OnUnavailable() {
  SetHurry(true);
  SingleRouter::OnUnavailable();
}

void SentinelRouter::OnFailed(const absl::Status& why) {
  SetHurry(true);
  SingleRouter::OnFailed(why);
}

}  // namespace sluice::store::redis
