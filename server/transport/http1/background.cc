#include "server/transport/http1/background.h"

#include <atomic>
#include <memory>
#include <utility>

#include "server/transport/http1/exchange.h"
#include "server/transport/http1/gzip.h"

namespace sluice::http1 {

struct BackgroundHandler::Job {
  Request request;
  net::EventLoop* home = nullptr;    // the exchange's loop
  Exchange* exchange = nullptr;      // used on that loop only; null: it was cancelled
  std::shared_ptr<void> left_bytes;  // of an exchange that was cancelled
  // Relaxed: only spares work.
  std::atomic<bool> cancelled{false};
};

void BackgroundHandler::OnRequest(Exchange& exchange) {
  auto job = std::make_shared<Job>();
  exchange.SetPendingBytes(sizeof(Job));
  exchange.TakeRequest(&job->request);
  job->home = &exchange.loop();
  job->exchange = &exchange;
  exchange.Keep(job);
  exchange.set_state(job.get());
  exchange.EndWithPeer();
  loop_.Post([this, job] {
    if (job->cancelled.load(std::memory_order_relaxed)) return;
    Answer answer = MakeAnswer(job->request);
    CompressFor(job->request, &answer);
    job->home->Post([job, answer = std::move(answer)]() mutable {
      if (job->exchange != nullptr) job->exchange->Finish(std::move(answer));
    });
  });
}

void BackgroundHandler::OnCancelled(Exchange& exchange) {
  auto& job = *static_cast<Job*>(exchange.state());
  job.exchange = nullptr;
  job.left_bytes = exchange.KeepPendingBytes();
  job.cancelled.store(true, std::memory_order_relaxed);
}

}  // namespace sluice::http1
