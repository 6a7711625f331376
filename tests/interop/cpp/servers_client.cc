// Our client against the small servers of servers.py, or through proxies. Prints a line for each
// kind of call, or for the load, "calls=N failed=N".
//   interop_servers_client scenarios ADDRESS [CA_FILE]
//   interop_servers_client load ADDRESS[,ADDRESS...] SECONDS [CA_FILE]
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sluice/client.h"

namespace {

using sluice::Acquisition;
using sluice::Bucket;
using sluice::Client;
using sluice::Decision;
using sluice::Result;
using sluice::Source;
using sluice::Status;
using sluice::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// The text of the servers' errors.
constexpr char kSpecial[] = "100% of \"gr\u00f6\u00dfe\":\n\tnone \u2192 %41";

// ---- Scenarios. Each returns "", or what was wrong.

std::string Wrong(const std::string& what, const Status& status) {
  return what + ": " + status.ToString();
}

std::string WantRemaining(const Result<Decision>& answer, bool granted, int64_t remaining) {
  if (!answer.ok()) return Wrong("no decision", answer.status());
  if (answer->source != Source::kStore) return Wrong("no server decided", answer->status);
  if (answer->granted != granted) return granted ? "denied" : "granted";
  if (!granted && answer->retry_after != milliseconds(250)) return "retry_after";
  const sluice::ChargeStatus& charge = answer->charges.at(0);
  return charge.remaining == remaining && charge.capacity == 10 ? "" : "another charge";
}

std::string WantStatus(const Status& status, StatusCode code, const std::string& message) {
  return status.code() == code && (message.empty() || status.message() == message)
             ? ""
             : Wrong("another status", status);
}

// Without a decision of a server, because of `code`.
std::string WantNoDecision(const Result<Decision>& answer, StatusCode code) {
  if (!answer.ok()) return Wrong("an error", answer.status());
  return answer->source == Source::kUnavailable ? WantStatus(answer->status, code, "")
                                                : "a server decided";
}

std::string Blocking(Client& client) {
  const std::string fault = WantRemaining(client.Acquire("api", "blocking", 3), true, 7);
  return fault.empty() ? WantRemaining(client.Acquire("api", "blocking", 8), false, 7) : fault;
}

std::string CallbackAndFuture(Client& client) {
  std::promise<Result<Decision>> answer;
  client.AcquireAsync(Acquisition("api", "callback", 3),
                      [&](Result<Decision> result) { answer.set_value(std::move(result)); });
  const std::string fault = WantRemaining(answer.get_future().get(), true, 7);
  return fault.empty()
             ? WantRemaining(client.AcquireFuture(Acquisition("api", "callback", 2)).get(), true, 5)
             : fault;
}

std::string Batch(Client& client) {
  const std::vector<Acquisition> batch = {Acquisition("api", "batch", 4), Acquisition("missing"),
                                          Acquisition("api", "batch", 7)};
  const auto answers = client.AcquireBatch(batch);
  if (!answers.ok()) return Wrong("no answers", answers.status());
  if (answers->size() != 3) return "another number of answers";
  std::string fault = WantRemaining((*answers)[0], true, 6);
  if (fault.empty()) fault = WantStatus((*answers)[1].status(), StatusCode::kNotFound, kSpecial);
  return fault.empty() ? WantRemaining((*answers)[2], false, 6) : fault;
}

// A request of 1.7 MB and an answer of 4 MB: both are larger than the windows with which
// connections begin.
std::string LargeBatch(Client& client) {
  std::vector<Acquisition> batch;
  for (int i = 0; i < 4096; ++i) {
    batch.emplace_back("api", std::string(400, 'k') + std::to_string(i));
    batch.back().want_receipt = true;
  }
  const auto answers = client.AcquireBatch(batch);
  if (!answers.ok()) return Wrong("no answers", answers.status());
  if (answers->size() != batch.size()) return "another number of answers";
  for (const Result<Decision>& answer : *answers) {
    if (std::string fault = WantRemaining(answer, true, 9); !fault.empty()) return fault;
    if (answer->receipt.size() < 1000) return "a short receipt";
  }
  return "";
}

std::string Stream(Client& client) {
  auto stream = client.OpenStream({.max_batch = 16});
  std::string fault;
  int answered = 0;
  for (int i = 0; i < 200; ++i) {
    stream.Submit("api", "stream", 1, [&, i](Result<Decision> answer) {
      const std::string wrong = WantRemaining(answer, i < 10, std::max(0, 9 - i));
      if (fault.empty()) fault = i == answered ? wrong : "out of order";
      ++answered;
    });
  }
  if (!stream.Drain(seconds(20))) return "not answered";
  return answered == 200 ? fault : "answers are missing";
}

std::string Query(Client& client) {
  const std::vector<Bucket> buckets = {{"api", "blocking"}, {"api", "unused"}};
  const auto answer = client.Query(buckets);
  if (!answer.ok()) return Wrong("no answer", answer.status());
  return answer->size() == 2 && (*answer)[0].remaining == 7 && (*answer)[1].remaining == 10
             ? ""
             : "another state";
}

std::string Refund(Client& client) {
  Acquisition acquisition("api", "refund");
  acquisition.want_receipt = true;
  const auto decision = client.Acquire(acquisition);
  if (std::string fault = WantRemaining(decision, true, 9); !fault.empty()) return fault;
  for (const auto outcome :
       {sluice::RefundOutcome::kRefunded, sluice::RefundOutcome::kAlreadyRefunded}) {
    const auto refund = client.Refund(*decision);
    if (!refund.ok()) return Wrong("not refunded", refund.status());
    if (refund->outcome != outcome) return "another outcome";
  }
  return WantStatus(client.Refund("forged").status(), StatusCode::kInvalidArgument, kSpecial);
}

// Waits until the server saw that its callers gave up: `wanted` calls on this limit so far.
std::string AwaitCancelled(Client& client, const std::string& limit, int wanted) {
  const Bucket bucket{"cancelled", limit};
  int64_t count = -1;
  for (const auto end = steady_clock::now() + seconds(20);
       count < wanted && steady_clock::now() < end;) {
    std::this_thread::sleep_for(milliseconds(5));
    const auto answer = client.Query({&bucket, 1});
    if (answer.ok()) count = answer->at(0).remaining - 10;
  }
  return count == wanted ? "" : "the server saw the end of " + std::to_string(count) + " calls";
}

// A watch, whose answers and end a test awaits.
struct Watched {
  Watched(Client& client, const Bucket& bucket) {
    sluice::WatchEvents events;
    events.on_change = [this](std::vector<sluice::BucketStatus> changed) {
      if (changes < 2) seen[changes++].set_value(changed.at(0).remaining);
    };
    events.on_closed = [this](Status status) {
      for (int i = changes; i < 2; ++i) seen[i].set_value(-1);
      closed.set_value(std::move(status));
    };
    call = client.Watch({&bucket, 1}, {.min_interval = milliseconds(10)}, std::move(events));
  }

  int changes = 0;
  std::promise<int64_t> seen[2];
  std::promise<Status> closed;
  std::unique_ptr<sluice::WatchCall> call;  // destroyed first
};

std::string Watch(Client& client) {
  Watched watched(client, {"api", "watch"});
  if (watched.seen[0].get_future().get() != 10) return "another first state";
  const std::string fault = WantRemaining(client.Acquire("api", "watch", 3), true, 7);
  if (!fault.empty()) return fault;
  if (watched.seen[1].get_future().get() != 7) return "another change";
  watched.call->Cancel();
  std::string wrong = WantStatus(watched.closed.get_future().get(), StatusCode::kCancelled, "");
  return wrong.empty() ? AwaitCancelled(client, "api", 1) : wrong;
}

std::string ErrorAfterAnAnswer(Client& client) {
  Watched watched(client, {"breaks", ""});
  const Status status = watched.closed.get_future().get();
  return watched.changes == 1 ? WantStatus(status, StatusCode::kAborted, kSpecial) : "no answer";
}

std::string ErrorWithoutAnAnswer(Client& client) {
  const std::string fault =
      WantStatus(client.Acquire("missing", "").status(), StatusCode::kNotFound, kSpecial);
  return fault.empty() ? WantStatus(client.AcquireFuture(Acquisition("missing")).get().status(),
                                    StatusCode::kNotFound, kSpecial)
                       : fault;
}

std::string Held(Client& client) {
  Acquisition acquisition("api", "held", 4);
  acquisition.max_wait = milliseconds(300);
  acquisition.hold = true;
  const auto begin = steady_clock::now();
  const std::string fault = WantRemaining(client.Acquire(acquisition), true, 6);
  return fault.empty() && steady_clock::now() - begin < milliseconds(300) ? "too early" : fault;
}

std::string Deadline(Client& client) {
  const sluice::CallOptions brief = {.deadline = milliseconds(200)};
  std::string fault =
      WantNoDecision(client.Acquire("hang", "", 1, brief), StatusCode::kDeadlineExceeded);
  if (fault.empty()) {
    fault = WantNoDecision(client.AcquireFuture(Acquisition("hang"), brief).get(),
                           StatusCode::kDeadlineExceeded);
  }
  if (fault.empty()) fault = AwaitCancelled(client, "hang", 2);
  if (!fault.empty()) return fault;
  return WantRemaining(client.Acquire("api", "deadline"), true, 9);
}

std::string Cancel(Client& client, const sluice::ClientOptions& options) {
  auto other = Client::Create(options);
  auto future = other->AcquireFuture(Acquisition("hang"));
  if (std::string fault = WantRemaining(other->Acquire("api", "cancel"), true, 9); !fault.empty()) {
    return fault;
  }
  other = Status(StatusCode::kCancelled, "");  // destroys the client
  const auto answer = future.get();
  if (answer.ok()) return "not cancelled";
  return AwaitCancelled(client, "hang", 3);
}

int RunScenarios(const sluice::ClientOptions& options) {
  auto client = Client::Create(options);
  if (!client.ok()) {
    std::printf("FAILED options: %s\n", client.status().ToString().c_str());
    return 1;
  }
  const struct {
    const char* name;
    std::function<std::string(Client&)> run;
  } scenarios[] = {
      {"blocking", Blocking},
      {"callback and future", CallbackAndFuture},
      {"batch", Batch},
      {"large batch", LargeBatch},
      {"stream", Stream},
      {"query", Query},
      {"refund", Refund},
      {"watch", Watch},
      {"error after an answer", ErrorAfterAnAnswer},
      {"error without an answer", ErrorWithoutAnAnswer},
      {"held", Held},
      {"deadline", Deadline},
      {"cancel", [&](Client& of) { return Cancel(of, options); }},
  };
  bool failed = false;
  for (const auto& scenario : scenarios) {
    const std::string fault = scenario.run(*client);
    failed |= !fault.empty();
    std::printf("%s %s%s%s\n", fault.empty() ? "ok" : "FAILED", scenario.name,
                fault.empty() ? "" : ": ", fault.c_str());
  }
  return failed ? 1 : 0;
}

// ---- Load: calls of which none may fail while servers come and go.

class Load {
 public:
  Load(Client& client, steady_clock::time_point end) : client_(client), end_(end) {}

  bool over() const { return steady_clock::now() >= end_; }
  void Block() {
    while (!over()) Count(client_.Acquire("load", "blocking"));
  }
  void Batch() {
    const std::vector<Acquisition> batch(3, Acquisition("load", "batch"));
    while (!over()) {
      const auto answers = client_.AcquireBatch(batch);
      if (!answers.ok()) Count(answers.status());
      for (size_t i = 0; answers.ok() && i < answers->size(); ++i) Count((*answers)[i]);
    }
  }
  void Call() {
    client_.AcquireAsync(Acquisition("load", "callback"), [this](const Result<Decision>& answer) {
      Count(answer);
      over() ? last_.set_value() : Call();
    });
  }
  void AwaitCallbacks() { last_.get_future().wait(); }

  int calls() const { return calls_; }
  int failed() const { return failed_; }

 private:
  void Count(const Result<Decision>& answer) {
    ++calls_;
    if (answer.ok() && answer->granted) return;
    const Status status = answer.ok() ? answer->status : answer.status();
    ++failed_;
    static std::atomic<int> printed{0};
    if (++printed <= 100) std::printf("%s\n", status.ToString().c_str());
  }

  Client& client_;
  const steady_clock::time_point end_;
  std::atomic<int> calls_{0};
  std::atomic<int> failed_{0};
  std::promise<void> last_;
};

int RunLoad(const sluice::ClientOptions& options, seconds duration) {
  auto client = Client::Create(options);
  if (!client.ok()) {
    std::printf("FAILED options: %s\n", client.status().ToString().c_str());
    return 1;
  }
  // A proxy may not be listening yet.
  const Bucket bucket{"load", ""};
  for (int i = 0; i < 1000 && !client->Query({&bucket, 1}).ok(); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  const auto end = steady_clock::now() + duration;
  std::vector<std::unique_ptr<Load>> callbacks;
  for (int i = 0; i < 16; ++i) callbacks.push_back(std::make_unique<Load>(*client, end));
  for (const auto& load : callbacks) load->Call();
  Load blocking(*client, end);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { blocking.Block(); });
  threads.emplace_back([&] { blocking.Batch(); });
  for (std::thread& thread : threads) thread.join();
  int calls = blocking.calls();
  int failed = blocking.failed();
  for (const auto& load : callbacks) {
    load->AwaitCallbacks();
    calls += load->calls();
    failed += load->failed();
  }
  std::printf("calls=%d failed=%d\n", calls, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  if (mode != "scenarios" && (mode != "load" || argc < 4)) {
    std::printf(
        "usage: interop_servers_client scenarios ADDRESS [CA_FILE]\n"
        "       interop_servers_client load ADDRESS[,ADDRESS...] SECONDS [CA_FILE]\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  sluice::ClientOptions options;
  options.deadline = seconds(20);
  options.servers.clear();
  std::stringstream servers(argv[2]);
  for (std::string server; std::getline(servers, server, ',');) options.servers.push_back(server);
  const int ca = mode == "load" ? 4 : 3;
  if (argc > ca) options.tls.ca_file = argv[ca];
  return mode == "load" ? RunLoad(options, seconds(std::atoi(argv[3]))) : RunScenarios(options);
}
