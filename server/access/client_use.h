// ClientUse: what one client uses now, over all of its connections and event loops, against the
// bounds that the clients file gives it. ClientPlace: one held call or stream that counts for its
// client. ClientUses: the ClientUse of each name, which outlasts reloads of the file.
#ifndef SLUICE_SERVER_ACCESS_CLIENT_USE_H_
#define SLUICE_SERVER_ACCESS_CLIENT_USE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/log.h"
#include "common/mutex.h"
#include "server/access/client_bounds.h"
#include "server/algorithm/shared_rate.h"

namespace sluice::access {

// Thread-safe. Lock-free, but for Refuse, which writes a line to the log once a minute.
class ClientUse {
 public:
  // Refused acquisitions of a batch that take about as much time as a call.
  static constexpr uint64_t kRefusedPerCall = 16;

  // `log` outlives this; null: none. `number`: see below.
  ClientUse(std::string name, common::Log* log, uint16_t number = 0)
      : name_(std::move(name)), log_(log), number_(number) {}
  ClientUse(const ClientUse&) = delete;
  ClientUse& operator=(const ClientUse&) = delete;

  // Bounds that are lower than what is in use end no call and no stream.
  void SetBounds(const ClientBounds& bounds);
  uint64_t most(ClientBound bound) const {
    return most_[Index(bound)].load(std::memory_order_relaxed);
  }

  // Counts `calls` calls, as far as max_calls_per_second permits. Returns how many. The others, if
  // they are many, were acquisitions of one batch, which are decoded and answered too: they count
  // as a few calls.
  uint64_t TakeCalls(uint64_t calls, int64_t now_ns) {
    const uint64_t taken = calls_.TakeUpTo(calls, now_ns);
    if (calls - taken >= kRefusedPerCall) calls_.Owe((calls - taken) / kRefusedPerCall, now_ns);
    return taken;
  }

  // For the store, which takes one for each bucket that it makes. Null: there is no bound.
  algorithm::SharedRate* new_keys() {
    return new_keys_.permits() == algorithm::SharedRate::kUnbounded ? nullptr : &new_keys_;
  }

  // By which the store counts the room of the buckets that the client made (max_table_share). The
  // same for a name as long as the process lives; 0: not counted.
  uint16_t number() const { return number_; }
  // Hundredths.
  uint8_t table_share() const {
    return static_cast<uint8_t>(std::min<uint64_t>(most(ClientBound::kTableShare), 100));
  }

  // Held calls or streams that are open now.
  uint64_t open(ClientBound bound) const {
    return open_[Index(bound)].load(std::memory_order_relaxed);
  }

  // RESOURCE_EXHAUSTED: the bound is reached; nothing was done. Counts `times` refusals.
  absl::Status Refuse(ClientBound bound, uint64_t times, int64_t now_ns);
  uint64_t refused(ClientBound bound) const {
    return refused_[Index(bound)].load(std::memory_order_relaxed);
  }

 private:
  friend class ClientPlace;

  static size_t Index(ClientBound bound) { return static_cast<size_t>(bound); }
  bool Enter(ClientBound bound);
  void Leave(ClientBound bound) { open_[Index(bound)].fetch_sub(1, std::memory_order_relaxed); }

  const std::string name_;
  common::Log* const log_;
  const uint16_t number_;
  // All relaxed: counts, which publish no other data.
  std::array<std::atomic<uint64_t>, kClientBounds> most_ = {kNoBound, kNoBound, kNoBound, kNoBound,
                                                            kNoBound};
  std::array<std::atomic<uint64_t>, kClientBounds> open_ = {};
  std::array<std::atomic<uint64_t>, kClientBounds> refused_ = {};
  std::array<std::atomic<uint64_t>, kClientBounds> logged_ = {};  // of refused_
  std::array<std::atomic<int64_t>, kClientBounds> log_not_before_ =
      {};  // when the next line may be
  // On their own cache lines: every call of the client takes of them.
  alignas(64) algorithm::SharedRate calls_{1'000'000'000};
  alignas(64) algorithm::SharedRate new_keys_{60'000'000'000};
};

// Thread-compatible.
class ClientPlace {
 public:
  ClientPlace() = default;
  ~ClientPlace() { Leave(); }
  ClientPlace(const ClientPlace&) = delete;
  ClientPlace& operator=(const ClientPlace&) = delete;

  // Takes one for the client, until Leave. Returns false, and takes none, if all are in use.
  // REQUIRES: taken() is false; kHeldCalls or kStreams.
  bool Enter(std::shared_ptr<ClientUse> use, ClientBound bound);
  void Leave() {
    if (use_ == nullptr) return;
    use_->Leave(bound_);
    use_ = nullptr;
  }
  bool taken() const { return use_ != nullptr; }

 private:
  std::shared_ptr<ClientUse> use_;
  ClientBound bound_ = ClientBound::kStreams;
};

// Thread-safe.
class ClientUses {
 public:
  // `log` outlives all ClientUses; null: none.
  explicit ClientUses(common::Log* log) : log_(log) {}

  // The ClientUse of this name: the existing one while a table of clients, a held call or a stream
  // still refers to it; otherwise a new one.
  std::shared_ptr<ClientUse> Of(const std::string& name);
  // Includes some to which nothing refers any more.
  size_t size() const {
    const common::MutexLock lock(&mu_);
    return uses_.size();
  }

 private:
  common::Log* const log_;
  mutable common::Mutex mu_;
  // Those that ended are removed by Of, before it adds one.
  absl::flat_hash_map<std::string, std::weak_ptr<ClientUse>> uses_ ABSL_GUARDED_BY(mu_);
  // Never removed, since buckets name them. Names after the 65,534th share the last number.
  absl::flat_hash_map<std::string, uint16_t> numbers_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace sluice::access

#endif  // SLUICE_SERVER_ACCESS_CLIENT_USE_H_
