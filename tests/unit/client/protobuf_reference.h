// The reference for the client's codec: converts its plain values to protobuf's objects and back.
#ifndef SLUICE_TESTS_UNIT_CLIENT_PROTOBUF_REFERENCE_H_
#define SLUICE_TESTS_UNIT_CLIENT_PROTOBUF_REFERENCE_H_

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "sluice/connection.h"
#include "sluice/decision.h"
#include "sluice/v1/rate_limiter.pb.h"

namespace sluice::protobuf_reference {

std::chrono::nanoseconds FromWire(const google::protobuf::Duration& duration);
void ToWire(std::chrono::nanoseconds time, google::protobuf::Duration* wire);

void ToWire(const Acquisition& acquisition, v1::AcquireRequest* wire);
void ToWire(std::span<const Acquisition> batch, v1::AcquireBatchRequest* wire);

void ToWire(const Settlement& settlement, v1::SettleRequest* wire);

// These move strings out of the message.
Decision FromWire(v1::AcquireResponse* wire);
BatchDecisions FromWire(v1::AcquireBatchResponse* wire);
std::vector<BucketStatus> FromWire(v1::QueryResponse* wire);
RefundResult FromWire(v1::RefundResponse* wire);
std::vector<Renewal> FromWire(v1::RenewResponse* wire);
SettleResult FromWire(v1::SettleResponse* wire);
BatchSettlements FromWire(v1::SettleBatchResponse* wire);
Status FromWire(const v1::Error& wire);

}  // namespace sluice::protobuf_reference

#endif  // SLUICE_TESTS_UNIT_CLIENT_PROTOBUF_REFERENCE_H_
