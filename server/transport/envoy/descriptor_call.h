// DescriptorCall: one request of Envoy's or Kuadrant's rate-limit service, from its descriptors to
// its answer.
//
// Each descriptor is matched to a limit and decided by itself: all of them in one operation of the
// store. How depends on the limit (envoy::Counting):
//   - compatible: the hits are counted whether or not they fit (store::Debit::kForced), and the
//     descriptor is over its limit iff more are counted than it allows;
//   - exact: the hits are taken if they fit. Descriptors that say so are taken all or none.
// A check (0 hits) queries the bucket. Negative hits are given back, where windows count them.
//
// Kuadrant's Reserve is one acquisition of all buckets that its descriptors lead to, with
// settle_within; its reservation_id is the receipt. Commit settles that. What it cannot settle, and
// what the reservation lacks, it counts by a forced debit, so that no use is lost. In both a bucket
// counts once, however many descriptors lead to it.
//
// A transport keeps DescriptorCalls and reuses them: once its vectors have grown, a call makes no
// heap allocation, except for metadata, the text of an error, and new names of counters.
#ifndef SLUICE_SERVER_TRANSPORT_ENVOY_DESCRIPTOR_CALL_H_
#define SLUICE_SERVER_TRANSPORT_ENVOY_DESCRIPTOR_CALL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/buffer.h"
#include "server/access/caller.h"
#include "server/envoy/hit_counters.h"
#include "server/envoy/matcher.h"
#include "server/limits/limit_table.h"
#include "server/service/collaborators.h"
#include "server/service/receipt.h"
#include "server/service/settle_call.h"
#include "server/store/store.h"
#include "server/transport/envoy/answer.h"
#include "server/transport/envoy/request.h"
#include "server/transport/envoy/requested_windows.h"

namespace sluice::transport {

struct DescriptorOptions {
  AnswerOptions answer = {};
  // --ratelimit_request_limits=on: limits in requests replace the configured ones.
  bool request_limits = false;
  // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: if a descriptor of a request would be over its limit,
  // those that would not are not counted. Of compatible limits.
  bool stop_when_over = false;
  // NEAR_LIMIT_RATIO, of the counter near_limit.
  float near_ratio = 0.8F;
  // The greatest part of a limit that one Reserve takes; a greater amount is cut to it.
  float max_reservation = 1;
};

// A Reserve without ttl: longer than calls take.
inline constexpr int64_t kReservationNs = 600 * int64_t{1'000'000'000};

// What the calls work with; everything outlives them.
struct DescriptorCollaborators {
  service::Collaborators service;
  RequestedWindows& windows;
  envoy::HitCounters& counters;
  const DescriptorOptions& options;
};

// Thread-compatible: one thread at a time.
class DescriptorCall final {
 public:
  enum class Method : uint8_t {
    kShouldRateLimit,
    kCheck,   // every descriptor is a check, of the hits that it names
    kReport,  // every descriptor is counted, as kShouldRateLimit does
    kReserve,
    kCommit,
  };
  // As service::AcquireCall::DoneFn.
  using DoneFn = void (*)(void* context, DescriptorCall* call);

  DescriptorCall() : debits_(this), probes_(this), checks_(this) {}
  DescriptorCall(const DescriptorCall&) = delete;
  DescriptorCall& operator=(const DescriptorCall&) = delete;

  // Forgets the last request, keeps the memory. REQUIRES: no decision is under way.
  void Reset(Method method);
  // To be filled in. The bytes of its views stay unchanged until the answer was encoded.
  RateLimitRequest& request() { return request_; }
  // As service::AcquireCall's.
  void UseCaller(access::CallerPtr caller) { caller_ = std::move(caller); }

  void Start(const DescriptorCollaborators& with, int64_t deadline_ns, DoneFn done, void* context);

  // After completion. UNKNOWN: the domain or the descriptors are empty, there is no configuration,
  // or the shared store failed. PERMISSION_DENIED: the caller may not use the domain.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: a limit in the request. DEADLINE_EXCEEDED. Of Reserve and
  // Commit: UNAVAILABLE if it may be tried again, UNIMPLEMENTED if the limits cannot be reserved.
  // FAILED_PRECONDITION: committed before with another amount.
  const absl::Status& status() const { return status_; }
  // REQUIRES: status() is OK. One for each descriptor.
  absl::Span<const DescriptorStatus> statuses() const { return statuses_; }
  void Encode(common::Buffer* out) const;
  // Of Reserve; empty: nothing is reserved.
  const std::string& reservation_id() const { return reservation_id_; }

  // ---- What UnaryUseCase asks of a call. Descriptors that are counted may be decided in slices,
  // each with a call of DoneFn. A call that is dropped between slices counts nothing further.
  void DecideInSlices() { sliced_ = true; }
  bool more() const { return left_ != Left::kNothing; }
  void Continue();
  size_t size() const { return request_.descriptors.size(); }
  // Does not change while a shared store answers the call on another thread: such a store reports
  // no work, and what it answers writes nothing here.
  size_t slice_cost() const { return slice_cost_; }
  // Bytes of memory, with that of former requests.
  size_t memory() const;
  // About the bytes that this request takes. As slice_cost(), does not change meanwhile.
  size_t request_memory() const;

 private:
  enum class Way : uint8_t {
    kMatched,  // not planned yet
    kDebit,
    kCheck,
    kDecided,  // its status is complete
  };

  // A descriptor's decision.
  struct Item {
    const envoy::MatchedLimit* match = nullptr;  // null: none, or a limit in the request
    const limits::Limit* limit = nullptr;        // null: no limit counts it
    const envoy::BucketKey* key = nullptr;
    uint64_t hits = 0;
    int64_t window_ns = 0;  // of a compatible limit; 0: it is exact
    Way way = Way::kMatched;
    store::Debit debit = store::Debit::kForced;
    bool joint = false;  // taken all or none, with others
  };

  struct Debits final : store::AcquireOperation {
    explicit Debits(DescriptorCall* call) : call(call) {}
    void Done() override { call->Debited(); }
    DescriptorCall* const call;
  };
  // Whether descriptors would be over their limits (stop_when_over).
  struct Probes final : store::QueryOperation {
    explicit Probes(DescriptorCall* call) : call(call) {}
    void Done() override { call->Probed(); }
    DescriptorCall* const call;
  };
  struct Checks final : store::QueryOperation {
    explicit Checks(DescriptorCall* call) : call(call) {}
    void Done() override { call->Checked(); }
    DescriptorCall* const call;
  };
  // Where the charge of a descriptor is.
  struct ChargePlace {
    uint32_t descriptor = 0;
    uint32_t acquisition = 0;
    uint32_t charge = 0;  // in charges_ and results_
  };

  // What the store left for the next slice.
  enum class Left : uint8_t { kNothing, kMatches, kSettlement, kProbes, kDebits, kChecks };

  // Start -> Decide -> MatchAll -> PlanAll -> Send -> SendDebits -> the store -> Debited ->
  // SendChecks -> the store -> Checked -> Finish -> DoneFn, where
  //   - MatchAll calls DoneFn if it has not matched all of them yet: Continue -> MatchAll;
  //   - MatchAll settles a reservation first (Settled); PlanAll then has what that did not settle;
  //   - PlanAll asks the store before it goes on to Send (Probed), for stop_when_over;
  //   - Settled, Probed, Debited and Checked call DoneFn if the store left some for the next slice:
  //     Continue -> the store -> the same again;
  //   - Debited goes back to Decide for descriptors whose limits changed meanwhile.
  absl::Status Validate() const;
  // Decides the descriptors in todo_ by the current table.
  void Decide();

  // ---- The limits of descriptors.
  absl::Status UseTable();
  void MatchAll();
  // Not done yet if *budget, in bytes, is used up; then the same again.
  absl::StatusOr<bool> Match(size_t descriptor, int64_t* budget);
  // An admin has put another limit in place of the configured one. It is exact, since its algorithm
  // may forgive what does not fit.
  void UsePut(size_t descriptor);
  absl::Status MatchRequested(size_t descriptor);
  void DropReplaced();

  // ---- Reserve and Commit.
  bool OfReservation() const { return method_ == Method::kReserve || method_ == Method::kCommit; }
  // The longest is cut to that of an estimate.
  absl::StatusOr<int64_t> TtlNs() const;
  void PlanReservation(size_t descriptor, const store::Rule& rule);
  absl::Status MakeEstimate(absl::Span<const store::Charge> charges, store::Acquisition* reserved);
  // Settles the reservation of a Commit. False: there is none, or it is of other buckets.
  bool Settle();
  bool IsOfReservation(const service::Receipt& receipt) const;
  // Whether the reservation has the item's bucket. REQUIRES: it was settled; the item has a limit.
  bool IsReserved(const Item& item) const;
  void Settled();
  // Issues the reservation_id, and counts what became of the call.
  void EndReservation();

  // ---- What the store is to do.
  void PlanAll();
  void Plan(size_t descriptor);
  void AddCheck(size_t descriptor, const store::Rule& rule);
  void AddDebit(size_t descriptor, const store::Rule& rule);
  void AddProbe(size_t descriptor, const store::Rule& rule);
  void SendProbes();
  void Probed();
  void Send();
  absl::Status PlanJoint();
  void SendDebits();
  void SendSlice();
  void SendChecks();

  // ---- What it did.
  void Debited();
  // Of the acquisitions [begin, end) of the slice. Returns the error of one that has one.
  absl::Status JudgeDebits(size_t begin, size_t end);
  void Checked();
  // As if there were no room for keys: the client has made too many.
  void DenyNewKey(access::ClientBound bound, store::Acquisition* refused) const;
  absl::Status ErrorOf(const store::Acquisition& decided) const;
  absl::Status StoreError(bool may_be_debited) const;
  // `nothing`, which says that nothing was taken, unless a part was, before `what` happened.
  absl::Status UnlessCounted(absl::Status nothing, std::string_view what) const;
  void JudgeDebit(const ChargePlace& place);
  void JudgeCheck(size_t descriptor, const store::QueryItem& found);
  // Hits that later descriptors of the request have counted on the same bucket.
  uint64_t CountedLater(size_t descriptor) const;
  // Fills in the status but for its reset time.
  void SetStatus(size_t descriptor, bool over, uint64_t counted, const store::BucketLevel& level);
  void CountHits(size_t descriptor, uint64_t counted);
  envoy::HitCounts<common::OwnedCounter>* DetailedCounts(size_t descriptor,
                                                         envoy::HitCounters::Shard& shard) const;
  void CountDecisions(absl::Span<const store::Acquisition> slice);
  void Fail(absl::Status status);
  void EndSlice(Left left);
  void Finish();

  // The request.
  Method method_ = Method::kShouldRateLimit;
  RateLimitRequest request_;
  access::CallerPtr caller_;

  // The decision.
  std::vector<Item> items_;
  std::deque<envoy::BucketKey> keys_;  // one for each item; grows only
  std::vector<store::Acquisition> acquisitions_;
  std::vector<store::Charge> charges_;
  std::vector<store::ChargeResult> results_;
  std::vector<ChargePlace> places_;
  std::vector<uint32_t> todo_;
  size_t matched_ = 0;     // of todo_
  bool matching_ = false;  // finding_ looks for the next
  envoy::Matcher::Finding finding_;
  std::vector<store::QueryItem> queries_;
  std::vector<store::QueryItem> probe_items_;
  std::vector<uint32_t> probed_;   // per probe: its descriptor
  std::vector<uint32_t> queried_;  // per query: its descriptor
  std::vector<const envoy::MatchedLimit*> replacing_;
  std::vector<std::string_view> replaced_;
  std::vector<envoy::Entry> key_entries_;
  bool joint_ = false;             // descriptors are taken all or none
  bool joint_impossible_ = false;  // a descriptor of those that are taken all or none can never be
  bool sliced_ = false;
  bool counted_ = false;  // something was debited or settled
  Left left_ = Left::kNothing;
  bool first_attempt_ = true;  // no limits have changed since the store was asked
  size_t slice_cost_ = 0;
  size_t debited_ = 0;                 // acquisitions that the store has decided
  size_t judged_ = 0;                  // places of these
  store::SearchBudget search_budget_;  // of all slices
  Debits debits_;
  Probes probes_;
  Checks checks_;
  // Keep limits and matches alive. More than one if limits changed meanwhile.
  std::vector<std::shared_ptr<const limits::LimitTable>> tables_;
  const limits::LimitTable* matched_table_ = nullptr;  // whose limits matcher_ finds
  const envoy::Matcher* matcher_ = nullptr;
  const envoy::Matcher::Level* domain_ = nullptr;

  // A Commit's reservation.
  enum class Settling : uint8_t { kNotTried, kTried, kSettled };
  Settling settling_ = Settling::kNotTried;
  std::string receipt_;
  std::unique_ptr<service::SettleCall> settle_;  // null: it was not needed yet

  // The answer.
  absl::Status status_;
  std::vector<DescriptorStatus> statuses_;
  std::string reservation_id_;

  // The decision under way.
  const DescriptorCollaborators* with_ = nullptr;
  int64_t deadline_ns_ = store::kNoDeadline;
  DoneFn done_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_ENVOY_DESCRIPTOR_CALL_H_
