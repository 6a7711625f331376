// ClusterPrimary: one primary of a Redis Cluster, with its endpoint and its fence (fence_check.h),
// which is in the primary's highest slot at the time. Reads the floors of slots that come to it.
//
// Belongs to its loop.
#ifndef SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_PRIMARY_H_
#define SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_PRIMARY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/net/address.h"
#include "common/net/event_loop.h"
#include "server/store/redis/connection/endpoint.h"
#include "server/store/redis/fencing/fence_check.h"
#include "server/store/redis/topology/slot_table.h"

namespace sluice::store::redis {

class ClusterPrimary final : public FenceCheck {
 public:
  // The Cluster that it is part of. Called on the loop.
  class Cluster {
   public:
    virtual void OnPrimaryAvailable() = 0;
    virtual void OnPrimaryUnavailable(ClusterPrimary& primary) = 0;
    // An attempt to connect failed.
    virtual void OnPrimaryFailed() = 0;
    // A slot has left a primary.
    virtual void OnSlotLeft() = 0;
    // Another known primary has this identity.
    virtual bool IsOfAnother(const ClusterPrimary& primary, const std::string& identity) const = 0;

   protected:
    ~Cluster() = default;
  };

  // All outlive it. `options` name this primary's address.
  ClusterPrimary(const Context& context, const EndpointOptions& options, SlotTable& slots,
                 Cluster& cluster)
      : FenceCheck(context, options), context_(context), slots_(slots), cluster_(cluster) {
    Use();
  }

  bool unavailable() const { return endpoint().unavailable(); }
  const net::Address& address() const { return endpoint().address(); }

  // It answered CLUSTERDOWN: for a moment it gets no commands.
  void OnDown(std::string_view why);
  bool down() const { return down_until_ns_ > context_.loop.now_ns(); }

  // It has a slot, or is sent something.
  void Use() { used_ns_ = context_.loop.now_ns(); }
  // Neither was the case for long, and nothing is in flight.
  bool unused() const;

  // The first attempt to connect has ended, in service or in failure().
  bool resolved() const { return resolved_; }
  // Of the last attempt to connect.
  const absl::Status& failure() const { return failure_; }

 private:
  void OnAvailable() override;
  void OnUnavailable() override { cluster_.OnPrimaryUnavailable(*this); }
  void OnFailed(const absl::Status& why) override;
  std::vector<std::string> FenceKeys() const override;
  bool HasReplicas() const override { return slots_.HasReplicas(address()); }
  bool IsOfAnother(const std::string& identity) const override {
    return cluster_.IsOfAnother(*this, identity);
  }
  std::vector<std::string> FloorKeys(bool unread) const override;
  void OnFloors(absl::Span<const std::string> keys, absl::Span<const Reply> floors) override;
  void OnSlotUnavailable() override { cluster_.OnSlotLeft(); }

  const std::string& name_space() const { return context_.options.name_space; }

  const Context context_;
  SlotTable& slots_;
  Cluster& cluster_;
  absl::Status failure_;
  bool resolved_ = false;
  int64_t used_ns_ = 0;
  int64_t down_until_ns_ = 0;
  int64_t log_down_from_ns_ = 0;
};

}  // namespace sluice::store::redis

#endif  // SLUICE_SERVER_STORE_REDIS_TOPOLOGY_CLUSTER_PRIMARY_H_
