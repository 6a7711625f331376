// Scraper: a thread that makes the answers to scrapes, in steps with pauses between them, so that
// no decision waits for a scrape, however many limits there are.
#ifndef SLUICE_SERVER_TRANSPORT_WEB_METRICS_SCRAPER_H_
#define SLUICE_SERVER_TRANSPORT_WEB_METRICS_SCRAPER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "server/transport/web/metrics/server_families.h"

namespace sluice::metrics {

// Thread-safe. Its sources outlive it.
class Scraper {
 public:
  // An answer, shared by all scrapes that waited for it. Null: the scraper stopped.
  using Body = std::shared_ptr<const std::string>;
  using Done = std::function<void(Body)>;

  explicit Scraper(const Sources& sources) : sources_(sources), thread_([this] { Loop(); }) {}
  ~Scraper() { Stop(); }
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;

  // Makes the metrics as they are after this call. Calls `done` on the scraper's thread, or at once
  // if the scraper has stopped. One answer serves all calls that came before it was begun.
  void Scrape(bool gzip, Done done);

  // Ends the thread; calls that wait get a null body. Idempotent; for one thread.
  void Stop();

 private:
  struct Call {
    bool gzip;
    Done done;
  };

  // A step takes less than half a millisecond. While all cores are busy, the scraper takes at most
  // half of one, and no other thread waits longer than one step.
  static constexpr std::chrono::microseconds kPauseOfSteps{500};
  // A flood of scrapes costs little more than ten in a second.
  static constexpr std::chrono::milliseconds kPauseOfAnswers{100};

  void Loop();
  // Waits for calls and takes them; returns none after Stop.
  std::vector<Call> Take();
  void Answer(const std::vector<Call>& calls);
  // Returns false after Stop.
  bool Pause(std::chrono::microseconds time);

  const Sources sources_;
  size_t plain_bytes_ = 0;  // of the last answer that was not compressed; for the scraper's thread
  common::Mutex mu_;
  common::CondVar wake_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses the members above
};

}  // namespace sluice::metrics

#endif  // SLUICE_SERVER_TRANSPORT_WEB_METRICS_SCRAPER_H_
