// The interop scenarios with our own client. Arguments: ADDRESS [CA_FILE].
#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "sluice/client.h"

namespace {

using sluice::Acquisition;
using sluice::Bucket;
using sluice::Client;
using sluice::StatusCode;

bool failed = false;

// A scenario returns an error text, or "" if it passed.
void Check(const char* name, const std::function<std::string()>& scenario) {
  const std::string fault = scenario();
  if (fault.empty()) {
    std::printf("ok %s\n", name);
  } else {
    failed = true;
    std::printf("FAILED %s: %s\n", name, fault.c_str());
  }
}

std::string ExpectError(const sluice::Status& status, StatusCode code, const char* text) {
  if (status.code() == code && status.ToString().find(text) != std::string::npos) return "";
  return "got " + status.ToString();
}

// Opens a watch and waits for its first answer; `ended` becomes ready when the watch ends.
struct Watched {
  std::unique_ptr<sluice::WatchCall> call;
  std::future<sluice::Status> ended;
};

Watched Watch(Client& client, const std::string& key, std::string* fault) {
  auto first = std::make_shared<std::promise<int64_t>>();
  auto told = std::make_shared<bool>(false);
  auto ended = std::make_shared<std::promise<sluice::Status>>();
  Watched watched;
  watched.ended = ended->get_future();
  std::future<int64_t> remaining = first->get_future();
  const Bucket bucket{"hourly", key};
  sluice::WatchEvents events;
  events.on_change = [first, told](std::vector<sluice::BucketStatus> changed) {
    if (!*told) first->set_value(changed.at(0).remaining);
    *told = true;
  };
  events.on_closed = [ended](sluice::Status status) { ended->set_value(std::move(status)); };
  watched.call = client.Watch({&bucket, 1}, {}, std::move(events));
  if (remaining.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
    *fault = "no first answer";
  } else if (const int64_t left = remaining.get(); left != 3) {
    *fault = std::to_string(left) + " left in the first answer";
  }
  return watched;
}

}  // namespace

int main(int argc, char** argv) {
  sluice::ClientOptions options;
  options.servers = {argv[1]};
  std::string prefix = "cpp";
  if (argc > 2) {
    options.tls.ca_file = argv[2];
    prefix = "cpp-tls";
  }
  options.deadline = std::chrono::seconds(10);
  auto client = Client::Create(options);
  if (!client.ok()) {
    std::printf("FAILED connect: %s\n", client.status().ToString().c_str());
    return 1;
  }

  Check("unary", [&]() -> std::string {
    const auto first = client->Acquire("hourly", prefix + "-unary", 3);
    if (!first.ok()) return first.status().ToString();
    if (!first->granted || first->charges[0].remaining != 0 || first->charges[0].capacity != 3) {
      return "3 of 3 permits";
    }
    const auto second = client->Acquire("hourly", prefix + "-unary", 1);
    if (!second.ok()) return second.status().ToString();
    return !second->granted && second->retry_after.count() > 0 ? "" : "a fourth permit";
  });
  Check("batch", [&]() -> std::string {
    const std::vector<Acquisition> batch = {Acquisition("wide", prefix + "-batch"),
                                            Acquisition("no-such-limit"),
                                            Acquisition("wide", prefix + "-batch", 2)};
    const auto answers = client->AcquireBatch(batch);
    if (!answers.ok()) return answers.status().ToString();
    if (answers->size() != 3 || !(*answers)[0].ok() || !(*answers)[2].ok()) return "answers";
    if ((*answers)[2]->charges[0].remaining != 997) return "remaining";
    return ExpectError((*answers)[1].status(), StatusCode::kNotFound, "no-such-limit");
  });
  Check("stream", [&]() -> std::string {
    auto stream = client->OpenStream();
    int64_t remaining = 1000;
    std::string fault;
    for (int i = 0; i < 50; ++i) {
      stream.Submit("wide", prefix + "-stream", 1, [&](sluice::Result<sluice::Decision> answer) {
        --remaining;
        if (!answer.ok() || answer->charges[0].remaining != remaining) fault = "out of order";
      });
    }
    if (!stream.Drain(std::chrono::seconds(10))) return "not answered";
    return remaining == 950 ? fault : "answers are missing";
  });
  Check("deadline", [&]() -> std::string {
    sluice::CallOptions short_call;
    short_call.deadline = std::chrono::nanoseconds(1);
    const auto answer = client->Acquire("wide", prefix + "-deadline", 1, short_call);
    if (!answer.ok()) return answer.status().ToString();
    if (answer->granted || answer->source != sluice::Source::kUnavailable)
      return "a decision by " + std::string(sluice::SourceName(answer->source));
    return ExpectError(answer->status, StatusCode::kDeadlineExceeded, "");
  });
  Check("cancel", [&]() -> std::string {
    std::string fault;
    Watched watched = Watch(*client, prefix + "-watch", &fault);
    if (!fault.empty()) return fault;
    watched.call->Cancel();
    if (watched.ended.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      return "the watch did not end";
    }
    return ExpectError(watched.ended.get(), StatusCode::kCancelled, "");
  });
  Check("error text", [&]() -> std::string {
    std::string fault = ExpectError(client->Acquire("no-such-limit", "").status(),
                                    StatusCode::kNotFound, "no-such-limit");
    if (!fault.empty()) return fault;
    return ExpectError(client->Acquire("wide", std::string(513, 'k')).status(),
                       StatusCode::kInvalidArgument, "key");
  });
  return failed ? 1 : 0;
}
