#include "server/transport/web/metrics/scraper.h"

#include <algorithm>
#include <utility>

#include "server/transport/web/metrics/exposition.h"
#include "server/transport/web/metrics/gzip_writer.h"

namespace sluice::metrics {

void Scraper::Scrape(bool gzip, Done done) {
  {
    common::MutexLock lock(&mu_);
    if (!stop_) {
      calls_.push_back({gzip, std::move(done)});
      wake_.Signal();
      return;
    }
  }
  done(nullptr);
}

void Scraper::Stop() {
  std::vector<Call> left;
  {
    common::MutexLock lock(&mu_);
    stop_ = true;
    left.swap(calls_);
    wake_.SignalAll();
  }
  for (const Call& call : left) call.done(nullptr);
  if (thread_.joinable()) thread_.join();
}

void Scraper::Loop() {
  while (true) {
    const std::vector<Call> calls = Take();
    if (calls.empty()) return;
    Answer(calls);
    Pause(kPauseOfAnswers);
  }
}

std::vector<Scraper::Call> Scraper::Take() {
  common::MutexLock lock(&mu_);
  while (!stop_ && calls_.empty()) wake_.Wait(&mu_);
  return std::exchange(calls_, {});
}

void Scraper::Answer(const std::vector<Call>& calls) {
  const auto any = [&](bool gzip) {
    return std::any_of(calls.begin(), calls.end(),
                       [&](const Call& call) { return call.gzip == gzip; });
  };
  const bool plain = any(false);
  GzipWriter compressed(any(true));
  Exposition exposition(sources_);
  std::string text;
  // Copying megabytes to a larger place would take longer than a step.
  if (plain) text.reserve(plain_bytes_ + plain_bytes_ / 8);
  std::string piece;
  while (exposition.Step(&piece)) {
    if (plain) text += piece;
    compressed.Write(piece);
    piece.clear();
    if (!Pause(kPauseOfSteps)) {
      for (const Call& call : calls) call.done(nullptr);
      return;
    }
  }
  if (plain) plain_bytes_ = text.size();
  const auto plain_body = std::make_shared<const std::string>(std::move(text));
  const auto gzip_body = std::make_shared<const std::string>(compressed.Finish());
  for (const Call& call : calls) call.done(call.gzip ? gzip_body : plain_body);
}

bool Scraper::Pause(std::chrono::microseconds time) {
  common::MutexLock lock(&mu_);
  // A call that arrives ends the wait early; so the pause is made up of several.
  const auto until = std::chrono::steady_clock::now() + time;
  while (!stop_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    wake_.WaitFor(&mu_, left);
  }
  return !stop_;
}

}  // namespace sluice::metrics
