// DescriptorTest: Envoy's rate-limit service on a memory store and a fake clock.
#ifndef SLUICE_TESTS_UNIT_TRANSPORT_ENVOY_FIXTURE_H_
#define SLUICE_TESTS_UNIT_TRANSPORT_ENVOY_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/envoy/limit_specs.h"
#include "server/envoy/matcher.h"
#include "server/transport/envoy/rate_limit_service.h"
#include "tests/unit/service/fixture.h"

namespace sluice::transport {

// A descriptor of a request.
struct Asked {
  std::vector<std::pair<const char*, const char*>> entries;
  int64_t hits = -1;  // negative: absent
  bool negative = false;
  // requests_per_unit 0: no limit
  uint32_t requests_per_unit = 0;
  int32_t unit = 0;
  uint32_t unit_multiplier = 0;  // 0: absent
};

// A configured descriptor without children.
inline envoy::Descriptor Configured(std::string key, std::string value, uint32_t requests_per_unit,
                                    envoy::Unit unit = envoy::Unit::kMinute) {
  envoy::Descriptor descriptor;
  descriptor.key = std::move(key);
  descriptor.value = std::move(value);
  descriptor.rate_limit.emplace();
  descriptor.rate_limit->requests_per_unit = requests_per_unit;
  descriptor.rate_limit->unit = unit;
  return descriptor;
}

class DescriptorTest : public service::ServiceTest {
 protected:
  using Method = DescriptorCall::Method;

  void Configure(std::vector<envoy::Descriptor> descriptors, envoy::Counting counting = {}) {
    envoy::DescriptorTree tree;
    tree.sources = {"test"};
    tree.domains.push_back({.name = "d", .descriptors = std::move(descriptors)});
    envoy::Overrides overrides;
    overrides.all = counting;
    auto matcher = std::make_shared<const envoy::Matcher>(tree, overrides);
    const auto applied =
        registry_.ApplyEnvoy(envoy::MakeSpecs(*matcher), std::to_string(++version_), matcher);
    ASSERT_TRUE(applied.ok()) << applied.status();
  }

  static constexpr int kBookings = 20'000;
  // Configures "f": "x" and "g": "y". The bucket of the first has bookings whose grant times have
  // passed, more than a slice's worth.
  void ConfigureWithPassedBookings() {
    Configure({Configured("f", "x", kBookings, envoy::Unit::kSecond),
               Configured("g", "y", 10, envoy::Unit::kDay)});
    BookAndLetPass();
  }
  void BookAndLetPass() {
    Ask({{{{"f", "x"}}}}, kBookings);
    for (int i = 0; i < kBookings; ++i) {
      ASSERT_TRUE(Acquire("d//f:x", "", 1, {.max_wait = {2, 0}}).granted);
    }
    clock_.Advance(3 * service::kSecond);
  }

  // Replaces the limiter by a new one, whose counters are empty.
  void Use(DescriptorOptions options) {
    limiter_of_descriptors_ = std::make_unique<DescriptorLimiter>(
        service::Collaborators{registry_, store_, clock_, metrics_, usage_, signer_},
        std::move(options));
  }

  DescriptorLimiter& limiter() {
    if (limiter_of_descriptors_ == nullptr) Use({});
    return *limiter_of_descriptors_;
  }

  void Fill(const std::vector<Asked>& asked, uint32_t hits_addend, const char* domain) {
    RateLimitRequest& request = descriptors_.request();
    request.domain = domain;
    request.hits_addend = hits_addend;
    for (const Asked& from : asked) {
      RequestedDescriptor& to = request.descriptors.emplace_back();
      to.first_entry = static_cast<uint32_t>(request.entries.size());
      to.entries = static_cast<uint32_t>(from.entries.size());
      for (const auto& [key, value] : from.entries) request.entries.push_back({key, value});
      to.has_hits = from.hits >= 0;
      to.hits = to.has_hits ? static_cast<uint64_t>(from.hits) : 0;
      to.negative_hits = from.negative;
      to.has_limit = from.unit != 0 || from.requests_per_unit != 0;
      to.limit = {.requests_per_unit = from.requests_per_unit,
                  .unit_multiplier = from.unit_multiplier,
                  .has_multiplier = from.unit_multiplier != 0,
                  .unit = from.unit};
    }
  }

  // Decides the request, which must complete at once, or in slices. The text shows each status: its
  // code (O: OK, X: over the limit) and what remains; "-": no limit, "*": unlimited. Then the
  // overall code.
  std::string Ask(const std::vector<Asked>& asked, uint32_t hits_addend = 0,
                  Method method = Method::kShouldRateLimit, const char* domain = "d") {
    descriptors_.Reset(method);
    Fill(asked, hits_addend, domain);
    if (sliced_) descriptors_.DecideInSlices();
    int done = 0;
    limiter().Decide(
        &descriptors_, deadline_ns_,
        [](void* context, DescriptorCall*) { ++*static_cast<int*>(context); }, &done);
    for (slices_ = 1; descriptors_.more(); ++slices_) {
      if (between_slices_) between_slices_();
      limiter().Continue(&descriptors_);
    }
    EXPECT_EQ(done, slices_);
    if (!descriptors_.status().ok()) return descriptors_.status().ToString();
    std::string text;
    for (const DescriptorStatus& status : descriptors_.statuses()) {
      if (status.limit == DescriptorStatus::Limit::kNone) {
        text += "- ";
      } else if (status.limit == DescriptorStatus::Limit::kUnlimited) {
        text += "* ";
      } else {
        text += (status.code() == Code::kOverLimit ? "X" : "O") + std::to_string(status.remaining) +
                " ";
      }
    }
    return text + (OverallCode(descriptors_.statuses()) == Code::kOverLimit ? "OVER" : "OK");
  }

  DescriptorCall descriptors_;
  bool sliced_ = false;
  int64_t deadline_ns_ = store::kNoDeadline;
  std::function<void()> between_slices_;
  int slices_ = 0;  // of the last request

 private:
  std::unique_ptr<DescriptorLimiter> limiter_of_descriptors_;
};

}  // namespace sluice::transport

#endif  // SLUICE_TESTS_UNIT_TRANSPORT_ENVOY_FIXTURE_H_
