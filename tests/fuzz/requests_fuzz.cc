// Each request of RateLimiter and LimitAdmin, from bytes to answer: protobuf, the conversions, the
// use cases and the memory store. The first byte chooses the request.
#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "server/limits/limit_registry.h"
#include "server/service/bucket_watch.h"
#include "server/service/key_usage.h"
#include "server/service/limit_admin.h"
#include "server/service/rate_limiter.h"
#include "server/service/receipt.h"
#include "server/store/memory/memory_store.h"
#include "server/transport/services/limit_admin_messages.h"
#include "server/transport/services/rate_limiter_messages.h"

namespace sluice {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

// A server without its sockets.
struct Parts {
  common::FakeClock clock;
  common::Metrics metrics;
  common::Log log{clock, common::LogLevel::kError, open("/dev/null", O_WRONLY)};
  store::MemoryStore store{clock, {.max_buckets = 4096, .seed = 1}};
  limits::LimitRegistry registry{&store};
  service::KeyUsage usage;
  // The same in every run, so that the corpus holds receipts that are worth something.
  service::ReceiptSigner signer{7, {}};
  service::RateLimiter limiter{registry, store, clock, metrics, usage, signer};
  service::WatchHub watches{limiter};
  service::LimitAdmin admin{registry, store, clock,  metrics,
                            usage,    log,   "fuzz", [] { return limits::FileStatus{}; }};

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
  Check(response.receipt().empty() || (request.want_receipt() && response.granted()));
}

struct NoSink : service::WatchSink {
  bool Ready() override { return true; }
  void OnUpdate(absl::Span<const service::BucketStatus> changed, int64_t wall_ns) override {
    v1::QueryResponse response;
    transport::wire::Write(changed, wall_ns, &response);
  }
  void OnEnd(const absl::Status&) override {}
};

void Run(Parts& parts, uint8_t which, const std::string& bytes) {
  int done = 0;
  switch (which % 7) {
    case 0: {
      v1::AcquireRequest request;
      if (!request.ParseFromString(bytes)) return;
      service::AcquireCall call;
      transport::wire::Read(request, &call);
      parts.limiter.Acquire(&call, store::kNoDeadline, Ignore<service::AcquireCall>, &done);
      Check(done == 1 && call.status().ok() && call.size() == 1);
      if (!call.result(0).status.ok()) return;
      v1::AcquireResponse response;
      transport::wire::Write(call, &response);
      CheckAnswer(request, response);
      if (response.receipt().empty()) return;
      service::RefundCall refund;
      refund.Reset(response.receipt());
      parts.limiter.Refund(&refund, store::kNoDeadline, Ignore<service::RefundCall>, &done);
      Check(refund.status().ok());
      return;
    }
    case 1: {
      v1::AcquireBatchRequest request;
      if (!request.ParseFromString(bytes)) return;
      service::AcquireCall call;
      transport::wire::Read(request, &call);
      parts.limiter.Acquire(&call, store::kNoDeadline, Ignore<service::AcquireCall>, &done);
      Check(done == 1);
      if (!call.status().ok()) return;
      v1::AcquireBatchResponse response;
      transport::wire::Write(call, &response);
      Check(response.results_size() == request.acquisitions_size());
      for (int i = 0; i < response.results_size(); ++i) {
        if (response.results(i).has_response()) {
          CheckAnswer(request.acquisitions(i), response.results(i).response());
        } else {
          Check(!response.results(i).error().message().empty());
        }
      }
      return;
    }
    case 2: {
      v1::QueryRequest request;
      if (!request.ParseFromString(bytes)) return;
      service::QueryCall call;
      transport::wire::Read(request, &call);
      parts.limiter.Query(&call, store::kNoDeadline, Ignore<service::QueryCall>, &done);
      Check(done == 1);
      if (!call.status().ok()) return;
      v1::QueryResponse response;
      transport::wire::Write(call, &response);
      Check(response.buckets_size() == request.buckets_size());
      return;
    }
    case 3: {
      v1::RefundRequest request;
      if (!request.ParseFromString(bytes)) return;
      service::RefundCall call;
      transport::wire::Read(request, &call);
      parts.limiter.Refund(&call, store::kNoDeadline, Ignore<service::RefundCall>, &done);
      Check(done == 1);
      if (!call.status().ok()) return;
      v1::RefundResponse response;
      transport::wire::Write(call, &response);
      return;
    }
    case 4: {
      v1::WatchRequest request;
      if (!request.ParseFromString(bytes)) return;
      const auto id =
          parts.watches.Start(transport::wire::Read(request), std::make_shared<NoSink>());
      parts.watches.Tick();
      if (id.ok()) parts.watches.Cancel(*id);
      return;
    }
    case 5: {
      v1::PutLimitRequest request;
      if (!request.ParseFromString(bytes)) return;
      auto spec = transport::wire::Read(request.limit());
      if (!spec.ok()) return;
      const std::string name = spec->name;
      const auto put = parts.admin.Put(*std::move(spec));
      if (!put.ok()) return;
      v1::PutLimitResponse response;
      transport::wire::Write(put->limit->spec(), response.mutable_limit());
      // What was accepted can be asked for, and whatever it says, is an answer.
      v1::AcquireRequest acquire;
      acquire.add_charges()->set_limit(name);
      service::AcquireCall call;
      transport::wire::Read(acquire, &call);
      parts.limiter.Acquire(&call, store::kNoDeadline, Ignore<service::AcquireCall>, &done);
      Check(done == 1);
      return;
    }
    default: {
      v1::ListKeysRequest request;
      if (!request.ParseFromString(bytes)) return;
      parts.admin.ListKeys(request.limit(), transport::wire::Read(request.order()),
                           request.max_keys(), [&](absl::StatusOr<service::ListedKeys> keys) {
                             ++done;
                             v1::ListKeysResponse response;
                             if (keys.ok()) transport::wire::Write(*keys, &response);
                           });
      Check(done == 1);
      v1::Stats stats;
      transport::wire::Write(parts.admin.GetStats(), &stats);
      return;
    }
  }
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static int runs = 0;
  static auto parts = std::make_unique<sluice::Parts>();
  // What a run leaves behind is part of the next one's world, but not for ever.
  if (++runs % 2000 == 0) parts = std::make_unique<sluice::Parts>();
  parts->clock.Advance(1'000'000 * data[0]);
  sluice::Run(*parts, data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
