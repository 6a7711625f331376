// RecordingStore: a store that records the registered rules and does nothing else.
#ifndef SLUICE_TESTS_UNIT_LIMITS_RECORDING_STORE_H_
#define SLUICE_TESTS_UNIT_LIMITS_RECORDING_STORE_H_

#include <memory>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "server/store/store.h"

namespace sluice::limits {

// Thread-safe.
class RecordingStore final : public store::Store {
 public:
  std::string_view Kind() const override { return "recording"; }
  void Register(std::shared_ptr<const store::Rule> rule) override {
    common::MutexLock lock(&mu_);
    rules_.push_back(std::move(rule));
  }
  void Acquire(store::AcquireOperation*) override {}
  void Query(store::QueryOperation*) override {}
  void Refund(store::RefundOperation*) override {}
  void Reset(const store::Rule&, std::string_view, ResetDone, void*) override {}
  store::StoreStats Stats() const override { return {}; }
  uint64_t MaxBytesPerKey(const algorithm::Parameters& parameters,
                          uint64_t /*max_owed*/) const override {
    return parameters.kind == algorithm::Kind::kTokenBucket ? 100 : 1000;
  }
  uint64_t ReservableBytes() const override { return reservable_bytes; }
  uint64_t reservable_bytes = 0;

  std::vector<std::shared_ptr<const store::Rule>> rules() const {
    common::MutexLock lock(&mu_);
    return rules_;
  }
  bool Has(const store::Rule& rule) const {
    common::MutexLock lock(&mu_);
    for (const auto& registered : rules_) {
      if (registered.get() == &rule) return true;
    }
    return false;
  }

 private:
  mutable common::Mutex mu_;
  std::vector<std::shared_ptr<const store::Rule>> rules_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::limits

#endif  // SLUICE_TESTS_UNIT_LIMITS_RECORDING_STORE_H_
