#include "server/transport/web/page/overview.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_string.h"
#include "google/protobuf/util/json_util.h"
#include "server/transport/http1/answer.h"
#include "server/transport/http1/exchange.h"
#include "server/transport/http1/gzip.h"
#include "server/transport/services/limit_admin_messages.h"
#include "sluice/v1/admin.pb.h"

namespace sluice::web {
namespace {

using service::History;

constexpr int64_t kSecondNs = 1'000'000'000;

// Reading the sketches takes longer than all the rest, and misses keys that are counted meanwhile.
constexpr int64_t kDeniedKeysSeconds = 5;
constexpr size_t kDeniedKeys = 10;

// Units of work (net::WorkQueue): a reader, one that gets an event, and bytes of that for one unit.
constexpr int64_t kLookUnits = 2;
constexpr int64_t kReaderUnits = 40;
constexpr size_t kBytesPerUnit = 256;

// Events on their way to the readers of a loop: one a second, and a snapshot for new readers.
constexpr size_t kMostEvents = 4;

constexpr std::array<const char*, History::kTotals> kTotalNames{
    "granted", "denied",  "shadowDenied", "allowedWithoutStore", "deniedWithoutStore",
    "shed",    "waiting", "p99Us"};
constexpr std::array<const char*, History::kOutcomes> kOutcomeNames{"granted", "denied",
                                                                    "shadowDenied", "withoutStore"};

// [1,2,3]
template <typename Numbers>
void AppendArray(const Numbers& numbers, std::string* out) {
  out->push_back('[');
  bool first = true;
  for (const auto number : numbers) {
    if (!first) out->push_back(',');
    first = false;
    absl::StrAppend(out, number);
  }
  out->push_back(']');
}

// Seconds since 1970.
void AppendTime(int64_t wall_ns, std::string* out) {
  const int64_t ms = wall_ns / 1'000'000;
  absl::StrAppend(out, ms / 1000, ".", absl::Dec(ms % 1000, absl::kZeroPad3));
}

std::string EventOf(std::string_view name, std::string_view data) {
  return absl::StrCat("event: ", common::ToAbsl(name), "\ndata: ", common::ToAbsl(data), "\n\n");
}

std::string ToJson(const service::ConfigStatus& status) {
  v1::ConfigStatus message;
  transport::wire::Write(status, &message);
  std::string json;
  // Fails only for messages with Any or times out of range.
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) return "{}";
  return json;
}

}  // namespace

// ---- The history of one limit ----

class Overview::HistoryHandler final : public http1::BackgroundHandler {
 public:
  HistoryHandler(net::EventLoop& loop, const Overview& overview)
      : BackgroundHandler(loop), overview_(overview) {}

 private:
  http1::Answer MakeAnswer(const http1::Request& request) override {
    std::string body;
    const std::optional<std::string_view> limit = request.parameter("limit");
    if (!limit.has_value()) {
      AppendServer(&body);
    } else {
      const auto found = overview_.sources_.admin.Get(*limit);
      if (!found.ok()) return http1::Problem::Of(found.status()).ToAnswer();
      AppendLimit(*found->limit, &body);
    }
    http1::Answer answer;
    answer.content_type = "application/json";
    answer.headers = {{"cache-control", "no-store"}};
    answer.body = http1::SharedBytes::Of(std::move(body));
    http1::CompressFor(request, &answer);
    return answer;
  }

  void AppendServer(std::string* out) const {
    out->push_back('{');
    overview_.AppendHead(out);
    for (size_t column = 0; column < History::kTotals; ++column) {
      absl::StrAppend(out, ",\"", kTotalNames[column], "\":");
      AppendArray(overview_.Column(column), out);
    }
    out->push_back('}');
  }

  void AppendLimit(const limits::Limit& limit, std::string* out) const {
    const History& history = overview_.history_;
    const History::Series* series = history.Find(limit.limit_id());
    const auto& counted = overview_.stats_.totals.limits;
    const common::LimitTotals totals =
        limit.limit_id() < counted.size() ? counted[limit.limit_id()] : common::LimitTotals();
    // A limit that was used and has no series of its own was counted in `other`, or is idle.
    const bool full = history.limits() >= common::bounds::kMaxLimitHistories;
    const bool other = series == nullptr && full && history.other() != nullptr;
    if (other) series = history.other();
    out->push_back('{');
    overview_.AppendHead(out);
    out->append(",\"limit\":");
    common::AppendJsonString(limit.name(), out);
    absl::StrAppend(out, ",\"series\":\"", other ? "other" : "own", "\"");
    for (size_t outcome = 0; outcome < History::kOutcomes; ++outcome) {
      absl::StrAppend(out, ",\"", kOutcomeNames[outcome], "\":");
      AppendArray(series == nullptr
                      ? std::vector<uint32_t>(history.size())
                      : series->Seconds(static_cast<History::Outcome>(outcome), history.size()),
                  out);
    }
    absl::StrAppend(out, ",\"totals\":{\"granted\":", totals.granted, ",\"denied\":", totals.denied,
                    ",\"shadowDenied\":", totals.shadow_denied,
                    ",\"permitsGranted\":", totals.permits_granted,
                    ",\"refundedPermits\":", totals.refunded_permits,
                    ",\"overflowAllowed\":", totals.overflow_allowed,
                    ",\"overflowDenied\":", totals.overflow_denied);
    absl::StrAppend(out, ",\"allowedWhileUnavailable\":", totals.allowed_while_unavailable,
                    ",\"deniedWhileUnavailable\":", totals.denied_while_unavailable,
                    ",\"bookingsDenied\":", totals.bookings_denied, "}}");
  }

  const Overview& overview_;
};

// ---- Start ----

Overview::Overview(const OverviewSources& sources, net::LoopGroup& loops,
                   net::EventLoop& background)
    : sources_(sources),
      background_(background),
      history_handler_(std::make_unique<HistoryHandler>(background, *this)),
      timer_(net::Timer::To<&Overview::OnTimer>, this) {
  for (size_t i = 0; i < loops.size(); ++i) {
    loops_.push_back(std::make_unique<LoopReaders>(*this, loops.loop(i)));
  }
}

Overview::~Overview() = default;

void Overview::Register(http1::RouteTable* routes, const http1::Gate& reading) {
  reading_ = &reading;
  routes->Add("/v1/overview", *this, {.gate = &reading});
  routes->Add("/v1/history", *history_handler_, {.gate = &reading});
}

void Overview::Start() {
  background_.Post([this] { OnTimer(); });
}

// ---- The stream, on the loops of the port ----

void Overview::OnRequest(http1::Exchange& exchange) {
  auto reader = std::make_unique<Reader>();
  if (const access::CallerPtr& caller = exchange.caller(); caller != nullptr) {
    const absl::Status entered =
        caller->Enter(access::ClientBound::kStreams, exchange.loop().now_ns(), &reader->place);
    if (!entered.ok()) return exchange.Fail(entered);
  }
  exchange.AddHeader("cache-control", "no-store");
  exchange.AddHeader("x-accel-buffering", "no");  // nginx would hold events back
  exchange.BeginStream("text/event-stream");
  if (exchange.request().method() == http1::Method::kHead) return exchange.EndStream();
  LoopReaders& on = *loops_[exchange.loop_index()];
  reader->exchange = &exchange;
  reader->index = on.readers.size();
  exchange.set_state(reader.get());
  exchange.SetPendingBytes(sizeof(Reader));
  on.readers.push_back(std::move(reader));
  on.count.store(on.readers.size(), std::memory_order_relaxed);
  RequestSnapshot(exchange.loop_index());
}

void Overview::OnCancelled(http1::Exchange& exchange) { Remove(exchange); }

void Overview::OnWritable(http1::Exchange& exchange) {
  auto* const reader = static_cast<Reader*>(exchange.state());
  if (reader == nullptr || reader->state != Reader::State::kBehind) return;
  reader->state = Reader::State::kNeedsSnapshot;
  RequestSnapshot(exchange.loop_index());
}

void Overview::OnDrain(http1::Exchange& exchange) {
  Remove(exchange);
  exchange.EndStream();
}

void Overview::Remove(http1::Exchange& exchange) {
  auto* const reader = static_cast<Reader*>(exchange.state());
  if (reader == nullptr) return;
  exchange.set_state(nullptr);
  LoopReaders& on = *loops_[exchange.loop_index()];
  const size_t index = reader->index;
  std::swap(on.readers[index], on.readers.back());
  on.readers[index]->index = index;
  on.readers.pop_back();
  on.count.store(on.readers.size(), std::memory_order_relaxed);
}

void Overview::RequestSnapshot(size_t loop) {
  if (std::exchange(loops_[loop]->snapshot_requested, true)) return;
  background_.Post([this, loop] {
    loops_[loop]->loop.Post([this, loop, bytes = Snapshot()] {
      loops_[loop]->snapshot_requested = false;
      Send(loop, {.bytes = bytes, .snapshot = true});
    });
  });
}

void Overview::Send(size_t loop, Event event) {
  LoopReaders& on = *loops_[loop];
  if (on.events.size() >= kMostEvents) {
    // The loop is seconds behind. Its readers go on with one snapshot. One that is being sent is
    // not dropped: those at the end of its round would get none for as long as the loop is behind.
    on.events.erase(on.events.begin() + (on.events.front().snapshot ? 1 : 0), on.events.end());
    for (const std::unique_ptr<Reader>& reader : on.readers) {
      if (reader->state == Reader::State::kLive) reader->state = Reader::State::kNeedsSnapshot;
    }
    if (!event.snapshot) return RequestSnapshot(loop);
  }
  on.events.push_back(std::move(event));
  if (on.events.size() > 1) return;
  BeginEvent(on);
  on.loop.work().Refill(on);
  SendEvents(on);
}

void Overview::BeginEvent(LoopReaders& on) {
  ++on.event_number;
  on.left = on.readers.size();
}

void Overview::SendEvents(LoopReaders& on) {
  while (!on.events.empty() && on.has_credit()) {
    const Event& event = on.events.front();
    // From the last to the first: one that leaves is replaced by the last, which may have had its
    // turn, and is recognised by the number.
    on.left = std::min(on.left, on.readers.size());
    while (on.left > 0 && on.has_credit()) {
      Reader& reader = *on.readers[--on.left];
      if (std::exchange(reader.event, on.event_number) != on.event_number) SendTo(reader, event);
    }
    if (on.left > 0) break;
    on.events.pop_front();
    if (!on.events.empty()) BeginEvent(on);
  }
  if (!on.events.empty()) on.loop.work().Add(on);
}

void Overview::SendTo(Reader& reader, const Event& event) {
  LoopReaders& on = *loops_[reader.exchange->loop_index()];
  on.Spend(kLookUnits);
  if (EndRefused(reader)) return;
  const Reader::State gets = event.snapshot ? Reader::State::kNeedsSnapshot : Reader::State::kLive;
  if (reader.state != gets) return;
  on.Spend(kReaderUnits + static_cast<int64_t>(event.bytes->size() / kBytesPerUnit));
  const bool sent = reader.exchange->Write(*event.bytes);
  reader.state = sent ? Reader::State::kLive : Reader::State::kBehind;
}

bool Overview::EndRefused(Reader& reader) {
  http1::Exchange& exchange = *reader.exchange;
  const std::optional<http1::Problem> refusal = reading_->CheckAgain(exchange);
  if (!refusal.has_value()) return false;
  Remove(exchange);
  std::string problem = refusal->ToJson();
  problem.pop_back();  // the line's end
  exchange.Write(EventOf("error", problem));
  exchange.EndStream();
  return true;
}

// ---- Sampling, on the background loop ----

void Overview::OnTimer() {
  Sample();
  const int64_t now_ns = sources_.clock.NowNs();
  background_.Arm(timer_, (now_ns / kSecondNs + 1) * kSecondNs);
}

void Overview::Sample() {
  stats_ = sources_.admin.GetStats();
  sampled_wall_ns_ = sources_.clock.WallNs();
  if (!history_.Sample(sources_.clock.NowNs(), stats_.totals, sources_.held.size())) return;
  std::shared_ptr<const limits::LimitTable> table = sources_.admin.List();
  if (table_ == nullptr || table->serial() != table_->serial()) {
    table_ = std::move(table);
    names_.clear();
    for (const limits::Limit* limit : table_->limits()) names_[limit->limit_id()] = limit->name();
  }
  const bool read = std::any_of(loops_.begin(), loops_.end(), [](const auto& on) {
    return on->count.load(std::memory_order_relaxed) > 0;
  });
  if (!read) return;
  std::string config = ToJson(sources_.admin.GetConfigStatus());
  const bool changed = config != config_;
  config_ = std::move(config);
  const bool denied_keys = ReadDeniedKeys();
  const auto event = std::make_shared<const std::string>(
      EventOf("second", MakeSecond(changed ? config_ : std::string_view(), denied_keys)));
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (loops_[i]->count.load(std::memory_order_relaxed) == 0) continue;
    loops_[i]->loop.Post([this, i, event] { Send(i, {.bytes = event}); });
  }
}

Overview::Bytes Overview::Snapshot() {
  if (snapshot_ == nullptr || snapshot_second_ != history_.second()) {
    ReadDeniedKeys();
    snapshot_ = std::make_shared<const std::string>(EventOf("snapshot", MakeSnapshot()));
    snapshot_second_ = history_.second();
  }
  return snapshot_;
}

bool Overview::ReadDeniedKeys() {
  if (denied_second_ >= 0 && history_.second() < denied_second_ + kDeniedKeysSeconds) return false;
  denied_ = sources_.usage.MostUsed(service::KeyOrder::kDenials, service::KeyUsage::kAllLimits,
                                    kDeniedKeys);
  denied_second_ = history_.second();
  return true;
}

// ---- JSON ----

std::string Overview::MakeSnapshot() const {
  std::string out = "{";
  AppendHead(&out);
  out.append(",\"startedAt\":");
  AppendTime(stats_.started_at_wall_ns, &out);
  out.append(",\"version\":");
  common::AppendJsonString(stats_.version, &out);
  absl::StrAppend(&out, ",\"changes\":", sources_.changes ? "true" : "false",
                  ",\"config\":", ToJson(sources_.admin.GetConfigStatus()));
  AppendNow(&out);
  AppendDeniedKeys(&out);
  for (size_t column = 0; column < History::kTotals; ++column) {
    absl::StrAppend(&out, column == 0 ? ",\"total\":{\"" : ",\"", kTotalNames[column], "\":");
    AppendArray(Column(column), &out);
  }
  out.append("},\"limits\":[");
  bool first = true;
  ForEachLimit([&](std::string_view name, const History::Series& series) {
    out.append(std::exchange(first, false) ? "{\"limit\":" : ",{\"limit\":");
    common::AppendJsonString(name, &out);
    for (size_t outcome = 0; outcome < History::kOutcomes; ++outcome) {
      absl::StrAppend(&out, ",\"", kOutcomeNames[outcome], "\":");
      AppendArray(series.Minutes(static_cast<History::Outcome>(outcome)), &out);
    }
    out.append(",\"lastMinute\":");
    AppendArray(series.LastMinute(), &out);
    out.push_back('}');
  });
  out.append("]}");
  return out;
}

std::string Overview::MakeSecond(std::string_view config, bool denied_keys) const {
  std::string out = "{";
  AppendHead(&out);
  out.append(",\"total\":");
  AppendArray(history_.total(history_.size() - 1), &out);
  AppendNow(&out);
  if (denied_keys) AppendDeniedKeys(&out);
  if (!config.empty()) absl::StrAppend(&out, ",\"config\":", common::ToAbsl(config));
  out.append(",\"limits\":{");
  bool first = true;
  ForEachLimit([&](std::string_view name, const History::Series& series) {
    const History::Counts minute = series.LastMinute();
    if (minute == History::Counts{}) return;
    if (!std::exchange(first, false)) out.push_back(',');
    common::AppendJsonString(name, &out);
    out.push_back(':');
    const History::Counts second = series.LastSecond();
    std::array<uint64_t, 2 * History::kOutcomes> numbers;
    std::copy(minute.begin(), minute.end(),
              std::copy(second.begin(), second.end(), numbers.begin()));
    AppendArray(numbers, &out);
  });
  out.append("}}");
  return out;
}

void Overview::AppendHead(std::string* out) const {
  out->append("\"at\":");
  AppendTime(sampled_wall_ns_, out);
  absl::StrAppend(out, ",\"second\":", history_.second());
}

void Overview::AppendNow(std::string* out) const {
  const store::StoreStats& store = stats_.store;
  uint64_t over_memory = 0;
  for (const common::TransportTotals& one : stats_.totals.transports) {
    over_memory += one.calls_refused_over_memory + one.connections_closed_over_memory;
  }
  absl::StrAppend(out, ",\"now\":{\"buckets\":", store.buckets,
                  ",\"maxBuckets\":", store.max_buckets, ",\"memoryBytes\":", store.memory_bytes,
                  ",\"openReceipts\":", store.open_receipts, ",\"bookings\":", store.bookings,
                  ",\"overflowAllowed\":", store.overflow_allowed,
                  ",\"overflowDenied\":", store.overflow_denied, ",\"commands\":", store.commands,
                  ",\"unanswered\":", store.unanswered, ",\"errors\":", store.errors,
                  ",\"clockJumps\":", store.clock_jumps);
  absl::StrAppend(out, ",\"residentBytes\":", stats_.resident_bytes,
                  ",\"refusedOverMemory\":", over_memory, ",\"transports\":[");
  bool first = true;
  for (const common::TransportTotals& one : stats_.totals.transports) {
    absl::StrAppend(out, std::exchange(first, false) ? "" : ",", "{\"transport\":\"", one.transport,
                    "\",\"connections\":", one.connections_accepted - one.connections_closed,
                    ",\"streams\":", one.streams_accepted - one.streams_closed, "}");
  }
  out->append("]}");
}

void Overview::AppendDeniedKeys(std::string* out) const {
  out->append(",\"deniedSince\":");
  AppendTime(denied_.since_wall_ns, out);
  out->append(",\"deniedKeys\":[");
  bool first = true;
  for (const service::KeyUsage::Key& key : denied_.keys) {
    const auto name = names_.find(key.limit_id);
    if (name == names_.end()) continue;  // the limit was deleted
    out->append(std::exchange(first, false) ? "{\"limit\":" : ",{\"limit\":");
    common::AppendJsonString(name->second, out);
    out->append(",\"key\":");
    common::AppendJsonString(key.key, out);
    absl::StrAppend(out, ",\"estimate\":", key.estimate, ",\"error\":", key.error, "}");
  }
  out->push_back(']');
}

std::vector<uint32_t> Overview::Column(size_t total) const {
  std::vector<uint32_t> column(history_.size());
  for (size_t i = 0; i < column.size(); ++i) column[i] = history_.total(i)[total];
  return column;
}

template <typename Visit>
void Overview::ForEachLimit(Visit visit) const {
  history_.ForEach([&](uint32_t limit_id, const History::Series& series) {
    const auto name = names_.find(limit_id);
    if (name != names_.end()) visit(name->second, series);
  });
  if (history_.other() != nullptr) visit("(other limits)", *history_.other());
}

}  // namespace sluice::web
