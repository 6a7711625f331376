// Overview: the state of the server for dashboards: a stream of server-sent events, and the history
// of a limit.
//
//   GET /v1/overview          event `snapshot` at once, and event `second` each second
//   GET /v1/history?limit=L   the last hour of a limit (without `limit`: of the server), by second
//
// docs/dashboard.md has the fields. The background loop samples the counters once a second and
// writes each event once, whatever the number of readers. Each loop of the port sends it to its
// readers in turns (net::WorkQueue).
#ifndef SLUICE_SERVER_TRANSPORT_WEB_PAGE_OVERVIEW_H_
#define SLUICE_SERVER_TRANSPORT_WEB_PAGE_OVERVIEW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/net/event_loop.h"
#include "common/net/loop_group.h"
#include "common/net/work_queue.h"
#include "server/access/client_use.h"
#include "server/limits/limit_table.h"
#include "server/service/history.h"
#include "server/service/key_usage.h"
#include "server/service/limit_admin.h"
#include "server/transport/http1/background.h"
#include "server/transport/http1/route.h"
#include "server/waiting/held_callers.h"

namespace sluice::web {

struct OverviewSources {
  const service::LimitAdmin& admin;
  const service::KeyUsage& usage;
  const waiting::HeldCallers& held;
  const common::Clock& clock;
  // Whether the server has a token, with which limits can be changed.
  bool changes = false;
};

// All collaborators outlive it. It is destroyed after the loops have stopped.
class Overview final : public http1::Handler {
 public:
  // `loops` serve the port; `background` makes the events.
  Overview(const OverviewSources& sources, net::LoopGroup& loops, net::EventLoop& background);
  ~Overview() override;
  Overview(const Overview&) = delete;
  Overview& operator=(const Overview&) = delete;

  // `reading` outlives the routes. Call once. A stream ends when the gate no longer lets its caller
  // pass.
  void Register(http1::RouteTable* routes, const http1::Gate& reading);

  // Begins to sample. Call once, from any thread.
  void Start();

  // The stream.
  void OnRequest(http1::Exchange& exchange) override;
  void OnCancelled(http1::Exchange& exchange) override;
  void OnWritable(http1::Exchange& exchange) override;
  void OnDrain(http1::Exchange& exchange) override;

 private:
  class HistoryHandler;
  using Bytes = std::shared_ptr<const std::string>;

  // A stream that is open.
  struct Reader {
    enum class State : uint8_t {
      kNeedsSnapshot,  // gets the next snapshot
      kLive,           // gets each second
      kBehind,         // missed one: needs a snapshot as soon as it can take it
    };
    http1::Exchange* exchange = nullptr;
    size_t index = 0;  // in LoopReaders::readers
    State state = State::kNeedsSnapshot;
    uint64_t event = 0;         // LoopReaders::event_number of the last for which it was considered
    access::ClientPlace place;  // among the streams of its client
  };

  // An event on its way to the readers of a loop: to those that need a snapshot, or to the live
  // ones.
  struct Event {
    Bytes bytes;
    bool snapshot = false;
  };

  // The readers of a loop; used on that loop only.
  struct LoopReaders final : net::Worker {
    LoopReaders(Overview& owner, net::EventLoop& loop) : owner(owner), loop(loop) {}
    void OnTurn() override { owner.SendEvents(*this); }

    Overview& owner;
    net::EventLoop& loop;
    std::vector<std::unique_ptr<Reader>> readers;
    bool snapshot_requested = false;
    std::deque<Event> events;   // the first is being sent
    uint64_t event_number = 0;  // of the first
    size_t left = 0;            // readers for which it was not considered
    // Readers, for the background loop. Relaxed: a reader that is not counted yet asks for a
    // snapshot afterwards.
    std::atomic<size_t> count{0};
  };

  // ---- On a loop of the port.
  void RequestSnapshot(size_t loop);
  // Sends the event after those that are on their way.
  void Send(size_t loop, Event event);
  void BeginEvent(LoopReaders& on);
  // For a turn.
  void SendEvents(LoopReaders& on);
  void SendTo(Reader& reader, const Event& event);
  // Ends the stream if its caller may read no longer; then there is no reader.
  bool EndRefused(Reader& reader);
  void Remove(http1::Exchange& exchange);

  // ---- On the background loop.
  void OnTimer();
  void Sample();
  // Of the last second.
  Bytes Snapshot();
  std::string MakeSnapshot() const;
  // `config` empty: it did not change.
  std::string MakeSecond(std::string_view config, bool denied_keys) const;
  // Returns whether they were read; they are not if that was done a moment ago.
  bool ReadDeniedKeys();
  void AppendHead(std::string* out) const;
  void AppendNow(std::string* out) const;
  void AppendDeniedKeys(std::string* out) const;
  // Of the last hour.
  std::vector<uint32_t> Column(size_t total) const;
  // Calls visit(name, series) for the limits that were used in the last hour.
  template <typename Visit>
  void ForEachLimit(Visit visit) const;

  const OverviewSources sources_;
  net::EventLoop& background_;
  std::vector<std::unique_ptr<LoopReaders>> loops_;
  std::unique_ptr<HistoryHandler> history_handler_;
  const http1::Gate* reading_ = nullptr;  // set by Register

  // Used on the background loop only.
  net::Timer timer_;
  service::History history_;
  service::ServerStats stats_;
  int64_t sampled_wall_ns_ = 0;
  std::shared_ptr<const limits::LimitTable> table_;  // owns the names
  absl::flat_hash_map<uint32_t, std::string_view> names_;
  std::string config_;  // ConfigStatus in JSON, as in the last event
  service::KeyUsage::Top denied_;
  int64_t denied_second_ = -1;  // when denied_ was read
  Bytes snapshot_;
  int64_t snapshot_second_ = -1;
};

}  // namespace sluice::web

#endif  // SLUICE_SERVER_TRANSPORT_WEB_PAGE_OVERVIEW_H_
