// What a grpc++ call is to the use cases: a deadline, a status, a row of counters.
#ifndef SLUICE_SERVER_TRANSPORT_GRPC_CALL_CONTEXT_H_
#define SLUICE_SERVER_TRANSPORT_GRPC_CALL_CONTEXT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/errors.h"
#include "common/metrics.h"

namespace sluice::transport {

inline ::grpc::Status ToGrpc(const absl::Status& status) {
  return ::grpc::Status(static_cast<::grpc::StatusCode>(status.code()),
                        std::string(status.message()));
}

// With the trailing metadata that belongs to it. REQUIRES: nothing of the call was finished.
inline ::grpc::Status ToGrpc(const absl::Status& status, ::grpc::CallbackServerContext* context) {
  if (common::errors::WasNotExecuted(status)) {
    context->AddTrailingMetadata(common::kExecutedMetadata, common::kNotExecuted);
  }
  return ToGrpc(status);
}

// The call's deadline on the clock's NowNs line; store::kNoDeadline: none. grpc++ still runs the
// handler of a call that is past its deadline, and deadline() overflows for far ones: this reads
// the raw one.
int64_t DeadlineNs(const ::grpc::CallbackServerContext& context, const common::Clock& clock);

// The counters of one method of this transport, for calls of any shape.
class MethodMeter {
 public:
  MethodMeter(common::Metrics& metrics, const common::Clock& clock, const std::string& method)
      : metrics_(metrics),
        clock_(clock),
        method_(metrics.AddMethod(method)),
        transport_(metrics.AddTransport("grpc")) {}

  // A call came. Returns what Finish is told.
  int64_t Start() {
    metrics_.Local().OfTransport(transport_).streams_accepted.Add(1);
    return clock_.NowNs();
  }
  void Received(uint64_t bytes) {
    common::MethodCounters& counters = metrics_.Local().OfMethod(method_);
    counters.messages_received.Add(1);
    counters.bytes_received.Add(bytes);
  }
  void Sent(uint64_t bytes) {
    common::MethodCounters& counters = metrics_.Local().OfMethod(method_);
    counters.messages_sent.Add(1);
    counters.bytes_sent.Add(bytes);
  }
  void Finish(int64_t started_ns, absl::StatusCode code) {
    common::Metrics::Shard& shard = metrics_.Local();
    shard.OfTransport(transport_).streams_closed.Add(1);
    shard.OfMethod(method_).Finish(static_cast<int>(code),
                                   static_cast<uint64_t>(clock_.NowNs() - started_ns));
  }

 private:
  common::Metrics& metrics_;
  const common::Clock& clock_;
  const uint32_t method_;
  const uint32_t transport_;
};

}  // namespace sluice::transport

#endif  // SLUICE_SERVER_TRANSPORT_GRPC_CALL_CONTEXT_H_
