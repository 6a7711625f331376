#include "server/transport/web/watch_method.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/net/event_loop.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/services/rate_limiter_codec.h"

namespace sluice::web {
namespace {

// Bytes of memory for a byte of JSON while it is parsed, at most.
constexpr size_t kParseBytes = 20;

// The hub calls the sink on the hub's thread, while the exchange belongs to its loop: events are
// posted to the loop.
class EventSink final : public service::WatchSink, public std::enable_shared_from_this<EventSink> {
 public:
  // `bytes`: of the watch, until the hub forgets it.
  EventSink(http1::Exchange& exchange, const JsonMethod::Options& options,
            std::shared_ptr<void> bytes)
      : exchange_(&exchange), loop_(exchange.loop()), options_(options), bytes_(std::move(bytes)) {}

  bool Ready() override { return ready_.load(); }
  void OnUpdate(absl::Span<const service::BucketStatus> changed, int64_t wall_ns) override {
    ready_.store(false);
    // Printed here: the hub's thread is in no decision's way.
    std::string event = absl::StrCat(
        "data: ",
        options_.json.Print(transport::EncodeWatch(changed, wall_ns), *options_.rpc.output_type()),
        "\n\n");
    loop_.Post([self = shared_from_this(), event = std::move(event)] { self->Send(event); });
  }
  void OnEnd(const absl::Status& status) override {
    loop_.Post([self = shared_from_this(), status] { self->End(status); });
  }

  // ---- On the loop.
  void OnWritable() { ready_.store(true); }
  // The exchange has ended. Returns the watch's id.
  uint64_t Leave() {
    exchange_ = nullptr;
    return id;
  }
  void End(const absl::Status& status) {
    if (exchange_ == nullptr) return;
    std::string problem = http1::Problem::Of(status).ToJson();
    problem.pop_back();  // the line's end
    exchange_->Write(absl::StrCat("event: error\ndata: ", problem, "\n\n"));
    std::exchange(exchange_, nullptr)->EndStream();
  }

  uint64_t id = 0;  // of the watch; on the loop

 private:
  void Send(const std::string& event) {
    if (exchange_ == nullptr) return;
    // The sink was ready: the event goes out, whatever waits before it.
    exchange_->Write(event);
    if (exchange_->writable()) {
      ready_.store(true);
    } else {
      exchange_->NotifyWritable();
    }
  }

  http1::Exchange* exchange_;  // null: it has ended
  net::EventLoop& loop_;
  const JsonMethod::Options& options_;
  const std::shared_ptr<void> bytes_;
  // Sequentially consistent: it is rarely used.
  std::atomic<bool> ready_{true};
};

class WatchMethod final : public http1::Handler {
 public:
  WatchMethod(const JsonMethod::Options& options, service::WatchHub& hub)
      : options_(options), hub_(hub) {}

  void OnRequest(http1::Exchange& exchange) override {
    if (const absl::Status type = CheckContentType(exchange.request()); !type.ok()) {
      exchange.Fail(http1::Problem::Of(type, 415));
      return;
    }
    exchange.SetPendingBytes(kParseBytes * exchange.request().body().size() + sizeof(Pending));
    auto pending = std::make_shared<Pending>();
    if (const access::CallerPtr& caller = exchange.caller(); caller != nullptr) {
      const absl::Status entered =
          caller->Enter(access::ClientBound::kStreams, exchange.loop().now_ns(), &pending->place);
      if (!entered.ok()) {
        exchange.Fail(entered);
        return;
      }
    }
    pending->exchange = &exchange;
    pending->json = exchange.request().body();
    exchange.Keep(pending);
    exchange.set_state(pending.get());
    net::EventLoop& home = exchange.loop();
    options_.background.Post([this, pending, &home] {
      if (pending->cancelled.load(std::memory_order_relaxed)) return;
      pending->decoded = Decode(pending->json, &pending->options);
      pending->json = std::string();
      home.Post([this, pending] { Start(*pending); });
    });
  }

  void OnWritable(http1::Exchange& exchange) override {
    static_cast<Pending*>(exchange.state())->sink->OnWritable();
  }

  void OnCancelled(http1::Exchange& exchange) override {
    auto& pending = *static_cast<Pending*>(exchange.state());
    pending.exchange = nullptr;
    if (pending.sink != nullptr) {
      hub_.Cancel(pending.sink->Leave());
      return;
    }
    pending.cancelled.store(true, std::memory_order_relaxed);
    pending.bytes = exchange.KeepPendingBytes();
  }

 private:
  // Used on the exchange's loop, except for the request while it is decoded.
  struct Pending {
    http1::Exchange* exchange = nullptr;  // null: it has ended
    std::string json;
    absl::Status decoded;
    service::WatchOptions options;
    std::shared_ptr<EventSink> sink;  // null: the watch has not begun
    access::ClientPlace place;        // among the streams of its client
    std::shared_ptr<void> bytes;      // of the request that was cancelled before its watch began
    // Relaxed: it spares the decoding, and publishes nothing.
    std::atomic<bool> cancelled{false};
  };

  absl::Status Decode(const std::string& json, service::WatchOptions* options) const {
    std::string bytes;
    if (absl::Status parsed = options_.json.Parse(json, *options_.rpc.input_type(), &bytes);
        !parsed.ok()) {
      return parsed;
    }
    return transport::DecodeWatch({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
                                  options);
  }

  void Start(Pending& pending) {
    if (pending.exchange == nullptr) return;
    http1::Exchange& exchange = *pending.exchange;
    if (!pending.decoded.ok()) {
      exchange.Fail(pending.decoded);
      return;
    }
    std::shared_ptr<void> bytes = exchange.HoldLastingBytes(pending.options.memory());
    if (bytes == nullptr) {
      exchange.Fail(common::errors::TooManyWatchedBuckets());
      return;
    }
    exchange.SetPendingBytes(sizeof(Pending));
    pending.options.caller = exchange.caller();
    auto sink = std::make_shared<EventSink>(exchange, options_, std::move(bytes));
    const auto id = hub_.Start(std::move(pending.options), sink);
    if (!id.ok()) {
      sink->Leave();
      exchange.Fail(id.status());
      return;
    }
    sink->id = *id;
    pending.sink = std::move(sink);
    exchange.AddHeader("cache-control", "no-store");
    exchange.BeginStream("text/event-stream");
  }

  const JsonMethod::Options options_;
  service::WatchHub& hub_;
};

}  // namespace

std::unique_ptr<http1::Handler> MakeWatchMethod(const JsonMethod::Options& options,
                                                service::WatchHub& hub) {
  return std::make_unique<WatchMethod>(options, hub);
}

}  // namespace sluice::web
