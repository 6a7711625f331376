// Each request of RateLimiter and LimitAdmin, from bytes to answer: the codec, protobuf, the use
// cases and the memory store. The first byte chooses the request. The codec must accept every
// message that protobuf's parser accepts, and protobuf must accept every answer.
#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/bounds.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "google/protobuf/stubs/logging.h"
#include "server/limits/limit_registry.h"
#include "server/service/bucket_watch.h"
#include "server/service/key_usage.h"
#include "server/service/limit_admin.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/services/limit_admin_messages.h"
#include "server/transport/services/rate_limiter_codec.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

// A server without sockets.
struct Parts {
  common::FakeClock clock;
  common::Metrics metrics;
  common::Log log{clock, common::LogLevel::kError, open("/dev/null", O_WRONLY)};
  store::MemoryStore store{clock, {.max_buckets = 4096, .seed = 1}};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  // The same key in every run, so that receipts in the corpus are valid.
  service::ReceiptSigner signer{7, {}};
  service::RateLimiter limiter{registry, store, clock, metrics, usage, signer};
  service::WatchHub watches{limiter};
  service::LimitAdmin admin{{registry, store, clock, metrics, usage, signer}, log, "fuzz", [] {
                              return limits::FileStatus{};
                            }};

  Parts() {
    std::vector<limits::LimitSpec> specs(5);
    const char* const names[] = {"a", "b", "c", "d", "e"};
    for (size_t i = 0; i < specs.size(); ++i) {
      specs[i].name = names[i];
      specs[i].rate = {10, 1'000'000'000};
    }
    specs[1].debt = 5;
    specs[1].charges = {"a"};
    specs[2].algorithm = algorithm::Kind::kSlidingLog;
    specs[2].charges = {"b"};
    specs[3].algorithm = algorithm::Kind::kSlidingWindow;
    specs[3].mode = limits::Mode::kShadow;
    specs[4].algorithm = algorithm::Kind::kFixedWindow;
    Check(registry.ApplyFile(std::move(specs), "1").ok());
  }
};

template <typename Call>
void Ignore(void* done, Call*) {
  ++*static_cast<int*>(done);
}

void CheckAnswer(const v1::AcquireRequest& request, const v1::AcquireResponse& response) {
  Check(response.charges_size() >= request.charges_size());
  Check(response.charges_size() <= 16);
  Check(response.granted() != response.has_retry_after());
  if (response.receipt().empty()) return;
  Check(response.granted());
  bool needed = request.want_receipt() || request.has_settle_within() || response.has_wait();
  for (const v1::ChargeStatus& charge : response.charges()) needed |= charge.has_held_for();
  Check(needed);
}

struct NoSink : service::WatchSink {
  bool Ready() override { return true; }
  void OnUpdate(absl::Span<const service::BucketStatus> changed, int64_t wall_ns) override {
    Check(v1::QueryResponse().ParseFromString(transport::EncodeWatch(changed, wall_ns)));
  }
  void OnEnd(const absl::Status&) override {}
};

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

template <typename Response>
Response Parsed(const transport::Buffer& answer) {
  Response response;
  Check(response.ParseFromArray(answer.data(), static_cast<int>(answer.size())));
  return response;
}

void RunAcquire(Parts& parts, const std::string& bytes) {
  v1::AcquireRequest request;
  const bool parsed = request.ParseFromString(bytes);
  service::AcquireCall call;
  const bool decoded = transport::DecodeAcquire(Bytes(bytes), &call).ok();
  Check(decoded || !parsed);
  if (!decoded) return;
  int done = 0;
  parts.limiter.Acquire(&call, store::kNoDeadline, Ignore<service::AcquireCall>, &done);
  Check(done == 1 && call.status().ok() && call.size() == 1);
  if (!call.result(0).status.ok()) return;
  transport::Buffer answer;
  transport::EncodeAcquire(call, &answer);
  const auto response = Parsed<v1::AcquireResponse>(answer);
  if (parsed) CheckAnswer(request, response);
  if (response.receipt().empty()) return;
  service::RefundCall refund;
  refund.Reset(response.receipt());
  parts.limiter.Refund(&refund, store::kNoDeadline, Ignore<service::RefundCall>, &done);
  Check(refund.status().ok());
}

void RunAcquireBatch(Parts& parts, const std::string& bytes) {
  v1::AcquireBatchRequest request;
  const bool parsed = request.ParseFromString(bytes);
  service::AcquireCall call;
  const bool decoded = transport::DecodeAcquireBatch(Bytes(bytes), &call).ok();
  Check(decoded || !parsed);
  if (!decoded) return;
  int done = 0;
  parts.limiter.Acquire(&call, store::kNoDeadline, Ignore<service::AcquireCall>, &done);
  Check(done == 1);
  if (!call.status().ok()) return;
  transport::Buffer answer;
  transport::EncodeAcquireBatch(call, &answer);
  const auto response = Parsed<v1::AcquireBatchResponse>(answer);
  if (!parsed) return;
  Check(response.results_size() == request.acquisitions_size());
  for (int i = 0; i < response.results_size(); ++i) {
    if (response.results(i).has_response()) {
      CheckAnswer(request.acquisitions(i), response.results(i).response());
    } else {
      Check(!response.results(i).error().message().empty());
    }
  }
}

void RunQuery(Parts& parts, const std::string& bytes) {
  v1::QueryRequest request;
  const bool parsed = request.ParseFromString(bytes);
  service::QueryCall call;
  const bool decoded = transport::DecodeQuery(Bytes(bytes), &call).ok();
  Check(decoded || !parsed);
  if (!decoded) return;
  int done = 0;
  parts.limiter.Query(&call, store::kNoDeadline, Ignore<service::QueryCall>, &done);
  Check(done == 1);
  if (!call.status().ok()) return;
  transport::Buffer answer;
  transport::EncodeQuery(call, &answer);
  const auto response = Parsed<v1::QueryResponse>(answer);
  Check(!parsed || response.buckets_size() == request.buckets_size());
}

void RunRefund(Parts& parts, const std::string& bytes) {
  service::RefundCall call;
  const bool decoded = transport::DecodeRefund(Bytes(bytes), &call).ok();
  Check(decoded || !v1::RefundRequest().ParseFromString(bytes));
  if (!decoded) return;
  int done = 0;
  parts.limiter.Refund(&call, store::kNoDeadline, Ignore<service::RefundCall>, &done);
  Check(done == 1);
  if (!call.status().ok()) return;
  transport::Buffer answer;
  transport::EncodeRefund(call, &answer);
  Parsed<v1::RefundResponse>(answer);
}

void RunWatch(Parts& parts, const std::string& bytes) {
  service::WatchOptions options;
  const bool decoded = transport::DecodeWatch(Bytes(bytes), &options).ok();
  v1::WatchRequest request;
  Check(decoded || !request.ParseFromString(bytes) ||
        static_cast<size_t>(request.buckets_size()) > common::bounds::kMaxQueryBuckets);
  if (!decoded) return;
  const auto id = parts.watches.Start(std::move(options), std::make_shared<NoSink>());
  parts.watches.Tick();
  if (id.ok()) parts.watches.Cancel(*id);
}

void RunPutLimit(Parts& parts, const std::string& bytes) {
  v1::PutLimitRequest request;
  if (!request.ParseFromString(bytes)) return;
  auto spec = transport::wire::Read(request.limit());
  if (!spec.ok()) return;
  const std::string name = spec->name;
  const auto put = parts.admin.Put(*std::move(spec), transport::wire::ReadOptions(request));
  if (!put.ok()) return;
  v1::PutLimitResponse response;
  transport::wire::Write(put->limit->spec(), parts.admin.now_ns(), response.mutable_limit());
  // An accepted limit can be asked for, and the answer is well-formed.
  v1::AcquireRequest acquire;
  acquire.add_charges()->set_limit(name);
  RunAcquire(parts, acquire.SerializeAsString());
}

void RunListKeys(Parts& parts, const std::string& bytes) {
  v1::ListKeysRequest request;
  if (!request.ParseFromString(bytes)) return;
  int done = 0;
  parts.admin.ListKeys(request.limit(), transport::wire::Read(request.order()), request.max_keys(),
                       [&](absl::StatusOr<service::ListedKeys> keys) {
                         ++done;
                         v1::ListKeysResponse response;
                         if (keys.ok()) transport::wire::Write(*keys, &response);
                       });
  Check(done == 1);
  v1::Stats stats;
  transport::wire::Write(parts.admin.GetStats(), &stats);
}

void Run(Parts& parts, uint8_t which, const std::string& bytes) {
  constexpr void (*kRequests[])(Parts&, const std::string&) = {
      RunAcquire, RunAcquireBatch, RunQuery, RunRefund, RunWatch, RunPutLimit, RunListKeys};
  kRequests[which % 7](parts, bytes);
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const google::protobuf::LogSilencer silence;
  static int runs = 0;
  static auto parts = std::make_unique<sluice::Parts>();
  // A run starts from the state that the runs before it left, for 2000 runs.
  if (++runs % 2000 == 0) parts = std::make_unique<sluice::Parts>();
  parts->clock.Advance(1'000'000 * data[0]);
  sluice::Run(*parts, data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
