#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/client.h"
#include "sluice/sluice.h"

namespace {

using sluice::Decision;
using sluice::Result;
using sluice::Status;

// What a result points to.
struct DecisionOwner {
  Decision decision;
  std::string message;
  std::vector<sluice_charge_status> charges;
};

int64_t Ns(std::chrono::nanoseconds time) { return time.count(); }

sluice_decision ToC(Result<Decision> result) {
  auto owner = std::make_unique<DecisionOwner>();
  sluice_decision out = {};
  if (result.ok()) {
    owner->decision = *std::move(result);
    const Decision& decision = owner->decision;
    out.granted = decision.granted ? 1 : 0;
    out.source = static_cast<int32_t>(decision.source);
    out.may_have_executed = decision.status.may_have_executed() ? 1 : 0;
    out.retry_after_ns = Ns(decision.retry_after);
    out.wait_ns = Ns(decision.wait);
    out.receipt = decision.receipt.data();
    out.receipt_size = decision.receipt.size();
    out.server = decision.server;
    out.repeated = decision.repeated ? 1 : 0;
    if (!decision.status.ok()) owner->message = decision.status.ToString();
    for (const sluice::ChargeStatus& charge : decision.charges) {
      // The names of reasons are literals, which end with a NUL.
      // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage)
      const char* const reason = sluice::ReasonName(charge.reason).data();
      owner->charges.push_back({charge.limit.c_str(), charge.remaining, charge.capacity,
                                Ns(charge.reset_after), reason, Ns(charge.held_for)});
    }
    out.charges = owner->charges.data();
    out.charge_count = owner->charges.size();
  } else {
    const Status status = result.status();
    out.code = static_cast<int32_t>(status.code());
    out.may_have_executed = status.may_have_executed() ? 1 : 0;
    owner->message = status.message();
  }
  out.message = owner->message.c_str();
  out.owner = owner.release();
  return out;
}

std::string Text(const char* text, size_t size) {
  return text == nullptr ? std::string() : std::string(text, size);
}

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

sluice::Acquisition FromC(const sluice_acquisition& in) {
  sluice::Acquisition out;
  for (size_t i = 0; i < in.charge_count; ++i) {
    const sluice_charge& charge = in.charges[i];
    out.charges.push_back({Text(charge.limit), Text(charge.key, charge.key_size), charge.permits});
  }
  out.max_wait = std::chrono::nanoseconds(in.max_wait_ns);
  out.hold = in.hold != 0;
  out.want_receipt = in.want_receipt != 0;
  return out;
}

sluice::CallOptions DeadlineOf(int64_t deadline_ns) {
  sluice::CallOptions options;
  if (deadline_ns != 0) options.deadline = std::chrono::nanoseconds(deadline_ns);
  return options;
}

std::vector<std::string> Split(std::string_view servers) {
  std::vector<std::string> out;
  while (true) {
    const size_t comma = servers.find(',');
    out.emplace_back(servers.substr(0, comma));
    if (comma == std::string_view::npos) return out;
    servers.remove_prefix(comma + 1);
  }
}

// Decisions that wait for sluice_poll. Thread-safe. The descriptor is readable while there are any.
class Completions {
 public:
  Completions() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Completions() {
    for (sluice_completion& completion : waiting_) sluice_decision_clear(&completion.decision);
    if (fd_ >= 0) close(fd_);
  }
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  int fd() const { return fd_; }

  void Add(uint64_t tag, Result<Decision> result) {
    const sluice_completion completion = {tag, ToC(std::move(result))};
    const std::lock_guard lock(mu_);
    waiting_.push_back(completion);
    if (waiting_.size() == 1) eventfd_write(fd_, 1);
  }

  size_t Take(sluice_completion* out, size_t most) {
    const std::lock_guard lock(mu_);
    const size_t count = std::min(most, waiting_.size());
    if (count == 0) return 0;
    std::copy_n(waiting_.begin(), count, out);
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count));
    eventfd_t ignored;
    if (waiting_.empty()) eventfd_read(fd_, &ignored);
    return count;
  }

 private:
  const int fd_;
  std::mutex mu_;
  std::deque<sluice_completion> waiting_;
};

// Clears the result, and sets its code and message.
template <typename T>
int32_t SetStatus(const Status& status, T* out) {
  *out = {};
  auto message = std::make_unique<std::string>(status.message());
  out->code = static_cast<int32_t>(status.code());
  out->message = message->c_str();
  out->owner = message.release();
  return out->code;
}

template <typename T>
void ClearMessage(T* out) {
  delete static_cast<std::string*>(out->owner);
  *out = {};
}

void CopyError(std::string_view text, char* error, size_t size) {
  if (error == nullptr || size == 0) return;
  const size_t count = std::min(text.size(), size - 1);
  std::memcpy(error, text.data(), count);
  error[count] = '\0';
}

}  // namespace

struct sluice_client {
  explicit sluice_client(sluice::Client connected) : client(std::move(connected)) {}

  Completions completions;  // outlives the client, whose callbacks add to it
  sluice::Client client;
};

sluice_client* sluice_create(const sluice_options* options, char* error, size_t error_size) {
  // Fields that an older caller does not know are zero.
  sluice_options in = {};
  if (options != nullptr) {
    if (options->size < offsetof(sluice_options, token) || options->size > sizeof in) {
      CopyError("sluice_options.size is " + std::to_string(options->size) +
                    ": set it to sizeof(sluice_options), " + std::to_string(sizeof in),
                error, error_size);
      return nullptr;
    }
    std::memcpy(&in, options, options->size);
  }
  sluice::ClientOptions out;
  if (in.servers != nullptr) out.servers = Split(in.servers);
  out.token = Text(in.token);
  if (in.deadline_ns != 0) out.deadline = std::chrono::nanoseconds(in.deadline_ns);
  out.exactly_once = in.exactly_once != 0;
  if (in.on_unavailable_allow != 0) out.on_unavailable = sluice::OnUnavailable::kAllow;
  out.tls = {in.tls != 0, Text(in.tls_ca_file), Text(in.tls_cert_file), Text(in.tls_key_file),
             Text(in.tls_server_name)};
  Result<sluice::Client> client = sluice::Client::Create(std::move(out));
  if (!client.ok()) {
    CopyError(client.status().message(), error, error_size);
    return nullptr;
  }
  auto created = std::make_unique<sluice_client>(*std::move(client));
  if (created->completions.fd() < 0) {
    CopyError(std::string("eventfd: ") + std::strerror(errno), error, error_size);
    return nullptr;
  }
  return created.release();
}

void sluice_destroy(sluice_client* client) { delete client; }

int32_t sluice_acquire(sluice_client* client, const sluice_acquisition* acquisition,
                       sluice_decision* decision) {
  *decision =
      ToC(client->client.Acquire(FromC(*acquisition), DeadlineOf(acquisition->deadline_ns)));
  return decision->code;
}

int32_t sluice_acquire_batch(sluice_client* client, const sluice_acquisition* acquisitions,
                             size_t count, int64_t deadline_ns, sluice_decision* decisions) {
  std::vector<sluice::Acquisition> batch;
  batch.reserve(count);
  for (size_t i = 0; i < count; ++i) batch.push_back(FromC(acquisitions[i]));
  Result<sluice::BatchDecisions> answer =
      client->client.AcquireBatch(batch, DeadlineOf(deadline_ns));
  if (answer.ok() && answer->size() != count) {
    answer = Status(sluice::StatusCode::kInternal, "the server answered " +
                                                       std::to_string(answer->size()) + " of " +
                                                       std::to_string(count) + " acquisitions");
  }
  for (size_t i = 0; i < count; ++i) {
    decisions[i] = ToC(answer.ok() ? std::move((*answer)[i]) : Result<Decision>(answer.status()));
  }
  return static_cast<int32_t>(answer.status().code());
}

void sluice_decision_clear(sluice_decision* decision) {
  delete static_cast<DecisionOwner*>(decision->owner);
  *decision = {};
}

void sluice_submit(sluice_client* client, const sluice_acquisition* acquisition, uint64_t tag) {
  client->client.AcquireAsync(
      FromC(*acquisition),
      [&completions = client->completions, tag](Result<Decision> result) {
        completions.Add(tag, std::move(result));
      },
      DeadlineOf(acquisition->deadline_ns));
}

int sluice_fd(const sluice_client* client) { return client->completions.fd(); }

size_t sluice_poll(sluice_client* client, sluice_completion* completions, size_t most) {
  return client->completions.Take(completions, most);
}

int32_t sluice_query(sluice_client* client, const sluice_bucket* buckets, size_t count,
                     sluice_bucket_status* statuses) {
  std::vector<sluice::Bucket> query;
  query.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    query.push_back({Text(buckets[i].limit), Text(buckets[i].key, buckets[i].key_size)});
  }
  Result<std::vector<sluice::BucketStatus>> answer = client->client.Query(query);
  if (answer.ok() && answer->size() != count) {
    answer = Status(sluice::StatusCode::kInternal, "the server answered " +
                                                       std::to_string(answer->size()) + " of " +
                                                       std::to_string(count) + " buckets");
  }
  for (size_t i = 0; i < count; ++i) {
    sluice_bucket_status& out = statuses[i];
    const Status status = answer.ok() ? (*answer)[i].status : answer.status();
    SetStatus(status, &out);
    if (!status.ok()) continue;
    const sluice::BucketStatus& bucket = (*answer)[i];
    out.exists = bucket.exists ? 1 : 0;
    out.source = static_cast<int32_t>(bucket.source);
    out.remaining = bucket.remaining;
    out.capacity = bucket.capacity;
    out.reset_after_ns = Ns(bucket.reset_after);
    out.next_permit_after_ns = Ns(bucket.next_permit_after);
    out.waiting = bucket.waiting;
    out.next_grant_after_ns = Ns(bucket.next_grant_after);
    out.open_receipts = bucket.open_receipts;
    out.refundable = bucket.refundable;
  }
  return static_cast<int32_t>(answer.status().code());
}

void sluice_bucket_status_clear(sluice_bucket_status* status) { ClearMessage(status); }

int32_t sluice_refund(sluice_client* client, const void* receipt, size_t receipt_size,
                      uint32_t server, sluice_refund_result* result) {
  sluice::CallOptions options;
  options.server = server;
  const Result<sluice::RefundResult> answer = client->client.Refund(
      std::string_view(static_cast<const char*>(receipt), receipt_size), options);
  SetStatus(answer.status(), result);
  if (!answer.ok()) return result->code;
  result->outcome = static_cast<int32_t>(answer->outcome);
  result->attempts = answer->attempts;
  for (const sluice::RefundedCharge& charge : answer->charges) result->permits += charge.permits;
  return SLUICE_OK;
}

void sluice_refund_result_clear(sluice_refund_result* result) { ClearMessage(result); }

const char* sluice_version(void) { return SLUICE_VERSION; }
