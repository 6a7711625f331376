// watch: shows the state of buckets at each change.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <future>
#include <utility>

#include "client/cli/session.h"
#include "client/cli/show.h"
#include "client/cli/text.h"

namespace sluice::cli {
namespace {

std::string ChangeLine(const BucketStatus& bucket) {
  std::string line = bucket.limit + "  " + ShowKey(bucket.key) + "  ";
  if (!bucket.status.ok()) return line + bucket.status.ToString();
  line += std::to_string(bucket.remaining) + " of " + std::to_string(bucket.capacity) + " left";
  if (bucket.waiting > 0) {
    line += ", " + std::to_string(bucket.waiting) + " waiting, next grant in " +
            FormatDuration(bucket.next_grant_after);
  }
  if (bucket.holds > 0) {
    line += ", " + std::to_string(bucket.holds) + " holds, next end in " +
            FormatDuration(bucket.next_end_after);
  } else if (bucket.open_receipts > 0) {
    line += ", " + std::to_string(bucket.refundable) + " refundable by " +
            std::to_string(bucket.open_receipts) + " receipts";
  }
  return line;
}

// A table that is drawn again in place, on a terminal.
class LiveTable {
 public:
  void Update(std::vector<BucketStatus> changed) {
    for (BucketStatus& bucket : changed) {
      const auto at = std::find_if(buckets_.begin(), buckets_.end(), [&](const BucketStatus& one) {
        return one.limit == bucket.limit && one.key == bucket.key;
      });
      if (at == buckets_.end()) {
        buckets_.push_back(std::move(bucket));
      } else {
        *at = std::move(bucket);
      }
    }
    // Move the cursor to the first line of the last table and clear the screen below.
    if (lines_ > 0) std::printf("\x1b[%zuA\x1b[J", lines_);
    std::fputs(BucketTable(buckets_).c_str(), stdout);
    lines_ = buckets_.size() + 1;
  }

 private:
  std::vector<BucketStatus> buckets_;
  size_t lines_ = 0;
};

}  // namespace

int RunWatch(const Session& session) {
  const auto buckets = session.Buckets("watch");
  if (!buckets.ok()) return session.Fail(buckets.status());
  const auto interval = session.Duration("interval", std::chrono::seconds(1));
  if (!interval.ok()) return session.Fail(interval.status());
  const auto count = session.Number("count", 0);
  if (!count.ok()) return session.Fail(count.status());
  Result<Client> client = session.MakeClient();
  if (!client.ok()) return session.Fail(client.status());

  const bool redraw = !session.json() && isatty(STDOUT_FILENO) != 0;
  LiveTable table;  // used only by on_change, whose calls do not overlap
  uint64_t seen = 0;
  auto ended = std::make_shared<std::promise<Status>>();
  std::atomic<bool> over{false};
  const auto end = [ended, &over](Status status) {
    if (!over.exchange(true)) ended->set_value(std::move(status));
  };
  WatchEvents events;
  events.on_change = [&](std::vector<BucketStatus> changed) {
    if (over) return;
    ++seen;
    if (session.json()) {
      session.Print(BucketsJson(changed));
    } else if (redraw) {
      table.Update(std::move(changed));
    } else {
      for (const BucketStatus& bucket : changed) std::printf("%s\n", ChangeLine(bucket).c_str());
    }
    std::fflush(stdout);
    if (*count > 0 && seen >= *count) end(Status());
  };
  events.on_closed = [end](Status status) {
    if (status.ok()) status = Status(StatusCode::kUnavailable, "the server ended the watch");
    end(std::move(status));
  };
  auto watch = client->Watch(*buckets, {.min_interval = *interval}, std::move(events));
  const Status status = ended->get_future().get();
  watch.reset();
  // The callbacks use local variables: destroy the client, and so end the callbacks, first.
  {
    const Client gone = *std::move(client);
  }
  return status.ok() ? kExitDone : session.Fail(status);
}

}  // namespace sluice::cli
